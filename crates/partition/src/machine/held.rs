//! What a partition holds back that goes on from an adopted state: behind that state it has sent work already, and only the
//! streams can tell which. Once they are read to their ends, an operator decides about the rest.

use saga_runner_kernel::children::SagaMessage;
use saga_runner_kernel::envelope::EffectResult;
use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::{Input, InputBody, Origin, WorkOutcome, WorkResult};
use saga_runner_kernel::work::{WorkItem, WorkKind, WorkRef};

use super::message::{Answer, Refused};
use super::staging::{Run, Staged};
use crate::storage::{Batch, Decided, DecidedRow, HeldRow, StorageError};

/// How far a log can have gone beyond the last of it that is known, by far.
const UNKNOWN_MAX: u64 = 1 << 24;
/// Ids that are kept of one decision.
const IDS_MAX: usize = 100;
/// Class of an outcome that an operator has said to be unknown.
const DISCARDED: &str = "discarded";
/// What its step is told.
const UNKNOWN: &str =
    "an operator has discarded the command of an adopted state: whether it was carried out is not known";

/// Whether an operator may give the work up. What instances tell each other of themselves, and what was done, goes to
/// whom it concerns.
#[must_use]
pub fn may_be_discarded(kind: &WorkKind) -> bool {
    match kind {
        WorkKind::Effect { .. } | WorkKind::Command { .. } | WorkKind::Fact { .. } => true,
        WorkKind::Saga { message, .. } => message.starts() || matches!(message, SagaMessage::Signal { .. }),
        WorkKind::Result { .. } | WorkKind::Cancel { .. } => false,
    }
}

/// Writes down what an adopted state is held for, and by which decision, and lets its log go on where that of the owner who is
/// given up cannot have been, whose last known log sequence is `floor`.
///
/// # Errors
/// [`StorageError`]: nothing has changed.
pub fn adopt(
    batch: &Batch<'_>,
    held: &HeldRow,
    what: Decided,
    floor: u64,
    reason: &str,
) -> Result<(), StorageError> {
    skip_unknown(batch, floor)?;
    batch.put_held(held)?;
    batch.put_decided(&DecidedRow {
        time: held.since,
        what,
        reason: reason.to_owned(),
    })
}

/// Lets the log of a folder that may be a copy go on where that of its original cannot have been.
///
/// # Errors
/// [`StorageError`]: nothing has changed.
pub fn continue_copy(batch: &Batch<'_>) -> Result<(), StorageError> {
    skip_unknown(batch, 0)
}

/// Work is told apart by its place in the log, also by messages that stand in the streams, so no place may mean two things.
fn skip_unknown(batch: &Batch<'_>, floor: u64) -> Result<(), StorageError> {
    let mut counters = batch.counters()?;
    counters.log_sequence = counters.log_sequence.max(floor).saturating_add(UNKNOWN_MAX);
    batch.put_counters(&counters)
}

/// Lets an adopted state go that has read its streams and has nothing to decide about.
pub(super) fn let_go(
    batch: &Batch<'_>,
    staged: &mut Staged,
    now: TimeMs,
    outbox_rows: u64,
    next_due: Option<TimeMs>,
) -> Result<(), StorageError> {
    let is_idle = outbox_rows == 0 && next_due.is_none_or(|due| due > now);
    let Some(mut held) = staged.held.filter(|held| held.waits() && is_idle) else {
        return Ok(());
    };
    held.released = Some(now);
    batch.put_decided(&DecidedRow {
        time: now,
        what: Decided::Released { rows: 0 },
        reason: "there is nothing to send".to_owned(),
    })?;
    batch.put_held(&held)?;
    staged.held = Some(held);
    Ok(())
}

impl Run<'_> {
    /// Notes that the streams have been read to the ends that they had at some time behind the adoption.
    pub fn caught_up(&mut self) -> Result<(), StorageError> {
        let Some(mut held) = self.staged.held.filter(HeldRow::reads) else {
            return Ok(());
        };
        held.read = Some((self.staged.counters.log_sequence, self.ground.now));
        self.batch.put_held(&held)?;
        self.staged.held = Some(held);
        Ok(())
    }

    /// Lets the partition send again.
    pub fn release(&mut self, reason: &str) -> Result<Answer, StorageError> {
        let mut held = match self.may_be_decided() {
            Ok(held) => held,
            Err(refused) => return Ok(Err(refused)),
        };
        held.released = Some(self.ground.now);
        self.batch.put_held(&held)?;
        self.staged.held = Some(held);
        let rows = self.batch.outbox_rows()?;
        self.decided(Decided::Released { rows }, reason)?;
        Ok(Ok(()))
    }

    /// Gives work up: a step that waits for it goes on with an unknown outcome. Rows that are completed meanwhile, and those
    /// that must reach whom they concern, stay as they are.
    pub fn discard(&mut self, rows: &[WorkRef], reason: &str) -> Result<Answer, StorageError> {
        if let Err(refused) = self.may_be_decided() {
            return Ok(Err(refused));
        }
        let (mut commands, mut others, mut first) = (0, 0, Vec::new());
        for row in rows {
            let Some(item) = self.batch.work(*row)?.filter(|item| may_be_discarded(&item.kind)) else {
                continue;
            };
            self.delete_work(*row)?;
            self.staged.completed.push(*row);
            if first.len() < IDS_MAX {
                first.push(item.command_id);
            }
            if item.kind.awaits_result() {
                commands += 1;
                self.complete_as_discarded(&item)?;
            } else {
                others += 1;
            }
        }
        self.decided(
            Decided::Discarded {
                commands,
                others,
                first,
            },
            reason,
        )?;
        Ok(Ok(()))
    }

    /// The hold, where an operator can decide about what it holds back.
    fn may_be_decided(&self) -> Result<HeldRow, Refused> {
        match self.staged.held {
            Some(held) if held.waits() => Ok(held),
            Some(held) if held.holds() => Err(Refused::Conflict(
                "the streams are not read to their ends yet: what is done already is not known before that"
                    .into(),
            )),
            Some(_) | None => Err(Refused::Conflict("the shard holds nothing back".into())),
        }
    }

    /// Tells the step that waits for a command, and by the command's result everybody else: a worker that finds the
    /// command in the stream does not carry it out.
    fn complete_as_discarded(&mut self, item: &WorkItem) -> Result<(), StorageError> {
        let now = self.ground.now;
        let effect = match &item.kind {
            WorkKind::Effect { effect, .. } => Some(effect.clone()),
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => None,
        };
        let applied = self.verdict(&Input {
            id: item.command_id.to_string(),
            instance: item.instance.clone(),
            time: now,
            origin: Origin::Local,
            body: InputBody::Result(WorkResult {
                command_id: item.command_id,
                effect: effect.clone(),
                outcome: WorkOutcome::timed_out(UNKNOWN),
            }),
        })?;
        let Some(effect) = effect else {
            return Ok(());
        };
        let body = EffectResult::unknown(item, &effect, DISCARDED, UNKNOWN, now);
        let result = WorkItem {
            kind: WorkKind::Result { effect, body },
            ..item.clone()
        };
        self.publish(&result, applied)
    }

    fn decided(&self, what: Decided, reason: &str) -> Result<(), StorageError> {
        self.batch.put_decided(&DecidedRow {
            time: self.ground.now,
            what,
            reason: reason.to_owned(),
        })
    }
}
