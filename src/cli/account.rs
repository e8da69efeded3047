//! Who asks for a change, and why: the flags of commands whose requests have nothing else to say.

use clap::Args;
use serde_json::{Value, json};

/// Kept in the audit.
#[derive(Debug, Clone, Args)]
pub struct AccountArguments {
    /// Name of the operator, kept in the audit.
    #[arg(long, env = "USER", value_name = "NAME", default_value = "")]
    by: String,
    /// Reason, kept in the audit.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl AccountArguments {
    /// The body of such a request.
    pub fn body(&self) -> Value {
        json!({"by": self.by, "reason": self.reason})
    }
}
