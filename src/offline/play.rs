//! Playing a case: its steps become inputs of one instance.

mod act;

use std::sync::Arc;

pub use act::{act, scheduled};
use act::{event, is_held};
use bytes::Bytes;
use serde_json::Value;

use super::answer::Answer;
use super::codes;
use super::compare::{self, Fault};
use super::expect::Expect;
use super::file::{Action, Case, EventSpec, Placed, Step, Suite};
use super::observe::Seen;
use super::work;
use super::world::{Given, Manner, World};
use crate::kernel::definition::Definition;
use crate::kernel::ids::{InstanceId, Key, TenantId};
use crate::kernel::input::WorkOutcome;
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

impl From<Fault> for Obstacle {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
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
    let run = match step.action {
        Action::Schedule(planned) if !at.contains('/') => {
            Some(format!("{at}/{}", schedule::run_key(planned)))
        }
        _ => None,
    };
    let instance = world
        .named(run.as_ref().unwrap_or(at))
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
    // A saga that starts by the clock has an instance for each time.
    let is_planned = |step: &Placed| matches!(step.step.action, Action::Schedule(_));
    let alone = players.others.is_empty() && case.steps.iter().any(is_planned);
    let own = alone.then(|| Arc::clone(definition));
    let mut world = World::together(
        Arc::clone(definition),
        own.as_ref().map_or(&players.others, std::slice::from_ref),
        instance,
        case.start,
        manner,
    );
    let mut steps = case.steps.iter().map(|placed| &*placed.step);
    let first = steps.find(|step| match &step.action {
        // An alias says nothing about the key.
        Action::Event(spec) if definition.by.contains_key(&spec.event_type) => false,
        // Others may hear what this saga does not.
        Action::Event(spec) => players.others.is_empty() || hears(definition, spec),
        Action::Schedule(_) => step.at.is_none(),
        _ => false,
    });
    world.instance.key = match (&case.key, first.map(|step| (step, &step.action))) {
        (said, Some((step, Action::Schedule(planned)))) => {
            let key = schedule::run_key(*planned);
            if said.as_ref().is_some_and(|said| *said != key) {
                let message = format!("the key of the case is another one than that of the run, {key}");
                return Err(Fault::new(codes::UNPLAYABLE, step.span.clone(), message, None));
            }
            key
        }
        (Some(key), _) => key.clone(),
        (None, Some((step, Action::Event(spec)))) => {
            let event = event(&mut world.clone(), step, spec)?;
            world.key_of(&event).map_err(|(reason, why)| {
                let message = format!("the first event finds no instance ({reason}): {why}");
                let help = Some("or give the case a key".to_owned());
                Fault::new(codes::UNPLAYABLE, step.span.clone(), message, help)
            })?
        }
        (None, _) => {
            let message = "the case has neither an event nor a planned time nor a key";
            return Err(Fault::new(codes::UNPLAYABLE, case.span.clone(), message, None));
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
    let timer = before.find(world)?;
    let (hold, held_span) = &step.hold;
    let mut given = world.advance_to(&timer, hold);
    is_held(world, hold, held_span)?;
    if !before.find(world).is_ok_and(|left| left.0 == timer.0) {
        return Err(before.cleared().into());
    }
    // What a case sees of the input is the input's, not that of a timer before it.
    given.outcome = None;
    let input = act(world, suite, step)?;
    given.add(input);
    Ok(given)
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

#[must_use]
pub fn succeeded(result: &Value) -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: Bytes::from(result.to_string()),
    }
}
