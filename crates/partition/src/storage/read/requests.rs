//! The outcome of a request to an instance: from its history, its inbox, and the dead letters.

use saga_runner_kernel::ids::InstanceId;
use saga_runner_kernel::input::{Origin, SourceStream};
use saga_runner_kernel::patch::{IgnoreReason, Note};
use saga_runner_kernel::record::{Record, Summary};

use super::inbox::pending;
use super::{Found, Reader, SCAN_MAX, instance, last_ended, number};
use crate::storage::deleted::deleted;
use crate::storage::rows::{DeadLetter, HistoryOutcome, HistoryRow, WaitReason, decode};
use crate::storage::tables::{DEAD_LETTERS, HISTORY};
use crate::storage::{ReadRows, StorageError, keys};

/// Rows of the history of one generation that are looked at, newest first: a request that was just made is at their head.
const ROWS_MAX: usize = 10_000;

/// A message on the stream of commands.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    pub instance: &'r InstanceId,
    /// Names the request, so that a repetition of it is recognised.
    pub id: &'r str,
    /// Its sequence in the stream.
    pub sequence: u64,
}

/// The outcome of it, if it was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Became {
    /// A row of the history tells.
    Told {
        outcome: HistoryOutcome,
        notes: Vec<Note>,
        /// Of the instance whose history that is.
        generation: u32,
        /// Another message of this request is meant, before this one.
        earlier: bool,
    },
    /// It waits.
    Waits { reason: WaitReason },
    /// It is a dead letter of no instance.
    Dead {
        number: u64,
        reason: String,
        message: String,
    },
    /// It deletes the instance, once the archive has that.
    Unarchived,
    /// Nothing tells of it, so it has changed nothing.
    Untold,
}

/// An answer about a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    pub became: Became,
    /// The instance as it is now.
    pub instance: Option<Found>,
    /// The one before it of the same key, while it is kept.
    pub before: Option<Summary>,
}

impl Reader {
    /// The outcome of a request; it must have been read.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn became(&self, request: Request<'_>) -> Result<Answered, StorageError> {
        self.view(|view| {
            let found = instance(view, request.instance)?;
            let before = match &found {
                Some(Found::Live(_)) => last_ended(view, request.instance)?,
                Some(Found::Ended(_)) | None => None,
            };
            let now = found.as_ref().map(|found| match found {
                Found::Live(record) => record,
                Found::Ended(summary) => &summary.record,
            });
            let records = now
                .into_iter()
                .chain(before.as_ref().map(|before| &before.record));
            let records: Vec<&Record> = records.collect();
            let became = became(view, request, &records)?;
            Ok(Answered {
                became,
                instance: found,
                before,
            })
        })
    }

    /// The instance of a key, and the one before it where that one is live.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn generations(&self, id: &InstanceId) -> Result<(Option<Found>, Option<Summary>), StorageError> {
        self.view(|view| {
            let found = instance(view, id)?;
            let before = match &found {
                Some(Found::Live(_)) => last_ended(view, id)?,
                Some(Found::Ended(_)) | None => None,
            };
            Ok((found, before))
        })
    }
}

fn became(view: &dyn ReadRows, request: Request<'_>, records: &[&Record]) -> Result<Became, StorageError> {
    let mut earlier = None;
    for record in records {
        match told(view, request, record)? {
            // It is kept for later, and the inbox says why.
            Some(Became::Told {
                outcome: HistoryOutcome::Deferred,
                earlier: false,
                ..
            }) => break,
            Some(told @ Became::Told { earlier: false, .. }) => return Ok(told),
            found => earlier = earlier.or(found),
        }
    }
    if let Some(reason) = pending(view, request.instance, |input| is_of(input.origin, request))? {
        return Ok(Became::Waits { reason });
    }
    if let Some(earlier) = earlier {
        return Ok(earlier);
    }
    if let Some(deleted) = deleted(view, request.instance)?.filter(|deleted| deleted.request == request.id) {
        let is_there = |record: &&Record| record.generation == deleted.known.generation;
        if deleted.waits && records.iter().any(is_there) {
            return Ok(Became::Unarchived);
        }
        return Ok(Became::Told {
            outcome: HistoryOutcome::Applied,
            notes: vec![Note::Operated {
                verb: "delete".to_owned(),
                by: deleted.by,
                reason: deleted.reason,
            }],
            generation: deleted.known.generation,
            earlier: false,
        });
    }
    if records.is_empty() {
        return dead(view, request);
    }
    Ok(Became::Untold)
}

fn is_of(origin: Origin, request: Request<'_>) -> bool {
    let Origin::Stream { stream, sequence } = origin else {
        return false;
    };
    (stream, sequence) == (SourceStream::WorkflowCommands, request.sequence)
}

/// What the history of one generation tells of it: of this message, or of an earlier one of the same request.
fn told(view: &dyn ReadRows, request: Request<'_>, record: &Record) -> Result<Option<Became>, StorageError> {
    let here = Some((SourceStream::WorkflowCommands, request.sequence));
    let (mut next, mut earlier) = (record.last_history, None);
    for _ in 0..ROWS_MAX {
        let Some(sequence) = next else { break };
        let Some(bytes) = view.get(HISTORY, &keys::number(sequence))? else {
            break;
        };
        let row: HistoryRow = decode(&bytes, "a history row")?;
        next = row.previous;
        let is_here = row.source == here;
        let is_request = row
            .source
            .is_some_and(|(stream, _)| stream == SourceStream::WorkflowCommands)
            && row.input_id == request.id
            && row.outcome != HistoryOutcome::Ignored(IgnoreReason::Mismatch);
        if !is_here && (!is_request || earlier.is_some()) {
            continue;
        }
        let told = Became::Told {
            outcome: row.outcome,
            notes: row.notes,
            generation: record.generation,
            earlier: !is_here,
        };
        if is_here {
            return Ok(Some(told));
        }
        earlier = Some(told);
    }
    Ok(earlier)
}

/// A dead letter of no instance. There are few, and a bounded number is looked at.
fn dead(view: &dyn ReadRows, request: Request<'_>) -> Result<Became, StorageError> {
    let (mut became, mut looked) = (Became::Untold, 0);
    view.scan(DEAD_LETTERS, &[], &mut |key, value| {
        looked += 1;
        let letter: DeadLetter = decode(&value, "a dead letter")?;
        if letter.source == Some((SourceStream::WorkflowCommands, request.sequence)) {
            became = Became::Dead {
                number: number(key)?,
                reason: letter.reason,
                message: letter.message,
            };
            return Ok(false);
        }
        Ok(looked < SCAN_MAX)
    })?;
    Ok(became)
}
