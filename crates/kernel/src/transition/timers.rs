//! Timers of an instance. The record says which are set; rows of the due index follow it.

use saga_runner_language::definition::model::{DEADLINE, EVERY_MS_MIN, Group, TimerDefinition};
use saga_runner_language::expr::Root;
use saga_runner_language::ids::TimeMs;

use super::ends::{self, Defeat};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{
    Rejection, TIMER_DISCARDED, attempts, compensation, deadlines, flight, heartbeats, program, turns, waits,
};
use crate::patch::{Note, TimerRow};
use crate::record::{Phase, Record, StepStatus};
use crate::work::WorkRef;

/// Whether the timer that fired is the one that is set now, not one that was replaced or cleared.
pub(super) fn is_current(record: &Record, name: &str, due: TimeMs) -> bool {
    record.timers.get(name).is_some_and(|row| row.due == due)
}

/// Applies a timer that fired and is current.
pub(super) fn fire(run: &mut Run<'_>, name: &str) -> Result<(), Rejection> {
    let fired = run.record.timers.remove(name);
    run.note(Note::TimerFired {
        timer: name.to_owned(),
    });
    if run.ground.definition.program.is_some() {
        return program::timer(run, name);
    }
    if compensation::is_timer(name) {
        return compensation::retry_due(run, name);
    }
    let of_step = Slot::of_timer(run, name);
    let goes_on = of_step.is_some_and(|(_, slot)| match run.record.phase {
        Phase::Finishing => slot.step(run).at_end,
        Phase::Compensating => flight::goes_on(run, slot),
        Phase::Running | Phase::CompensationFailed | Phase::Completed | Phase::Failed | Phase::Cancelled => {
            false
        }
    });
    if run.record.phase != Phase::Running && !goes_on {
        return Ok(());
    }
    if let Some((kind, slot)) = of_step {
        return step_timer(run, kind, slot);
    }
    if let Some(row) = fired {
        repeat(run, name, &row)?;
    }
    run.machine_timer(name)?;
    if run.record.phase != Phase::Running {
        return Ok(());
    }
    let definition = run.ground.definition;
    if let Some(timer) = definition.timers.iter().find(|timer| timer.name == name) {
        let iteration = run.record.version;
        run.act(&timer.actions, Place::Timer { name: &timer.name }, iteration)?;
        if let Some(to) = timer.actions.to {
            run.go_to(to)?;
        }
    }
    Ok(())
}

/// Does without a timer that has fired and that an operator discards. A step that waited for it alone has failed, and
/// a compensation is exhausted; a timer that repeats is set again.
pub(super) fn discard(run: &mut Run<'_>, name: &str) -> Result<(), Rejection> {
    let fired = run.record.timers.remove(name);
    run.note(Note::TimerCleared {
        timer: name.to_owned(),
    });
    if run.ground.definition.program.is_some() {
        return Ok(());
    }
    if compensation::is_timer(name) {
        return compensation::give_up_retry(run, name);
    }
    let Some((kind, slot)) = Slot::of_timer(run, name) else {
        return match fired.filter(|_| run.is_running()) {
            Some(row) => repeat(run, name, &row),
            None => Ok(()),
        };
    };
    let state = run.slot(slot);
    let class = match (kind, state.status) {
        (attempts::RETRY, StepStatus::BackingOff) => state.error.clone(),
        (waits::DELAY, StepStatus::Delayed) => None,
        // Something else ends the step, too: a result, an event, or its members.
        _ => return Ok(()),
    };
    let before = run.focus(Some(slot));
    let defeat = Defeat {
        class: class.as_deref().unwrap_or(TIMER_DISCARDED),
        message: "an operator has discarded the timer of its next attempt",
    };
    ends::failed(run, slot, defeat)?;
    run.focus(before);
    Ok(())
}

/// Sets a timer of the definition for the first time.
pub(super) fn begin(run: &mut Run<'_>, timer: &TimerDefinition) -> Result<(), Rejection> {
    let place = || Place::Timer { name: &timer.name }.to_string();
    let after_ms = run.delay_ms(&timer.after, Locals::default(), place)?;
    run.set_timer(&timer.name, after_ms, place)
}

/// Sets a timer again that repeats, before it does what it does, so that it can clear itself. Times that are
/// over for the instance are left out.
fn repeat(run: &mut Run<'_>, name: &str, row: &TimerRow) -> Result<(), Rejection> {
    let mut timers = run.ground.definition.timers.iter();
    let found = timers.find_map(|timer| Some((timer, timer.every.as_ref().filter(|_| timer.name == name)?)));
    let Some((timer, every)) = found else {
        return Ok(());
    };
    let fired = row.fired.saturating_add(1);
    if timer.max.is_some_and(|max| fired >= max) {
        return Ok(());
    }
    let place = || format!("{}.every", Place::Timer { name: &timer.name });
    let every_ms = run
        .span_ms(every, Locals::default(), place)?
        .clamp(EVERY_MS_MIN, run.ground.context.limits.timer_ms.max(EVERY_MS_MIN));
    let over_ms = run.record.updated.0.saturating_sub(row.due.0).max(0);
    run.set_timer(name, every_ms - over_ms % every_ms, place)?;
    if let Some(row) = run.record.timers.get_mut(name) {
        row.fired = fired;
    }
    Ok(())
}

/// Applies a timer of a step.
fn step_timer(run: &mut Run<'_>, kind: &str, slot: Slot) -> Result<(), Rejection> {
    let before = run.focus(Some(slot));
    match (kind, run.ground.definition.group(slot.step)) {
        (attempts::RETRY, _) => attempts::retry_due(run, slot)?,
        (waits::DELAY, _) => waits::delay_over(run, slot)?,
        (waits::WAIT, _) => waits::timed_out(run, slot)?,
        (heartbeats::HEARTBEAT, _) => heartbeats::missed(run, slot)?,
        (DEADLINE, _) => deadlines::passed(run, slot)?,
        (turns::REPEAT, Some(Group::Repeat(repeat))) => turns::due(run, slot, repeat)?,
        // A loop over a list goes on as the instance advances.
        _ => {}
    }
    run.focus(before);
    Ok(())
}

/// Clears the instance's timers whose `cancel_when` has become true.
pub(super) fn cancel(run: &mut Run<'_>) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    for timer in &definition.timers {
        let Some(condition) = &timer.cancel_when else {
            continue;
        };
        let Some(row) = run.record.timers.get(&timer.name) else {
            continue;
        };
        // It was false after the input before; with the same timer and state it still is.
        let same_timer = run
            .ground
            .before
            .and_then(|before| before.timers.get(&timer.name))
            == Some(row);
        let reads_state_alone = Root::ALL
            .into_iter()
            .all(|root| matches!(root, Root::State | Root::Key) || !condition.reads(root));
        if same_timer && reads_state_alone && !run.data_changed() {
            continue;
        }
        let place = || format!("{}.cancel_when", Place::Timer { name: &timer.name });
        if run.test(condition, Locals::default(), place)? {
            run.clear_timer(&timer.name);
        }
    }
    Ok(())
}

impl Run<'_> {
    /// Sets a timer, in place of one of the same name.
    pub(super) fn set_timer(
        &mut self,
        name: &str,
        after_ms: i64,
        place: impl Fn() -> String,
    ) -> Result<(), Rejection> {
        let max = self.ground.context.limits.timer_ms;
        if !(0..=max).contains(&after_ms) {
            return Err(Rejection {
                reason: "timer.range",
                message: format!("{}: {after_ms} ms is not between 0 and {max} ms", place()),
            });
        }
        let Some(next) = self.timers_set.checked_add(1) else {
            return Err(Rejection {
                reason: "timer.count",
                message: format!("{}: at most {} timers of one input", place(), u16::MAX),
            });
        };
        let due = self.record.updated.plus_ms(after_ms);
        let row = TimerRow {
            due,
            set_by: WorkRef {
                log_sequence: self.ground.context.log_sequence,
                index: self.timers_set,
            },
            name: name.to_owned(),
            fired: 0,
        };
        self.timers_set = next;
        self.record.timers.insert(name.to_owned(), row);
        self.note(Note::TimerSet {
            timer: name.to_owned(),
            due,
        });
        Ok(())
    }

    /// Sets the timer of a next attempt. A delay beyond the longest timer is cut to it, since the result
    /// that it follows must be applied.
    pub(super) fn set_retry_timer(&mut self, name: &str, delay_ms: i64) -> Result<(), Rejection> {
        let delay_ms = delay_ms.clamp(0, self.ground.context.limits.timer_ms.max(0));
        self.set_timer(name, delay_ms, || name.to_owned())
    }

    pub(super) fn clear_timer(&mut self, name: &str) {
        if self.record.timers.remove(name).is_some() {
            self.note(Note::TimerCleared {
                timer: name.to_owned(),
            });
        }
    }

    /// Clears all timers but those that retry compensations, and those of steps that go on.
    pub(super) fn clear_instance_timers(&mut self) {
        let going_on = flight::timers(self);
        let notes = &mut self.notes;
        self.record.timers.retain(|name, _| {
            let keep = compensation::is_timer(name) || going_on.contains(name);
            if !keep {
                notes.push(Note::TimerCleared { timer: name.clone() });
            }
            keep
        });
    }
}
