//! `repeat`: the steps of a loop run again until its condition ends it.
//!
//! ```text
//! running ──all members over──▶ tested ──ends──▶ done
//!    ▲                            │ goes on, after the delay
//!    └──────────members again──────┘        tested, no turn left ──▶ failed: `exhausted`
//! ```

use saga_runner_language::definition::model::{Pause, Repeat, RepeatCondition};
use saga_runner_language::json::Json;

use super::ends::{self, Defeat};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, entries, groups, waits};
use crate::patch::Note;
use crate::record::{StepState, StepStatus};

/// Timer of the next turn of a loop.
pub(super) const REPEAT: &str = "repeat";
/// Error class of a loop that has used up its turns.
const EXHAUSTED: &str = "exhausted";
/// Most turns that one input begins; the next one begins with a timer.
const TURNS_PER_INPUT_MAX: u32 = 32;
/// When a loop goes on that an input had no room for. Not at once: a timer that is due when the one before it
/// was could not be told from it.
pub(super) const SOON_MS: i64 = 1;

/// Begins the first turn of a loop.
pub(super) fn start<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<(), Rejection> {
    if let RepeatCondition::While(condition) = &repeat.condition {
        let name = &slot.step(run).name;
        let place = || format!("{}.repeat.while", Place::Step { name });
        if !run.test(condition, Locals::default(), place)? {
            groups::skip(run, slot);
            return Ok(());
        }
    }
    let state = run.slot_mut(slot);
    state.status = StepStatus::Running;
    state.turn = 0;
    let (since, ledger_before) = (run.record.version, entries::count(run));
    for step in repeat.steps.clone() {
        let state = run.slot_mut(Slot { step, ..slot });
        (state.since, state.ledger_before) = (since, ledger_before);
    }
    begun(run, slot, 0);
    Ok(())
}

/// Ends the loop or begins its next turn, where the present one is over. Tells whether anything has changed.
pub(super) fn conclude<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<bool, Rejection> {
    let timer = slot.timer(run, REPEAT);
    if run.record.timers.contains_key(&timer) || !groups::all_over(run, slot, repeat.steps.clone()) {
        return Ok(false);
    }
    let turns = run.slot(slot).turn.saturating_add(1);
    if let RepeatCondition::Until(_) = repeat.condition
        && is_over(run, slot, repeat)?
    {
        groups::done(run, slot);
        return Ok(true);
    }
    if let Some(pause) = repeat.pause {
        if turns >= repeat.max {
            return exhausted(run, slot, repeat);
        }
        run.set_retry_timer(&timer, delay_ms(pause, turns))?;
        return Ok(false);
    }
    next(run, slot, repeat)
}

/// The delay before a turn is over.
pub(super) fn due<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<(), Rejection> {
    if run.slot(slot).status == StepStatus::Running {
        next(run, slot, repeat)?;
    }
    Ok(())
}

fn next<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<bool, Rejection> {
    if let RepeatCondition::While(_) = repeat.condition
        && is_over(run, slot, repeat)?
    {
        groups::done(run, slot);
        return Ok(true);
    }
    let turn = run.slot(slot).turn.saturating_add(1);
    if turn >= repeat.max {
        return exhausted(run, slot, repeat);
    }
    if run.turns >= TURNS_PER_INPUT_MAX {
        let timer = slot.timer(run, REPEAT);
        run.set_retry_timer(&timer, SOON_MS)?;
        return Ok(false);
    }
    run.turns += 1;
    run.slot_mut(slot).turn = turn;
    let ledger_before = entries::count(run);
    for step in repeat.steps.clone() {
        let member = Slot { step, ..slot };
        let iteration = run.slot(member).iteration.saturating_add(1);
        *run.slot_mut(member) = StepState {
            iteration,
            since: run.record.version,
            ledger_before,
            ..StepState::pending()
        };
    }
    waits::forget_early(run);
    begun(run, slot, turn);
    Ok(true)
}

/// Whether the condition ends the loop.
fn is_over<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<bool, Rejection> {
    let name = &slot.step(run).name;
    let place = |word: &str| format!("{}.repeat.{word}", Place::Step { name });
    match &repeat.condition {
        RepeatCondition::While(condition) => Ok(!run.test(condition, Locals::default(), || place("while"))?),
        RepeatCondition::Until(condition) => {
            let body = Slot {
                step: repeat.steps.start,
                ..slot
            };
            let fresh = run.fresh.iter().rev().find(|(at, _)| *at == body);
            // A step that went on without a result has none.
            let result = match fresh {
                Some((_, payload)) => {
                    run.parse(payload, &format!("the result of {}", Place::Step { name }))?
                }
                None => run.ground.values.keep(Json::Null),
            };
            let locals = Locals {
                result: Some(result),
                ..Locals::default()
            };
            run.test(condition, locals, || place("until"))
        }
    }
}

fn exhausted<'a>(run: &mut Run<'a>, slot: Slot, repeat: &'a Repeat) -> Result<bool, Rejection> {
    let message = format!("the condition has not ended the loop within {} turns", repeat.max);
    let defeat = Defeat {
        class: EXHAUSTED,
        message: &message,
    };
    ends::failed(run, slot, defeat)?;
    Ok(true)
}

fn begun(run: &mut Run<'_>, slot: Slot, turn: u32) {
    let step = slot.step(run);
    run.note(Note::TurnStarted {
        step: step.name.clone(),
        turn,
    });
}

/// The delay after `turns` turns: `min(max, first * factor^(turns - 1))`, in milliseconds.
fn delay_ms(pause: Pause, turns: u32) -> i64 {
    let exponent = i32::try_from(turns.saturating_sub(1)).unwrap_or(i32::MAX);
    #[allow(clippy::cast_precision_loss, reason = "delays are far below 2^52 ms")]
    let delay = (pause.first_ms as f64) * pause.factor.powi(exponent);
    #[allow(clippy::cast_precision_loss, reason = "delays are far below 2^52 ms")]
    let capped = delay.min(pause.max_ms as f64);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "capped by max_ms, which the loader bounds, and never negative"
    )]
    let whole = capped as i64;
    whole
}
