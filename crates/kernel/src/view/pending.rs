//! What an instance waits for: each piece of work, message, pause and decision, with what is known of it.

use std::collections::BTreeMap;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, SIGNAL_PREFIX, Step};
use saga_runner_language::ids::{CommandId, EffectName, TimeMs};
use serde::Serialize;

use super::{CommandView, ParentView};
use crate::envelope::EffectProgress;
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::record::{Outstanding, Record, StepState, StepStatus};
use crate::work::{WorkItem, WorkKind, WorkRef};

/// Most things that an instance waits for of which one view tells. A loop may have thousands under way.
pub const PENDING_MAX: usize = 100;

/// One thing that an instance waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AwaitedView {
    /// The step, or the name that a program gave to its work.
    pub step: String,
    /// Index of the item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// It undoes what the step did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub compensates: bool,
    /// The instance goes on without it; its outcome is still to come.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
    pub waits_for: WaitsFor,
    /// The effect that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// No file declares that effect any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undeclared: bool,
    /// Type and id of the aggregate that a command is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<String>,
    /// The instance whose end is awaited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<ParentView>,
    /// `event <type>`, `signal <name>` or `callback`: the first that comes and fits ends the wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// Attempts of the saga so far; each may take several calls.
    pub attempt: u32,
    /// Error class of the last attempt that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// With which the upstream is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When it goes on by itself: the next attempt, the end of a pause, the time after which a wait fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// When the work is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What a worker has said about its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallsView>,
    /// Where its command is, unless a worker has said something about its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandView>,
}

impl AwaitedView {
    /// What is awaited, in a few words.
    #[must_use]
    pub fn object(&self) -> String {
        match self.waits_for {
            WaitsFor::Effect => match &self.effect {
                Some(effect) => format!("the result of effect {effect}"),
                None => "the result".to_owned(),
            },
            WaitsFor::Command => {
                let aggregate = self.aggregate.as_deref().unwrap_or("its aggregate");
                format!("the gateway's verdict on its command to {aggregate}")
            }
            WaitsFor::Child => match &self.child {
                Some(child) => format!("the end of instance {} of saga {}", child.key, child.saga),
                None => "the end of another saga".to_owned(),
            },
            WaitsFor::Message => self.messages.join(" or "),
            WaitsFor::Retry => "its next attempt".to_owned(),
            WaitsFor::Delay => "its first attempt".to_owned(),
            WaitsFor::Operator => "an operator".to_owned(),
        }
    }
}

/// What is awaited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The result of an effect.
    #[default]
    Effect,
    /// The gateway's verdict on a command.
    Command,
    /// The end of an instance of another saga.
    Child,
    /// An event, a signal or a callback.
    Message,
    /// The next attempt.
    Retry,
    /// Time to pass before the first attempt.
    Delay,
    /// A decision of an operator.
    Operator,
}

impl WaitsFor {
    /// The order in which one of several is named, the lowest first: what comes first keeps what comes later from helping.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Operator => 0,
            Self::Retry => 2,
            Self::Child => 3,
            Self::Effect | Self::Command => 4,
            Self::Message => 5,
            Self::Delay => 6,
        }
    }
}

/// What a worker has said about the calls of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallsView {
    /// Calls to the upstream so far.
    pub made: u32,
    /// One of them may have happened.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
    /// Error class and message of the last one, secrets masked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CallErrorView>,
    /// Not before then is the next one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// A call was begun then or before, and its end is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<String>,
    /// The worker that made the last one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    /// What keeps the next one back: `breaker`, `breaker_forced` (an operator holds it open), `tenant_busy`, `tenant_rate` or
    /// `busy`. `under_way`: a worker stopped during a call, which may still reach the upstream, and until `next` its outcome is
    /// not declared unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Whose breaker or limit that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallErrorView {
    pub class: String,
    pub message: String,
}

impl From<EffectProgress> for CallsView {
    fn from(progress: EffectProgress) -> Self {
        let held = progress.held.map(|held| *held);
        let next_ms = held.as_ref().map_or(0, |held| held.until_ms);
        let next_ms = progress.not_before_ms.max(next_ms);
        // What was begun before the pause that follows a call has ended.
        let is_begun = progress.outcome_unknown && progress.begun_ms > 0 && progress.begun_ms >= next_ms;
        let (held_by, upstream) = held.map_or((None, None), |held| (Some(held.reason), held.upstream));
        Self {
            begun: is_begun.then(|| TimeMs(progress.begun_ms).rfc3339()),
            made: progress.calls,
            outcome_unknown: progress.outcome_unknown,
            error: progress.error.map(|error| CallErrorView {
                class: error.class,
                message: error.message,
            }),
            next: (next_ms > 0 && !is_begun).then(|| TimeMs(next_ms).rfc3339()),
            worker: progress.worker,
            held_by,
            upstream,
        }
    }
}

/// What a live instance waits for, in the order of its steps, at most [`PENDING_MAX`]. `work` has the rows of the outbox
/// whose outcomes are to come.
#[must_use]
pub fn pending(
    record: &Record,
    definition: Option<&Definition>,
    work: &BTreeMap<WorkRef, WorkItem>,
) -> Vec<AwaitedView> {
    awaited(record, definition, work).take(PENDING_MAX).collect()
}

/// All that a live instance waits for, in the order of its steps.
pub(super) fn awaited<'a>(
    record: &'a Record,
    definition: Option<&'a Definition>,
    work: &'a BTreeMap<WorkRef, WorkItem>,
) -> impl Iterator<Item = AwaitedView> + 'a {
    let looked = Looked {
        record,
        definition,
        work,
    };
    let steps = record.step_states();
    let of_steps = steps.filter_map(move |(step, item, state)| looked.of_step(step, item, state));
    let entries = record.ledger.having(|status| !status.rests());
    let of_ledger = entries.filter_map(move |(_, entry)| looked.of_entry(&entry));
    let of_strays = record.strays.iter().map(move |stray| AwaitedView {
        item: stray.item,
        abandoned: true,
        ..looked.of_work(looked.name(stray.step), stray.outstanding)
    });
    let programs = record.program.iter().flat_map(|program| &program.pending);
    let of_program = programs.map(move |pending| looked.of_work(pending.name.clone(), pending.outstanding));
    of_steps.chain(of_ledger).chain(of_strays).chain(of_program)
}

/// Effect, command and row of the outbox of the effects that are awaited, in the order of [`pending`], so that their workers can
/// be asked.
pub fn commands<'w>(
    record: &'w Record,
    work: &'w BTreeMap<WorkRef, WorkItem>,
) -> impl Iterator<Item = (&'w EffectName, CommandId, WorkRef)> {
    record
        .outstanding()
        .filter_map(|outstanding| match &work.get(&outstanding.row)?.kind {
            WorkKind::Effect { effect, .. } => Some((effect, outstanding.command, outstanding.row)),
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => None,
        })
}

/// The events and signals that the present machine state, or the saga at any time, has handlers for.
#[must_use]
pub fn hears(record: &Record, definition: &Definition) -> Vec<String> {
    let machine = definition.machine.as_ref().zip(record.machine);
    let state = machine.and_then(|(machine, at)| machine.states.get(usize::from(at.state)));
    let of_state = state.into_iter().flat_map(|state| state.handlers.keys());
    let mut heard: Vec<String> = of_state.chain(definition.handlers.keys()).map(named).collect();
    heard.sort_unstable();
    heard.dedup();
    heard
}

fn named(heard: &String) -> String {
    match heard.strip_prefix(SIGNAL_PREFIX) {
        Some(signal) => format!("signal {signal}"),
        None => format!("event {heard}"),
    }
}

#[derive(Clone, Copy)]
struct Looked<'a> {
    record: &'a Record,
    definition: Option<&'a Definition>,
    work: &'a BTreeMap<WorkRef, WorkItem>,
}

impl Looked<'_> {
    fn step(&self, index: u16) -> Option<&Step> {
        self.definition?.steps.get(usize::from(index))
    }

    fn name(&self, index: u16) -> String {
        self.step(index)
            .map_or_else(|| format!("#{index}"), |step| step.name.clone())
    }

    /// When the first of the timers of these names is due.
    fn due(&self, names: &[String]) -> Option<String> {
        let set = names.iter().filter_map(|name| self.record.timers.get(name));
        set.map(|timer| timer.due).min().map(TimeMs::rfc3339)
    }

    fn of_step(&self, index: u16, item: Option<u32>, state: &StepState) -> Option<AwaitedView> {
        let name = self.name(index);
        let timer = |kind: &str| match item {
            None => format!("{kind}:{name}"),
            Some(item) => format!("{kind}:{name}#{item}"),
        };
        let mut view = AwaitedView {
            step: name.clone(),
            ..AwaitedView::default()
        };
        match state.status {
            // A loop: what is in it tells.
            StepStatus::Running if state.outstanding.is_none() => return None,
            StepStatus::Running => view = self.of_work(name.clone(), state.outstanding?),
            StepStatus::Waiting => {
                view.waits_for = WaitsFor::Message;
                view.messages = self.step(index).map(messages).unwrap_or_default();
                view.due = self.due(&[timer("wait"), timer("heartbeat")]);
                view.idempotency_key.clone_from(&state.callback);
            }
            StepStatus::BackingOff => {
                view.waits_for = WaitsFor::Retry;
                view.effect = self.step(index).and_then(effect);
                view.due = self.due(&[timer("retry")]);
            }
            StepStatus::Delayed => {
                view.waits_for = WaitsFor::Delay;
                view.due = self.due(&[timer("delay")]);
            }
            StepStatus::Stuck => {
                view.waits_for = WaitsFor::Operator;
                view.effect = self.step(index).and_then(effect);
                if let Some(question) = &state.question {
                    view.command_id = Some(question.command.to_string());
                    view.idempotency_key = Some(question.idempotency_key.clone());
                    view.since = Some(question.since.rfc3339());
                }
            }
            StepStatus::Pending
            | StepStatus::Done
            | StepStatus::Skipped
            | StepStatus::Failed
            | StepStatus::Abandoned => return None,
        }
        view.item = item;
        view.attempt = state.attempt;
        view.error.clone_from(&state.error);
        Some(view)
    }

    fn of_entry(&self, entry: &LedgerEntry) -> Option<AwaitedView> {
        let name = self.name(entry.step);
        let mut view = AwaitedView {
            step: name.clone(),
            ..AwaitedView::default()
        };
        match entry.status {
            LedgerStatus::Undoing => view = self.of_work(name, entry.outstanding?),
            LedgerStatus::BackingOff => {
                let turn = (entry.iteration > 0).then(|| format!("#{}", entry.iteration));
                let item = entry.item.map(|item| format!("@{item}"));
                let (turn, item) = (turn.unwrap_or_default(), item.unwrap_or_default());
                view.waits_for = WaitsFor::Retry;
                view.due = self.due(&[format!("retry:{name}.compensate{turn}{item}")]);
            }
            LedgerStatus::Stuck => {
                view.waits_for = WaitsFor::Operator;
                if let Some(question) = &entry.question {
                    view.command_id = Some(question.command.to_string());
                    view.idempotency_key = Some(question.idempotency_key.clone());
                    view.since = Some(question.since.rfc3339());
                }
            }
            LedgerStatus::Held | LedgerStatus::Undone | LedgerStatus::Due | LedgerStatus::Kept => {
                return None;
            }
        }
        view.compensates = true;
        view.item = entry.item;
        view.attempt = entry.attempt;
        view.error = entry.tries.failures.last().map(|failed| failed.class.clone());
        Some(view)
    }

    fn of_work(&self, step: String, outstanding: Outstanding) -> AwaitedView {
        let mut view = AwaitedView {
            step,
            attempt: outstanding.attempt,
            command_id: Some(outstanding.command.to_string()),
            ..AwaitedView::default()
        };
        let Some(item) = self.work.get(&outstanding.row) else {
            return view;
        };
        view.idempotency_key = Some(item.idempotency_key.clone());
        view.since = Some(item.created.rfc3339());
        view.deadline = Some(item.ends().rfc3339());
        match &item.kind {
            WorkKind::Effect { effect, .. } => view.effect = Some(effect.to_string()),
            WorkKind::Command {
                aggregate_type,
                aggregate_id,
                ..
            } => {
                view.waits_for = WaitsFor::Command;
                view.aggregate = Some(format!("{aggregate_type} {aggregate_id}"));
            }
            WorkKind::Saga { saga, key, .. } => {
                view.waits_for = WaitsFor::Child;
                view.child = Some(ParentView {
                    saga: saga.to_string(),
                    key: key.as_str().to_owned(),
                });
                // It ends when it ends.
                view.deadline = None;
            }
            WorkKind::Fact { .. } | WorkKind::Result { .. } | WorkKind::Cancel { .. } => {}
        }
        view
    }
}

fn messages(step: &Step) -> Vec<String> {
    step.waits_for().map(|awaiting| awaiting.on.to_string()).collect()
}

fn effect(step: &Step) -> Option<String> {
    match &step.action {
        Action::Effect { effect, .. } => Some(effect.to_string()),
        Action::Command(_)
        | Action::Publish(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Nothing
        | Action::Decide(_)
        | Action::Group(_) => None,
    }
}
