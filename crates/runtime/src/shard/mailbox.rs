//! What goes into a shard and what comes out.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use saga_runner_partition::machine::held::may_be_discarded;
pub use saga_runner_partition::machine::message::{
    Applied, Arrival, Delivery, LetterDecision, LetterOrder, Refused, Unreadable,
};
use saga_runner_partition::storage::rows::{AcceptedRow, PositionRow};
pub use saga_runner_partition::storage::rows::{HaltRow, Stamp};
use tokio::sync::{oneshot, watch};

use crate::kernel::definition::DefinitionSet;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::{DefinitionHash, InstanceId};
use crate::kernel::ids::{SagaName, TenantId, TimeMs};
use crate::kernel::input::{SourceStream, WorkResult};
use crate::kernel::work::{WorkItem, WorkRef};

/// Mail for a shard, in the order of the mailbox.
#[derive(Debug)]
pub enum Mail {
    Delivery(Delivery),
    /// Everything that `stream` held at `as_of` has been put into this mailbox before this mail.
    Barrier {
        stream: SourceStream,
        as_of: TimeMs,
    },
    /// A reader of `stream` was opened: what comes next may have been stored long ago. `again`: it had brought something
    /// before.
    Opened {
        stream: SourceStream,
        again: bool,
    },
    /// A result that did not come by a stream: the gateway's verdict, or one that the sweeper found.
    Verdict(Verdict),
    /// An instance is to migrate to another version; `id` names the request.
    Migrate {
        instance: InstanceId,
        to: DefinitionHash,
        /// It is the version that it came from.
        back: bool,
        id: String,
    },
    /// The relay delivered these rows, for which nobody waits: delete them.
    Delivered(Vec<WorkRef>),
    /// The archive has the ended instances of these numbers: delete them.
    Archived {
        numbers: Vec<u64>,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The call of this row begins as soon as the answer says that this is durable. An error: it must not.
    CallBegins {
        row: WorkRef,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The call of this row was not made after all, or is known to have done nothing.
    NotCalled(WorkRef),
    /// The relay has room again and asks for the rows after `after`.
    Refill {
        after: Option<WorkRef>,
        limit: usize,
        reply: oneshot::Sender<Vec<(WorkRef, WorkItem)>>,
    },
    /// An operator's decision on a dead letter.
    DeadLetter {
        tenant: TenantId,
        number: u64,
        order: LetterOrder,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// An operator pauses the schedule of a saga, or lets it go on.
    PauseSchedule {
        tenant: TenantId,
        saga: SagaName,
        paused: bool,
        principal: Principal,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The reader of a stream has found that it cannot be read on without loss. It is kept, so that no later life of the shard
    /// reads on either.
    StreamHalted {
        stream: SourceStream,
        halt: HaltRow,
    },
    /// An operator decides about what the shard holds back.
    Held {
        decision: HeldDecision,
        reason: String,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// An operator has decided from where on a stream is to be read. Taken by a shard that is halted because of its streams,
    /// too, which then goes on.
    Reposition(Box<Reposition>),
    /// Commit what came before this mail, then work under these definitions.
    Activate {
        definitions: Arc<DefinitionSet>,
        /// Revision of the active ones.
        revision: u64,
        /// Deliveries that say so, or a higher number, were routed by these definitions.
        routed_by: u64,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// Commit what came before this mail, then stop the thread.
    Stop,
}

/// What happens to what a shard holds back that goes on from an adopted state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldDecision {
    /// All of it is sent.
    Release,
    /// These rows are not.
    Discard(Vec<WorkRef>),
}

/// Where a shard is to read a stream on.
#[derive(Debug)]
pub struct Reposition {
    pub stream: SourceStream,
    /// The position that the operator has decided about: with another one nothing is done.
    pub expected: u64,
    pub to: PositionRow,
    pub accepted: AcceptedRow,
    pub reply: oneshot::Sender<Result<(), Refused>>,
}

/// An outcome that the shard's own relay or sweeper reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub instance: InstanceId,
    pub result: WorkResult,
    pub time: TimeMs,
    /// The result as a message, where it has not been published yet: it becomes a row of the outbox in the
    /// commit that applies the result.
    pub publish: Option<Box<WorkItem>>,
}

/// What one commit made true, in the order of commits.
#[derive(Debug)]
pub struct Released {
    pub shard: u16,
    /// New outbox rows.
    pub work: Vec<(WorkRef, WorkItem)>,
    /// Rows that left the outbox because their result was applied.
    pub completed: Vec<WorkRef>,
    /// Rows that were handed over long ago and are still there, without a result or without the news of their
    /// delivery: the sweeper checks them.
    pub overdue: Vec<(WorkRef, WorkItem)>,
}

/// What a shard asks of the intake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A timer is due: send a [`Mail::Barrier`] for every source stream.
    BarrierWanted { shard: u16 },
    /// A delivery began above the position: feed this stream again from behind `position`.
    Gap {
        shard: u16,
        stream: SourceStream,
        position: u64,
    },
}

/// Whether a shard wants no more of a stream for now, although its mailbox has room: it has got further there than in the
/// others.
#[derive(Debug)]
pub struct Gates([watch::Sender<bool>; 3]);

impl Default for Gates {
    fn default() -> Self {
        Self(std::array::from_fn(|_| watch::Sender::new(false)))
    }
}

impl Gates {
    #[must_use]
    pub fn is_closed(&self, stream: SourceStream) -> bool {
        *self.0[stream.index()].borrow()
    }

    /// Waits until it is open.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn open(&self, stream: SourceStream) {
        let mut told = self.0[stream.index()].subscribe();
        // An error: there is no sender any more, and this is one.
        drop(told.wait_for(|closed| !closed).await);
    }

    pub fn set_closed(&self, stream: SourceStream, closed: bool) {
        self.0[stream.index()].send_if_modified(|is_closed| std::mem::replace(is_closed, closed) != closed);
    }
}

/// Rows up to and including which the relay has handed everything over; the shard stores it with its next
/// batch, and after a restart the relay begins behind it. Encoded `log_sequence << 16 | index`. Besides, the rows whose calls
/// it has begun, which the shard marks where it ends before they are completed.
#[derive(Debug, Default)]
pub struct Relayed {
    pub floor: AtomicU64,
    called: Mutex<BTreeSet<WorkRef>>,
}

impl Relayed {
    /// The call of this row begins.
    pub fn calls(&self, row: WorkRef) {
        self.lock().insert(row);
    }

    /// These rows are completed, or were not called, or what is known of their calls stands beside their commands.
    pub fn forget(&self, rows: &[WorkRef]) {
        if rows.is_empty() {
            return;
        }
        let mut called = self.lock();
        for row in rows {
            called.remove(row);
        }
    }

    /// The rows whose calls were begun, and that are not forgotten.
    #[must_use]
    pub fn called(&self) -> BTreeSet<WorkRef> {
        self.lock().clone()
    }

    /// Whether the call of this row was begun, and is not forgotten.
    #[must_use]
    pub fn has_called(&self, row: WorkRef) -> bool {
        self.lock().contains(&row)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<WorkRef>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `row` was handed over as of `floor`, the position of a row.
    #[must_use]
    pub const fn covers(floor: u64, row: WorkRef) -> bool {
        row.position() <= floor
    }
}
