//! Playing a case: its steps become inputs of one instance.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::answer::Answer;
use super::codes;
use super::compare::{self, Fault};
use super::expect::{Expect, OTHER_INSTANCE};
use super::file::{Action, Case, EventSpec, Placed, Step, SucceedSpec, Suite};
use super::observe::Seen;
use super::of::Of;
use super::work;
use super::world::time::Hold;
use super::world::{Given, Manner, World};
use crate::kernel::alias::Alias;
use crate::kernel::definition::Definition;
use crate::kernel::ids::{InstanceId, Key, TenantId, TimeMs};
use crate::kernel::input::{CallbackOutcome, Control, DomainEvent, StuckDecision, WorkOutcome};
use crate::kernel::json::Json;
use crate::kernel::limits::Limits;
use crate::kernel::schedule;
use crate::kernel::work::WorkKind;

/// Owner of the instances of cases.
const TENANT: &str = "test";
/// Most results that one `succeed` gives.
pub const ANSWERS_MAX: usize = 20_000;

/// The saga that a case is about, and those whose instances are there as well.
#[derive(Debug, Clone)]
pub struct Cast {
    pub definition: Arc<Definition>,
    pub others: Vec<Arc<Definition>>,
}

/// How a case went.
#[derive(Debug)]
pub struct Played {
    pub world: Option<World>,
    /// Of the first step that did not go as it should.
    pub faults: Vec<Fault>,
    /// Of later steps, which may follow from that.
    pub later: Vec<Fault>,
}

/// An input that does not reach the instance, or does not fit it.
#[derive(Debug)]
pub enum Obstacle {
    /// The case cannot go on.
    Fault(Box<Fault>),
    /// The input is accounted for without the kernel.
    Seen(Box<Seen>),
}

/// Plays `case` in the given manner. Only [`Manner::Plain`] compares with what is expected.
#[must_use]
pub fn play(suite: &Suite, case: &Case, players: &Cast, manner: Manner) -> Played {
    let mut world = match open(case, players, manner) {
        Ok(world) => world,
        Err(fault) => {
            return Played {
                world: None,
                faults: vec![fault],
                later: Vec::new(),
            };
        }
    };
    let mut first: Vec<Fault> = Vec::new();
    let mut later = Vec::new();
    let before = case.given.as_ref().map_or(0, |given| given.steps);
    for (at, placed) in case.steps.iter().enumerate() {
        let step = &*placed.step;
        let mut faults = Vec::new();
        let main = world.instance.clone();
        if let Err(fault) = turn_to(&mut world, step) {
            let fault = vec![told(placed, fault)];
            take(case, at < before, fault, &mut first, &mut later);
            break;
        }
        if manner == Manner::Plain {
            faults.extend(misfit(&world, step));
        }
        let (seen, unsteady) = match perform(&mut world, suite, step) {
            Ok(given) => (Seen::after(&world, &given), given.unsteady),
            Err(Obstacle::Seen(seen)) => (*seen, None),
            Err(Obstacle::Fault(fault)) => {
                let fault = vec![told(placed, *fault)];
                take(case, at < before, fault, &mut first, &mut later);
                break;
            }
        };
        if let Some(message) = unsteady {
            faults.push(Fault::new(codes::UNSTEADY, step.span.clone(), message, None));
        }
        if manner == Manner::Plain {
            match &step.expect {
                Some(expect) => {
                    let found = compare::compare(expect, &step.span, &seen, world.now, &suite.text);
                    faults.extend(found);
                }
                None => compare::fate(&Expect::default(), &step.span, &seen, &mut faults),
            }
        }
        if world.instance != main {
            world.look_at(main);
        }
        let faults = faults.into_iter().map(|fault| told(placed, fault)).collect();
        take(case, at < before, faults, &mut first, &mut later);
    }
    Played {
        world: Some(world),
        faults: first,
        later,
    }
}

/// Looks at the instance that the step is about.
///
/// # Errors
/// The fault, where there is no such instance.
pub fn turn_to(world: &mut World, step: &Step) -> Result<(), Fault> {
    let Some((at, span)) = &step.at else {
        return Ok(());
    };
    let instance = world
        .named(at)
        .map_err(|message| Fault::new(codes::UNPLAYABLE, span.clone(), message, None))?;
    world.look_at(instance);
    Ok(())
}

fn hears(definition: &Definition, spec: &EventSpec) -> bool {
    definition.event_types().contains(&spec.event_type.as_str())
}

/// A fault of a step that is repeated says when it came.
fn told(placed: &Placed, mut fault: Fault) -> Fault {
    if let Some((round, rounds)) = placed.round {
        fault.message = format!("{}, in round {round} of {rounds}", fault.message);
    }
    fault
}

/// Keeps the faults of a step. Those of a case that is given are told where it is played for itself.
fn take(case: &Case, is_given: bool, mut faults: Vec<Fault>, first: &mut Vec<Fault>, later: &mut Vec<Fault>) {
    if let (true, Some(given), true) = (is_given, &case.given, !faults.is_empty()) {
        let message = format!("the case \"{}\" does not hold", given.name.escape_debug());
        let known = first.iter().any(|fault| fault.span == given.span);
        faults.clear();
        if !known {
            faults.push(Fault::new(codes::UNPLAYABLE, given.span.clone(), message, None));
        }
    }
    let into = if first.is_empty() { first } else { later };
    into.append(&mut faults);
}

/// A result that is none of its effect, where the case does not say what follows: the step fails in production, and
/// nothing else may show it here. What undoes a step has undone it, whatever it says.
fn misfit(world: &World, step: &Step) -> Option<Fault> {
    let Action::Result(spec) = &step.action else {
        return None;
    };
    let Answer::Ok(result) = &spec.outcome else {
        return None;
    };
    let is_meant = step.expect.as_ref().is_some_and(|expect| {
        let told = [&expect.phase, &expect.failure, &expect.steps, &expect.ledger];
        expect.is_empty || told.iter().any(|told| told.is_some())
    });
    let item = work::find(world, &spec.of).filter(|_| !is_meant)?;
    if work::undoes(&item.path) {
        return None;
    }
    let WorkKind::Effect { effect, .. } = &item.kind else {
        return None;
    };
    let output = world.definition.effects.get(effect)?.output.as_ref()?;
    let text = result.to_string();
    let json = Json::parse(text.as_bytes(), Limits::default().json_depth).ok()?;
    let violation = output.schema.check(&json).err()?;
    let message = format!("the result is none of the effect {effect}: {violation}");
    let help = "if that is meant, expect what follows: its phase, failure, steps or ledger".to_owned();
    Some(Fault::new(
        codes::UNPLAYABLE,
        spec.of_span.clone(),
        message,
        Some(help),
    ))
}

/// The world of a case before its first step. Its key is the case's, or that of the first event.
///
/// # Errors
/// The fault, where there is no key.
pub fn open(case: &Case, players: &Cast, manner: Manner) -> Result<World, Fault> {
    let definition = &players.definition;
    let key = Key::parse("unknown").expect("a word is a legal key");
    let instance = InstanceId {
        tenant: TenantId::parse(TENANT).expect("a word is a legal tenant"),
        saga: definition.name.clone(),
        key,
    };
    let mut world = World::together(
        Arc::clone(definition),
        &players.others,
        instance,
        case.start,
        manner,
    );
    let mut steps = case.steps.iter().map(|placed| &*placed.step);
    let first = steps.clone().find_map(|step| match &step.action {
        // An alias says nothing about the key.
        Action::Event(spec) if definition.by.contains_key(&spec.event_type) => None,
        // Others may hear what this saga does not.
        Action::Event(spec) if !players.others.is_empty() && !hears(definition, spec) => None,
        Action::Event(spec) => Some((step, spec)),
        _ => None,
    });
    let planned = steps.find_map(|step| match step.action {
        Action::Schedule(planned) => Some(planned),
        _ => None,
    });
    world.instance.key = match (&case.key, first) {
        (Some(key), _) => key.clone(),
        (None, Some((step, spec))) => {
            let event = event(&mut world.clone(), step, spec)?;
            world.key_of(&event).map_err(|(reason, why)| {
                let message = format!("the first event finds no instance ({reason}): {why}");
                let help = Some("or give the case a key".to_owned());
                Fault::new(codes::UNPLAYABLE, step.span.clone(), message, help)
            })?
        }
        (None, None) => {
            let message = "the case has neither an event nor a planned time nor a key";
            let fault = || Fault::new(codes::UNPLAYABLE, case.span.clone(), message, None);
            planned.map(schedule::run_key).ok_or_else(fault)?
        }
    };
    Ok(world)
}

/// Carries out one step.
///
/// # Errors
/// [`Obstacle`] where it does not come to the instance.
pub fn perform(world: &mut World, suite: &Suite, step: &Step) -> Result<Given, Obstacle> {
    let Some(before) = &step.before else {
        return act(world, suite, step);
    };
    let obstacle = |fault| Obstacle::Fault(Box::new(fault));
    let timer = before.find(world).map_err(obstacle)?;
    let (hold, held_span) = &step.hold;
    let mut given = world.advance_to(&timer, hold);
    is_held(world, hold, held_span)?;
    if !before.find(world).is_ok_and(|left| left.0 == timer.0) {
        return Err(obstacle(before.cleared()));
    }
    // What a case sees of the input is the input's, not that of a timer before it.
    given.outcome = None;
    let input = act(world, suite, step)?;
    given.add(input);
    Ok(given)
}

/// Carries out what a step does, whenever it comes.
///
/// # Errors
/// As [`perform`].
pub fn act(world: &mut World, suite: &Suite, step: &Step) -> Result<Given, Obstacle> {
    match &step.action {
        Action::Event(spec) => {
            let event = event(world, step, spec).map_err(|fault| Obstacle::Fault(Box::new(fault)))?;
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
        Action::Result(spec) => {
            let Some(item) = work::find(world, &spec.of).cloned() else {
                let fault = not_awaited(world, &spec.of, &spec.of_span);
                return Err(Obstacle::Fault(Box::new(fault)));
            };
            Ok(world.give_result(&item, outcome(&spec.outcome)))
        }
        Action::Succeed(spec) => succeed(world, suite, spec),
        Action::Callback(spec) => {
            let Some(item) = work::find(world, &spec.of) else {
                let fault = not_awaited(world, &spec.of, &spec.of_span);
                return Err(Obstacle::Fault(Box::new(fault)));
            };
            let work = item.idempotency_key.clone();
            let outcome = called_back(&spec.outcome);
            Ok(world.give_control(Control::Callback { work, outcome }))
        }
        Action::Heartbeat(of, span) => {
            let Some(item) = work::find(world, of) else {
                return Err(Obstacle::Fault(Box::new(not_awaited(world, of, span))));
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
            Ok(world.give_control(Control::Start { input, parent: None }))
        }
        Action::Schedule(planned) => {
            scheduled(world, step, *planned).map_err(|fault| Obstacle::Fault(Box::new(fault)))
        }
        Action::DecideStuck(verdict, step, found) => {
            Ok(world.give_control(Control::DecideStuck(StuckDecision {
                verdict: *verdict,
                step: step.clone(),
                item: None,
                by: String::new(),
                reason: String::new(),
                found: found.clone(),
            })))
        }
        Action::DeadLetter(decision, span) => world.decide(*decision).map_err(|message| {
            let fault = Fault::new(codes::UNPLAYABLE, span.clone(), message, None);
            Obstacle::Fault(Box::new(fault))
        }),
        Action::RefuseAlias(alias) => Ok(world.refuse_alias(alias)),
        Action::AcceptAlias(alias) => Ok(world.accept_alias(alias)),
        Action::Signal { name, data, by } => {
            let (name, data, by) = (name.clone(), data.clone(), by.clone());
            let hops = 0;
            Ok(world.give_control(Control::Signal { name, data, by, hops }))
        }
    }
}

/// Everyone who hears an event gets it.
fn give_all(world: &mut World, step: &Step, event: &DomainEvent) -> Result<Given, Obstacle> {
    world.give_all(event).ok_or_else(|| {
        let message = format!("nobody hears \"{}\"", event.event_type.escape_debug());
        let fault = Fault::new(codes::UNPLAYABLE, step.span.clone(), message, None);
        Obstacle::Fault(Box::new(fault))
    })
}

/// The instance starts for a planned time, which has then come.
fn scheduled(world: &mut World, step: &Step, planned: TimeMs) -> Result<Given, Fault> {
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
    world.now = world.now.max(planned);
    let input = Bytes::from(schedule::run_input(planned));
    Ok(world.give_control(Control::Start { input, parent: None }))
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
            return Err(Obstacle::Fault(Box::new(not_awaited(world, &of, &spec.span))));
        };
        let result = work::default_result(suite, world, &item);
        given.add(world.give_result(&item, succeeded(&result)));
        if given.rejection.is_some() {
            return Ok(given);
        }
    }
    let message = format!("after {ANSWERS_MAX} results there is still work");
    let fault = Fault::new(codes::UNPLAYABLE, spec.span.clone(), message, None);
    Err(Obstacle::Fault(Box::new(fault)))
}

/// What a test calls an answer, as the kernel takes it.
#[must_use]
pub fn outcome(answer: &Answer) -> WorkOutcome {
    match answer {
        Answer::Ok(result) => succeeded(result),
        Answer::Unusable {
            result,
            class,
            message,
        } => WorkOutcome::Unusable {
            payload: Bytes::from(result.to_string()),
            class: class.clone(),
            message: message.clone(),
        },
        Answer::Error {
            class,
            message,
            refused,
        } => WorkOutcome::Failed {
            class: class.clone(),
            message: message.clone(),
            refused: *refused,
        },
        Answer::Timeout(class) => WorkOutcome::TimedOut {
            class: *class,
            message: String::new(),
        },
    }
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

#[must_use]
pub fn succeeded(result: &Value) -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: Bytes::from(result.to_string()),
    }
}

fn event(world: &mut World, step: &Step, spec: &EventSpec) -> Result<DomainEvent, Fault> {
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
    let fault = Fault::new(codes::UNPLAYABLE, step.span.clone(), message, help);
    Obstacle::Fault(Box::new(fault))
}

/// A name that no work has holds nothing back, so it is a mistake.
fn is_held(world: &World, hold: &Hold, span: &Range<usize>) -> Result<(), Obstacle> {
    let Hold::Named(names) = hold else {
        return Ok(());
    };
    for name in names {
        let of = Of::named(name);
        if !world.sent.iter().any(|item| world.is(item, &of)) {
            let mut fault = not_awaited(world, &of, span);
            fault.message = format!("no work is called \"{}\"", name.escape_debug());
            return Err(Obstacle::Fault(Box::new(fault)));
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
