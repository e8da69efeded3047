//! One partition: what it keeps, whatever store that lies in, and what it decides.

pub mod machine;
pub mod storage;
