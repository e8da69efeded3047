//! Why an input becomes a dead letter.

use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::ids::DefinitionHash;
use saga_runner_kernel::input::{Input, InputBody, Owner};
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::transition::{NO_INSTANCE, Rejection};

use super::crash_isolation::PoisonInput;
use super::recording::kind_in_full;

const CRASH: &str = "poison.crash";

const PANIC: &str = "poison.panic";

pub(super) const OVERFLOW: &str = "inbox.overflow";

/// Whether an input was a dead letter for what it did to the process, which does not happen again where it is replayed.
#[must_use]
pub fn is_of_process(reason: &str) -> bool {
    matches!(reason, CRASH | PANIC)
}

/// Why an input becomes a dead letter.
#[derive(Debug)]
pub struct Fault {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether later inputs of the instance wait for an operator's decision.
    pub(super) parks: bool,
    /// Whether an unknown outcome is applied in the place of a result, instead of that.
    pub(super) completes: bool,
}

impl Fault {
    pub(super) fn crash(input: &Input, poison: PoisonInput) -> Self {
        let PoisonInput {
            attempts,
            in_place_too,
        } = poison;
        let what = match &input.body {
            InputBody::Result(_) if in_place_too => "this result, or an unknown outcome in its place",
            InputBody::Result(_) => "this result",
            InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_) => "this input",
        };
        Self {
            reason: CRASH,
            message: format!("the process died {attempts} times while it applied {what}"),
            parks: true,
            completes: !in_place_too,
        }
    }

    pub fn panic() -> Self {
        Self {
            reason: PANIC,
            message: "the transition panicked; please report it".to_owned(),
            parks: true,
            completes: true,
        }
    }

    pub(super) fn without_definition(definition: &DefinitionHash) -> Self {
        Self {
            reason: "definition.missing",
            message: format!("definition {definition} is not loaded"),
            parks: true,
            completes: false,
        }
    }

    /// What an operator is told where this prevents a decision.
    pub(super) fn told(self) -> String {
        let Self { reason, message, .. } = self;
        format!("what waits for it cannot be completed, so it stays: {reason}: {message}")
    }

    /// The first one stands, so nothing waits for a decision on this one.
    pub fn conflict(input: &Input) -> Self {
        let (reason, message) = match &input.body {
            InputBody::Result(result) => (
                "result.conflict",
                format!("command {} has another result already", result.command_id),
            ),
            InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_) => (
                "event_id.conflict",
                format!("{} came before under the same id, with other content", input.id),
            ),
        };
        Self {
            reason,
            message,
            parks: false,
            completes: false,
        }
    }

    /// So is the place for events whose instances have not begun.
    pub fn early(limits: &Limits) -> Self {
        Self {
            reason: OVERFLOW,
            message: format!(
                "more than {} inputs or {} bytes of this shard wait for instances to begin, or more than {} inputs or {} bytes for this one",
                limits.early_inputs, limits.early_bytes, limits.inbox_inputs, limits.inbox_bytes
            ),
            parks: false,
            completes: false,
        }
    }

    /// The instance continues without the alias, and is told so.
    pub fn alias_owners(alias: &Alias, owner: &Owner, max: usize) -> Self {
        Self {
            reason: "alias.owners",
            message: format!(
                "at most {max} instances have the alias {} {:?}; instance {} is not among them",
                alias.name, alias.value, owner.key
            ),
            parks: false,
            completes: false,
        }
    }

    pub fn alias_size(bytes: usize, max: usize) -> Self {
        Self {
            reason: "alias.size",
            message: format!(
                "the event has {bytes} bytes and would not fit into a message of {max} bytes with its address"
            ),
            parks: false,
            completes: false,
        }
    }

    /// As for an event without an instance.
    pub fn unmatched(alias: &Alias, input: &Input) -> Self {
        Self {
            reason: NO_INSTANCE,
            message: format!(
                "{}: no instance has the alias {} {:?}",
                kind_in_full(input),
                alias.name,
                alias.value
            ),
            parks: false,
            completes: false,
        }
    }

    /// The inbox is a bounded place; what does not fit is lost to it, but not to the operator.
    pub fn overflow(limits: &Limits) -> Self {
        Self {
            reason: OVERFLOW,
            message: format!(
                "more than {} inputs or {} bytes wait for this instance",
                limits.inbox_inputs, limits.inbox_bytes
            ),
            parks: false,
            completes: false,
        }
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        Self {
            parks: rejection.parks(),
            completes: true,
            reason: rejection.reason,
            message: rejection.message,
        }
    }
}
