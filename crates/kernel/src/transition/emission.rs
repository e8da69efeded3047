//! Building work items: payloads, ids, and what travels with them.

use std::borrow::Cow;

use bytes::Bytes;
use saga_runner_language::definition::model::{
    Action, COMMAND_TIMEOUT_MS, CommandTemplate, Emission, Emit, Group, SignalTemplate, Telling,
};
use saga_runner_language::ids::Key;
use saga_runner_language::json::Json;

use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, advance, children, deadlines, pieces};
use crate::children::SagaMessage;
use crate::patch::Note;
use crate::record::{Outstanding, StepStatus};
use crate::work::{Attempt, Piece, WorkItem, WorkKind, WorkRef};

/// What work is known by, where that is not what it would be now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownBy<'k> {
    /// Path under which it began.
    pub path: Option<&'k str>,
    /// Life under which it began.
    pub life: Option<&'k str>,
}

/// Which repetition of its place a work item is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repetition {
    /// Tells apart the runs of a place that may run more than once: the number of the input for handlers
    /// and timers, of the entry for states, 0 for what runs once.
    pub iteration: u64,
    pub round: u32,
    pub attempt: u32,
    /// Index of the item in a loop over a list, 0 elsewhere.
    pub item: u32,
}

impl Repetition {
    /// Work that nobody waits for has one attempt.
    pub(super) const fn once(iteration: u64) -> Self {
        Self {
            iteration,
            round: 0,
            attempt: 1,
            item: 0,
        }
    }
}

/// Whether somebody waits for the answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    NotAwaited,
}

impl<'a> Run<'a> {
    /// Emits a list of commands and facts for which nobody waits.
    pub(super) fn emit(
        &mut self,
        emits: &[Emission],
        place: Place<'_>,
        iteration: u64,
    ) -> Result<(), Rejection> {
        for (index, emit) in emits.iter().enumerate() {
            self.emit_one(emit, place.emit_path(index), iteration)?;
        }
        Ok(())
    }

    /// The same for what is done at the end. Where the instance must end, what cannot be evaluated is left out.
    pub(super) fn emit_at_end(&mut self, emits: &[Emission], place: Place<'_>) -> Result<(), Rejection> {
        if !self.is_failing() {
            return self.emit(emits, place, 0);
        }
        for (index, emit) in emits.iter().enumerate() {
            let path = place.emit_path(index);
            let Err(rejection) = self.emit_one(emit, path.clone(), 0) else {
                continue;
            };
            if !rejection.is_of_content() {
                return Err(rejection);
            }
            self.note(Note::FinallyFailed {
                step: path,
                class: rejection.reason.to_owned(),
            });
            if let Emit::Effect(step) = &emit.emit {
                let slot = Slot::of(*step);
                deadlines::clear(self, slot);
                self.slot_mut(slot).status = StepStatus::Failed;
            }
        }
        Ok(())
    }

    fn emit_one(&mut self, emission: &Emission, path: String, iteration: u64) -> Result<(), Rejection> {
        if let Some(when) = &emission.when
            && !self.test(when, Locals::default(), || format!("{path}.when"))?
        {
            if let Emit::Effect(step) = &emission.emit
                && self.ground.definition.group(*step).is_none()
            {
                self.leave_out_effect(*step, iteration);
            }
            return Ok(());
        }
        let kind = match &emission.emit {
            Emit::Effect(step) if let Some(Group::Foreach(pieces)) = self.ground.definition.group(*step) => {
                return pieces::add(self, Slot::of(*step), pieces, &path, iteration);
            }
            Emit::Effect(step) if self.is_at_work(*step) => {
                self.note(Note::StillRunning { step: path });
                return Ok(());
            }
            // The instance would wait for it, and for the next one meanwhile.
            Emit::Effect(step) if Slot::of(*step).step(self).emitted && advance::has_nothing_left(self) => {
                self.leave_out_effect(*step, iteration);
                return Ok(());
            }
            Emit::Effect(step) => return self.start_effect(*step, iteration),
            Emit::Command(command) => self.command(command, Locals::default(), Answer::NotAwaited, &path)?,
            Emit::Publish(telling) => self.telling(telling, Locals::default(), &path)?,
        };
        self.note(Note::Emitted { work: path.clone() });
        self.push_work(path, Repetition::once(iteration), COMMAND_TIMEOUT_MS, kind)?;
        Ok(())
    }

    /// Renders what a step or a compensation does.
    pub(super) fn action(
        &mut self,
        action: &Action,
        locals: Locals<'a>,
        path: &str,
    ) -> Result<WorkKind, Rejection> {
        match action {
            Action::Effect { effect, with } => {
                let payload = self.render(with, locals, || format!("{path}.with"))?;
                Ok(WorkKind::Effect {
                    effect: effect.clone(),
                    payload: Bytes::from(payload),
                })
            }
            Action::Command(command) => self.command(command, locals, Answer::Awaited, path),
            Action::UndoSaga(saga) => children::undo(saga, locals, path),
            Action::Publish(telling) => self.telling(telling, locals, path),
            Action::Saga(_) | Action::Nothing | Action::Decide(_) | Action::Group(_) => Err(Rejection {
                reason: "definition.mismatch",
                message: format!("{path} does nothing that has an outcome"),
            }),
        }
    }

    fn command(
        &mut self,
        command: &CommandTemplate,
        locals: Locals<'a>,
        answer: Answer,
        path: &str,
    ) -> Result<WorkKind, Rejection> {
        let aggregate_id =
            self.render_text(&command.aggregate_id, locals, || format!("{path}.command.id"))?;
        let token = self.token_mark(command);
        let known = token.as_ref().map(|mark| {
            let mark = Json::Str(Cow::Owned(mark.clone()));
            let known = Json::Map(vec![(Cow::Borrowed("token"), mark)]);
            self.ground.values.keep(known)
        });
        let locals = Locals {
            command: known,
            ..locals
        };
        let payload = self.render(&command.payload, locals, || format!("{path}.command.payload"))?;
        Ok(WorkKind::Command {
            token,
            aggregate_type: command.aggregate_type.clone(),
            aggregate_id,
            command_type: command.command_type.clone(),
            payload: Bytes::from(payload),
            awaited: answer == Answer::Awaited,
        })
    }

    /// What stands for the token in what a command hands out: nothing that anybody outside could write into it.
    pub(super) fn token_mark(&self, command: &CommandTemplate) -> Option<String> {
        let mark = || {
            format!(
                "callback-token-{}",
                self.idempotency_key(None, "callback-token", Repetition::once(0))
            )
        };
        command.hands_out_token().then(mark)
    }

    /// Renders a fact or a signal.
    pub(super) fn telling(
        &mut self,
        telling: &Telling,
        locals: Locals<'a>,
        path: &str,
    ) -> Result<WorkKind, Rejection> {
        match telling {
            Telling::Fact(publish) => {
                let payload = self.render(&publish.payload, locals, || format!("{path}.publish.payload"))?;
                Ok(WorkKind::Fact {
                    fact_type: publish.fact_type.clone(),
                    payload: Bytes::from(payload),
                })
            }
            Telling::Signal(signal) => self.signal(signal, locals, path),
        }
    }

    fn signal(
        &mut self,
        signal: &SignalTemplate,
        locals: Locals<'a>,
        path: &str,
    ) -> Result<WorkKind, Rejection> {
        let key = self.render_text(&signal.key, locals, || format!("{path}.signal.key"))?;
        let data = self.render(&signal.data, locals, || format!("{path}.signal.data"))?;
        let key = Key::parse(&key).map_err(|error| Rejection {
            reason: "expression",
            message: format!("{path}.signal.key: {error}"),
        })?;
        Ok(WorkKind::Saga {
            saga: signal.saga.clone(),
            key,
            message: SagaMessage::Signal {
                name: signal.name.clone(),
                data: Bytes::from(data),
            },
            awaited: false,
        })
    }

    /// The key that all attempts of a piece of work have in common.
    pub(super) fn idempotency_key(&self, life: Option<&str>, path: &str, repetition: Repetition) -> String {
        Piece {
            cluster: self.ground.context.cluster,
            instance: self.ground.instance,
            life: life.unwrap_or(&self.record.start_event),
            path,
            iteration: repetition.iteration,
            round: repetition.round,
            item: repetition.item,
        }
        .idempotency_key()
    }

    /// Adds a work item and returns what a waiting step or compensation remembers of it.
    pub(super) fn push_work(
        &mut self,
        path: String,
        repetition: Repetition,
        timeout_ms: i64,
        kind: WorkKind,
    ) -> Result<Outstanding, Rejection> {
        self.push_work_as(path, KnownBy::default(), repetition, timeout_ms, kind)
    }

    /// The same for work that may be known outside by another key than that of its path.
    pub(super) fn push_work_as(
        &mut self,
        path: String,
        known_by: KnownBy<'_>,
        repetition: Repetition,
        timeout_ms: i64,
        kind: WorkKind,
    ) -> Result<Outstanding, Rejection> {
        let index = self.next_index(&kind, &path)?;
        let ground = self.ground;
        let input = ground.input;
        let command = Attempt {
            cluster: ground.context.cluster,
            instance: ground.instance,
            generation: self.record.generation,
            definition: &self.record.definition,
            input_id: &input.id,
            input_time: input.time,
            path: &path,
            index,
            attempt: repetition.attempt,
        }
        .command_id();
        let idempotency_key = self.idempotency_key(known_by.life, known_by.path.unwrap_or(&path), repetition);
        self.work.push(WorkItem {
            instance: ground.instance.clone(),
            command_id: command,
            idempotency_key,
            path,
            attempt: repetition.attempt,
            created: self.record.updated,
            deadline: self.record.updated.plus_ms(timeout_ms),
            waited_ms: 0,
            causation_id: input.id.clone(),
            root_correlation_id: self.record.root_correlation_id.clone(),
            traceparent: self.record.traceparent.clone(),
            hops: self.record.hops.saturating_add(1),
            kind,
        });
        Ok(Outstanding {
            command,
            row: WorkRef {
                log_sequence: ground.context.log_sequence,
                index,
            },
            attempt: repetition.attempt,
            round: repetition.round,
        })
    }

    /// Does without work that this very transition was going to send. Tells whether it is such work.
    pub(super) fn unsend(&mut self, row: WorkRef) -> bool {
        let is_fresh = row.log_sequence == self.ground.context.log_sequence;
        if is_fresh {
            self.unsent.push(row.index);
        }
        is_fresh
    }

    /// Takes out what is not sent after all; whoever waits for something behind it finds it in its new place.
    pub(super) fn drop_unsent(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        self.unsent.sort_unstable();
        let mut index = 0;
        let unsent = &self.unsent;
        self.work.retain(|_| {
            let stays = unsent.binary_search(&index).is_err();
            index += 1;
            stays
        });
        let log_sequence = self.ground.context.log_sequence;
        self.record.for_each_outstanding(|outstanding| {
            if outstanding.row.log_sequence == log_sequence {
                let before = unsent.partition_point(|at| *at < outstanding.row.index);
                outstanding.row.index -= u16::try_from(before).unwrap_or(u16::MAX);
            }
        });
    }

    /// Further work items that this input may make.
    pub(super) fn work_room(&self) -> usize {
        let limits = self.ground.context.limits;
        limits.work_items.saturating_sub(self.work.len())
    }

    fn next_index(&self, kind: &WorkKind, path: &str) -> Result<u16, Rejection> {
        let limits = self.ground.context.limits;
        let payload = kind.payload();
        if payload.len() > limits.payload_bytes {
            return Err(Rejection {
                reason: "work.size",
                message: format!(
                    "{path}: the payload would take {} bytes, at most {} are allowed",
                    payload.len(),
                    limits.payload_bytes
                ),
            });
        }
        u16::try_from(self.work.len())
            .ok()
            .filter(|_| self.work.len() < limits.work_items)
            .ok_or_else(|| Rejection {
                reason: "work.count",
                message: format!("{path}: at most {} work items of one input", limits.work_items),
            })
    }
}
