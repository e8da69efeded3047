//! Inputs that wait: why each of them does, and how many there are of an instance.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::Input;
use saga_runner_kernel::view::instance_status::InboxStatus;
use serde::{Deserialize, Serialize};

use super::encode;

/// Why an input waits in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// The state of the machine defers it.
    Deferred,
    /// An earlier input of the instance is in the dead letters.
    Blocked,
    /// The definition that the instance runs under is not there.
    Unversioned,
    /// There is no instance yet.
    Early {
        /// When it waits no longer; a timer of the name [`early_timer`] is due then.
        until: TimeMs,
    },
    /// A timer: aliases of the instance are asked whether they have forwarded all events of before.
    Asked {
        due: TimeMs,
        /// As for an early one.
        until: TimeMs,
        /// A bit for each that has not answered.
        open: u64,
        /// One of them could not read its streams that far.
        late: bool,
    },
    /// It was stored later than such a timer was due.
    Behind,
    /// An operator has paused the instance.
    Paused,
}

impl WaitReason {
    /// Whether what came later waits behind it.
    #[must_use]
    pub const fn is_blocking(self) -> bool {
        match self {
            Self::Blocked | Self::Unversioned => true,
            Self::Deferred | Self::Early { .. } | Self::Asked { .. } | Self::Behind | Self::Paused => false,
        }
    }

    /// Whether it is a timer that waits for an answer.
    #[must_use]
    pub const fn asks(self) -> bool {
        matches!(self, Self::Asked { .. })
    }

    /// Whether it is given again in the order in which it came, once nothing is in its way.
    #[must_use]
    pub const fn is_in_order(self) -> bool {
        self.is_blocking() || matches!(self, Self::Behind)
    }
}

/// What the names of timers begin with at which an input waits no longer for its instance; no saga can give a timer
/// such a name.
const EARLY_TIMER: &str = "early/";

/// Name of the timer at which the input of this number waits no longer.
#[must_use]
pub fn early_timer(number: u64) -> String {
    format!("{EARLY_TIMER}{number}")
}

/// The number in a name that [`early_timer`] gave.
#[must_use]
pub fn early_number(timer: &str) -> Option<u64> {
    timer.strip_prefix(EARLY_TIMER)?.parse().ok()
}

/// An input that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxRow {
    pub reason: WaitReason,
    pub input: Input,
}

/// Encodes an inbox row without a copy of its input.
#[must_use]
pub fn encode_waiting(reason: WaitReason, input: &Input) -> Vec<u8> {
    #[derive(Serialize)]
    struct Row<'a> {
        reason: WaitReason,
        input: &'a Input,
    }
    encode(&Row { reason, input })
}

/// Marks an instance whose inputs wait behind a dead letter. It stands in the inbox before them, at number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedRow {
    pub dead_letter: u64,
}

/// What waits for an instance, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The dead letter that stands in the way.
    pub behind: Option<u64>,
    /// Inputs that wait because of it, or did when they came.
    pub blocked: u32,
    /// Inputs that the present machine state defers.
    pub deferred: u32,
    /// Inputs that came while the instance was paused.
    pub paused: u32,
    /// Inputs that came while the definition of the instance was not there.
    pub unversioned: u32,
    /// Inputs that wait for the instance to begin.
    pub early: u32,
    /// Timers that wait for an answer of aliases.
    pub asked: u32,
    /// Inputs behind them.
    pub later: u32,
    /// When the first of these timers was due.
    pub asks: Option<TimeMs>,
    /// Encoded size of all of them.
    pub bytes: usize,
}

impl Waiting {
    /// Whether the next input has to wait, too.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.behind.is_some() || self.blocked > 0 || self.unversioned > 0
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        !self.is_blocked()
            && self.deferred == 0
            && self.paused == 0
            && self.early == 0
            && self.asked == 0
            && self.later == 0
    }

    /// What of it an instance is listed by.
    #[must_use]
    pub const fn inbox_status(&self) -> InboxStatus {
        InboxStatus {
            dead_letter: self.behind.is_some(),
            definition: self.unversioned > 0,
        }
    }

    /// Number of inputs.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.blocked as usize
            + self.deferred as usize
            + self.paused as usize
            + self.unversioned as usize
            + self.early as usize
            + self.asked as usize
            + self.later as usize
    }

    pub fn add(&mut self, reason: WaitReason, bytes: usize) {
        let count = self.count(reason);
        *count = count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if let WaitReason::Asked { due, .. } = reason {
            self.asks = Some(self.asks.map_or(due, |asks| asks.min(due)));
        }
    }

    pub fn remove(&mut self, reason: WaitReason, bytes: usize) {
        let count = self.count(reason);
        *count = count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.asked == 0 {
            self.asks = None;
        }
    }

    const fn count(&mut self, reason: WaitReason) -> &mut u32 {
        match reason {
            WaitReason::Deferred => &mut self.deferred,
            WaitReason::Blocked => &mut self.blocked,
            WaitReason::Unversioned => &mut self.unversioned,
            WaitReason::Early { .. } => &mut self.early,
            WaitReason::Asked { .. } => &mut self.asked,
            WaitReason::Behind => &mut self.later,
            WaitReason::Paused => &mut self.paused,
        }
    }
}
