//! Keys that are used again: what would start an instance that runs, or one that has ended.
//!
//! ```text
//! generation 1: running ──▶ completed, failed, cancelled
//!                  ▲                    │ a start, where `reuse` allows it
//!   on_running ────┘                    ▼
//!                              generation 2: running ──▶ ...
//! ```
//!
//! While an instance is on its way to an end after which its key may be used again, a start waits for that end, and so does
//! what comes behind it.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{NoInstance, OnRunning};
use saga_runner_language::ids::{InstanceId, TimeMs};

use super::arena::Arena;
use super::place::Place;
use super::run::{Ground, Opening, Run};
use super::signals::Signal;
use super::{
    Context, NO_INSTANCE, Rejection, START_RUNNING, Trace, aliases, check_definition, doubts, events,
    parents, requests, rerun, results, seen, signals,
};
use crate::input::{Control, DomainEvent, Input, InputBody, OnConflict, Operation, OperationVerb};
use crate::patch::{IgnoreReason, Outcome, Patch};
use crate::record::{Phase, Record, Summary};

/// What is known of an instance that has ended and whose key is not free yet.
#[derive(Debug, Clone, Copy)]
pub struct Last<'a> {
    pub generation: u32,
    /// How it ended.
    pub phase: Phase,
    pub ended: TimeMs,
    /// Hash of the id of the event or request that started it, as [`Last::of`] makes it.
    pub start: u64,
    /// Its last record, while that is kept.
    pub record: Option<&'a Record>,
    /// What it had applied, where an operator has deleted it: a repetition is recognised, and nothing else is known.
    pub deleted: Option<&'a Record>,
}

impl<'a> Last<'a> {
    #[must_use]
    pub fn of(summary: &'a Summary) -> Self {
        let record = &summary.record;
        Self {
            generation: record.generation,
            phase: record.phase,
            ended: summary.ended,
            start: seen::start(&record.start_event),
            record: Some(record),
            deleted: None,
        }
    }

    /// By what a repetition is recognised.
    fn known(&self) -> Option<&'a Record> {
        self.record.or(self.deleted)
    }
}

/// Applies `input` to a key whose instance has ended. `active` is the version that new instances get, `own` that of
/// the last record. The patch is about the generation that its record, if it has one, names.
///
/// # Errors
/// As [`super::apply`].
pub fn apply_ended(
    active: Option<&Definition>,
    own: Option<&Definition>,
    instance: &InstanceId,
    last: Last<'_>,
    input: &Input,
    context: &Context<'_>,
    trace: Option<&dyn Trace>,
) -> Result<Patch, Rejection> {
    let (texts, values) = (Arena::default(), Arena::default());
    let next = Context {
        generation: last.generation.saturating_add(1),
        ..*context
    };
    let ground = |definition, context| Ground {
        definition,
        instance,
        before: None,
        last: last.record,
        input,
        context,
        texts: &texts,
        values: &values,
        trace,
    };
    let via = match &input.body {
        InputBody::Event(event) => event.via.as_ref(),
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => None,
    };
    if let Some(via) = via {
        let has_alias = last
            .record
            .is_some_and(|record| aliases::refusal(record, via).is_none());
        if !has_alias {
            return Ok(Patch::ignored(IgnoreReason::Ended));
        }
    }
    let allows = active.filter(|active| active.lifecycle.reuse.allows(last.phase));
    if let Some(active) = allows.filter(|_| via.is_none() && !is_own_parent(&last, input))
        && let Some(patch) = start_next(ground(active, &next), last)?
    {
        return Ok(patch);
    }
    let of_last = own.zip(last.record).map(|(own, record)| {
        let ground = Ground {
            before: Some(record),
            last: None,
            ..ground(own, context)
        };
        (ground, record)
    });
    let Some((ground, record)) = of_last else {
        let message = match last.record {
            None => "it has ended, and its record is no longer kept".to_owned(),
            Some(_) => format!("there is no definition of saga {}", instance.saga),
        };
        let answer = parents::refusal(instance, input, context, &message);
        return Ok(answer.unwrap_or_else(|| Patch::ignored(IgnoreReason::Ended)));
    };
    apply_to_last(ground, record, last, active, &next)
}

/// Starts the next generation if the input starts one; `None` where the input is for the last one, if for any.
fn start_next(ground: Ground<'_>, last: Last<'_>) -> Result<Option<Patch>, Rejection> {
    let input = ground.input;
    if let Some(reason) = repeats(&last, input) {
        return Ok(Some(Patch::ignored(reason)));
    }
    let starts = |event: &DomainEvent| ground.definition.start.contains(&event.event_type);
    let patch = match &input.body {
        InputBody::Event(event) if starts(event) => {
            let repeated = last
                .known()
                .and_then(|record| seen::find_sequence(record, event, ground.context.again));
            match repeated {
                Some(patch) => return Ok(Some(patch)),
                None => events::start(ground, event)?,
            }
        }
        InputBody::Control(Control::Start { input, parent, .. }) => {
            requests::start(ground, input, parent.as_ref())?
        }
        _ => return Ok(None),
    };
    let is_ignored = patch.outcome == Outcome::Ignored(IgnoreReason::NoInstance);
    Ok((!is_ignored).then_some(patch))
}

/// Applies an input to an instance that has ended and whose record is kept. `next` is the context of its next generation.
fn apply_to_last<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    last: Last<'_>,
    active: Option<&'a Definition>,
    next: &'a Context<'a>,
) -> Result<Patch, Rejection> {
    match &ground.input.body {
        InputBody::Control(Control::Start {
            parent: Some(parent), ..
        }) => Ok(parents::start_again(ground, record, Some(parent))),
        InputBody::Control(control @ Control::CancelChild { parent, .. }) => {
            check_definition(ground.definition, record)?;
            parents::taken_back(ground, record, parent, parents::TakeBack::of(control))
        }
        InputBody::Result(result) => match doubts::waiting(record, result) {
            None => Ok(results::without_step(record, result)),
            Some(at) => {
                check_definition(ground.definition, record)?;
                let patch = results::take(ground, record, result, results::Waiting::Doubt(at))?;
                Ok(kept_as_before(patch, last))
            }
        },
        InputBody::Timer { .. } => Ok(Patch::ignored(IgnoreReason::Stale)),
        InputBody::Event(event) => {
            check_definition(ground.definition, record)?;
            Ok(kept_as_before(after_end(ground, record, event)?, last))
        }
        InputBody::Control(Control::Operate(operation)) => {
            begin_again(ground, active, record, next, operation)
        }
        InputBody::Control(control) => signalled(ground, record, last, control),
    }
}

/// A signal may be heard after the end.
fn signalled<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    last: Last<'_>,
    control: &'a Control,
) -> Result<Patch, Rejection> {
    match Signal::of(control) {
        None => {
            let is_start = matches!(control, Control::Start { .. });
            let known = is_start
                .then(|| requests::repeated(record, ground.input))
                .flatten();
            Ok(Patch::ignored(known.unwrap_or(IgnoreReason::Ended)))
        }
        Some(signal) => {
            check_definition(ground.definition, record)?;
            Ok(kept_as_before(signals::after_end(ground, record, signal)?, last))
        }
    }
}

/// An operator has another go at an instance that has ended; `next` is for its next generation.
fn begin_again<'a>(
    ground: Ground<'a>,
    active: Option<&'a Definition>,
    record: &'a Record,
    next: &'a Context<'a>,
    operation: &'a Operation,
) -> Result<Patch, Rejection> {
    check_definition(ground.definition, record)?;
    if let Some(reason) = seen::find_control(record, ground.input) {
        return Ok(Patch::ignored(reason));
    }
    // What begins without anything kept begins as new instances do.
    let is_restart = matches!(
        operation.verb,
        OperationVerb::Restart | OperationVerb::RestartWith { .. }
    );
    let own = ground.definition;
    let ground = Ground {
        definition: active.filter(|_| is_restart).unwrap_or(ground.definition),
        before: None,
        last: Some(record),
        context: next,
        ..ground
    };
    rerun::begin(ground, own, record, operation)
}

/// An instance is kept no longer because of what came after its end.
fn kept_as_before(mut patch: Patch, last: Last<'_>) -> Patch {
    if let Some(summary) = &mut patch.ended {
        summary.ended = last.ended;
    }
    patch
}

/// An event that comes after the end: a handler may note it in the state and tell others.
pub(super) fn after_end<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    event: &'a DomainEvent,
) -> Result<Patch, Rejection> {
    if let Some(reason) = seen::find_event(record, event) {
        return Ok(Patch::ignored(reason));
    }
    if !listens_after_end(ground.definition, &event.event_type) {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    if let Some(patch) = seen::find_sequence(record, event, ground.context.again) {
        return Ok(patch);
    }
    let mut run = Run::of(ground, record);
    run.admit()?;
    if !handle_after_end(&mut run, &event.event_type)? {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    events::check_hops(&run, event)?;
    seen::remember(&mut run.record, event);
    run.finish(Outcome::Applied)
}

/// Whether there are handlers for events of this type once the outcome is decided.
pub(super) fn listens_after_end(definition: &Definition, event_type: &str) -> bool {
    definition.lifecycle.after_end.contains_key(event_type)
}

/// Runs them: the instance has ended, or it undoes what it did, or its `finally` is under way. Tells whether one was
/// taken.
pub(super) fn handle_after_end(run: &mut Run<'_>, event_type: &str) -> Result<bool, Rejection> {
    let after_end = &run.ground.definition.lifecycle.after_end;
    let Some((event_type, handlers)) = after_end.get_key_value(event_type) else {
        return Ok(false);
    };
    let chosen = run.choose(handlers, |index| Place::AfterEnd { event_type, index })?;
    let Some((place, handler)) = chosen else {
        return Ok(false);
    };
    let iteration = run.record.version;
    run.act(&handler.actions, place, iteration)?;
    Ok(true)
}

/// What happens to an event that has no instance and starts none.
pub(super) fn nobody(ground: Ground<'_>, event: &DomainEvent) -> Result<Patch, Rejection> {
    match ground.definition.lifecycle.no_instance {
        NoInstance::Ignore => Ok(Patch::ignored(IgnoreReason::NoInstance)),
        NoInstance::DeadLetter => Err(Rejection {
            reason: NO_INSTANCE,
            message: format!(
                "event {} of type {}: there is no instance {}",
                event.event_id, event.event_type, ground.instance.key
            ),
        }),
        NoInstance::Park(ms) => Ok(Patch {
            outcome: Outcome::Deferred,
            early: Some(ground.input.time.plus_ms(ms)),
            ..Patch::ignored(IgnoreReason::NoInstance)
        }),
    }
}

/// Whether such an input may concern an instance that has ended.
#[must_use]
pub const fn reaches_ended(input: &Input) -> bool {
    match &input.body {
        InputBody::Event(_) | InputBody::Control(_) => true,
        // Only what has happened is of use then.
        InputBody::Result(result) => result.outcome.has_happened(),
        InputBody::Timer { .. } => false,
    }
}

/// Whether the saga asks that has started the instance that has ended, by the same command.
fn is_own_parent(last: &Last<'_>, input: &Input) -> bool {
    let parent = last.record.and_then(|record| record.parent.as_ref());
    match &input.body {
        InputBody::Control(Control::Start {
            parent: Some(asks), ..
        }) => parent.is_some_and(|parent| parent.command == asks.command_id),
        _ => false,
    }
}

/// Whether an earlier generation has taken this event or request.
fn repeats(last: &Last<'_>, input: &Input) -> Option<IgnoreReason> {
    let known = match &input.body {
        InputBody::Event(event) => last.known().and_then(|record| seen::find_event(record, event)),
        InputBody::Control(Control::Start { .. }) => {
            last.known().and_then(|record| requests::repeated(record, input))
        }
        // A parent that asks again is told again.
        InputBody::Control(_) | InputBody::Result(_) | InputBody::Timer { .. } => return None,
    };
    known.or_else(|| (last.start == seen::start(&input.id)).then_some(IgnoreReason::Duplicate))
}

/// What happens to a start that finds its instance: `None` where it is an input like any other.
pub(super) fn meets<'a>(ground: Ground<'a>, record: &'a Record) -> Result<Option<Patch>, Rejection> {
    let event = match &ground.input.body {
        InputBody::Event(event) if ground.definition.start.contains(&event.event_type) => Some(event),
        // Whoever asks for the one that is there does not wait for its end.
        InputBody::Control(Control::Start {
            on_conflict: OnConflict::UseExisting,
            parent: None,
            ..
        }) => return Ok(None),
        InputBody::Control(Control::Start { parent, .. }) => {
            let asks = parent.as_ref().map(|parent| parent.command_id);
            if record.parent.as_ref().map(|parent| parent.command) == asks && asks.is_some() {
                return Ok(None);
            }
            None
        }
        _ => return Ok(None),
    };
    let lifecycle = &ground.definition.lifecycle;
    let waits = end_ahead(record).is_some_and(|end| lifecycle.reuse.allows(end));
    let differs =
        record.phase == Phase::Running && event.is_some() && lifecycle.on_running != OnRunning::Handle;
    let is_old = |event| seen::find_sequence(record, event, ground.context.again).is_some();
    let seen = match event {
        Some(event) => seen::find_event(record, event),
        None => seen::find_control(record, ground.input),
    };
    let is_known = seen.is_some() || seen::is_start(record, &ground.input.id) || event.is_some_and(is_old);
    if is_known || !(waits || differs) {
        return Ok(None);
    }
    if let Some(event) = event
        && !would_start(ground, event)?
    {
        return Ok(None);
    }
    if waits {
        return Ok(Some(deferred(record)));
    }
    match lifecycle.on_running {
        OnRunning::Handle => Ok(None),
        OnRunning::Ignore => Ok(Some(Patch::ignored(IgnoreReason::Exists))),
        OnRunning::Fail => Err(Rejection {
            reason: START_RUNNING,
            message: format!(
                "instance {} runs, and on_running is \"fail\"",
                ground.instance.key
            ),
        }),
    }
}

fn would_start<'a>(ground: Ground<'a>, event: &'a DomainEvent) -> Result<bool, Rejection> {
    if ground.definition.lifecycle.rules.is_empty() {
        return Ok(true);
    }
    let mut run = Run::open(ground, Opening::event(event));
    run.admit()?;
    Ok(events::entrance(&mut run, event)?.is_some())
}

/// How the instance will have ended, where that is decided.
fn end_ahead(record: &Record) -> Option<Phase> {
    match record.phase {
        Phase::Running => None,
        Phase::Completed | Phase::Failed | Phase::Cancelled => Some(record.phase),
        Phase::Compensating | Phase::CompensationFailed | Phase::Finishing => Some(record.end()),
    }
}

/// What happens to an event of which the instance made `patch`. It waits as well if the start before it does: what the instance makes
/// nothing of may concern the next generation. Of an instance whose outcome is decided nothing else waits than starts and what came
/// behind them.
pub(super) fn behind_a_start(record: &Record, event: &DomainEvent, patch: Patch) -> Patch {
    let is_of_no_concern = matches!(
        patch.outcome,
        Outcome::Ignored(IgnoreReason::NoHandler | IgnoreReason::Ended)
    );
    let waits = is_of_no_concern && record.phase != Phase::Running && record.deferred > 0;
    // What came by an alias is for the generation that has registered it.
    if waits && event.via.is_none() {
        deferred(record)
    } else {
        patch
    }
}

/// The input waits in the inbox.
pub(super) fn deferred(record: &Record) -> Patch {
    let mut record = record.clone();
    record.deferred = record.deferred.saturating_add(1);
    Patch {
        outcome: Outcome::Deferred,
        record: Some(record),
        deferred: true,
        ..Patch::ignored(IgnoreReason::NoHandler)
    }
}
