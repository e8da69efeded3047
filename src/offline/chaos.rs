//! `--chaos`: every piece of work of a case goes wrong in turn, an operator cancels after each input, callbacks do not come,
//! and the instance must come to an end at which the [`super::promises`] hold.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::answer::Answer;
use super::codes;
use super::compare::Fault;
use super::file::{Action as Doing, Case, Step, Suite};
use super::play::{self, Cast, Obstacle, act, open, succeeded};
use super::promises;
use super::work;
use super::world::again::Taken;
use super::world::time::Hold;
use super::world::{Given, Manner, World};
use crate::kernel::definition::model::Action;
use crate::kernel::ids::CommandId;
use crate::kernel::input::{CancelMode, Control, Found, StuckDecision, Verdict, WorkOutcome};
use crate::kernel::json::Json;
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::limits::Limits;
use crate::kernel::record::{Record, StepStatus};
use crate::kernel::work::{WorkItem, WorkKind};

/// Most runs of one case. What is beyond is not tried, and the report says so.
const RUNS_MAX: usize = 2_000;
/// Most inputs of one run.
const INPUTS_MAX: usize = 20_000;
/// Most questions to operators that are answered in one run.
const QUESTIONS_MAX: usize = 1_000;
/// Most inputs after which an operator cancels.
const CANCELS_MAX: usize = 200;
/// Error class of the failures.
pub const CLASS: &str = "chaos";

/// Most events of one case that come again.
const REPEATS_MAX: usize = 5_000;
/// What came of the runs of one case.
#[derive(Debug, Default)]
pub struct Chaos {
    pub runs: usize,
    /// The case does not come to an end when nothing fails, so nothing can be said of it.
    pub is_open: bool,
    pub faults: Vec<Fault>,
}

/// How a piece of work fails.
#[derive(Debug, Clone, Copy)]
enum Failing {
    Error,
    Timeout,
    /// The outcome of the first attempt is unknown, and it has succeeded, as is known with the next input.
    LateAtOnce,
    /// The same, and that is known when nothing else is awaited any more.
    LateAtLast,
    /// It happens, and its result is none of its effect.
    Misfit,
}

/// In which a piece of work goes wrong, but for [`Failing::Misfit`], which not all can.
const WAYS: [Failing; 4] = [
    Failing::Error,
    Failing::Timeout,
    Failing::LateAtOnce,
    Failing::LateAtLast,
];

/// What fails in one run.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// All attempts at this work.
    always: Option<(String, Failing)>,
    /// The first attempt at this compensation.
    once: Option<(String, Failing)>,
    /// An operator cancels after so many inputs.
    cancel: Option<usize>,
    /// The callback of this step of the case, counted from 0, does not come.
    silent: Option<usize>,
    /// All is as the case says, but each event comes again after each later input and after the end.
    again: bool,
}

/// What came of a piece of work.
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
    inputs: usize,
    /// What is known late.
    late: Vec<(WorkItem, WorkOutcome)>,
    /// What came of each piece of work.
    pub fates: BTreeMap<CommandId, Fate>,
    /// Work whose effect says what its result is.
    typed: BTreeSet<String>,
    /// Work that was answered, in the order of the first answers; of all items of a loop the first stands for
    /// itself, and a name without an index for all.
    pub answered: Vec<String>,
    pub rejected: Option<String>,
    /// Events that were taken before the latest input.
    known: usize,
    repeats: usize,
    /// What came again and changed something.
    changed: Option<String>,
}

/// Plays `case` once for every piece of work that is awaited in it and every way to fail.
#[must_use]
pub fn run(suite: &Suite, case: &Case, players: &Cast) -> Chaos {
    let mut chaos = Chaos::default();
    if !case.chaos {
        chaos.is_open = true;
        return chaos;
    }
    chaos.again(suite, case, players);
    let Some(calm) = attempt(suite, case, players, &Plan::default()) else {
        chaos.is_open = true;
        return chaos;
    };
    if calm.world.ended.is_none() || calm.world.is_open() {
        chaos.is_open = true;
        return chaos;
    }
    chaos.take(case, &Plan::default(), &calm);
    for target in calm.answered.iter().filter(|name| !work::undoes(name)) {
        let misfit = calm.typed.contains(target).then_some(Failing::Misfit);
        for failing in WAYS.into_iter().chain(misfit) {
            let plan = Plan {
                always: Some((target.clone(), failing)),
                ..Plan::default()
            };
            let Some(ending) = chaos.attempt(suite, case, players, &plan) else {
                return chaos;
            };
            for undo in ending.answered.iter().filter(|name| work::undoes(name)) {
                for failing in [Failing::Error, Failing::Timeout] {
                    let plan = Plan {
                        once: Some((undo.clone(), failing)),
                        ..plan.clone()
                    };
                    if chaos.attempt(suite, case, players, &plan).is_none() {
                        return chaos;
                    }
                }
            }
        }
    }
    let is_callback = |at: &usize| matches!(case.steps[*at].step.action, Doing::Callback(_));
    let silent = (0..case.steps.len()).filter(is_callback).map(|at| Plan {
        silent: Some(at),
        ..Plan::default()
    });
    let cancelled = (1..calm.inputs).map(|at| Plan {
        cancel: Some(at),
        ..Plan::default()
    });
    for plan in silent.chain(cancelled.take(CANCELS_MAX)) {
        if chaos.attempt(suite, case, players, &plan).is_none() {
            return chaos;
        }
    }
    chaos
}

impl Chaos {
    /// One more run; `None` beyond the bound.
    fn attempt(&mut self, suite: &Suite, case: &Case, players: &Cast, plan: &Plan) -> Option<Ending> {
        if self.runs >= RUNS_MAX {
            return None;
        }
        let ending = attempt(suite, case, players, plan)?;
        self.take(case, plan, &ending);
        Some(ending)
    }

    /// The run in which events come again. Whether all ends well in it is not asked: the case says how things go.
    fn again(&mut self, suite: &Suite, case: &Case, players: &Cast) {
        let plan = Plan {
            again: true,
            ..Plan::default()
        };
        let Some(mut ending) = attempt(suite, case, players, &plan) else {
            return;
        };
        ending.repeat();
        self.runs += 1;
        if let Some(message) = ending.changed {
            self.faults
                .push(Fault::new(codes::UNSTEADY, case.span.clone(), message, None));
        }
    }

    fn take(&mut self, case: &Case, plan: &Plan, ending: &Ending) {
        self.runs += 1;
        if let Some(message) = promises::broken(ending) {
            let message = format!("when {plan}: {message}");
            let help = Some(format!("answered were {}", ending.answered.join(", ")));
            self.faults
                .push(Fault::new(codes::CHAOS, case.span.clone(), message, help));
        }
    }
}

/// One run; `None` where the case has no instance at all.
fn attempt(suite: &Suite, case: &Case, players: &Cast, plan: &Plan) -> Option<Ending> {
    let mut ending = Ending {
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
    };
    for (at, placed) in case.steps.iter().enumerate() {
        if plan.silent == Some(at) {
            continue;
        }
        let step = &*placed.step;
        let main = ending.world.instance.clone();
        if play::turn_to(&mut ending.world, step).is_err() {
            continue;
        }
        if plan.again && !matches!(step.action, Doing::Succeed(_)) {
            if let Ok(given) = play::perform(&mut ending.world, suite, step) {
                ending.note(Given {
                    rejection: None,
                    ..given
                });
            }
            ending.world.look_at(main);
            continue;
        }
        let before = step.before.as_ref();
        if let Some(timer) = before.and_then(|before| before.find(&ending.world).ok()) {
            let given = ending.world.advance_to(&timer, &Hold::All);
            ending.note(given);
        }
        match &step.action {
            Doing::Result(spec) => {
                if let Some(item) = work::awaited_as(&ending.world, &spec.of).cloned() {
                    let own = match &spec.outcome {
                        Answer::Ok(result) => Some(result),
                        Answer::Unusable { .. } | Answer::Error { .. } | Answer::Timeout(_) => None,
                    };
                    ending.answer(suite, plan, &item, own);
                }
            }
            Doing::Succeed(spec) => {
                for _ in 0..play::ANSWERS_MAX {
                    let Some(item) = work::awaited_of(&ending.world, spec.of.as_ref()).cloned() else {
                        break;
                    };
                    ending.answer(suite, plan, &item, None);
                    if ending.rejected.is_some() {
                        break;
                    }
                }
            }
            Doing::Retry | Doing::DecideStuck(..) => {}
            // Everything is answered, at the latest in the end.
            Doing::Advance(ms) => {
                let given = ending.world.advance(*ms, &Hold::All);
                ending.note(given);
            }
            _ => ending.perform(suite, step),
        }
        if ending.world.instance != main {
            ending.world.look_at(main);
        }
    }
    let mut questions = 0;
    for _ in 0..INPUTS_MAX {
        let awaited = ending.world.awaited().next().cloned();
        if let Some(item) = awaited {
            ending.answer(suite, plan, &item, None);
        } else if let Some((item, outcome)) = ending.late.pop() {
            ending.give(&item, outcome);
        } else if let (true, Some(timer)) = (ending.world.is_open(), ending.world.next_timer()) {
            let given = ending.world.fire(timer);
            ending.note(given);
        } else if questions < QUESTIONS_MAX && ending.is_asked() {
            questions += 1;
            ending.decide();
        } else {
            break;
        }
        if ending.rejected.is_some() {
            break;
        }
    }
    Some(ending)
}

impl Ending {
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
    fn repeat(&mut self) {
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

    /// Whether all that is left is for an operator to say what became of something.
    fn is_asked(&self) -> bool {
        let effects = &self.world.definition.effects;
        let asks = |undo: &Action| match undo {
            Action::Effect { effect, .. } => effects.get(effect).is_some_and(|contract| contract.asks),
            _ => false,
        };
        let Some(record) = &self.world.record else {
            return false;
        };
        let mut stuck = record.ledger.having(|status| status == LedgerStatus::Stuck);
        has_stuck_steps(record)
            || stuck.any(|(_, entry)| {
                let step = self.world.definition.steps.get(usize::from(entry.step));
                let undo = step.and_then(|step| step.compensate.as_ref());
                undo.is_some_and(|undo| asks(&undo.action))
            })
    }

    /// An operator says that nothing has happened.
    fn decide(&mut self) {
        let control = if self.world.record.as_ref().is_some_and(has_stuck_steps) {
            Control::DecideStuck(StuckDecision {
                verdict: Verdict::Resolve,
                step: None,
                item: None,
                by: String::new(),
                reason: String::new(),
                found: Some(Found::NotDone),
            })
        } else {
            Control::Retry
        };
        let given = self.world.give_control(control);
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

fn has_stuck_steps(record: &Record) -> bool {
    record
        .step_states()
        .any(|(_, _, state)| state.status == StepStatus::Stuck)
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |failing: &Failing| match failing {
            Failing::Error => "fails",
            Failing::Timeout => "times out",
            Failing::LateAtOnce => "times out and succeeds at once after that",
            Failing::LateAtLast => "times out and succeeds late",
            Failing::Misfit => "gives a result that does not fit its effect",
        };
        if let Some(at) = self.cancel {
            return write!(f, "an operator cancels after input {at}");
        }
        if self.again {
            return f.write_str("events come again");
        }
        if let Some(at) = self.silent {
            return write!(f, "the callback of step {} does not come", at + 1);
        }
        let Some((target, failing)) = &self.always else {
            return f.write_str("nothing fails");
        };
        write!(f, "{target} {}", word(failing))?;
        match &self.once {
            Some((undo, failing)) => write!(f, " and {undo} {} once", word(failing)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
