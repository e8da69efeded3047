//! How instances end early, as a definition says it.

use crate::kernel::expr::Expr;

/// Ends the instance early and successfully.
#[derive(Debug)]
pub struct Complete {
    /// The word for how it ended.
    pub outcome: String,
    /// False: it goes on. Absent: it always ends.
    pub when: Option<Expr>,
}
