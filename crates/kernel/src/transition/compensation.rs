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
//! An effect that asks an operator where nobody knows its outcome makes the entry stuck without using its attempts up.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{
    Action, CHILD_TIMEOUT_MS, COMMAND_TIMEOUT_MS, Compensation, Group, Late, OnExhausted, Step, UndoOrder,
};
use saga_runner_language::ids::CommandId;
use saga_runner_language::json::Json;
use serde_bytes::ByteBuf;

use super::attempts::Ending;
use super::emission::Repetition;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::turns::SOON_MS;
use super::{Rejection, TIMER_DISCARDED, attempts, children, flight, questions};
use crate::input::{CancelMode, StuckDecision, Verdict, WorkOutcome, WorkResult};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::Note;
use crate::record::{Outstanding, Phase, Question, Record};
use crate::work::WorkKind;

/// Fact that tells operators of an entry that is stuck.
pub(super) const COMPENSATION_FAILED_FACT: &str = "saga.compensation_failed";
/// Fact that asks operators whether there is something to undo.
pub(super) const COMPENSATION_ASKED_FACT: &str = "saga.compensation_asked";

/// Most compensations of an instance that run at the same time.
const PARALLEL_MAX: usize = 32;
/// Work items of one input that compensations which run at the same time leave to others.
const WORK_LEFT: usize = 16;

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
        keep(run, at, step);
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
        start(run, at)?;
    }
    Ok(())
}

fn next(run: &Run<'_>) -> Option<usize> {
    if flight::is_open(&run.record) {
        return None;
    }
    let all = match run.record.phase {
        // What is held at the completion stays so, unless a parent has it undone.
        Phase::Running | Phase::Finishing | Phase::Completed => false,
        Phase::Compensating | Phase::CompensationFailed | Phase::Failed | Phase::Cancelled => true,
    };
    let parallel = run.ground.definition.undo_order == UndoOrder::Parallel;
    let ledger = &run.record.ledger;
    let busy = ledger.having(is_busy).count();
    let room = run.ground.context.limits.work_items.saturating_sub(WORK_LEFT);
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
fn positions(run: &Run<'_>, status: LedgerStatus, is: impl Fn(&LedgerEntry) -> bool) -> Vec<usize> {
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

/// Nobody knows what became of the command of an entry, and its effect asks then.
fn doubt(run: &mut Run<'_>, at: usize, command: CommandId, message: &str) {
    let since = run.record.updated;
    let entry = run.record.ledger.entry(at);
    let (step, repetition, doubted) = (entry.step, repetition(entry), entry.tries.unknown);
    let path = entry.known_as.clone().unwrap_or_else(|| {
        let step = &run.ground.definition.steps[usize::from(step)].name;
        Place::Compensation { step }.to_string()
    });
    let idempotency_key = run.idempotency_key(&path, repetition);
    run.record.ledger.entry(at).question = Some(Box::new(Question {
        command,
        idempotency_key,
        message: questions::short(message),
        since,
        doubted,
    }));
}

/// The attempt that is made now, or was made last.
fn repetition(entry: &LedgerEntry) -> Repetition {
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
        ask(run, at)?;
        return resume(run);
    }
    // An instance that was taken back has tried by itself.
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
        None => exhausted(run, at, step, class),
    }
}

/// The retry timer of a step has fired.
pub(super) fn retry_due(run: &mut Run<'_>, timer: &str) -> Result<(), Rejection> {
    // More than one where an iteration of a step has left several entries.
    for at in of_timer(run, timer) {
        start(run, at)?;
    }
    proceed(run)
}

/// The retry timer of a step is discarded: there is no further attempt.
pub(super) fn give_up_retry(run: &mut Run<'_>, timer: &str) -> Result<(), Rejection> {
    for at in of_timer(run, timer) {
        let index = run.record.ledger.entry(at).step;
        let step = step(run, index);
        exhausted(run, at, step, TIMER_DISCARDED)?;
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

/// `retry:charge.compensate`, of a step that began anew `retry:charge.compensate#1`, of an item of a loop
/// `retry:pack.item.compensate@3`.
fn timer_name(step: &Step, entry: &LedgerEntry) -> String {
    let turn = match entry.iteration {
        0 => String::new(),
        iteration => format!("#{iteration}"),
    };
    let item = entry.item.map_or_else(String::new, |item| format!("@{item}"));
    format!("{RETRY_PREFIX}{}{RETRY_SUFFIX}{turn}{item}", step.name)
}

/// Gives every stuck entry its attempts anew. The caller has checked that there is one.
pub(super) fn retry_all(run: &mut Run<'_>) -> Result<(), Rejection> {
    for at in positions(run, LedgerStatus::Stuck, |_| true) {
        run.record.ledger.entry(at).begin_anew();
    }
    resume(run)
}

/// Does what an operator says about stuck entries. The caller has checked that there is one.
pub(super) fn decide(run: &mut Run<'_>, decision: &StuckDecision) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    for at in positions(run, LedgerStatus::Stuck, |entry| {
        is_meant(definition, entry, decision)
    }) {
        let entry = run.record.ledger.entry(at);
        let step = &definition.steps[usize::from(entry.step)];
        match decision.verdict {
            Verdict::Retry => entry.begin_anew(),
            Verdict::Skip => entry.end(LedgerStatus::Kept),
            Verdict::Resolve => entry.undone(),
        }
        run.notes.push(Note::StuckDecided {
            step: step.name.clone(),
            verdict: decision.verdict.as_str().to_owned(),
            by: decision.by.clone(),
            reason: decision.reason.clone(),
        });
    }
    resume(run)
}

/// Whether there is a stuck entry that an operator speaks of.
pub(super) fn concerns(definition: &Definition, record: &Record, decision: &StuckDecision) -> bool {
    let mut stuck = record.ledger.having(|status| status == LedgerStatus::Stuck);
    stuck.any(|(_, entry)| is_meant(definition, &entry, decision))
}

/// Whether an operator speaks of this stuck entry.
fn is_meant(definition: &Definition, entry: &LedgerEntry, decision: &StuckDecision) -> bool {
    let Some(step) = definition.steps.get(usize::from(entry.step)) else {
        return false;
    };
    decision.found.is_none()
        && decision.step.as_ref().is_none_or(|name| step.is_named(name))
        && decision.item.is_none_or(|item| entry.item == Some(item))
}

/// Goes on after something was taken off the ledger.
pub(super) fn resume(run: &mut Run<'_>) -> Result<(), Rejection> {
    if run.record.phase == Phase::CompensationFailed && !any_stuck(&run.record) {
        run.record.phase = Phase::Compensating;
    }
    proceed(run)
}

pub(super) fn any_stuck(record: &Record) -> bool {
    record.ledger.has(|status| status == LedgerStatus::Stuck)
}

fn start(run: &mut Run<'_>, at: usize) -> Result<(), Rejection> {
    let entry = run.record.ledger.entry(at);
    if entry.asks {
        return ask(run, at);
    }
    let step = &run.ground.definition.steps[usize::from(entry.step)];
    let is_told = !entry.of_child && is_fact(step);
    if is_told && run.work_room() <= WORK_LEFT && !run.work.is_empty() {
        // Facts are undone with at once, so many may follow each other; those that have no room come with the next input.
        let entry = run.record.ledger.entry(at);
        entry.status = LedgerStatus::BackingOff;
        let timer = timer_name(step, entry);
        return run.set_retry_timer(&timer, SOON_MS);
    }
    let entry = run.record.ledger.entry(at);
    entry.attempt = entry.attempt.saturating_add(1);
    let repetition = repetition(entry);
    let (input, result, late) = (entry.input.clone(), entry.result.clone(), entry.late);
    let (known_as, of_child) = (entry.known_as.clone(), entry.of_child);
    let path = Place::Compensation { step: &step.name }.to_string();
    if late.is_some() {
        run.trace(format_args!("{path}.late"));
    }
    let prepared = match (&step.action, &step.compensate) {
        (Action::Saga(child), _) if of_child => {
            children::take_back(run, &child.saga, input, &path).map(|kind| Some((kind, CHILD_TIMEOUT_MS)))
        }
        (_, Some(compensation)) => prepare(run, compensation, repetition, (input, result, late), &path)
            .map(|kind| Some((kind?, compensation.timeout_ms))),
        (_, None) => {
            return Err(Rejection {
                reason: "definition.mismatch",
                message: format!("step {} is on the ledger without a compensation", step.name),
            });
        }
    };
    let begun = match prepared {
        Ok(Some((kind, timeout_ms))) => {
            run.push_work_as(path, known_as.as_deref(), repetition, timeout_ms, kind)
        }
        Ok(None) => {
            keep(run, at, step);
            return Ok(());
        }
        Err(rejection) => Err(rejection),
    };
    let outstanding = match begun {
        Ok(outstanding) => outstanding,
        // Whatever the input is that leads here, what was done must not be forgotten behind it.
        Err(rejection) if rejection.is_of_rendering() => return impossible(run, at, step, &rejection),
        Err(rejection) => return Err(rejection),
    };
    run.note(Note::CompensationStarted {
        step: step.name.clone(),
        attempt: repetition.attempt,
    });
    let entry = run.record.ledger.entry(at);
    if is_told {
        // Nothing comes back: what is published with the decision is done with it.
        entry.undone();
        run.note(Note::CompensationDone {
            step: step.name.clone(),
        });
        return Ok(());
    }
    entry.status = LedgerStatus::Undoing;
    entry.outstanding = Some(outstanding);
    Ok(())
}

/// Whether a fact undoes what the step did.
fn is_fact(step: &Step) -> bool {
    let undo = step.compensate.as_ref().map(|compensation| &compensation.action);
    matches!(undo, Some(Action::Publish(_)))
}

/// What undoes an entry of this input and result; `None` where there is nothing to undo.
fn prepare(
    run: &mut Run<'_>,
    compensation: &Compensation,
    repetition: Repetition,
    (input, result, late): (Option<ByteBuf>, Option<ByteBuf>, Option<Late>),
    path: &str,
) -> Result<Option<WorkKind>, Rejection> {
    let late = late.map_or(Json::Null, |late| {
        let reason = Json::Str(late.as_str().into());
        Json::Map(vec![("reason".into(), reason)])
    });
    let mut locals = Locals {
        result: Some(run.ground.values.keep(Json::Null)),
        late: Some(run.ground.values.keep(late)),
        ..Locals::default()
    };
    if let Some(result) = result {
        locals.result = Some(run.parse_owned(result.into_vec(), path)?);
    }
    // In its place there would be what the instance was given.
    locals.input = Some(run.ground.values.keep(Json::Null));
    if let Some(input) = input {
        locals.input = Some(run.parse_owned(input.into_vec(), path)?);
    }
    if let Some(when) = &compensation.when
        && repetition.attempt == 1
        && !run.test(when, locals, || format!("{path}.when"))?
    {
        return Ok(None);
    }
    run.action(&compensation.action, locals, path).map(Some)
}

/// Tells who listens that a compensation has used up its attempts.
fn trace_exhausted(run: &Run<'_>, step: &Step) {
    let place = Place::Compensation { step: &step.name };
    run.trace(format_args!("{place}.on_exhausted"));
}

/// The compensation cannot be made from what the step was given and gave: as after its last attempt.
fn impossible(run: &mut Run<'_>, at: usize, step: &Step, rejection: &Rejection) -> Result<(), Rejection> {
    run.note(Note::CompensationFailed {
        step: step.name.clone(),
        class: rejection.reason.to_owned(),
    });
    trace_exhausted(run, step);
    let goes_on = goes_on(step);
    if goes_on {
        keep(run, at, step);
    } else {
        stop(run, at);
    }
    // Many may stand on the ledger, and the phase tells of them, too.
    if run.work_room() <= WORK_LEFT {
        return Ok(());
    }
    let mut payload = serde_json::json!({
        "class": rejection.reason,
        "message": rejection.message,
        "step": step.name,
    });
    if goes_on {
        payload["kept"] = true.into();
    }
    alert(run, at, COMPENSATION_FAILED_FACT, &payload)
}

/// Whether the step stays done where it cannot be undone.
fn goes_on(step: &Step) -> bool {
    step.compensate
        .as_ref()
        .is_some_and(|compensation| compensation.on_exhausted == OnExhausted::Continue)
}

/// The step has nothing to undo, or it is given up.
fn keep(run: &mut Run<'_>, at: usize, step: &Step) {
    run.record.ledger.entry(at).end(LedgerStatus::Kept);
    run.note(Note::CompensationSkipped {
        step: step.name.clone(),
    });
}

pub(super) fn exhausted(run: &mut Run<'_>, at: usize, step: &Step, class: &str) -> Result<(), Rejection> {
    trace_exhausted(run, step);
    if goes_on(step) {
        keep(run, at, step);
        let payload = serde_json::json!({"class": class, "kept": true, "step": step.name});
        alert(run, at, COMPENSATION_FAILED_FACT, &payload)?;
        return proceed(run);
    }
    stop(run, at);
    let payload = serde_json::json!({"class": class, "step": step.name});
    alert(run, at, COMPENSATION_FAILED_FACT, &payload)
}

/// Leaves it to an operator whether there is something to undo, or still is.
fn ask(run: &mut Run<'_>, at: usize) -> Result<(), Rejection> {
    let index = run.record.ledger.entry(at).step;
    let step = step(run, index);
    stop(run, at);
    run.note(Note::CompensationAsked {
        step: step.name.clone(),
    });
    let payload = serde_json::json!({"step": step.name});
    alert(run, at, COMPENSATION_ASKED_FACT, &payload)
}

/// From now on an operator must act.
fn stop(run: &mut Run<'_>, at: usize) {
    run.record.ledger.entry(at).status = LedgerStatus::Stuck;
    await_operator(run);
}

/// Tells by the phase that an operator must act, unless what is in flight is to come to its end before. After the end the
/// outcome stands; the entry alone asks for an operator then.
pub(super) fn await_operator(run: &mut Run<'_>) {
    if run.record.phase == Phase::Compensating && !flight::is_open(&run.record) && any_stuck(&run.record) {
        run.record.phase = Phase::CompensationFailed;
    }
}

/// Tells operators.
fn alert(run: &mut Run<'_>, at: usize, fact: &str, payload: &serde_json::Value) -> Result<(), Rejection> {
    let entry = run.record.ledger.entry(at);
    let (index, item) = (entry.step, entry.item.unwrap_or(0));
    let kind = WorkKind::Fact {
        fact_type: fact.to_owned(),
        payload: payload.to_string().into(),
    };
    let step = step(run, index);
    let end = if fact == COMPENSATION_ASKED_FACT {
        "asked"
    } else {
        "exhausted"
    };
    let path = format!("{}.{end}", Place::Compensation { step: &step.name });
    let repetition = Repetition {
        item,
        ..Repetition::once(run.record.version)
    };
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}

impl LedgerEntry {
    /// It is to be undone with all attempts anew, whatever was asked.
    pub(super) fn begin_anew(&mut self) {
        self.status = LedgerStatus::Due;
        self.attempt = 0;
        self.asks = false;
        self.again = false;
        self.question = None;
        self.tries.failures.clear();
    }

    /// It is undone, and once more where that may have come too early.
    fn undone(&mut self) {
        if self.again {
            self.tries.round = self.tries.round.saturating_add(1);
            self.begin_anew();
        } else {
            self.end(LedgerStatus::Undone);
        }
    }

    /// Nothing more is done about it, so nothing more is read.
    fn end(&mut self, status: LedgerStatus) {
        self.status = status;
        self.input = None;
        self.result = None;
        self.question = None;
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

fn step<'a>(run: &Run<'a>, index: u16) -> &'a Step {
    &run.ground.definition.steps[usize::from(index)]
}
