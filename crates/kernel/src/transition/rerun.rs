//! Another go at an instance that has ended without success: the next generation of its key, from where it failed.
//!
//! What is done and was not undone stays done: its result, and its entry of the ledger. Everything else runs again, as other work
//! of other idempotency keys. So it has to be known what was done: a step of unknown outcome that was not undone is resolved first.
//!
//! ```text
//! done, nothing undone ──────────────────▶ done
//! done, undone; failed; never begun ─────▶ pending
//! outcome unknown, or acted and not done;
//! done, and perhaps undone ──────────────▶ what the operator says of it: done, or pending
//! ```
//!
//! What stands on the ledger is never forgotten: it is taken over ([`super::takeover`]), or an operator has said that there is
//! nothing, or the request is refused.

use std::borrow::Cow;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Group, Step};
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;
use serde_bytes::ByteBuf;

use super::arena::Arena;
use super::results::{effect_of, output_of};
use super::run::{Ground, Opening, Run};
use super::slot::Slot;
use super::{Rejection, compensation, deadlines, ends, entries, events, requests, seen, takeover, timers};
use crate::input::{DomainEvent, Finding, Found, Input, InputBody, Operation, OperationVerb};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Phase, Record, Sent, StepState, StepStatus};

/// Why an instance that has ended cannot be retried with what an operator has found out, if it cannot.
#[must_use]
pub fn rerun_obstacle(
    definition: &Definition,
    record: &Record,
    found: &[Finding],
    limits: &Limits,
) -> Option<String> {
    of_instance(record)
        .or_else(|| of_saga(definition))
        .or_else(|| of_found(definition, record, found, limits))
        .or_else(|| of_loops(definition, record))
        .or_else(|| of_unknown(definition, record, found))
}

/// The same for a beginning without anything kept; `definition` is the version that the instance ran under, `event` the one that
/// has started it, where that is at hand.
#[must_use]
pub fn restart_obstacle(
    definition: &Definition,
    record: &Record,
    event: Option<&DomainEvent>,
) -> Option<String> {
    let of_input = || {
        match event {
        None => record.input.is_none().then(|| {
            "the event that has started it is no longer kept, or came by an alias: publish it again, with another id, where \
             `reuse` of the saga allows it, or retry the instance"
                .to_owned()
        }),
        Some(event) => {
            let is_other = record.input.is_some() || !seen::is_start(record, event.event_id.as_str());
            is_other.then(|| format!("event {} has not started it", event.event_id))
        }
    }
    };
    of_instance(record)
        .or_else(of_input)
        .or_else(|| of_restart(definition, record))
}

fn of_instance(record: &Record) -> Option<String> {
    if record.phase == Phase::Completed {
        return Some("it has completed".to_owned());
    }
    if !record.phase.is_terminal() || !record.has_nothing_open() {
        return Some("it has not ended, or undoes something late".to_owned());
    }
    let parent = record.parent.as_ref()?;
    let why = if parent.waits && parent.answered {
        "was told how it ended"
    } else if parent.undoable {
        "may have had it undone"
    } else {
        return None;
    };
    Some(format!(
        "instance {} of saga {} has started it and {why}: retry that one",
        parent.key, parent.saga
    ))
}

/// What would be done twice where nothing is kept.
fn of_restart(definition: &Definition, record: &Record) -> Option<String> {
    let names = standing(definition, record);
    (!names.is_empty()).then(|| {
        format!(
            "what {} did, or may have done, was not undone, and would be done once more: retry the instance instead, which keeps \
             what is done and takes what you found out",
            names.join(", ")
        )
    })
}

/// The steps that did something, or may have, which was not undone.
pub(super) fn standing<'d>(definition: &'d Definition, record: &Record) -> Vec<&'d str> {
    let entries = of_ledger(record);
    let stands = |index: u16, step: &Step, state: &StepState| {
        let of_step = || entries.iter().filter(|entry| entry.step == index);
        let is_left = of_step().any(|entry| !is_undone(entry));
        // A step that cannot be undone may be done again.
        let is_off_ledger = step.compensate.is_some() && record.off_ledger.contains(&index);
        is_left || is_off_ledger || (is_unknown(record, index, state) && of_step().next().is_none())
    };
    let steps = definition.steps.iter().zip(&record.steps);
    let standing = (0..=u16::MAX).zip(steps);
    let standing = standing.filter(|(index, (step, state))| !step.at_end && stands(*index, step, state));
    standing.map(|(_, (step, _))| step.name.as_str()).collect()
}

fn of_saga(definition: &Definition) -> Option<String> {
    let what = if definition.program.is_some() {
        "program"
    } else if definition.machine.is_some() {
        "machine"
    } else {
        return None;
    };
    Some(format!(
        "its saga has a {what}, which does not say what of it is done"
    ))
}

/// What is said must be about steps of which something is to be said, and results must be as their effects give them.
fn of_found(definition: &Definition, record: &Record, found: &[Finding], limits: &Limits) -> Option<String> {
    let entries = of_ledger(record);
    let asked = unknown(definition, record);
    let may_be_said = |index: u16| {
        let mut of_step = entries.iter().filter(|entry| entry.step == index);
        asked.contains(&index)
            || (is_alone(definition, index)
                && stays(record, &entries, index)
                && of_step.any(|entry| !is_undone(entry)))
    };
    let mut said = Vec::new();
    found.iter().find_map(|Finding { step: name, found }| {
        let Some(index) = named(definition, name).filter(|index| may_be_said(*index)) else {
            return Some(format!("the outcome of step {name} is not asked for"));
        };
        if said.contains(&index) {
            return Some(format!("step {name} is named twice"));
        }
        said.push(index);
        let Found::Done { result } = found else {
            return None;
        };
        let result = match Json::parse(result.as_bytes(), limits.json_depth) {
            Ok(result) => result,
            Err(error) => return Some(format!("the result of step {name}: {error}")),
        };
        let output =
            effect_of(definition, Slot::of(index)).and_then(|effect| output_of(definition, effect))?;
        let violation = output.check(&result).err()?;
        Some(format!("the result of step {name}: result {violation}"))
    })
}

/// The step of this name of which something can be said.
fn named(definition: &Definition, name: &str) -> Option<u16> {
    let mut steps = (0..=u16::MAX).zip(&definition.steps);
    let found = steps.find(|(index, step)| step.is_named(name) && is_alone(definition, *index));
    found.map(|(index, _)| index)
}

/// Whether a step stands for itself: it is no group, and in no loop.
fn is_alone(definition: &Definition, index: u16) -> bool {
    step(definition, index).is_own() && definition.group(index).is_none() && !in_loop(definition, index)
}

/// A loop that has to run again would do once more what its steps have done. One that stays must be known to stand.
fn of_loops(definition: &Definition, record: &Record) -> Option<String> {
    let entries = of_ledger(record);
    let title = |index: u16| &step(definition, index).name;
    loops(definition).find_map(|(index, group)| {
        let name = title(index);
        let mut of_loop = entries.iter().filter(|entry| group.members().contains(&entry.step));
        if loop_stays(record, &entries, index, group) {
            let entry = of_loop.find(|entry| entry.tries.unknown)?;
            return Some(format!(
                "nobody knows whether what step {} of loop {name} did was undone",
                title(entry.step)
            ));
        }
        if let Some(entry) = of_loop.find(|entry| !is_undone(entry)) {
            return Some(format!(
                "loop {name} would have to run again, and what its step {} has done was not undone",
                title(entry.step)
            ));
        }
        let mut off_ledger = record.off_ledger.iter();
        let lasting = off_ledger.find(|step| group.members().contains(step))?;
        Some(format!(
            "loop {name} would have to run again, and its step {} did something that was not undone, or may have",
            title(*lasting)
        ))
    })
}

fn of_unknown(definition: &Definition, record: &Record, found: &[Finding]) -> Option<String> {
    let open = unknown(definition, record)
        .into_iter()
        .map(|index| step(definition, index));
    let open = open.filter(|step| !found.iter().any(|finding| step.is_named(&finding.step)));
    let names: Vec<&str> = open.map(|step| step.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "state the outcome of {}: done where what it did stands, else not_done; it is unknown, or was not undone",
            names.join(", ")
        )
    })
}

/// Steps outside of loops of which it is not certain what stands of what they did: those that are not done and may have done
/// something, and those that are done and may have been undone.
fn unknown(definition: &Definition, record: &Record) -> Vec<u16> {
    let entries = of_ledger(record);
    let is_open = |index: u16, state: &StepState| {
        let of_step = || entries.iter().filter(|entry| entry.step == index);
        let mut standing = of_step().filter(|entry| !is_undone(entry) && is_of_now(entry, state));
        if stays(record, &entries, index) {
            return standing.any(|entry| entry.tries.unknown);
        }
        // What it does again after that, the definition says. One that an operator has skipped had begun.
        let has_begun = state.status != StepStatus::Pending;
        standing.next().is_some()
            || (has_begun && record.off_ledger.contains(&index))
            || (is_unknown(record, index, state) && of_step().next().is_none())
    };
    let steps = (0..=u16::MAX).zip(&record.steps);
    steps
        .filter(|(index, state)| is_alone(definition, *index) && is_open(*index, state))
        .map(|(index, _)| index)
        .collect()
}

/// Whether the outcome of something that the step did is unknown.
fn is_unknown(record: &Record, index: u16, state: &StepState) -> bool {
    let mut doubts = record.doubts.iter().filter(|doubt| !doubt.undo);
    state.status != StepStatus::Done && (state.tries.unknown || doubts.any(|doubt| doubt.step == index))
}

/// Whether a step is done, and was not undone since.
pub(super) fn stays(record: &Record, entries: &[LedgerEntry], index: u16) -> bool {
    let state = &record.steps[usize::from(index)];
    let mut entries = entries
        .iter()
        .filter(|entry| entry.step == index && !entry.of_child);
    state.status == StepStatus::Done && !entries.any(|entry| is_of_now(entry, state) && is_undone(entry))
}

/// Whether an entry is of what the step did last. Another attempt may have left one as well, for which nobody waited.
pub(super) fn is_of_now(entry: &LedgerEntry, state: &StepState) -> bool {
    entry.iteration == state.iteration && !entries::is_twin(entry)
}

/// The same of a loop: nothing that its steps did was undone.
pub(super) fn loop_stays(record: &Record, entries: &[LedgerEntry], index: u16, group: &Group) -> bool {
    let mut entries = entries.iter();
    record.steps[usize::from(index)].status == StepStatus::Done
        && !entries.any(|entry| group.members().contains(&entry.step) && is_undone(entry))
}

pub(super) fn of_ledger(record: &Record) -> Vec<LedgerEntry> {
    record.ledger.iter().map(Cow::into_owned).collect()
}

pub(super) fn is_undone(entry: &LedgerEntry) -> bool {
    entry.status == LedgerStatus::Undone
}

fn step(definition: &Definition, index: u16) -> &Step {
    &definition.steps[usize::from(index)]
}

/// The loops that stand in no other loop.
pub(super) fn loops(definition: &Definition) -> impl Iterator<Item = (u16, &Group)> {
    let steps = u16::try_from(definition.steps.len()).unwrap_or(u16::MAX);
    (0..steps).filter_map(move |index| {
        let group = definition.group(index)?;
        let is_loop = matches!(group, Group::Repeat(_) | Group::Foreach(_));
        (is_loop && !in_loop(definition, index)).then_some((index, group))
    })
}

pub(super) fn in_loop(definition: &Definition, index: u16) -> bool {
    let mut around = step(definition, index).within;
    while let Some(group) = around {
        if let Some(Group::Repeat(_) | Group::Foreach(_)) = definition.group(group) {
            return true;
        }
        around = step(definition, group).within;
    }
    false
}

/// Begins the next generation; `last` is the record of the one before, and `own` its version.
pub(super) fn begin<'a>(
    ground: Ground<'a>,
    own: &'a Definition,
    last: &'a Record,
    operation: &'a Operation,
) -> Result<Patch, Rejection> {
    let note = Note::Operated {
        verb: operation.verb.as_str().to_owned(),
        by: operation.by.clone(),
        reason: operation.reason.clone(),
    };
    match &operation.verb {
        OperationVerb::Rerun { found } => {
            let limits = ground.context.limits;
            if rerun_obstacle(ground.definition, last, found, limits).is_some() {
                return Ok(Patch::ignored(IgnoreReason::Refused));
            }
            rerun(ground, last, found, note)
        }
        OperationVerb::Restart => {
            let (None, Some(input)) = (restart_obstacle(own, last, None), &last.input) else {
                return Ok(Patch::ignored(IgnoreReason::Refused));
            };
            let mut patch = requests::start(ground, input, None)?;
            patch.notes.insert(0, note);
            Ok(patch)
        }
        OperationVerb::RestartWith { event } => {
            if restart_obstacle(own, last, Some(event)).is_some() {
                return Ok(Patch::ignored(IgnoreReason::Refused));
            }
            restart(ground, event, note)
        }
        OperationVerb::Pause
        | OperationVerb::Resume
        | OperationVerb::Kill
        | OperationVerb::FireTimer { .. }
        | OperationVerb::CancelTimer { .. }
        | OperationVerb::TryNow { .. }
        | OperationVerb::Delete { .. } => Ok(Patch::ignored(IgnoreReason::Ended)),
    }
}

/// Begins with the event that has started the last generation. The new life has a name of its own, and remembers the event: it is a
/// repetition, should it come again.
fn restart(ground: Ground<'_>, event: &DomainEvent, note: Note) -> Result<Patch, Rejection> {
    let request = ground.input;
    let input = Input {
        body: InputBody::Event(event.clone()),
        ..request.clone()
    };
    let life = seen::life(&request.id, event.event_id.as_str());
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition: ground.definition,
        instance: ground.instance,
        before: None,
        last: ground.last,
        input: &input,
        context: ground.context,
        texts: &texts,
        values: &values,
        trace: ground.trace,
    };
    let opening = Opening {
        id: &life,
        ..Opening::event(event)
    };
    let mut patch = events::start_as(ground, event, opening)?;
    // The rules of the version in force may not begin with it, or its first state may keep it for later.
    if patch.outcome != Outcome::Applied {
        return Ok(Patch::ignored(IgnoreReason::Refused));
    }
    let ended = patch.ended.as_mut().map(|summary| &mut summary.record);
    if let Some(record) = patch.record.as_mut().or(ended) {
        seen::remember_event(record, seen::control(request));
    }
    patch.notes.insert(0, note);
    Ok(patch)
}

fn rerun<'a>(
    ground: Ground<'a>,
    last: &'a Record,
    found: &'a [Finding],
    note: Note,
) -> Result<Patch, Rejection> {
    let definition = ground.definition;
    let opening = Opening {
        id: &ground.input.id,
        correlation_id: last.root_correlation_id.as_deref(),
        traceparent: last.traceparent.as_deref(),
        hops: last.hops,
        input: last.input.as_ref().map(|input| input.as_slice()),
    };
    let mut run = Run::open(ground, opening);
    run.note(Note::Started);
    run.note(note);
    run.replace_data(last.data.to_vec());
    let said: Vec<(u16, &Found)> = found
        .iter()
        .filter_map(|finding| Some((named(definition, &finding.step)?, &finding.found)))
        .collect();
    seen::remember_event(&mut run.record, seen::control(ground.input));
    let kept = takeover::take_over(&mut run, last, &said);
    for timer in definition.timers.iter().filter(|timer| timer.during.is_none()) {
        timers::begin(&mut run, timer)?;
    }
    run.register_again(last)?;
    for (index, found) in said {
        if let Found::Done { result } = found
            && !kept[usize::from(index)]
        {
            done(&mut run, last, index, result)?;
        }
    }
    // What nobody can use is undone now.
    compensation::proceed(&mut run)?;
    run.conclude(Outcome::Applied)
}

/// An operator has found out that a step had been done.
fn done<'a>(run: &mut Run<'a>, last: &Record, index: u16, result: &'a str) -> Result<(), Rejection> {
    let slot = Slot::of(index);
    let before = &last.steps[usize::from(index)];
    let mut of_ledger = last.ledger.iter().rev().map(Cow::into_owned);
    let entry = of_ledger.find(|entry| {
        entry.step == index && !entry.of_child && is_of_now(entry, before) && !is_undone(entry)
    });
    drop(of_ledger);
    let of_ledger = entry.as_ref().and_then(|entry| entry.input.clone());
    let mut doubts = last.doubts.iter().filter(|doubt| doubt.step == index);
    let input: Option<ByteBuf> = of_ledger.or_else(|| doubts.find_map(|doubt| doubt.input.clone()));
    let state = run.slot_mut(slot);
    state.status = StepStatus::Running;
    state.iteration = before.iteration;
    state.attempt = 1;
    state.sent = input.map(|payload| Sent {
        payload,
        target: None,
    });
    if !deadlines::begin(run, slot)? {
        return Ok(());
    }
    let entries = run.record.ledger.len();
    ends::acted(run, slot, result.as_bytes())?;
    if let Some(entry) = entry
        && run.record.ledger.len() > entries
    {
        // What undid it before, if anything did, came too early: what undoes it now is other work.
        let round = entry.tries.round.saturating_add(u32::from(entry.attempt > 0));
        let life = entry.life.or_else(|| Some(last.start_event.clone()));
        let found = run.record.ledger.entry(entries);
        (found.life, found.known_as, found.tries.round) = (life, entry.known_as, round);
    }
    Ok(())
}
