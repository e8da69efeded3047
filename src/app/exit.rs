//! Exit codes, after sysexits, and what a command line tool says when it fails.

use std::fmt;

/// Findings in the definitions, or a check that failed.
pub const FINDINGS: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 64;
/// A file cannot be read.
pub const NO_INPUT: u8 = 66;
/// Something that should work did not.
pub const SOFTWARE: u8 = 70;
/// A file cannot be written, or is there already.
pub const CANNOT_CREATE: u8 = 73;
/// The configuration, the definitions or the stored data do not let the runner start.
pub const CONFIG: u8 = 78;

/// Why a command failed: one line and an exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    pub fn software(error: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        let code = match error {
            crate::config::ConfigError::Unreadable { .. } => NO_INPUT,
            _ => CONFIG,
        };
        Self::new(code, error)
    }
}

impl From<crate::app::StartError> for Failure {
    fn from(error: crate::app::StartError) -> Self {
        Self::new(CONFIG, error)
    }
}
