//! Why an input is rejected as a whole.

/// Error class of a step whose next attempt an operator has given up by discarding its timer.
pub const TIMER_DISCARDED: &str = "timer.discarded";

/// Reason of an event or signal for which the buffer of its instance has no room.
pub const BUFFER_FULL: &str = "buffer.full";

/// Reason of an event whose handler would begin more effects than may be under way.
pub const WORK_PENDING: &str = "work.pending";

/// Reason of a start event whose instance runs, where the saga says that it fails.
pub const START_RUNNING: &str = "start.running";

/// Reason of an event whose version the definition does not take.
pub const EVENT_VERSION: &str = "event.version";

/// Reason of an event whose data do not fit the definition's schema.
pub const EVENT_SCHEMA: &str = "event.schema";

/// Reason of an event without an instance, where the saga wants to hear of those.
pub const NO_INSTANCE: &str = "no_instance";

/// Why an input cannot be applied: it goes to the dead letters with [`Rejection::reason`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    /// Stable reason code, e.g. `expression`, `fuel`, `state.size`, `work.count`, `timer.range`.
    pub reason: &'static str,
    /// What failed, with the place in the definition.
    pub message: String,
}

/// Reason where record, definition and input do not belong together: nothing that the definition says is to blame.
const MISMATCH: &str = "definition.mismatch";

impl Rejection {
    /// Whether the definition or the data is to blame, so that applying less may help.
    pub(super) fn is_of_content(&self) -> bool {
        self.reason != MISMATCH
    }

    /// Whether an expression failed, or made more than a message may hold.
    pub(super) fn is_of_rendering(&self) -> bool {
        ["expression", "fuel", "payload.syntax", "work.size"].contains(&self.reason)
    }

    /// Whether later inputs must not be applied before this one is decided on. What has no place in a bounded
    /// buffer, or beside work under way whose results would wait behind it, stands in nobody's way, nor does an event that is of no use to the instance's version: that would stop every
    /// instance of the version, with everything else that it waits for.
    #[must_use]
    pub fn parks(&self) -> bool {
        ![
            BUFFER_FULL,
            WORK_PENDING,
            START_RUNNING,
            NO_INSTANCE,
            EVENT_VERSION,
            EVENT_SCHEMA,
        ]
        .contains(&self.reason)
    }
}
