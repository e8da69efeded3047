//! Findings about a definition or configuration file, with place and code.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

/// One finding. Every code has a page under docs/errors/.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// `SR####`.
    pub code: &'static str,
    pub severity: Severity,
    /// The file as the user named it.
    pub file: String,
    /// 1-based; 0 where the whole file is meant.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    /// Byte range in the text of the file, for the excerpt.
    pub span: Range<usize>,
    pub message: String,
    pub help: Option<String>,
}

impl fmt::Display for Diagnostic {
    /// `sagas/order.yaml:14:9: unknown effect "chrage"; did you mean "charge"? [SR0102]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message)?,
            line => write!(f, "{}:{line}:{}: {}", self.file, self.column, self.message)?,
        }
        if let Some(help) = &self.help {
            write!(f, "; {help}")?;
        }
        write!(f, " [{}]", self.code)
    }
}
