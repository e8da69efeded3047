//! One run of a case under a plan, up to its end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::plan::{Failing, Plan};
use super::{CLASS, INPUTS_MAX, QUESTIONS_MAX};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::ids::{CommandId, InstanceId};
use crate::kernel::input::{CancelMode, Control, Found, OperationVerb, StuckDecision, Verdict, WorkOutcome};
use crate::kernel::json::Json;
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::limits::Limits;
use crate::kernel::record::{Record, StepStatus};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::offline::answer::Answer;
use crate::offline::file::{Action as Doing, Case, Step, Suite};
use crate::offline::play::{self, Cast, Obstacle, act, open, succeeded};
use crate::offline::work;
use crate::offline::world::again::Taken;
use crate::offline::world::time::Hold;
use crate::offline::world::{Given, Manner, World};

/// Most events of one case that come again.
const REPEATS_MAX: usize = 5_000;

/// The outcome of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    Unknown,
    NotDone,
}

/// One run and its end.
pub struct Ending {
    pub world: World,
    plan: Plan,
    /// Inputs so far.
    pub(super) inputs: usize,
    /// What is known late.
    late: Vec<(WorkItem, WorkOutcome)>,
    /// The outcome of each piece of work.
    pub fates: BTreeMap<CommandId, Fate>,
    /// Work whose effect says what its result is.
    pub(super) typed: BTreeSet<String>,
    /// Work that was answered, in the order of the first answers; of all items of a loop the first stands for
    /// itself, and a name without an index for all.
    pub answered: Vec<String>,
    pub rejected: Option<String>,
    /// Events that were taken before the latest input.
    known: usize,
    repeats: usize,
    /// What came again and changed something.
    pub(super) changed: Option<String>,
}

impl Ending {
    /// `None` where the case has no instance at all.
    pub(super) fn begin(case: &Case, players: &Cast, plan: &Plan) -> Option<Self> {
        Some(Self {
            world: open(case, players, Manner::Plain).ok()?,
            plan: plan.clone(),
            inputs: 0,
            late: Vec::new(),
            fates: BTreeMap::new(),
            typed: BTreeSet::new(),
            answered: Vec::new(),
            rejected: None,
            known: 0,
            repeats: 0,
            changed: None,
        })
    }

    /// Plays one step of the case.
    pub(super) fn play(&mut self, suite: &Suite, plan: &Plan, step: &Step) {
        let main = self.world.instance.clone();
        if play::turn_to(&mut self.world, step).is_err() {
            return;
        }
        if plan.again && !matches!(step.action, Doing::Succeed(_)) {
            if let Ok(given) = play::perform(&mut self.world, suite, step) {
                self.note(Given {
                    rejection: None,
                    ..given
                });
            }
            self.world.look_at(main);
            return;
        }
        let before = step.before.as_ref();
        if let Some(timer) = before.and_then(|before| before.find(&self.world).ok()) {
            let given = self.world.advance_to(&timer, &Hold::All);
            self.note(given);
        }
        match &step.action {
            Doing::Result(spec) => {
                if let Some(item) = work::awaited_as(&self.world, &spec.of).cloned() {
                    let own = match &spec.outcome {
                        Answer::Ok(result) => Some(result),
                        Answer::Unusable { .. } | Answer::Error { .. } | Answer::Timeout(_) => None,
                    };
                    self.answer(suite, plan, &item, own);
                }
            }
            Doing::Succeed(spec) => {
                for _ in 0..play::ANSWERS_MAX {
                    let Some(item) = work::awaited_of(&self.world, spec.of.as_ref()).cloned() else {
                        break;
                    };
                    self.answer(suite, plan, &item, None);
                    if self.rejected.is_some() {
                        break;
                    }
                }
            }
            Doing::Retry
            | Doing::DecideStuck(..)
            | Doing::Operate(
                OperationVerb::Pause | OperationVerb::Resume | OperationVerb::TryNow { .. },
                _,
            ) => {}
            Doing::Schedule(planned) => {
                if let Ok(given) = play::scheduled(&mut self.world, step, *planned, &Hold::All) {
                    self.note(given);
                }
            }
            // Everything is answered, at the latest in the end.
            Doing::Advance(ms) => {
                let given = self.world.advance(*ms, &Hold::All);
                self.note(given);
            }
            _ => self.perform(suite, step),
        }
        if self.world.instance != main {
            self.world.look_at(main);
        }
    }

    /// Gives all that is still to come: answers, late results, timers, decisions of an operator.
    pub(super) fn finish(&mut self, suite: &Suite, plan: &Plan) {
        let mut questions = 0;
        for _ in 0..INPUTS_MAX {
            let awaited = self.world.awaited().next().cloned();
            if let Some(item) = awaited {
                self.answer(suite, plan, &item, None);
            } else if let Some((item, outcome)) = self.late.pop() {
                self.give(&item, outcome);
            } else if let (true, Some(timer)) = (self.world.is_open(), self.world.next_timer()) {
                let given = self.world.fire(timer);
                self.note(given);
            } else if let (true, Some(asking)) = (questions < QUESTIONS_MAX, self.asking()) {
                questions += 1;
                self.decide(asking);
            } else {
                break;
            }
            if self.rejected.is_some() {
                break;
            }
        }
    }

    fn perform(&mut self, suite: &Suite, step: &Step) {
        let meant = step
            .expect
            .as_ref()
            .is_some_and(|expect| expect.rejected.is_some());
        match act(&mut self.world, suite, step) {
            Ok(given) if !meant => self.note(given),
            Ok(_) | Err(Obstacle::Seen(_) | Obstacle::Fault(_)) => {}
        }
    }

    fn note(&mut self, given: Given) {
        let message = given
            .rejection
            .map(|(reason, message)| format!("{reason}: {message}"));
        self.rejected = self.rejected.take().or(message);
        self.inputs += 1;
        if self.plan.again {
            self.repeat();
        }
        if self.plan.cancel == Some(self.inputs) {
            let (reason, mode) = (CLASS.to_owned(), CancelMode::Compensate);
            let given = self.world.give_control(Control::Cancel { reason, mode });
            self.note(given);
        }
    }

    /// Gives all events again that were taken before the latest input.
    pub(super) fn repeat(&mut self) {
        let known = std::mem::replace(&mut self.known, self.world.taken_events().len());
        for at in 0..known {
            if self.changed.is_some() || self.repeats >= REPEATS_MAX {
                return;
            }
            let taken = self.world.taken_events()[at].clone();
            self.repeats += 1;
            if let Some(what) = self.world.repeat(&taken) {
                let Taken { instance, event } = &taken;
                self.changed = Some(format!(
                    "\"{}\" ({}) comes again after input {}, and {what} by {}/{}",
                    event.event_type.escape_debug(),
                    event.event_id.as_str().escape_debug(),
                    self.inputs,
                    instance.saga,
                    instance.key
                ));
            }
        }
    }

    /// Gives the result of a piece of work.
    fn give(&mut self, item: &WorkItem, outcome: WorkOutcome) {
        let fate = match &outcome {
            WorkOutcome::Succeeded { .. } | WorkOutcome::Unusable { .. } => Fate::Done,
            WorkOutcome::TimedOut { .. } => Fate::Unknown,
            WorkOutcome::Failed { .. } => Fate::NotDone,
        };
        self.fates.insert(item.command_id, fate);
        let given = self.world.give_result(item, outcome);
        self.note(given);
    }

    /// The first instance of which an operator is to state an outcome.
    fn asking(&self) -> Option<InstanceId> {
        let world = &self.world;
        let own = world
            .record
            .as_ref()
            .filter(|record| asks(&world.definition, record));
        if own.is_some() {
            return Some(world.instance.clone());
        }
        let mut others = world.others();
        let (id, _) =
            others.find(|(id, record)| world.is_live(id) && asks(world.definition_of(id), record))?;
        Some(id.clone())
    }

    /// An operator says that nothing has happened.
    fn decide(&mut self, asking: InstanceId) {
        let main = self.world.instance.clone();
        self.world.look_at(asking);
        let control = if self.world.record.as_ref().is_some_and(has_stuck_steps) {
            Control::DecideStuck(StuckDecision {
                verdict: Verdict::Resolve,
                step: None,
                item: None,
                by: String::new(),
                reason: String::new(),
                found: Some(Found::NotDone),
                result: None,
            })
        } else {
            Control::Retry
        };
        let given = self.world.give_control(control);
        self.world.look_at(main);
        self.note(given);
    }

    fn answer(&mut self, suite: &Suite, plan: &Plan, item: &WorkItem, own: Option<&Value>) {
        let name = self.world.name(item).to_owned();
        let whole = work::without_index(&name);
        let fails = |target: &&(String, Failing)| target.0 == name || target.0 == whole;
        let always = plan.always.as_ref().filter(fails);
        let once = plan.once.as_ref().filter(fails).filter(|_| item.attempt == 1);
        let fails = always.or(once);
        let success = || {
            let default = || work::default_result(suite, &self.world, item);
            succeeded(&own.cloned().unwrap_or_else(default))
        };
        let late = success();
        let outcome = match fails {
            Some((_, Failing::Error)) => WorkOutcome::Failed {
                class: CLASS.to_owned(),
                message: String::new(),
                refused: true,
            },
            Some((_, Failing::Timeout)) => WorkOutcome::timed_out(""),
            Some((_, Failing::LateAtOnce | Failing::LateAtLast)) if item.attempt == 1 => {
                WorkOutcome::timed_out("")
            }
            Some((_, Failing::Misfit)) => self.misfit(item).unwrap_or_else(success),
            Some((_, Failing::LateAtOnce | Failing::LateAtLast)) | None => success(),
        };
        if self.misfit(item).is_some() {
            self.typed.extend([name.clone(), whole.clone()]);
        }
        if !self.answered.contains(&whole) {
            if whole != name {
                self.answered.push(name);
            }
            self.answered.push(whole);
        }
        self.give(item, outcome);
        match fails {
            Some((_, Failing::LateAtOnce)) if item.attempt == 1 => self.give(item, late),
            Some((_, Failing::LateAtLast)) if item.attempt == 1 => self.late.push((item.clone(), late)),
            _ => {}
        }
    }

    /// A result that is none of the effect, where it says what its results are.
    fn misfit(&self, item: &WorkItem) -> Option<WorkOutcome> {
        let WorkKind::Effect { effect, .. } = &item.kind else {
            return None;
        };
        let definition = self.world.definition_of(&item.instance);
        let output = definition.effects.get(effect)?.output.as_ref()?;
        let mut candidates = [json!({}), json!(null), json!(CLASS), json!([CLASS])].into_iter();
        let found = candidates.find(|value| {
            let text = value.to_string();
            let json = Json::parse(text.as_bytes(), Limits::default().json_depth);
            json.is_ok_and(|json| output.schema.check(&json).is_err())
        })?;
        Some(succeeded(&found))
    }
}

/// Whether something of the instance is left to operators.
fn asks(definition: &Definition, record: &Record) -> bool {
    let asks = |undo: &Action| match undo {
        Action::Effect { effect, .. } => definition
            .effects
            .get(effect)
            .is_some_and(|contract| contract.asks),
        _ => false,
    };
    let mut stuck = record.ledger.having(|status| status == LedgerStatus::Stuck);
    has_stuck_steps(record)
        || stuck.any(|(_, entry)| {
            let step = definition.steps.get(usize::from(entry.step));
            let undo = step.and_then(|step| step.compensate.as_ref());
            undo.is_some_and(|undo| asks(&undo.action))
        })
}

fn has_stuck_steps(record: &Record) -> bool {
    record
        .step_states()
        .any(|(_, _, state)| state.status == StepStatus::Stuck)
}
