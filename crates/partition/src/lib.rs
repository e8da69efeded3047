//! KEEPS. The state of one partition, whatever store it lies in.

pub mod storage;
