//! The command line.

pub mod diagnostics;
