//! `--chaos`: every piece of work of a case fails in turn, all other work succeeds, and the instance must come to
//! an end with nothing left to undo.

use std::sync::Arc;

use serde_json::Value;

use super::answer::Answer;
use super::codes;
use super::compare::Fault;
use super::file::{Action as Doing, Case, Step, Suite};
use super::play::{self, Obstacle, open, perform, succeeded};
use super::work;
use super::world::{Given, Manner, World};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::input::{Control, Found, Settle, Verdict, WorkOutcome};
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::record::{Record, StepStatus};
use crate::kernel::work::WorkItem;

/// Most runs of one case. What is beyond is not tried, and the report says so.
const RUNS_MAX: usize = 2_000;
/// Most inputs of one run.
const INPUTS_MAX: usize = 20_000;
/// Most questions to operators that are answered in one run.
const QUESTIONS_MAX: usize = 1_000;
/// Error class of the failures.
pub const CLASS: &str = "chaos";

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
}

/// What fails in one run.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// All attempts at this work.
    always: Option<(String, Failing)>,
    /// The first attempt at this compensation.
    once: Option<(String, Failing)>,
}

struct Ending {
    world: World,
    /// Work that was answered, in the order of the first answers; of all items of a loop the first stands for
    /// itself, and a name without an index for all.
    answered: Vec<String>,
    rejected: Option<String>,
}

/// Plays `case` once for every piece of work that is awaited in it and every way to fail.
#[must_use]
pub fn run(suite: &Suite, case: &Case, definition: &Arc<Definition>) -> Chaos {
    let mut chaos = Chaos::default();
    if !case.chaos {
        chaos.is_open = true;
        return chaos;
    }
    let Some(calm) = attempt(suite, case, definition, &Plan::default()) else {
        chaos.is_open = true;
        return chaos;
    };
    if calm.world.ended.is_none() {
        chaos.is_open = true;
        return chaos;
    }
    chaos.take(case, &Plan::default(), &calm);
    for target in calm.answered.iter().filter(|name| !work::undoes(name)) {
        for failing in [Failing::Error, Failing::Timeout] {
            let plan = Plan {
                always: Some((target.clone(), failing)),
                once: None,
            };
            let Some(ending) = chaos.attempt(suite, case, definition, &plan) else {
                return chaos;
            };
            for undo in ending.answered.iter().filter(|name| work::undoes(name)) {
                for failing in [Failing::Error, Failing::Timeout] {
                    let plan = Plan {
                        once: Some((undo.clone(), failing)),
                        ..plan.clone()
                    };
                    if chaos.attempt(suite, case, definition, &plan).is_none() {
                        return chaos;
                    }
                }
            }
        }
    }
    chaos
}

impl Chaos {
    /// One more run; `None` beyond the bound.
    fn attempt(
        &mut self,
        suite: &Suite,
        case: &Case,
        definition: &Arc<Definition>,
        plan: &Plan,
    ) -> Option<Ending> {
        if self.runs >= RUNS_MAX {
            return None;
        }
        let ending = attempt(suite, case, definition, plan)?;
        self.take(case, plan, &ending);
        Some(ending)
    }

    fn take(&mut self, case: &Case, plan: &Plan, ending: &Ending) {
        self.runs += 1;
        if let Some(message) = trouble(ending) {
            let message = format!("when {plan}: {message}");
            let help = Some(format!("answered were {}", ending.answered.join(", ")));
            self.faults
                .push(Fault::new(codes::CHAOS, case.span.clone(), message, help));
        }
    }
}

/// What is wrong with an end.
fn trouble(ending: &Ending) -> Option<String> {
    if let Some(message) = &ending.rejected {
        return Some(format!("an input is rejected: {message}"));
    }
    let world = &ending.world;
    let Some(record) = world.last() else {
        return Some("there is no instance".to_owned());
    };
    if world.ended.is_none() {
        let awaited = work::awaited(world).join(", ");
        let awaited = if awaited.is_empty() { "nothing" } else { &awaited };
        let phase = record.phase.as_str();
        return Some(format!("the instance stays {phase} and awaits {awaited}"));
    }
    let (_, left) = record.ledger.having(|status| !status.is_over()).next()?;
    let step = world.definition.steps.get(usize::from(left.step));
    Some(format!(
        "the instance ends as {} and {} is not undone",
        record.phase.as_str(),
        step.map_or("a step", |step| step.name.as_str())
    ))
}

/// One run; `None` where the case has no instance at all.
fn attempt(suite: &Suite, case: &Case, definition: &Arc<Definition>, plan: &Plan) -> Option<Ending> {
    let mut ending = Ending {
        world: open(case, definition, Manner::Plain).ok()?,
        answered: Vec::new(),
        rejected: None,
    };
    for step in &case.steps {
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
                    let Some(item) = work::awaited_of(&ending.world, spec.of.as_deref()).cloned() else {
                        break;
                    };
                    ending.answer(suite, plan, &item, None);
                    if ending.rejected.is_some() {
                        break;
                    }
                }
            }
            Doing::Retry | Doing::Settle(..) => {}
            _ => ending.perform(suite, step),
        }
    }
    let mut questions = 0;
    for _ in 0..INPUTS_MAX {
        if let Some(item) = ending.world.outbox.values().next().cloned() {
            ending.answer(suite, plan, &item, None);
        } else if let (None, Some(timer)) = (&ending.world.ended, ending.world.next_timer()) {
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
        match perform(&mut self.world, suite, step) {
            Ok(given) if !meant => self.note(given),
            Ok(_) | Err(Obstacle::Seen(_) | Obstacle::Fault(_)) => {}
        }
    }

    fn note(&mut self, given: Given) {
        let message = given
            .rejection
            .map(|(reason, message)| format!("{reason}: {message}"));
        self.rejected = self.rejected.take().or(message);
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
            Control::Settle(Settle {
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
        let outcome = match always.or(once) {
            Some((_, Failing::Error)) => WorkOutcome::Failed {
                class: CLASS.to_owned(),
                message: String::new(),
                refused: true,
            },
            Some((_, Failing::Timeout)) => WorkOutcome::timed_out(""),
            None => {
                let default = || work::default_result(suite, &self.world, item);
                succeeded(&own.cloned().unwrap_or_else(default))
            }
        };
        if !self.answered.contains(&whole) {
            if whole != name {
                self.answered.push(name);
            }
            self.answered.push(whole);
        }
        let given = self.world.give_result(item, outcome);
        self.note(given);
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
        };
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
