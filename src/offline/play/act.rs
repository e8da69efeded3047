//! Carries out what one step of a case does.

use std::ops::Range;

use bytes::Bytes;

use super::{ANSWERS_MAX, Obstacle, outcome, succeeded};
use crate::kernel::alias::Alias;
use crate::kernel::ids::{Key, TimeMs};
use crate::kernel::input::{CallbackOutcome, Control, DomainEvent, OnConflict, Operation, StuckDecision};
use crate::offline::answer::Answer;
use crate::offline::codes;
use crate::offline::compare::Fault;
use crate::offline::expect::OTHER_INSTANCE;
use crate::offline::file::{Action, EventSpec, Step, SucceedSpec, Suite};
use crate::offline::observe::Seen;
use crate::offline::of::Of;
use crate::offline::work;
use crate::offline::world::time::Hold;
use crate::offline::world::{Given, World};

/// Carries out what a step does, whenever it comes.
///
/// # Errors
/// As [`super::perform`].
pub fn act(world: &mut World, suite: &Suite, step: &Step) -> Result<Given, Obstacle> {
    match &step.action {
        Action::Event(spec) => give_event(world, step, spec),
        Action::Result(spec) => {
            let Some(item) = work::find(world, &spec.of).cloned() else {
                return Err(not_awaited(world, &spec.of, &spec.of_span).into());
            };
            Ok(world.give_result(&item, outcome(&spec.outcome)))
        }
        Action::Succeed(spec) => succeed(world, suite, spec),
        Action::Callback(spec) => {
            let Some(item) = work::find(world, &spec.of) else {
                return Err(not_awaited(world, &spec.of, &spec.of_span).into());
            };
            let work = item.idempotency_key.clone();
            let outcome = called_back(&spec.outcome);
            Ok(world.give_control(Control::Callback { work, outcome }))
        }
        Action::Heartbeat(of, span) => {
            let Some(item) = work::find(world, of) else {
                return Err(not_awaited(world, of, span).into());
            };
            let work = item.idempotency_key.clone();
            Ok(world.give_control(Control::Heartbeat { work }))
        }
        Action::Advance(ms) => {
            let (hold, span) = &step.hold;
            let given = world.advance(*ms, hold);
            is_held(world, hold, span)?;
            Ok(given)
        }
        Action::Cancel(reason, mode) => {
            let (reason, mode) = (reason.clone(), *mode);
            Ok(world.give_control(Control::Cancel { reason, mode }))
        }
        Action::Retry => Ok(world.give_control(Control::Retry)),
        Action::Start(input) => {
            let input = input.clone();
            Ok(world.give_control(Control::Start {
                input,
                parent: None,
                on_conflict: OnConflict::Fail,
                traceparent: None,
            }))
        }
        Action::Schedule(planned) => {
            let (hold, span) = &step.hold;
            let given = scheduled(world, step, *planned, hold)?;
            is_held(world, hold, span)?;
            Ok(given)
        }
        Action::Operate(verb, reason) => Ok(world.give_control(Control::Operate(Operation {
            verb: verb.clone(),
            by: String::new(),
            reason: reason.clone(),
        }))),
        Action::DecideStuck(verdict, step, found, result) => {
            Ok(world.give_control(Control::DecideStuck(StuckDecision {
                verdict: *verdict,
                step: step.clone(),
                item: None,
                by: String::new(),
                reason: String::new(),
                found: found.clone(),
                result: result.clone(),
            })))
        }
        Action::DeadLetter(decision, span) => world
            .decide(*decision)
            .map_err(|message| Fault::new(codes::UNPLAYABLE, span.clone(), message, None).into()),
        Action::RefuseAlias(alias) => Ok(world.refuse_alias(alias)),
        Action::AcceptAlias(alias) => Ok(world.accept_alias(alias)),
        Action::Signal { name, data, by } => {
            let (name, data, by) = (name.clone(), data.clone(), by.clone());
            let hops = 0;
            Ok(world.give_control(Control::Signal { name, data, by, hops }))
        }
    }
}

/// Gives the event to the instance that is looked at, to the alias that it is matched by, or to everyone who hears it.
fn give_event(world: &mut World, step: &Step, spec: &EventSpec) -> Result<Given, Obstacle> {
    let event = event(world, step, spec)?;
    if world.is_together() {
        return give_all(world, step, &event);
    }
    match world.key_of(&event) {
        Ok(key) if key == world.instance.key => Ok(world.give_event(event)),
        Ok(key) => match Alias::of(&key) {
            Some(alias) => Ok(world.give_matched(event, &alias)),
            None => Err(other_instance(world, step, &key)),
        },
        Err((reason, message)) => {
            let mut seen = Seen::after(world, &Given::default());
            seen.rejected = Some((reason.to_owned(), message));
            Err(Obstacle::Seen(Box::new(seen)))
        }
    }
}

/// Everyone who hears an event gets it.
fn give_all(world: &mut World, step: &Step, event: &DomainEvent) -> Result<Given, Obstacle> {
    world.give_all(event).ok_or_else(|| {
        let message = format!("no saga takes \"{}\"", event.event_type.escape_debug());
        Fault::new(codes::UNPLAYABLE, step.span.clone(), message, None).into()
    })
}

/// A planned time of the schedule comes.
///
/// # Errors
/// The fault, where it is not one, or cannot come any more.
pub fn scheduled(world: &mut World, step: &Step, planned: TimeMs, hold: &Hold) -> Result<Given, Fault> {
    let fault = |message: &str, help| Fault::new(codes::UNPLAYABLE, step.span.clone(), message, help);
    let Some(schedule) = &world.definition.schedule else {
        return Err(fault("the saga has no schedule", None));
    };
    if !schedule.plans(planned) {
        let next = schedule.next(planned);
        let help = next.map(|next| format!("the next planned time is {next}, {}", schedule.zone.shown(next)));
        return Err(fault(
            &format!("{planned} is not a planned time of the schedule"),
            help,
        ));
    }
    world.plan(planned, hold).ok_or_else(|| {
        let message = format!("the schedule has handled {planned}: planned times come in their order");
        fault(&message, None)
    })
}

/// All work of a name succeeds, and what this begins, until none is awaited.
fn succeed(world: &mut World, suite: &Suite, spec: &SucceedSpec) -> Result<Given, Obstacle> {
    let mut given = Given::default();
    for answered in 0..ANSWERS_MAX {
        let Some(item) = work::awaited_of(world, spec.of.as_ref()).cloned() else {
            if answered > 0 {
                return Ok(given);
            }
            let of = spec.of.clone().unwrap_or_else(|| Of::named("any work"));
            return Err(not_awaited(world, &of, &spec.span).into());
        };
        let result = work::default_result(suite, world, &item);
        given.add(world.give_result(&item, succeeded(&result)));
        if given.rejection.is_some() {
            return Ok(given);
        }
    }
    let message = format!("after {ANSWERS_MAX} results there is still work");
    Err(Fault::new(codes::UNPLAYABLE, spec.span.clone(), message, None).into())
}

/// The same of a callback.
fn called_back(answer: &Answer) -> CallbackOutcome {
    match answer {
        Answer::Ok(data) | Answer::Unusable { result: data, .. } => CallbackOutcome::Done {
            data: Bytes::from(data.to_string()),
        },
        Answer::Error { class, message, .. } => CallbackOutcome::Failed {
            class: class.clone(),
            message: message.clone(),
        },
        Answer::Timeout(class) => CallbackOutcome::Failed {
            class: class.as_str().to_owned(),
            message: String::new(),
        },
    }
}

pub(super) fn event(world: &mut World, step: &Step, spec: &EventSpec) -> Result<DomainEvent, Fault> {
    let publishers = world.definition.publishers(&spec.event_type);
    if let Some(from) = &spec.from
        && !publishers.iter().any(|saga| saga.as_str() == from)
    {
        let (saga, fact) = (&world.definition.name, spec.event_type.escape_debug());
        let message = format!(
            "saga \"{saga}\" hears no \"{fact}\" of \"{}\"",
            from.escape_debug()
        );
        return Err(Fault::new(codes::UNPLAYABLE, step.span.clone(), message, None));
    }
    world
        .event(spec)
        .map_err(|error| Fault::new(codes::UNPLAYABLE, step.span.clone(), error.to_string(), None))
}

fn other_instance(world: &World, step: &Step, key: &Key) -> Obstacle {
    let expected = step.expect.as_ref().and_then(|expect| expect.ignored.as_ref());
    if expected.and_then(|tree| tree.text()) == Some(OTHER_INSTANCE) {
        let mut seen = Seen::after(world, &Given::default());
        seen.ignored = Some(OTHER_INSTANCE);
        return Obstacle::Seen(Box::new(seen));
    }
    let message = format!(
        "the event is for the instance \"{}\", this is \"{}\"",
        key.as_str().escape_debug(),
        world.instance.key.as_str().escape_debug()
    );
    let help = Some(format!("if that is meant, expect {{ignored: {OTHER_INSTANCE}}}"));
    Fault::new(codes::UNPLAYABLE, step.span.clone(), message, help).into()
}

/// A name that no work has holds nothing back, so it is a mistake.
pub(super) fn is_held(world: &World, hold: &Hold, span: &Range<usize>) -> Result<(), Obstacle> {
    let Hold::Named(names) = hold else {
        return Ok(());
    };
    for name in names {
        let of = Of::named(name);
        if !world.sent.iter().any(|item| world.is_anywhere(item, &of)) {
            let mut fault = not_awaited(world, &of, span);
            fault.message = format!("no work is called \"{}\"", name.escape_debug());
            return Err(fault.into());
        }
    }
    Ok(())
}

fn not_awaited(world: &World, of: &Of, span: &Range<usize>) -> Fault {
    let message = format!("nothing awaits a result of \"{}\"", of.to_string().escape_debug());
    let awaited = work::awaited(world);
    let help = if awaited.is_empty() {
        "no work is awaited at this point".to_owned()
    } else {
        format!("awaited are {}", awaited.join(", "))
    };
    Fault::new(codes::UNPLAYABLE, span.clone(), message, Some(help))
}
