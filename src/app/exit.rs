//! Exit codes, after sysexits, and what a command line tool says when it fails.

use std::fmt;
use std::path::Path;

use super::diagnostics;

/// Findings in the definitions, or a check that failed.
pub const FINDINGS: u8 = 1;
/// The runner does not have what is asked for (404).
pub const NOT_FOUND: u8 = 4;
/// The command would change nothing, or cannot be carried out as things are (409).
pub const CONFLICT: u8 = 5;
/// What was waited for has not happened in time.
pub const NOT_IN_TIME: u8 = 6;
/// What was waited for will not happen: the instance has ended otherwise.
pub const ENDED_OTHERWISE: u8 = 7;
/// The command line is wrong.
pub const USAGE: u8 = 64;
/// The runner does not take the request as it is (400, 405, 410, 413, 415, 422).
pub const DATA: u8 = 65;
/// A file cannot be read.
pub const NO_INPUT: u8 = 66;
/// No runner or no broker answers, or it cannot do this now (502, 503, 504).
pub const UNAVAILABLE: u8 = 69;
/// Something that should work did not.
pub const SOFTWARE: u8 = 70;
/// A file cannot be written, or is there already.
pub const CANNOT_CREATE: u8 = 73;
/// Standard output cannot be written.
pub const IO: u8 = 74;
/// The runner refuses the request because of who asks or where it comes from (401, 403).
pub const NO_PERMISSION: u8 = 77;
/// The configuration, the definitions or the stored data do not let the runner start.
pub const CONFIG: u8 = 78;

/// Why a command failed: one line and an exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
    /// Findings with their excerpts, printed before the line.
    pub frames: String,
}

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            frames: String::new(),
        }
    }

    pub fn software(error: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, error)
    }

    /// A file that cannot be read.
    pub fn unread(path: &Path, why: impl fmt::Display) -> Self {
        Self::new(NO_INPUT, format_args!("{}: {why}", path.display()))
    }

    /// A file that cannot be written.
    pub fn unwritten(path: &Path, why: impl fmt::Display) -> Self {
        Self::new(CANNOT_CREATE, format_args!("{}: {why}", path.display()))
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
            crate::config::ConfigError::Wrong { .. }
            | crate::config::ConfigError::Tokens { .. }
            | crate::config::ConfigError::Jwt { .. }
            | crate::config::ConfigError::Tls { .. }
            | crate::config::ConfigError::UpstreamTls { .. }
            | crate::config::ConfigError::OpenToEverybody { .. }
            | crate::config::ConfigError::Secrets { .. } => CONFIG,
        };
        Self::new(code, error)
    }
}

impl From<crate::app::StartError> for Failure {
    fn from(error: crate::app::StartError) -> Self {
        let frames = match &error {
            crate::app::StartError::Definitions { findings, texts } => {
                let color = diagnostics::coloured(&std::io::stderr());
                diagnostics::render(findings, &|path| texts.get(path).cloned(), color)
            }
            _ => String::new(),
        };
        let code = match &error {
            crate::app::StartError::Unreached(_) => UNAVAILABLE,
            _ => CONFIG,
        };
        Self {
            frames,
            ..Self::new(code, error)
        }
    }
}
