//! Mail on its way into a commit.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use saga_runner_partition::machine::catch_up::InOrder;
use saga_runner_partition::machine::message::Order;
use saga_runner_partition::machine::progress::bytes_of;

use super::mailbox::{Applied, Arrival, Delivery, HeldDecision, LetterOrder, Refused, Reposition, Verdict};
use crate::kernel::definition::DefinitionSet;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use crate::kernel::input::{Input, InputBody, Origin};
use crate::kernel::work::{WorkItem, WorkRef};

/// One thing that a commit applies as a whole.
#[derive(Debug)]
pub(super) enum Item {
    /// In stored order, where that says how.
    Delivery(Delivery, Option<InOrder>),
    /// An input of this process, and the message that becomes a row with it.
    Verdict(Box<(Input, Option<Box<WorkItem>>)>),
    Delivered(Vec<WorkRef>),
    CallBegins {
        row: WorkRef,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    NotCalled(WorkRef),
    /// The archive has these.
    Archived {
        numbers: Vec<u64>,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    Decision {
        tenant: TenantId,
        number: u64,
        order: LetterOrder,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The definition of this instance is there again.
    Resume(InstanceId),
    /// The same, for the first input that waits for it.
    ResumeFirst(InstanceId),
    /// Other definitions are in force: bring the schedules in line with them, then answer who changed them.
    Schedules(Option<oneshot::Sender<Result<(), Refused>>>),
    /// An operator pauses the schedule of a saga, or lets it go on.
    Pause {
        tenant: TenantId,
        saga: SagaName,
        paused: bool,
        principal: Principal,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The streams of an adopted state are read to their ends.
    CaughtUp,
    /// An operator decides about what the shard holds back.
    Held {
        decision: HeldDecision,
        reason: String,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
}

impl Item {
    /// Whether somebody waits for its commit. Watermarks and deletions can wait for company.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Delivery(delivery, _) => !delivery.inputs.is_empty(),
            Self::Verdict(_)
            | Self::CallBegins { .. }
            | Self::Decision { .. }
            | Self::Resume(_)
            | Self::ResumeFirst(_)
            | Self::Schedules(_)
            | Self::Pause { .. }
            | Self::CaughtUp
            | Self::Archived { .. }
            | Self::Held { .. } => true,
            Self::Delivered(_) | Self::NotCalled(_) => false,
        }
    }

    /// What the partition is told by it.
    pub fn order(&self) -> Order<'_> {
        match self {
            Self::Delivery(delivery, None) => Order::Delivery(delivery),
            Self::Delivery(delivery, Some(in_order)) => Order::InOrder(delivery, *in_order),
            Self::Verdict(verdict) => Order::Local(&verdict.0, verdict.1.as_deref()),
            Self::Delivered(rows) => Order::Delivered(rows),
            Self::CallBegins { row, .. } => Order::CallBegins(*row),
            Self::NotCalled(row) => Order::NotCalled(*row),
            Self::Archived { numbers, .. } => Order::Archived(numbers),
            Self::Decision {
                tenant,
                number,
                order,
                ..
            } => Order::Decision {
                tenant,
                number: *number,
                order,
            },
            Self::Resume(instance) => Order::Resume {
                instance,
                at_most: usize::MAX,
            },
            Self::ResumeFirst(instance) => Order::Resume { instance, at_most: 1 },
            Self::Schedules(_) => Order::Schedules,
            Self::Pause {
                tenant,
                saga,
                paused,
                principal,
                ..
            } => Order::Pause {
                tenant,
                saga,
                paused: *paused,
                principal,
            },
            Self::CaughtUp => Order::CaughtUp,
            Self::Held {
                decision: HeldDecision::Release,
                reason,
                ..
            } => Order::Release { reason },
            Self::Held {
                decision: HeldDecision::Discard(rows),
                reason,
                ..
            } => Order::Discard { rows, reason },
        }
    }

    /// Answers whoever asked; that may have gone.
    pub fn answer(self, answer: Option<Result<(), Refused>>) {
        let reply = match self {
            Self::CallBegins { reply, .. }
            | Self::Decision { reply, .. }
            | Self::Pause { reply, .. }
            | Self::Archived { reply, .. }
            | Self::Held { reply, .. }
            | Self::Schedules(Some(reply)) => reply,
            Self::Schedules(None)
            | Self::CaughtUp
            | Self::Delivery(..)
            | Self::Verdict(_)
            | Self::Delivered(_)
            | Self::NotCalled(_)
            | Self::Resume(_)
            | Self::ResumeFirst(_) => return,
        };
        let _gone = reply.send(answer.unwrap_or(Ok(())));
    }

    /// What a reader has brought, if it is that.
    pub fn delivery(&self) -> Option<&Delivery> {
        match self {
            Self::Delivery(delivery, _) => Some(delivery),
            _ => None,
        }
    }

    /// The inputs that it brings.
    pub fn inputs(&self) -> Vec<&Input> {
        match self {
            Self::Delivery(delivery, _) => delivery
                .inputs
                .iter()
                .filter_map(|arrival| match arrival {
                    Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => Some(input),
                    Arrival::Unreadable(_) => None,
                })
                .collect(),
            Self::Verdict(verdict) => vec![&verdict.0],
            Self::Delivered(_)
            | Self::CallBegins { .. }
            | Self::NotCalled(_)
            | Self::Decision { .. }
            | Self::Resume(_)
            | Self::ResumeFirst(_)
            | Self::Schedules(_)
            | Self::Pause { .. }
            | Self::CaughtUp
            | Self::Archived { .. }
            | Self::Held { .. } => Vec::new(),
        }
    }
}

/// A request for rows of the outbox, answered behind the commit of what came before it.
#[derive(Debug)]
pub(super) struct Refill {
    pub after: Option<WorkRef>,
    pub limit: usize,
    pub reply: oneshot::Sender<Vec<(WorkRef, WorkItem)>>,
}

/// Definitions to work under from now on.
#[derive(Debug)]
pub(super) struct Activation {
    pub definitions: Arc<DefinitionSet>,
    pub revision: u64,
    pub routed_by: u64,
    /// `None`: whoever asked was told that it comes later.
    pub reply: Option<oneshot::Sender<Result<(), Refused>>>,
}

/// What was taken from the mailbox and is not yet committed.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub items: VecDeque<Item>,
    pub refills: Vec<Refill>,
    inputs: usize,
    bytes: usize,
    urgent: bool,
    /// What comes behind all of it; nothing more is taken then.
    pub activation: Option<Activation>,
    /// The same.
    pub reposition: Option<Box<Reposition>>,
    pub stop: bool,
}

impl Gathered {
    pub fn push(&mut self, item: Item) {
        self.urgent |= item.is_urgent();
        if let Item::Delivery(delivery, _) = &item {
            self.inputs += delivery.inputs.len();
            self.bytes += bytes_of(delivery);
        } else {
            self.inputs += 1;
        }
        self.items.push_back(item);
    }

    /// Whether a commit should take no more.
    pub fn is_full(&self, inputs_max: usize, bytes_max: usize) -> bool {
        self.activation.is_some()
            || self.reposition.is_some()
            || self.inputs >= inputs_max
            || self.bytes >= bytes_max
            || self.items.len() >= 2 * inputs_max
    }

    /// Whether there are inputs in stored order.
    pub fn has_in_order(&self) -> bool {
        let mut items = self.items.iter();
        items.any(|item| matches!(item, Item::Delivery(delivery, Some(_)) if !delivery.inputs.is_empty()))
    }

    /// Whether an instance goes on with what it waits with.
    pub fn resumes(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Resume(_)))
    }

    pub fn is_urgent(&self) -> bool {
        self.urgent
            || self.stop
            || self.activation.is_some()
            || self.reposition.is_some()
            || !self.refills.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
            && self.refills.is_empty()
            && self.activation.is_none()
            && self.reposition.is_none()
            && !self.stop
    }
}

/// A verdict as an input, by the owner's clock.
pub(super) fn verdict_input(verdict: Verdict, now: TimeMs) -> (Input, Option<Box<WorkItem>>) {
    let input = Input {
        id: verdict.result.command_id.to_string(),
        instance: verdict.instance,
        time: now,
        origin: Origin::Local,
        body: InputBody::Result(verdict.result),
    };
    (input, verdict.publish)
}
