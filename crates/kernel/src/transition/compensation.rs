//! Undoing: the ledger, last entry first, one at a time or all together.
//!
//! ```text
//! held ──▶ undoing ──succeeded──▶ undone
//!            │  ▲
//!     failed │  │ timer `retry:<step>.compensate`
//!            ▼  │
//!        backing off          undoing ──attempts used up──▶ stuck ──operator's retry──▶ due
//!                                              │              │
//!                                  on_exhausted: continue     │ operator's skip, resolve
//!                                              ▼              ▼
//!                                             kept      kept, undone
//! ```
//!
//! An effect that asks an operator about an unknown outcome makes the entry stuck without using its attempts up.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Group, Step, UndoOrder};
use saga_runner_language::ids::CommandId;

use super::attempts::Ending;
use super::emission::Repetition;
use super::place::Place;
use super::run::Run;
use super::slot::Slot;
use super::{Rejection, TIMER_DISCARDED, attempts, flight, questions, stuck, undo_attempt};
use crate::input::{CancelMode, WorkOutcome, WorkResult};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::Note;
use crate::record::{Outstanding, Phase, Question, Record};

/// Most compensations of an instance that run at the same time.
const PARALLEL_MAX: usize = 32;

const RETRY_PREFIX: &str = "retry:";
const RETRY_SUFFIX: &str = ".compensate";

/// Undoes steps while the instance goes on.
pub(super) fn undo(run: &mut Run<'_>, slot: Slot, steps: &[u16]) -> Result<(), Rejection> {
    // An item undoes nothing of another one, a turn nothing of those before.
    let is_other =
        |entry: &LedgerEntry| slot.item.is_some() && entry.item.is_some() && entry.item != slot.item;
    for step in steps {
        let first = usize::try_from(ledger_before(run, slot, *step)).unwrap_or(usize::MAX);
        let held = positions(run, LedgerStatus::Held, |entry| {
            entry.step == *step && !is_other(entry)
        });
        for at in held.into_iter().filter(|at| *at >= first) {
            run.record.ledger.entry(at).status = LedgerStatus::Due;
        }
    }
    proceed(run)
}

/// How many entries the ledger had when the turn or item began in which both steps stand; 0 where no loop is around both.
fn ledger_before(run: &Run<'_>, slot: Slot, other: u16) -> u32 {
    let definition = run.ground.definition;
    let mut step = slot.step;
    while let Some(around) = definition.steps[usize::from(step)].within {
        if let Some(group @ (Group::Repeat(_) | Group::Foreach(_))) = definition.group(around)
            && group.members().contains(&other)
        {
            let slot = slot.peer(run, step);
            return if run.has_slot(slot) {
                run.slot(slot).ledger_before
            } else {
                0
            };
        }
        step = around;
    }
    0
}

pub(super) fn cancel_mode(record: &Record) -> Option<CancelMode> {
    record.failure.as_ref()?.cancelled
}

/// Leaves done all that was done; what is being undone already is undone to the end.
pub(super) fn keep_all(run: &mut Run<'_>) {
    for at in positions(run, LedgerStatus::Held, |_| true) {
        run.record.ledger.entry(at).end(LedgerStatus::Kept);
    }
}

/// Leaves done what the failure says is not to be undone.
pub(super) fn keep_named(run: &mut Run<'_>) {
    let names = run
        .record
        .failure
        .as_ref()
        .map_or(&[][..], |failure| &failure.keep);
    if names.is_empty() {
        return;
    }
    let is_named = |entry: &LedgerEntry| is_kept(run.ground.definition, &run.record, entry.step);
    for at in positions(run, LedgerStatus::Held, is_named) {
        let index = run.record.ledger.entry(at).step;
        let step = step(run, index);
        stuck::keep(run, at, step);
    }
}

/// Whether the failure of the instance, if there is one, keeps what this step does.
pub(super) fn is_kept(definition: &Definition, record: &Record, step: u16) -> bool {
    let steps = &definition.steps;
    let failure = record.failure.as_ref();
    failure.is_some_and(|failure| {
        let mut names = failure.keep.iter();
        names.any(|name| Step::is_called(steps, step, name))
    })
}

/// Starts the next compensations, unless enough are under way, one in front is stuck, or nothing is left.
pub(super) fn proceed(run: &mut Run<'_>) -> Result<(), Rejection> {
    while let Some(at) = next(run) {
        undo_attempt::start(run, at)?;
    }
    Ok(())
}

fn next(run: &Run<'_>) -> Option<usize> {
    if flight::is_open(&run.record) {
        return None;
    }
    let all = match run.record.phase {
        // What is held at the completion stays so, unless a parent has it undone. What is held after another end was left so by
        // whoever has killed the instance.
        Phase::Running | Phase::Finishing | Phase::Completed | Phase::Failed | Phase::Cancelled => false,
        Phase::Compensating | Phase::CompensationFailed => true,
    };
    let parallel = run.ground.definition.undo_order == UndoOrder::Parallel;
    let ledger = &run.record.ledger;
    let busy = ledger.having(is_busy).count();
    let room = run
        .ground
        .context
        .limits
        .work_items
        .saturating_sub(undo_attempt::WORK_LEFT);
    let has_room = busy == 0 || (parallel && busy < PARALLEL_MAX && run.work.len() < room);
    if !has_room {
        return None;
    }
    let mut newest = ledger.having(|status| match status {
        LedgerStatus::Held => all,
        LedgerStatus::Due => true,
        // What is older waits for the operator, too.
        LedgerStatus::Stuck => !parallel,
        LedgerStatus::Undoing | LedgerStatus::BackingOff | LedgerStatus::Undone | LedgerStatus::Kept => false,
    });
    let (at, entry) = newest.next_back()?;
    (entry.status != LedgerStatus::Stuck).then_some(at)
}

/// Whether a compensation is under way.
const fn is_busy(status: LedgerStatus) -> bool {
    matches!(status, LedgerStatus::Undoing | LedgerStatus::BackingOff)
}

/// Where the entries of this status are that `is` holds for.
pub(super) fn positions(
    run: &Run<'_>,
    status: LedgerStatus,
    is: impl Fn(&LedgerEntry) -> bool,
) -> Vec<usize> {
    let entries = run.record.ledger.having(|other| other == status);
    let meant = entries.filter(|(_, entry)| is(entry));
    meant.map(|(at, _)| at).collect()
}

/// The entry that waits for the result of `outstanding`.
pub(super) fn waiting(record: &Record, is: impl Fn(&Outstanding) -> bool) -> Option<usize> {
    let mut awaited = record.ledger.outstanding();
    awaited.find(|(_, outstanding)| is(outstanding)).map(|(at, _)| at)
}

/// The entry that is stuck because of the command of `result`, where that answers the question.
pub(super) fn asked(record: &Record, result: &WorkResult) -> Option<usize> {
    let is_meant = |question: &Question| question.is_answered_by(result);
    let mut stuck = record.ledger.having(|status| status == LedgerStatus::Stuck);
    let found = stuck.find(|(_, entry)| entry.question.as_deref().is_some_and(is_meant));
    found.map(|(at, _)| at)
}

/// The outcome of the command of an entry is unknown, and its effect asks then.
fn doubt(run: &mut Run<'_>, at: usize, command: CommandId, message: &str) {
    let since = run.record.updated;
    let entry = run.record.ledger.entry(at);
    let (step, repetition, doubted) = (entry.step, repetition(entry), entry.tries.unknown);
    let path = entry.known_as.clone().unwrap_or_else(|| {
        let step = &run.ground.definition.steps[usize::from(step)].name;
        Place::Compensation { step }.to_string()
    });
    let life = entry.life.clone();
    let idempotency_key = run.idempotency_key(life.as_deref(), &path, repetition);
    run.record.ledger.entry(at).question = Some(Box::new(Question {
        command,
        idempotency_key,
        message: questions::short(message),
        since,
        doubted,
    }));
}

/// The attempt that is made now, or was made last.
pub(super) fn repetition(entry: &LedgerEntry) -> Repetition {
    Repetition {
        iteration: u64::from(entry.iteration),
        round: entry.tries.round,
        attempt: entry.attempt,
        item: entry.item.unwrap_or(0),
    }
}

/// Applies the result of a compensation, also where an operator is asked for it meanwhile.
pub(super) fn result(run: &mut Run<'_>, at: usize, outcome: &WorkOutcome) -> Result<(), Rejection> {
    let entry = run.record.ledger.entry(at);
    let step = &run.ground.definition.steps[usize::from(entry.step)];
    let command = entry.outstanding.take().map(|outstanding| {
        run.completed.push(outstanding.row);
        outstanding.command
    });
    if let Some(question) = entry.question.take() {
        entry.tries.unknown = question.doubted;
    }
    let class = match outcome {
        // Whatever it says about it.
        WorkOutcome::Succeeded { .. } | WorkOutcome::Unusable { .. } => {
            entry.undone();
            run.notes.push(Note::CompensationDone {
                step: step.name.clone(),
            });
            return resume(run);
        }
        WorkOutcome::Failed { class, .. } => {
            entry.tries.end(Ending::of(outcome));
            class.as_str()
        }
        WorkOutcome::TimedOut { class, message } => {
            let undo = step.compensate.as_ref().map(|compensation| &compensation.action);
            let asks = undo.is_some_and(|undo| questions::asks(run.ground.definition, undo));
            if let Some(command) = command.filter(|_| asks) {
                doubt(run, at, command, message);
            }
            run.record.ledger.entry(at).tries.end(Ending::Unknown);
            class.as_str()
        }
    };
    run.notes.push(Note::CompensationFailed {
        step: step.name.clone(),
        class: class.to_owned(),
    });
    let entry = run.record.ledger.entry(at);
    if entry.question.is_some() {
        stuck::ask(run, at)?;
        return resume(run);
    }
    // An instance that its parent undoes has tried by itself.
    let pause_ms = if entry.of_child {
        None
    } else {
        pause(step, entry, class)
    };
    match pause_ms {
        Some(delay_ms) => {
            entry.status = LedgerStatus::BackingOff;
            let timer = timer_name(step, entry);
            run.set_retry_timer(&timer, delay_ms)?;
            resume(run)
        }
        None => stuck::exhausted(run, at, step, class),
    }
}

/// The retry timer of a step has fired.
pub(super) fn retry_due(run: &mut Run<'_>, timer: &str) -> Result<(), Rejection> {
    // More than one where an iteration of a step has left several entries.
    for at in of_timer(run, timer) {
        undo_attempt::start(run, at)?;
    }
    proceed(run)
}

/// The retry timer of a step is discarded: there is no further attempt.
pub(super) fn give_up_retry(run: &mut Run<'_>, timer: &str) -> Result<(), Rejection> {
    for at in of_timer(run, timer) {
        let index = run.record.ledger.entry(at).step;
        let step = step(run, index);
        stuck::exhausted(run, at, step, TIMER_DISCARDED)?;
    }
    Ok(())
}

/// The entries that wait for a retry timer.
fn of_timer(run: &Run<'_>, timer: &str) -> Vec<usize> {
    let definition = run.ground.definition;
    positions(run, LedgerStatus::BackingOff, |entry| {
        timer_name(&definition.steps[usize::from(entry.step)], entry) == timer
    })
}

/// Whether a timer of this name is for the next attempt of a compensation.
pub(super) fn is_timer(name: &str) -> bool {
    name.strip_prefix(RETRY_PREFIX)
        .is_some_and(|step| step.contains(RETRY_SUFFIX))
}

/// `retry:charge.compensate`, of a step that began again `retry:charge.compensate#1`, of an item of a loop
/// `retry:pack.item.compensate@3`.
pub(super) fn timer_name(step: &Step, entry: &LedgerEntry) -> String {
    let turn = match entry.iteration {
        0 => String::new(),
        iteration => format!("#{iteration}"),
    };
    let item = entry.item.map_or_else(String::new, |item| format!("@{item}"));
    format!("{RETRY_PREFIX}{}{RETRY_SUFFIX}{turn}{item}", step.name)
}

/// Goes on after something was taken off the ledger.
pub(super) fn resume(run: &mut Run<'_>) -> Result<(), Rejection> {
    if run.record.phase == Phase::CompensationFailed && !stuck::any_stuck(&run.record) {
        run.record.phase = Phase::Compensating;
    }
    proceed(run)
}

impl LedgerEntry {
    /// It is to be undone with all attempts again, whatever was asked.
    pub(super) fn begin_anew(&mut self) {
        if self.again {
            // What was tried before came too early, perhaps: it is other work.
            self.tries.round = self.tries.round.saturating_add(1);
        }
        self.status = LedgerStatus::Due;
        self.attempt = 0;
        self.asks = false;
        self.again = false;
        self.question = None;
        self.tries.failures.clear();
    }

    /// It is undone, and once more where that may have come too early.
    pub(super) fn undone(&mut self) {
        if self.again {
            self.begin_anew();
        } else {
            self.end(LedgerStatus::Undone);
        }
    }

    /// Nothing more is done about it. What stays done may be undone by the next generation of the instance, which reads what
    /// was sent and its outcome.
    pub(super) fn end(&mut self, status: LedgerStatus) {
        self.status = status;
        self.question = None;
        if status == LedgerStatus::Undone {
            self.input = None;
            self.result = None;
        }
    }
}

/// The pause before the next attempt, in milliseconds, if one follows a failure of `class`. The attempts of a table are
/// those of all classes that it is for.
fn pause(step: &Step, entry: &mut LedgerEntry, class: &str) -> Option<i64> {
    let tables = &step.compensate.as_ref()?.retry;
    let table_of = |class: &str| tables.iter().position(|table| table.is_for(class));
    let at = table_of(class)?;
    attempts::count(&mut entry.tries.failures, class)?;
    let failures = entry.tries.failures.iter();
    let failures = failures.filter(|failures| table_of(&failures.class) == Some(at));
    let failures = failures.fold(0_u32, |all, failures| all.saturating_add(failures.count));
    let pause_ms = tables.get(at)?.policy.delay_before(failures.checked_add(1)?)?;
    Some(i64::try_from(pause_ms).unwrap_or(i64::MAX))
}

pub(super) fn step<'a>(run: &Run<'a>, index: u16) -> &'a Step {
    &run.ground.definition.steps[usize::from(index)]
}
