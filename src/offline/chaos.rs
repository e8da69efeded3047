//! `--chaos`: every piece of work of a case goes wrong in turn, an operator cancels after each input, callbacks do not come,
//! and the instance must come to an end at which the [`super::promises`] hold.

mod ending;
mod plan;

pub use ending::{Ending, Fate};
use plan::{Failing, Plan, WAYS};

use super::codes;
use super::compare::Fault;
use super::file::{Action as Doing, Case, Suite};
use super::play::Cast;
use super::promises;
use super::work;

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

/// The outcome of the runs of one case.
#[derive(Debug, Default)]
pub struct Chaos {
    pub runs: usize,
    /// The case does not come to an end when nothing fails, so nothing can be said of it.
    pub is_open: bool,
    pub faults: Vec<Fault>,
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
    let mut ending = Ending::begin(case, players, plan)?;
    for (at, placed) in case.steps.iter().enumerate() {
        if plan.silent != Some(at) {
            ending.play(suite, plan, &placed.step);
        }
    }
    ending.finish(suite, plan);
    Some(ending)
}

#[cfg(test)]
mod tests;
