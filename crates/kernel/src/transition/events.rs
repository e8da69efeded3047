//! Domain events: duplicates, handlers, deferral.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Handler, StartRule};

use super::place::Place;
use super::run::{Ground, Opening, Run};
use super::scope::Locals;
use super::waits::Offered;
use super::{Rejection, flight, generations, machine, messages, program, seen, timers, waits};
use crate::input::DomainEvent;
use crate::patch::{IgnoreReason, Outcome, Patch};
use crate::record::{Phase, Record};

/// What running the handlers of an event came to.
enum Handled {
    No,
    Yes,
    /// The present state keeps the event for later.
    Deferred,
}

/// Opens an instance with the event that starts it, and handles it.
pub(super) fn start<'a>(ground: Ground<'a>, event: &'a DomainEvent) -> Result<Patch, Rejection> {
    start_as(ground, event, Opening::event(event))
}

/// The same, where something else than the event names the life of the instance.
pub(super) fn start_as<'a>(
    ground: Ground<'a>,
    event: &'a DomainEvent,
    opening: Opening<'_>,
) -> Result<Patch, Rejection> {
    let mut run = Run::open(ground, opening);
    run.admit()?;
    let Some(entrance) = entrance(&mut run, event)? else {
        return Ok(Patch::ignored(IgnoreReason::NoInstance));
    };
    check_hops(&run, event)?;
    begin(&mut run, entrance)?;
    let outcome = match run_handlers(&mut run, &event.event_type)? {
        Handled::Deferred => {
            run.record.deferred = run.record.deferred.saturating_add(1);
            Outcome::Deferred
        }
        Handled::Yes | Handled::No => {
            seen::remember(&mut run.record, event);
            Outcome::Applied
        }
    };
    run.conclude(outcome)
}

/// How an event begins an instance.
#[derive(Clone, Copy)]
pub(super) enum Entrance<'a> {
    Plain,
    /// By the rule of this index.
    Rule(usize, &'a StartRule),
}

/// The way in which the event would begin an instance, if it would.
pub(super) fn entrance<'a>(
    run: &mut Run<'a>,
    event: &DomainEvent,
) -> Result<Option<Entrance<'a>>, Rejection> {
    let definition = run.ground.definition;
    if definition.lifecycle.rules.is_empty() {
        let starts = definition.start.contains(&event.event_type);
        return Ok(starts.then_some(Entrance::Plain));
    }
    for (index, rule) in definition.lifecycle.rules.iter().enumerate() {
        if rule.event != event.event_type {
            continue;
        }
        let place = || format!("{}.when", Place::Start { index });
        let holds = match &rule.when {
            None => true,
            Some(when) => run.test(when, Locals::default(), place)?,
        };
        if holds {
            return Ok(Some(Entrance::Rule(index, rule)));
        }
    }
    Ok(None)
}

/// What every instance begins with: its state, its timers, and the first state of its machine.
pub(super) fn begin(run: &mut Run<'_>, entrance: Entrance<'_>) -> Result<(), Rejection> {
    run.open_state()?;
    if let Entrance::Rule(index, rule) = entrance {
        run.set(&rule.set, Locals::default(), Place::Start { index })?;
    }
    let definition = run.ground.definition;
    for timer in definition.timers.iter().filter(|timer| timer.during.is_none()) {
        timers::begin(run, timer)?;
    }
    run.start_machine()
}

/// Handles an event of a running instance.
pub(super) fn handle<'a>(
    mut run: Run<'a>,
    before: &Record,
    event: &'a DomainEvent,
) -> Result<Patch, Rejection> {
    run.admit()?;
    let mut handled = run_handlers(&mut run, &event.event_type)?;
    let deferred = matches!(handled, Handled::Deferred);
    let mut too_early = false;
    if !deferred
        && flight::hears(&run.record)
        && waits::awaits_event(run.ground.definition, &event.event_type)
    {
        let message = messages::Message::event(&mut run, &event.event_type)?;
        match waits::offer(&mut run, message)? {
            Offered::Used => handled = Handled::Yes,
            Offered::TooEarly => too_early = true,
            Offered::Unknown => {}
        }
    }
    // Its outcome is decided: what comes now is late, though there may be much to undo yet.
    if before.phase != Phase::Running && generations::handle_after_end(&mut run, &event.event_type)? {
        handled = Handled::Yes;
    }
    match handled {
        Handled::No if too_early => Ok(Patch {
            notes: run.notes,
            ..Patch::ignored(IgnoreReason::Early)
        }),
        Handled::No => Ok(Patch::ignored(IgnoreReason::NoHandler)),
        Handled::Deferred => Ok(generations::deferred(before)),
        Handled::Yes => {
            check_hops(&run, event)?;
            seen::remember(&mut run.record, event);
            run.conclude(Outcome::Applied)
        }
    }
}

/// Why an event changes nothing, as far as that can be told without evaluating anything.
pub(super) fn refusal(definition: &Definition, record: &Record, event: &DomainEvent) -> Option<IgnoreReason> {
    if let Some(reason) = seen::find_event(record, event) {
        return Some(reason);
    }
    let listens = definition.handlers.contains_key(&event.event_type)
        || machine::present(definition, record)
            .is_some_and(|state| state.handlers.contains_key(&event.event_type))
        || waits::awaits_event(definition, &event.event_type)
        || program::listens(definition.program.as_ref(), &event.event_type);
    let hears = if record.phase == Phase::Running {
        listens
    } else {
        let told = record.phase == Phase::Compensating
            && program::listens(definition.program.as_ref(), &event.event_type);
        let waits = flight::is_open(record) && waits::awaits_event(definition, &event.event_type);
        told || waits || generations::listens_after_end(definition, &event.event_type)
    };
    (!hears).then_some(IgnoreReason::NoHandler)
}

/// Whether a handler took what stands under `key`.
pub(super) fn is_handled(run: &mut Run<'_>, key: &str) -> Result<bool, Rejection> {
    Ok(matches!(run_handlers(run, key)?, Handled::Yes))
}

/// Handlers of the present state come first, then those of the saga.
fn run_handlers<'a>(run: &mut Run<'a>, event_type: &str) -> Result<Handled, Rejection> {
    let definition = run.ground.definition;
    let mut handled = Handled::No;
    if program::is_asked(run) {
        program::event(run)?;
        return Ok(Handled::Yes);
    }
    if run.record.phase != Phase::Running {
        // It undoes what it did, or the entry of the initial state has failed.
        return Ok(handled);
    }
    let state = machine::present(definition, &run.record);
    let listening = state.and_then(|state| {
        let (event_type, handlers) = state.handlers.get_key_value(event_type)?;
        Some((state, event_type, handlers))
    });
    if let Some((state, event_type, handlers)) = listening {
        let chosen = run.choose(handlers, |index| Place::StateHandler {
            state: &state.name,
            event_type,
            index,
        })?;
        if let Some((place, handler)) = chosen {
            if handler.actions.defer {
                return Ok(Handled::Deferred);
            }
            run.handle(handler, place)?;
            handled = Handled::Yes;
        }
    }
    if run.record.phase != Phase::Running {
        return Ok(handled);
    }
    let Some((event_type, handlers)) = definition.handlers.get_key_value(event_type) else {
        return Ok(handled);
    };
    let handlers: &'a [Handler] = handlers;
    let chosen = run.choose(handlers, |index| Place::Handler { event_type, index })?;
    if let Some((place, handler)) = chosen {
        run.handle(handler, place)?;
        handled = Handled::Yes;
    }
    Ok(handled)
}

/// Ends chains of messages that cause each other. Only events and signals are refused: a result or timer of work that
/// was let through is always applied.
pub(super) fn check_hops(run: &Run<'_>, event: &DomainEvent) -> Result<(), Rejection> {
    check_chain(run, event.hops, || format!("event {}", event.event_id))
}

/// The same for what has come so many hops.
pub(super) fn check_chain(run: &Run<'_>, hops: u32, what: impl FnOnce() -> String) -> Result<(), Rejection> {
    let max = run.ground.context.limits.hops;
    if hops < max {
        return Ok(());
    }
    let what = what();
    Err(Rejection {
        reason: "loop",
        message: format!(
            "{what} is hop {hops} of a chain of messages that cause each other, at most {max} are allowed"
        ),
    })
}

/// Whether an instance may do something about events of this type.
pub(super) fn handles(definition: &Definition, event_type: &str) -> bool {
    let states = definition.machine.iter().flat_map(|machine| &machine.states);
    definition.handlers.contains_key(event_type)
        || states
            .into_iter()
            .any(|state| state.handlers.contains_key(event_type))
        || waits::awaits_event(definition, event_type)
        || program::listens(definition.program.as_ref(), event_type)
}
