//! An operator's way out where a stream is not the one that was read, or has lost what was not read.
//!
//! What would be skipped and read again is told first; nothing is left out in silence. The shard moves its position, then the
//! intake feeds it from there.

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::blocking;
use super::node::Node;
use super::running::Running;
use super::shards::Shown;
use super::streams;
use crate::intake::stamp_of;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, StreamState};
use crate::ports::control::{AcceptReport, AcceptRequest, AcceptVerb, AcceptedView, ControlError, Sequences};
use crate::shard::mailbox::{Mail, Refused, Reposition};
use crate::shard::{ShardState, Standing, gap, stream_trouble, with_halt};
use crate::storage::rows::{AcceptedRow, HaltRow, PositionRow};

/// Rows of the history among which the newest message is sought that still stands.
const HISTORY_ROWS_MAX: u64 = 100_000;
/// Longest reason.
const REASON_BYTES_MAX: usize = 1_024;

/// Decides from where on a shard reads a stream, or tells what that would mean.
pub(super) async fn accept(
    node: &Node,
    shard: u16,
    verb: AcceptVerb,
    request: AcceptRequest,
) -> Result<AcceptReport, ControlError> {
    let running = node.running_or_unavailable()?;
    if shard >= node.manifest.shards {
        return Err(ControlError::NotFound(format!("no shard {shard}")));
    }
    let shown = &running.shard(shard).await?;
    check_reason(&request)?;
    let stream = SourceStream::ALL
        .into_iter()
        .find(|stream| streams::name(&node.manifest, *stream) == request.stream)
        .ok_or_else(|| ControlError::NotFound(format!("this runner reads no stream {}", request.stream)))?;
    let plan = Plan::new(node, running, shown, stream, verb, request.position).await?;
    let mut report = plan.report(node, shard, &request);
    let reader = shown.reader.clone();
    report.earlier = blocking(&node.tasks, move || reader.accepted())
        .await?
        .into_iter()
        .filter(|row| row.stream == stream)
        .map(earlier)
        .collect();
    if !request.dry_run {
        execute(node, running, shown, &plan, &request).await?;
        tracing::warn!(
            target: "audit",
            verb = verb.as_str(),
            shard,
            stream = request.stream,
            from = plan.row.sequence,
            to = plan.to.sequence,
            skipped_from = plan.skipped.map(|(from, _)| from),
            skipped_to = plan.skipped.map(|(_, to)| to),
            reason = request.reason,
            "a position is moved by an operator"
        );
        report.done = true;
    }
    Ok(report)
}

fn check_reason(request: &AcceptRequest) -> Result<(), ControlError> {
    if request.reason.len() > REASON_BYTES_MAX {
        let message = format!("the reason may have at most {REASON_BYTES_MAX} bytes");
        return Err(ControlError::Invalid(message));
    }
    if !request.dry_run && request.reason.trim().is_empty() {
        return Err(ControlError::Invalid("say why: the reason is missing".to_owned()));
    }
    Ok(())
}

fn earlier(row: AcceptedRow) -> AcceptedView {
    AcceptedView {
        time: row.time.rfc3339(),
        position: row.from,
        new_position: row.to,
        skipped: row.lost.map(|(from, to)| Sequences { from, to }),
        reason: row.reason,
    }
}

/// What is wrong, and where the shard goes on.
struct Plan {
    stream: SourceStream,
    state: StreamState,
    row: PositionRow,
    found: (&'static str, String),
    to: PositionRow,
    /// Neither read by the shard nor there any more, or passed over because the operator said so. It begins before the position
    /// where messages there are gone unread, too.
    skipped: Option<(u64, u64)>,
}

impl Plan {
    async fn new(
        node: &Node,
        running: &Running,
        shown: &Shown,
        stream: SourceStream,
        verb: AcceptVerb,
        wanted: Option<u64>,
    ) -> Result<Self, ControlError> {
        let broker = &running.broker;
        let name = streams::name(&node.manifest, stream);
        let state = broker.stream_state(name).await.map_err(unanswered)?;
        let reader = shown.reader.clone();
        let row = blocking(&node.tasks, move || reader.position(stream)).await?;
        let Some(row) = row else {
            return Err(ControlError::Conflict(format!(
                "the shard has no position in {name}"
            )));
        };
        let standing = at(broker, name, row.sequence).await?;
        // Where the message at the position has been removed meanwhile, or there was none, nothing says that it is the same stream.
        let is_known_to_stand = standing.is_some() && row.stamp.is_some();
        let trouble = stream_trouble(&row, &state, standing);
        let halt = of_readers(node, running, shown, stream).await?;
        let found = with_halt(trouble.clone(), halt.clone()).ok_or_else(|| {
            // What is read twice is recognised as far as instances remember it: one that is not kept any more would begin again.
            ControlError::Conflict(format!(
                "stream {name} is the one that was read, and nothing of it is missing: its position is not moved; messages that an \
                 earlier decision has passed over have to be published again"
            ))
        })?;
        if found.0 != verb.accepts() {
            let message = format!("this is {}, not {}: {}", found.0, verb.accepts(), found.1);
            return Err(ControlError::Conflict(message));
        }
        let first = state.first_sequence;
        let (sequence, lost) = match (verb, &trouble) {
            (AcceptVerb::Gap, None) => (row.sequence, None),
            (AcceptVerb::Rebind, None) if is_known_to_stand => (row.sequence, None),
            (AcceptVerb::Gap, Some(_)) => (first - 1, Some(gap(row.sequence, first, halt.as_ref()))),
            (AcceptVerb::Rebind, _) => (
                newest_that_stands(node, broker, shown, &row, &state, stream).await?,
                None,
            ),
        };
        let target = wanted.unwrap_or(sequence);
        if target + 1 < first || target > state.last_sequence {
            return Err(ControlError::Invalid(format!(
                "stream {name} has the messages {first} to {}: the position must lie between {} and {}",
                state.last_sequence,
                first - 1,
                state.last_sequence
            )));
        }
        let passed_over = (target > sequence).then_some((sequence + 1, target));
        let skipped = match (lost, passed_over) {
            (Some((from, _)), Some((_, to))) => Some((from, to)),
            (one, other) => one.or(other),
        };
        let stamp = match target.cmp(&row.sequence) {
            Ordering::Equal if trouble.is_none() => row.stamp,
            _ => at(broker, name, target).await?.map(|found| found.stamp),
        };
        let to = PositionRow {
            stream: state.identity.clone(),
            sequence: target,
            stamp,
        };
        Ok(Self {
            stream,
            state,
            row,
            found,
            to,
            skipped,
        })
    }

    fn report(&self, node: &Node, shard: u16, request: &AcceptRequest) -> AcceptReport {
        let (from, to) = (self.row.sequence, self.to.sequence);
        let end = self.state.last_sequence;
        let mut lost = Vec::new();
        if let Some((first, last)) = self.skipped {
            let is_before = self.found.0 == "stream.gap" && first <= from;
            let next = if is_before { from + 1 } else { first };
            lost.push(format!("the shard never reads the messages {next} to {last}"));
            if is_before {
                lost.push(format!(
                    "of the messages {first} to {from} some were removed before it was known that they were read"
                ));
            }
        }
        if to == from && self.skipped.is_none() {
            lost.push(self.found.1.clone());
        }
        if to < from {
            lost.push(format!(
                "of the messages {} to {from}, which the shard has read, some are gone or others stand in their place; what it \
                 made of them stands",
                to + 1
            ));
        }
        if self.found.0 == "stream.identity" {
            lost.push(format!(
                "what the stream had behind {from} when it was lost, and the shard had not read, is gone; how much that was \
                 is not known"
            ));
        }
        lost.extend(lost_with(self.stream).map(str::to_owned));
        if to < from && node.manifest.intake.event_id_from_sequence {
            lost.push(
                "events without an id of their own get one from their sequence: those that stand in the place of others \
                 count as repetitions of them"
                    .to_owned(),
            );
        }
        AcceptReport {
            shard,
            stream: request.stream.clone(),
            found: self.found.0,
            detail: self.found.1.clone(),
            position: from,
            new_position: to,
            skipped: self.skipped.map(|(from, to)| Sequences { from, to }),
            to_read: (to < end).then_some(Sequences {
                from: to + 1,
                to: end,
            }),
            lost,
            done: false,
            earlier: Vec::new(),
        }
    }
}

/// What goes with messages of a stream of the runner's own.
fn lost_with(stream: SourceStream) -> impl Iterator<Item = &'static str> {
    let sentences: &[&str] = match stream {
        SourceStream::AggregateEvents => &[],
        SourceStream::WorkflowCommands => &[
            "starts, signals, cancellations and other requests among the lost messages have to be sent again",
            "commands of effects and messages between sagas that have no result are published again from the outbox, under \
             their ids",
            "a call that must not be made twice (on_ambiguous: fail or ask) is made again where the word that it was begun is among \
             the lost messages, and its result was not stored",
        ],
        SourceStream::WorkflowEvents => &[
            "commands whose results were lost stay in the outbox: each gets its result again from its worker, or ends as an \
             unknown outcome at its deadline",
            "facts among the lost messages are not published again",
        ],
    };
    sentences.iter().copied()
}

/// Why a stream is not read on, as a reader has found it, now or in an earlier life of the process.
async fn of_readers(
    node: &Node,
    running: &Running,
    shown: &Shown,
    stream: SourceStream,
) -> Result<Option<HaltRow>, ControlError> {
    let mut all = running.streams().await.into_iter();
    let now = all.find(|status| status.stream == stream);
    let now = now.and_then(|status| status.halted);
    if let Some(halt) = now.filter(|halt| ["stream.gap", "stream.identity"].contains(&halt.reason)) {
        return Ok(Some(halt.row()));
    }
    let reader = shown.reader.clone();
    blocking(&node.tasks, move || reader.halt(stream)).await
}

/// The newest message that the shard's history knows and that still stands in the stream, or else the one before its
/// beginning.
async fn newest_that_stands(
    node: &Node,
    broker: &Arc<dyn Broker>,
    shown: &Shown,
    row: &PositionRow,
    state: &StreamState,
    stream: SourceStream,
) -> Result<u64, ControlError> {
    let reader = shown.reader.clone();
    let mut known = blocking(&node.tasks, move || reader.last_inputs(stream, HISTORY_ROWS_MAX)).await?;
    let (first, last) = (state.first_sequence, state.last_sequence.min(row.sequence));
    known.retain(|(sequence, _)| (first..=last).contains(sequence));
    // What a stream loses are its newest messages: all before one that stands stand, too.
    let (mut low, mut high) = (0, known.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let (sequence, time) = known[middle];
        let found = at(broker, &state.identity.name, sequence).await?;
        if found.is_some_and(|found| found.stamp.time == time) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(match low.checked_sub(1) {
        Some(newest) => known[newest].0,
        None => first - 1,
    })
}

async fn at(broker: &Arc<dyn Broker>, stream: &str, sequence: u64) -> Result<Option<Standing>, ControlError> {
    let found = broker.message_at(stream, sequence).await.map_err(unanswered)?;
    Ok(found.map(|message| Standing {
        sequence,
        stamp: stamp_of(&message),
    }))
}

fn unanswered(error: BrokerError) -> ControlError {
    match error {
        BrokerError::NoStream(name) => ControlError::Conflict(format!(
            "stream {name} does not exist: create it first, for instance with `saga-runner streams apply`"
        )),
        error => ControlError::Unavailable(error.to_string()),
    }
}

async fn execute(
    node: &Node,
    running: &Running,
    shown: &Shown,
    plan: &Plan,
    request: &AcceptRequest,
) -> Result<(), ControlError> {
    let shard = shown.index;
    if !running.is_mailed(plan.stream, shard).await {
        let message = format!("what was read before is still on its way to shard {shard}: try again");
        return Err(ControlError::Unavailable(message));
    }
    let stopped = || ControlError::Unavailable(format!("shard {shard} has stopped"));
    let (reply, answer) = oneshot::channel();
    let order = Reposition {
        stream: plan.stream,
        expected: plan.row.sequence,
        to: plan.to.clone(),
        accepted: AcceptedRow {
            stream: plan.stream,
            time: node.clock.now(),
            from: plan.row.sequence,
            to: plan.to.sequence,
            lost: plan.skipped,
            reason: request.reason.clone(),
        },
        reply,
    };
    let was_halted = matches!(shown.status.state(), ShardState::Halted { .. });
    let mail = Mail::Reposition(Box::new(order));
    shown.mail.send(mail).await.map_err(|_| stopped())?;
    match answer.await.map_err(|_| stopped())? {
        Ok(()) => {}
        Err(refused @ Refused::Unavailable { .. }) => {
            return Err(ControlError::Unavailable(refused.to_string()));
        }
        Err(refused) => return Err(ControlError::Conflict(refused.to_string())),
    }
    if !was_halted {
        running.read_on(plan.stream, shard, &plan.to).await;
    } else if shown.status.state() == ShardState::Running {
        // It is fed of no stream so far.
        for stream in SourceStream::ALL {
            let reader = shown.reader.clone();
            if let Some(row) = blocking(&node.tasks, move || reader.position(stream)).await? {
                running.read_on(stream, shard, &row).await;
            }
        }
    }
    Ok(())
}
