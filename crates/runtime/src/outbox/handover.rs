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
use crate::kernel::ids::InstanceId;
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
    /// Nobody waits for a result: the shard may delete the row.
    pub delivered: bool,
    pub outcome: &'static str,
    /// The broker does not take it, and nothing but its message tells of it: it stays in the outbox.
    pub refused: Option<Box<Refused>>,
}

/// What the broker does not take now.
pub struct Refused {
    pub item: WorkItem,
    pub reason: String,
}

/// HeldCommands an effect command or a fact to the broker; `progress` says what was done about the command before.
pub fn publish(
    publisher: Arc<Publisher>,
    metrics: Arc<Metrics>,
    (row, item): Row,
    progress: Option<EffectProgress>,
) -> BoxFuture<'static, Done> {
    async move {
        match &item.kind {
            WorkKind::Effect { effect, payload } => {
                // An earlier life may have sent it, and the broker may have lost that behind the result. A worker takes
                // what is young and comes for the first time for what nobody has had.
                let is_resumed = publisher.fence.is_resumed();
                if (is_resumed || publisher.is_of_earlier_life(row))
                    && let Some(verdict) = publisher.found(&item, effect).await
                {
                    // A shard that goes on from what was adopted may have read it before it asked. Otherwise it comes by its
                    // stream, where the first one of a command counts and not the last.
                    return done(
                        row,
                        &item,
                        Some(verdict).filter(|_| is_resumed),
                        false,
                        "answered",
                    );
                }
                let sent = publisher.effect(&item, effect, payload, progress).await;
                let verdict = match &sent {
                    Sent::Unsendable(message) => {
                        let now = publisher.clock.now();
                        Some(sweeper::unsendable(&item, effect, message.clone(), now))
                    }
                    Sent::Stored | Sent::AlreadyThere | Sent::Answered => None,
                };
                done(row, &item, verdict, false, outcome(&sent))
            }
            WorkKind::Fact { fact_type, payload } => {
                let suppressed = || {
                    metrics
                        .messages_relayed
                        .with_label_values(&["fact", "suppressed"])
                        .inc();
                };
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
                let suppressed = || {
                    metrics
                        .messages_relayed
                        .with_label_values(&["saga", "suppressed"])
                        .inc();
                };
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
                done(row, &item, verdict, false, outcome(&sent))
            }
            WorkKind::Command { .. } => done(row, &item, None, false, "misrouted"),
        }
    }
    .boxed()
}

/// The end of a message for whose delivery nobody waits.
fn delivered(row: WorkRef, item: WorkItem, sent: Sent) -> Done {
    match sent {
        Sent::Unsendable(reason) => Done {
            destination: Destination::of(&item),
            instance: item.instance.clone(),
            row,
            verdict: None,
            delivered: false,
            outcome: "refused",
            refused: Some(Box::new(Refused { item, reason })),
        },
        sent => done(row, &item, None, true, outcome(&sent)),
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

/// HeldCommands an aggregate command to the gateway.
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
            Submitted::Accepted if !awaited => return done(row, &item, None, true, "accepted"),
            Submitted::Accepted => {
                let payload = Bytes::from_static(b"{}");
                (WorkOutcome::Succeeded { payload }, "accepted")
            }
            Submitted::Rejected { message } => (failed(REJECTED, message, true), "rejected"),
            Submitted::Unsendable { message } => (failed(REJECTED, message, false), "unsendable"),
            Submitted::Unavailable { message } => (failed(UNAVAILABLE, message, false), "unavailable"),
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
        done(row, &item, Some(verdict), !awaited, label)
    }
    .boxed()
}

fn failed(class: &str, message: String, refused: bool) -> WorkOutcome {
    WorkOutcome::Failed {
        class: class.to_owned(),
        message,
        refused,
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
    delivered: bool,
    outcome: &'static str,
) -> Done {
    Done {
        row,
        destination: Destination::of(item),
        instance: item.instance.clone(),
        verdict,
        delivered,
        outcome,
        refused: None,
    }
}
