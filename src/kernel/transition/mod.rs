//! The transition: `(definition, record, input) -> patch`.

use super::definition::Definition;
use super::ids::InstanceId;
use super::input::Input;
use super::limits::Limits;
use super::patch::Patch;
use super::record::Record;

/// What a transition may know besides definition, record and input.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub limits: &'a Limits,
    /// The shard's log sequence of this input: names the rows that the patch adds.
    pub log_sequence: u64,
    /// Generation that a new instance gets: 1, or one more than the tombstone's.
    pub generation: u32,
}

/// Why an input cannot be applied: it goes to the dead letters with [`Rejection::reason`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    /// Stable reason code, e.g. `expression`, `fuel`, `state.size`, `work.count`, `timer.range`.
    pub reason: &'static str,
    /// What failed, with the place in the definition.
    pub message: String,
}

/// Applies `input` to the instance.
///
/// # Errors
/// [`Rejection`] where an expression fails or a limit is passed; nothing has changed then.
pub fn apply(
    _definition: &Definition,
    _instance: &InstanceId,
    _record: Option<&Record>,
    _input: &Input,
    _context: &Context<'_>,
) -> Result<Patch, Rejection> {
    todo!()
}
