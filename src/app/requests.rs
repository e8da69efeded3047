//! Requests to instances: the outcome of one, and waiting for that.
//!
//! A request is a message on the stream of commands. Once its shard has come past the message, the shard's own rows tell
//! its outcome, whoever asks and whenever: an answer survives the process, and a repeated request gets the same one.

use std::sync::Arc;
use std::time::Duration;

use super::control::blocking;
use super::node::Node;
use super::pages::letter_id;
use super::shards::Shown;
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::input::SourceStream;
use crate::kernel::patch::{IgnoreReason, Note};
use crate::kernel::record::Record;
use crate::kernel::transition;
use crate::ports::control::{ControlError, InstanceBrief, RequestOutcome, RequestState};
use crate::shard::ShardState;
use crate::shard::watchers::Watcher;
use crate::storage::read::{Answered, Became, Found, Request};
use crate::storage::rows::{HistoryOutcome, WaitReason};

/// How long a wait trusts to be woken: commits wake it, but not one in which nothing becomes of the message.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A request that was stored.
pub(super) struct Asked<'r> {
    pub instance: &'r InstanceId,
    pub request_id: &'r str,
    pub sequence: u64,
    /// The input of a start, and whether the instance that is there will do.
    pub start: Option<(&'r str, bool)>,
}

/// Waits for what happens to an instance.
pub(super) struct Lookout {
    pub shard: Shown,
    watcher: Watcher,
}

impl Lookout {
    pub fn new(shard: Shown, instance: &InstanceId) -> Self {
        let watcher = shard.status.watchers.watch(instance);
        Self { shard, watcher }
    }

    /// Returns when something has happened, or may have. False: the process drains, or works on the shard no more.
    pub async fn look(&mut self, node: &Node) -> bool {
        if node.is_draining() || self.shard.status.state() == ShardState::Stopped {
            return false;
        }
        tokio::select! {
            biased;
            () = self.watcher.changed() => true,
            () = tokio::time::sleep(LOOK_AGAIN) => true,
            () = node.drain_requested() => false,
        }
    }
}

impl Node {
    /// Runs a read that answers a request, in its turn.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, crate::storage::StorageError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let place = Arc::clone(&self.running_or_unavailable()?.reads)
            .acquire_owned()
            .await;
        let in_its_place = move || {
            // The read goes on although whoever asked is gone.
            let _place = place;
            read()
        };
        blocking(&self.tasks, in_its_place).await
    }

    /// Runs a read for somebody who waits.
    pub(super) async fn read_patiently<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, crate::storage::StorageError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let running = self.running_or_unavailable()?;
        let _place = running.patient_reads.acquire().await;
        blocking(&self.tasks, read).await
    }

    /// The outcome of a request, as far as that is known within `time`.
    ///
    /// # Errors
    /// [`ControlError::Mismatch`] where another request of its id came first, [`ControlError::Unavailable`] where it cannot be
    /// read.
    pub(super) async fn outcome(
        &self,
        lookout: &mut Lookout,
        asked: &Asked<'_>,
        time: Duration,
    ) -> Result<RequestOutcome, ControlError> {
        let mut known = None;
        let decided = async {
            loop {
                let position = lookout.shard.status.position(SourceStream::WorkflowCommands);
                if position >= asked.sequence {
                    let outcome = self.became(&lookout.shard, asked).await?;
                    if outcome.state != RequestState::Pending {
                        return Ok(outcome);
                    }
                    known = Some(outcome);
                }
                if !lookout.look(self).await {
                    return known.take().map_or_else(
                        || Err(ControlError::Unavailable("this process stops".to_owned())),
                        Ok,
                    );
                }
            }
        };
        let decided = tokio::time::timeout(time, decided).await;
        match decided {
            Ok(outcome) => outcome,
            Err(_) => Ok(known.unwrap_or_else(|| unread(&lookout.shard))),
        }
    }

    async fn became(&self, shard: &Shown, asked: &Asked<'_>) -> Result<RequestOutcome, ControlError> {
        let reader = shard.reader.clone();
        let (instance, id, sequence) = (
            asked.instance.clone(),
            asked.request_id.to_owned(),
            asked.sequence,
        );
        let answered = self
            .read_patiently(move || {
                reader.became(Request {
                    instance: &instance,
                    id: &id,
                    sequence,
                })
            })
            .await?;
        outcome_of(shard.index, asked, answered)
    }
}

/// What is said of a message that the shard has not read in time.
fn unread(shard: &Shown) -> RequestOutcome {
    let index = shard.index;
    let message = match shard.status.state() {
        ShardState::Halted { reason, message } => format!("shard {index} is halted, {reason}: {message}"),
        ShardState::Full(message) => format!("the storage of shard {index} is full: {message}"),
        ShardState::Running | ShardState::Stopped => {
            format!("the request is stored, and shard {index} has not read it yet")
        }
    };
    RequestOutcome {
        reason: Some("unread".to_owned()),
        message: Some(message),
        ..outcome(RequestState::Pending)
    }
}

const fn outcome(state: RequestState) -> RequestOutcome {
    RequestOutcome {
        state,
        reason: None,
        message: None,
        dead_letter: None,
        generation: None,
        notes: Vec::new(),
        repeated: false,
        instance: None,
    }
}

fn outcome_of(shard: u16, asked: &Asked<'_>, answered: Answered) -> Result<RequestOutcome, ControlError> {
    let Answered {
        became,
        instance,
        before,
    } = answered;
    let before = before.map(Found::Ended);
    let all = || instance.iter().chain(&before);
    let meant = match &became {
        Became::Told { generation, .. } => all().find(|found| found.record().generation == *generation),
        Became::Waits { .. } | Became::Dead { .. } | Became::Unarchived | Became::Untold => instance.as_ref(),
    };
    let told = match became {
        Became::Told {
            outcome: was,
            notes,
            generation,
            earlier,
        } => {
            if earlier && meant.is_some_and(|found| is_another(found.record(), asked)) {
                return Err(mismatch(asked.request_id, false));
            }
            RequestOutcome {
                generation: Some(generation),
                repeated: earlier,
                notes,
                ..told(shard, was)
            }
        }
        Became::Waits { reason } => RequestOutcome {
            reason: Some(waits_for(reason).to_owned()),
            message: Some(why_it_waits(reason).to_owned()),
            ..outcome(RequestState::Pending)
        },
        Became::Dead {
            number,
            reason,
            message,
        } => RequestOutcome {
            reason: Some(reason),
            message: Some(message),
            dead_letter: Some(letter_id(shard, number)),
            ..outcome(RequestState::DeadLetter)
        },
        Became::Unarchived => RequestOutcome {
            reason: Some("archive".to_owned()),
            message: Some("the instance is deleted once the archive has it".to_owned()),
            ..outcome(RequestState::Pending)
        },
        Became::Untold => untold(instance.as_ref(), asked)?,
    };
    let message = told.message.clone().or_else(|| {
        told.notes.iter().find_map(|note| match note {
            Note::Refused { message } => Some(message.clone()),
            _ => None,
        })
    });
    Ok(RequestOutcome {
        message,
        instance: meant.map(|found| brief(asked.instance, found)),
        ..told
    })
}

fn told(shard: u16, was: HistoryOutcome) -> RequestOutcome {
    match was {
        HistoryOutcome::Applied => outcome(RequestState::Applied),
        HistoryOutcome::Deferred | HistoryOutcome::Retried { .. } | HistoryOutcome::Edited { .. } => {
            RequestOutcome {
                reason: Some(was.as_str().to_owned()),
                ..outcome(RequestState::Pending)
            }
        }
        HistoryOutcome::Ignored(reason) => RequestOutcome {
            reason: Some(reason.as_str().to_owned()),
            ..outcome(RequestState::Ignored)
        },
        HistoryOutcome::Discarded { .. } | HistoryOutcome::Cut { .. } => RequestOutcome {
            reason: Some(was.as_str().to_owned()),
            ..outcome(RequestState::Ignored)
        },
        HistoryOutcome::Dead { number, reason } => RequestOutcome {
            reason: Some(reason),
            dead_letter: Some(letter_id(shard, number)),
            ..outcome(RequestState::DeadLetter)
        },
    }
}

/// Where no row tells of it: repetitions are not told of, nor is what finds no instance, or one that has ended, nor whoever asks for
/// the instance that is there.
fn untold(found: Option<&Found>, asked: &Asked<'_>) -> Result<RequestOutcome, ControlError> {
    let ignored = |reason: IgnoreReason| RequestOutcome {
        reason: Some(reason.as_str().to_owned()),
        ..outcome(RequestState::Ignored)
    };
    let Some(found) = found else {
        return Ok(ignored(IgnoreReason::NoInstance));
    };
    let record = found.record();
    if asked.start.is_some() && record.start_event == asked.request_id {
        if is_another(record, asked) {
            return Err(mismatch(asked.request_id, false));
        }
        return Ok(RequestOutcome {
            generation: Some(record.generation),
            repeated: true,
            ..outcome(RequestState::Applied)
        });
    }
    Ok(ignored(match found {
        Found::Ended(_) => IgnoreReason::Ended,
        Found::Live(_) if asked.start.is_some() => IgnoreReason::Exists,
        Found::Live(_) => IgnoreReason::Duplicate,
    }))
}

/// Whether the instance was started by another request of the same id.
fn is_another(record: &Record, asked: &Asked<'_>) -> bool {
    let (Some((given, _)), Some(had)) = (asked.start, &record.input) else {
        return false;
    };
    record.start_event == asked.request_id && had.as_slice() != given.as_bytes()
}

/// Refuses a request under the id of another one. `is_answer`: it is a callback, whose id only the runner knows.
pub(super) fn mismatch(request_id: &str, is_answer: bool) -> ControlError {
    ControlError::Mismatch(if is_answer {
        "the token was used before, with another answer: the first one counts".to_owned()
    } else {
        format!("request_id {request_id} was used before, for another request")
    })
}

const fn waits_for(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Deferred => "deferred",
        WaitReason::Blocked => "blocked",
        WaitReason::Unversioned => "definition",
        WaitReason::Early { .. } => "early",
        WaitReason::Asked { .. } | WaitReason::Behind => "aliases",
        WaitReason::Paused => "paused",
    }
}

const fn why_it_waits(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Deferred => {
            "it waits until the instance takes it: a start, until the one that runs has ended"
        }
        WaitReason::Blocked => "it waits behind a dead letter of the instance",
        WaitReason::Unversioned => "it waits for the definition of the instance, which is not loaded",
        WaitReason::Early { .. } => "it waits for the instance to begin",
        WaitReason::Asked { .. } | WaitReason::Behind => {
            "it waits for the answer of an alias of the instance"
        }
        WaitReason::Paused => "the instance is paused, and it waits until it is resumed",
    }
}

/// An instance in a few words.
pub(super) fn brief(id: &InstanceId, found: &Found) -> InstanceBrief {
    let record = found.record();
    let time = TimeMs::rfc3339;
    InstanceBrief {
        saga: id.saga.to_string(),
        key: id.key.as_str().to_owned(),
        phase: record.phase.as_str(),
        generation: record.generation,
        started_by: transition::started_by(&record.start_event).to_owned(),
        started: time(record.started),
        updated: time(record.updated),
        ended: match found {
            Found::Live(_) => None,
            Found::Ended(summary) => Some(time(summary.ended)),
        },
        failure: record.failure.as_ref().map(|failure| failure.code.clone()),
        definition: record.definition.to_string(),
    }
}
