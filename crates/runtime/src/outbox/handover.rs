//! Handing one row over, as a future that the relay keeps in flight: whatever it takes, it ends in what the
//! shard has to know.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::backlog::{Destination, Row};
use super::publish::{Publisher, Sent};
use super::submitter::{Earlier, Submitted, Submitter, given_up};
use super::sweeper;
use crate::kernel::children::CHILD_REFUSED;
use crate::kernel::envelope::EffectProgress;
use crate::kernel::ids::{EffectName, InstanceId};
use crate::kernel::input::{WorkOutcome, WorkResult};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::shard::mailbox::Verdict;
use crate::telemetry::Metrics;

/// Class of a command that the gateway refuses.
const REJECTED: &str = "rejected";
/// Class of a command that no gateway has carried out before its deadline.
const UNAVAILABLE: &str = "gateway.unavailable";

/// How the handing over of one row ended.
pub struct Done {
    pub row: WorkRef,
    /// Where it went; the chain behind it may go on.
    pub destination: Destination,
    pub instance: InstanceId,
    pub verdict: Option<Verdict>,
    pub completion: Completion,
    pub outcome: &'static str,
    /// The broker does not take it, and nothing but its message tells of it: it stays in the outbox.
    pub refused: Option<Box<Refused>>,
}

/// What the delivery of a row completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// The row: nobody waits for a result, and the shard may delete it.
    Row,
    /// Nothing yet: the row stays until its result is applied.
    Nothing,
}

/// What the broker does not take now.
pub struct Refused {
    pub item: WorkItem,
    pub reason: String,
}

/// Hands a message to the broker; `progress` says what was done about an effect command before.
pub fn publish(
    publisher: Arc<Publisher>,
    metrics: Arc<Metrics>,
    (row, item): Row,
    progress: Option<EffectProgress>,
) -> BoxFuture<'static, Done> {
    async move {
        match &item.kind {
            WorkKind::Effect { effect, payload } => {
                publish_effect(&publisher, row, &item, (effect, payload), progress).await
            }
            WorkKind::Fact { fact_type, payload } => {
                let suppressed = || suppressed(&metrics, "fact");
                let sent = publisher.fact(row, &item, fact_type, payload, suppressed).await;
                delivered(row, item, sent)
            }
            WorkKind::Result { effect, body } => {
                let sent = publisher.result(&item, effect, body).await;
                delivered(row, item, sent)
            }
            WorkKind::Cancel { effect, command } => {
                let sent = publisher.cancel(&item, effect, *command).await;
                delivered(row, item, sent)
            }
            WorkKind::Saga {
                saga,
                key,
                message,
                awaited,
            } => {
                let suppressed = || suppressed(&metrics, "saga");
                let sent = publisher.saga(&item, saga, key, message, suppressed).await;
                if !*awaited {
                    return delivered(row, item, sent);
                }
                let verdict = match &sent {
                    Sent::Unsendable(reason) => {
                        let outcome = WorkOutcome::failed(CHILD_REFUSED, reason.clone());
                        Some(sweeper::of_saga(&item, outcome, publisher.clock.now()))
                    }
                    Sent::Stored | Sent::AlreadyThere | Sent::Answered => None,
                };
                done(row, &item, verdict, Completion::Nothing, outcome(&sent))
            }
            WorkKind::Command { .. } => done(row, &item, None, Completion::Nothing, "misrouted"),
        }
    }
    .boxed()
}

async fn publish_effect(
    publisher: &Publisher,
    row: WorkRef,
    item: &WorkItem,
    (effect, payload): (&EffectName, &[u8]),
    progress: Option<EffectProgress>,
) -> Done {
    // An earlier life may have sent it, and the broker may have lost that behind the result. A worker takes
    // what is young and comes for the first time for what nobody has had.
    let is_resumed = publisher.fence.is_resumed();
    if (is_resumed || publisher.is_of_earlier_life(row))
        && let Some(verdict) = publisher.found(item, effect).await
    {
        // A shard that goes on from what was adopted may have read it before it asked. Otherwise it comes by its
        // stream, where the first one of a command counts and not the last.
        let verdict = Some(verdict).filter(|_| is_resumed);
        return done(row, item, verdict, Completion::Nothing, "answered");
    }
    let sent = publisher.effect(item, effect, payload, progress).await;
    let verdict = match &sent {
        Sent::Unsendable(message) => {
            let now = publisher.clock.now();
            Some(sweeper::unsendable(item, effect, message.clone(), now))
        }
        Sent::Stored | Sent::AlreadyThere | Sent::Answered => None,
    };
    done(row, item, verdict, Completion::Nothing, outcome(&sent))
}

/// Counts a message id that others had used, so that the message goes under another one.
fn suppressed(metrics: &Metrics, destination: &str) {
    metrics
        .messages_relayed
        .with_label_values(&[destination, "suppressed"])
        .inc();
}

/// The end of a message for whose delivery nobody waits.
fn delivered(row: WorkRef, item: WorkItem, sent: Sent) -> Done {
    match sent {
        Sent::Unsendable(reason) => Done {
            destination: Destination::of(&item),
            instance: item.instance.clone(),
            row,
            verdict: None,
            completion: Completion::Nothing,
            outcome: "refused",
            refused: Some(Box::new(Refused { item, reason })),
        },
        sent => done(row, &item, None, Completion::Row, outcome(&sent)),
    }
}

const fn outcome(sent: &Sent) -> &'static str {
    match sent {
        Sent::Stored => "stored",
        Sent::AlreadyThere => "already_there",
        Sent::Answered => "answered",
        Sent::Unsendable(_) => "unsendable",
    }
}

/// Hands an aggregate command to the gateway.
pub fn submit(
    publisher: Arc<Publisher>,
    submitter: Option<Arc<Submitter>>,
    (row, item): Row,
    earlier: Earlier,
) -> BoxFuture<'static, Done> {
    async move {
        let ended = match &submitter {
            Some(submitter) => submitter.submit(&item, earlier, &publisher.fence).await,
            None => without_gateway(&publisher, &item, earlier).await,
        };
        let awaited = item.kind.awaits_result();
        let (outcome, label) = match ended {
            Submitted::Accepted if !awaited => {
                return done(row, &item, None, Completion::Row, "accepted");
            }
            Submitted::Accepted => {
                let payload = Bytes::from_static(b"{}");
                (WorkOutcome::Succeeded { payload }, "accepted")
            }
            Submitted::Rejected { message } => (rejected(message), "rejected"),
            Submitted::Unsendable { message } => (WorkOutcome::failed(REJECTED, message), "unsendable"),
            Submitted::Unavailable { message } => (WorkOutcome::failed(UNAVAILABLE, message), "unavailable"),
            Submitted::TimedOut { message } => (WorkOutcome::timed_out(message), "timed_out"),
        };
        let verdict = Verdict {
            instance: item.instance.clone(),
            result: WorkResult {
                command_id: item.command_id,
                effect: None,
                outcome,
            },
            time: publisher.clock.now(),
            publish: None,
        };
        let completion = if awaited {
            Completion::Nothing
        } else {
            Completion::Row
        };
        done(row, &item, Some(verdict), completion, label)
    }
    .boxed()
}

/// The gateway has refused the command: an attempt after it is another piece of work.
fn rejected(message: String) -> WorkOutcome {
    WorkOutcome::Failed {
        class: REJECTED.to_owned(),
        message,
        refused: true,
    }
}

async fn without_gateway(publisher: &Publisher, item: &WorkItem, earlier: Earlier) -> Submitted {
    tracing::warn!(instance = %item.instance, path = item.path, "no gateway is configured; the command waits");
    loop {
        let left = item.ends().0.saturating_sub(publisher.clock.now().0);
        match u64::try_from(left) {
            Ok(left) if left > 0 => tokio::time::sleep(Duration::from_millis(left)).await,
            _ => break,
        }
    }
    given_up(earlier, "no gateway is configured".to_owned())
}

pub fn done(
    row: WorkRef,
    item: &WorkItem,
    verdict: Option<Verdict>,
    completion: Completion,
    outcome: &'static str,
) -> Done {
    Done {
        row,
        destination: Destination::of(item),
        instance: item.instance.clone(),
        verdict,
        completion,
        outcome,
        refused: None,
    }
}
