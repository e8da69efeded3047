//! The tables of docs/language.md about what operators do.

use saga_runner_language::limits::Limits;
use serde_json::json;

use super::build::{loaded, loaded_as};
use super::compensation::decide;
use super::operations::operate;
use super::table::{
    Before, Input, Played, Scene, beat, callback, cancel, check, control, event, failed, good, newest,
    result, table, timer,
};
use super::waits::signal;
use super::world::World;
use crate::input::{
    CancelMode, Control, Finding, Found, InputBody, OnConflict, OperationVerb, Origin, Verdict, WorkOutcome,
};
use crate::ledger::LedgerStatus;
use crate::patch::{Note, Outcome};
use crate::record::StepStatus;
use crate::transition::rerun_obstacle;

const LIFE: &str = r#"
input: {type: object}
key: {"*": event.data.id}
state: {init: {heard: 0}}
deadline: 30d
handlers:
  Order.Noted: {set: {heard: "${state.heard + 1}"}}
  Order.Stopped: {fail: {code: stopped}}
  signal.note: {set: {heard: "${state.heard + 1}"}}
timers: {remind: {after: 7d, set: {heard: "${state.heard + 1}"}}}
steps:
  pay: {effect: charge, compensate: {effect: refund, retry: {attempts: 1}}}
  ask: {effect: ask, retry: {attempts: 3, backoff: {initial: 1h}}}
  sign: {effect: sign, wait: {callback: true, timeout: 1d, heartbeat: 1h}, compensate: {effect: unsign}}
  ship: {effect: ship, compensate: {effect: unship}}
finally:
  completed: [{effect: tell, name: tell}]
  failed: [{effect: tell, name: tell}]
"#;

/// `pay` is done, `ask` waits for its next attempt, `sign` for its callback, and `ship` is under way.
fn running() -> World {
    let mut world = World::new(loaded_as(LIFE));
    let (input, parent) = (b"{}".as_slice().into(), None);
    world.control(
        "r-1",
        Control::Start {
            input,
            parent,
            on_conflict: OnConflict::Fail,
            traceparent: None,
        },
    );
    world.succeed("steps.pay", &json!({}));
    world.fail("steps.ask", "transient");
    world.succeed("steps.sign", &json!({}));
    world.readmits = false;
    world
}

fn paused() -> World {
    of(running(), OperationVerb::Pause)
}

fn draining() -> World {
    let mut world = running();
    cancel(&mut world, CancelMode::Drain)
        .expect("given")
        .expect("applied");
    world
}

fn compensating() -> World {
    let mut world = running();
    world.event("Order.Stopped", &json!({"id": "o-1"}));
    world.fail("steps.ship", "cancelled");
    world.succeed("steps.sign.compensate", &json!({}));
    world
}

fn paused_undoing() -> World {
    of(compensating(), OperationVerb::Pause)
}

fn compensation_failed() -> World {
    let mut world = compensating();
    world.fail("steps.pay.compensate", "refused");
    world
}

fn finishing() -> World {
    let mut world = compensating();
    world.succeed("steps.pay.compensate", &json!({}));
    world
}

fn ended() -> World {
    let mut world = finishing();
    world.succeed("finally.failed.tell", &json!({}));
    world
}

fn completed() -> World {
    let mut world = running();
    world.advance(3_000_000);
    beat(&mut world, "steps.sign").expect("given").expect("applied");
    world.advance(700_000);
    world.succeed("steps.ask", &json!({}));
    world.succeed("steps.ship", &json!({}));
    callback(&mut world, "steps.sign")
        .expect("given")
        .expect("applied");
    world.succeed("finally.completed.tell", &json!({}));
    world
}

fn killed() -> World {
    of(running(), OperationVerb::Kill)
}

fn of(mut world: World, does: OperationVerb) -> World {
    verb(&mut world, does).expect("given").expect("applied");
    world
}

fn verb(world: &mut World, verb: OperationVerb) -> Played {
    control(world, operate(verb))
}

fn named(world: &mut World, fire: bool, timer: &str) -> Played {
    let timer = timer.to_owned();
    verb(
        world,
        if fire {
            OperationVerb::FireTimer { timer }
        } else {
            OperationVerb::CancelTimer { timer }
        },
    )
}

/// Another go with the same word about every step of which an operator is asked.
fn rerun(world: &mut World, said: &Found) -> Played {
    let mut found = Vec::new();
    if world.record.is_none() && world.ended.is_some() {
        let obstacle = rerun_obstacle(&world.definition, world.last(), &[], &Limits::default());
        let names = obstacle.as_deref().unwrap_or_default();
        let names = names.strip_prefix("state the outcome of ").unwrap_or_default();
        let names = names.split_once(':').map_or("", |(names, _)| names);
        found = names
            .split(", ")
            .filter(|name| !name.is_empty())
            .map(|step| Finding {
                step: step.to_owned(),
                found: said.clone(),
            })
            .collect();
    }
    verb(world, OperationVerb::Rerun { found })
}

fn is_done() -> Found {
    Found::Done {
        result: r#"{"id":"r-1"}"#.to_owned(),
    }
}

fn told(before: &Before, world: &World, _: &str) -> String {
    let after = Before::of(world);
    let mut said = Vec::new();
    if after.generation > before.generation {
        let kept = world
            .statuses()
            .iter()
            .filter(|status| **status == StepStatus::Done)
            .count();
        return match kept {
            0 => "begins again, keeps nothing".to_owned(),
            _ => "begins again, keeps what is done".to_owned(),
        };
    }
    let is_paused = |world: &World| {
        world
            .record
            .as_ref()
            .is_some_and(|record| record.paused.is_some())
    };
    if is_paused(world) {
        said.push("is paused".to_owned());
    }
    let resumes = |note: &&Note| matches!(note, Note::Operated { verb, .. } if verb == "resume");
    if !is_paused(world) && world.notes.last().as_ref().is_some_and(resumes) {
        said.push("goes on".to_owned());
    }
    if after.data != before.data {
        said.push("handled".to_owned());
    }
    let was = before.statuses.iter().zip(&after.statuses);
    if was
        .clone()
        .any(|(was, is)| *was == StepStatus::BackingOff && *is == StepStatus::Running)
    {
        said.push("its next attempt begins".to_owned());
    }
    if was.clone().any(|(was, is)| was != is && *is == StepStatus::Done) {
        said.push("its step is done".to_owned());
    }
    if after.undone > before.undone {
        said.push("undoes".to_owned());
    }
    if after.phase != before.phase {
        said.push(format!("`{}`", after.phase.expect("it exists").as_str()));
        if world.last().ledger.has(|status| status == LedgerStatus::Held) && world.ended.is_some() {
            said.push("undoes nothing".to_owned());
        }
    }
    if said.is_empty() {
        said.push("applied".to_owned());
    }
    said.join(", ")
}

#[test]
fn the_docs_say_what_operators_may_do_in_each_phase() {
    let scenes: [Scene; 10] = [
        ("no instance", || World::new(loaded_as(LIFE))),
        ("`running`", running),
        ("`running`, paused", paused),
        ("drains", draining),
        ("`compensating`", compensating),
        ("`compensation_failed`", compensation_failed),
        ("`finishing`", finishing),
        ("`completed`", completed),
        ("`failed`", ended),
        ("killed", killed),
    ];
    let inputs: [Input; 14] = [
        ("pause", |world| verb(world, OperationVerb::Pause)),
        ("resume", |world| verb(world, OperationVerb::Resume)),
        ("the same command again", |world| {
            let body = InputBody::Control(operate(OperationVerb::Pause));
            let input = world.input("twice", Origin::Local, body);
            let first = world.give(&input);
            (first == Ok(Outcome::Applied)).then(|| world.give(&input))
        }),
        ("kill", |world| verb(world, OperationVerb::Kill)),
        ("fire-timer, of the saga", |world| named(world, true, "remind")),
        ("cancel-timer, of the saga", |world| named(world, false, "remind")),
        ("fire-timer, `deadline`", |world| named(world, true, "deadline")),
        ("fire-timer of no timer", |world| named(world, true, "other")),
        ("try-now", |world| {
            verb(world, OperationVerb::TryNow { step: None })
        }),
        ("retry `--ended`", |world| {
            verb(world, OperationVerb::Rerun { found: Vec::new() })
        }),
        ("retry `--ended --not-done` what it asks for", |world| {
            rerun(world, &Found::NotDone)
        }),
        ("restart", |world| verb(world, OperationVerb::Restart)),
        ("success of a step", |world| {
            let command = newest(world, "steps.ship");
            result(world, command, good())
        }),
        ("success of a step, while it is killed", |world| {
            let command = newest(world, "steps.ship");
            verb(world, OperationVerb::Kill)?.ok()?;
            result(world, command, good())
        }),
    ];
    check(&table("Command", &scenes, &inputs, told));
}

#[test]
fn the_docs_say_what_happens_to_inputs_of_a_paused_instance() {
    let scenes: [Scene; 2] = [
        ("`running`, paused", paused),
        ("`compensating`, paused", paused_undoing),
    ];
    let inputs: [Input; 17] = [
        ("event with a handler", |world| event(world, "Order.Noted")),
        ("event without a handler", |world| event(world, "Order.Other")),
        ("signal", |world| control(world, signal("note", &json!({})))),
        ("callback", |world| callback(world, "steps.sign")),
        ("heartbeat", |world| beat(world, "steps.sign")),
        ("success of a step", |world| {
            let command = newest(world, "steps.ship");
            result(world, command, good())
        }),
        ("success of a compensation", |world| {
            let command = newest(world, "steps.pay.compensate");
            result(world, command, good())
        }),
        ("failure of a compensation", |world| {
            let command = newest(world, "steps.pay.compensate");
            result(world, command, failed("refused"))
        }),
        ("timer of the saga", |world| {
            let is_set = world.timers.iter().any(|row| row.name == "remind");
            is_set.then(|| timer(world, "remind"))?
        }),
        ("`deadline` of the saga", |world| {
            let is_set = world.timers.iter().any(|row| row.name == "deadline");
            is_set.then(|| timer(world, "deadline"))?
        }),
        ("timer that was cleared", |world| timer(world, "other")),
        ("cancel, `compensate`", |world| {
            cancel(world, CancelMode::Compensate)
        }),
        ("cancel, `drain`", |world| cancel(world, CancelMode::Drain)),
        ("cancel, `abandon`", |world| cancel(world, CancelMode::Abandon)),
        ("operator: skip", |world| {
            control(world, decide(Verdict::Skip, None))
        }),
        ("event, then resume", |world| {
            event(world, "Order.Noted")?.ok()?;
            let applied = verb(world, OperationVerb::Resume);
            world.give_what_waits();
            assert!(world.waiting.is_empty());
            applied
        }),
        ("event, then kill", |world| {
            event(world, "Order.Noted")?.ok()?;
            let applied = verb(world, OperationVerb::Kill);
            world.give_what_waits();
            applied
        }),
    ];
    check(&table("Input", &scenes, &inputs, told));
}

const STEP: &str = "steps.it";

fn with_step(more: &str) -> World {
    let definition = loaded(&format!(
        r"
state: {{init: {{n: 0}}}}
steps:
  it:
    effect: act
    retry: {{errors: [transient, timeout], attempts: 3, backoff: {{initial: 1m, factor: 1}}}}
    wait: {{event: Order.Came, timeout: 1h}}
    deadline: 1d
    {more}
  rest: {{wait: {{signal: never}}}}
"
    ));
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

const UNDONE: &str = "compensate: {effect: undo}";

fn begun() -> World {
    with_step(UNDONE)
}

fn backing_off() -> World {
    let mut world = begun();
    world.fail(STEP, "transient");
    world
}

fn doubtful() -> World {
    let mut world = begun();
    world.time_out(STEP);
    world
}

fn waiting(more: &str) -> World {
    let mut world = with_step(more);
    world.succeed(STEP, &json!({"id": "r-1"}));
    world
}

fn done(more: &str) -> World {
    let mut world = waiting(more);
    world.event("Order.Came", &json!({"id": "o-1"}));
    world
}

fn undoing() -> World {
    let mut world = done(UNDONE);
    cancel(&mut world, CancelMode::Compensate)
        .expect("given")
        .expect("applied");
    world
}

fn undo_in_doubt() -> World {
    let mut world = undoing();
    world.time_out("steps.it.compensate");
    world
}

/// The timers of a step and of its compensation, by kind.
fn of_step(world: &mut World, fire: bool) -> Played {
    let mut names: Vec<String> = world.last().timers.keys().cloned().collect();
    names.retain(|name| name.ends_with(":it") || name.contains(":it."));
    // The step waits for this one; its deadline runs along.
    let name = names.iter().find(|name| !name.starts_with("deadline"))?.clone();
    named(world, fire, &name)
}

fn told_of_step(before: &Before, world: &World, _: &str) -> String {
    let after = Before::of(world);
    let mut said = Vec::new();
    if after.generation > before.generation {
        said.push("begins again".to_owned());
    }
    let (was, is) = (before.statuses[0], after.statuses[0]);
    if was != is || after.generation > before.generation {
        said.push(format!("`{}`", is.as_str()));
    }
    if after.undone > before.undone {
        said.push("undone".to_owned());
    }
    if said.is_empty() {
        said.push("unchanged".to_owned());
    }
    if after.phase.is_some_and(crate::record::Phase::is_terminal) || after.generation > before.generation {
        let ledger: Vec<&str> = world
            .last()
            .ledger
            .iter()
            .map(|entry| entry.status.as_str())
            .collect();
        said.push(match ledger.as_slice() {
            [] => "nothing on the ledger".to_owned(),
            words => format!("`{}` on the ledger", words.join("`, `")),
        });
    }
    said.join(", ")
}

#[test]
fn the_docs_say_what_happens_to_a_step_when_operators_act() {
    let scenes: [Scene; 10] = [
        ("`delayed`", || with_step("delay: 1h")),
        ("`running`", begun),
        ("`backing_off`", backing_off),
        ("`backing_off`, outcome unknown", doubtful),
        ("`waiting`", || waiting(UNDONE)),
        ("`waiting`, no `compensate`", || waiting("")),
        ("`done`", || done(UNDONE)),
        ("`done`, no `compensate`", || done("")),
        ("is undone", undoing),
        ("its undo is `backing_off`, outcome unknown", undo_in_doubt),
    ];
    let inputs: [Input; 7] = [
        ("fire-timer", |world| of_step(world, true)),
        ("cancel-timer", |world| of_step(world, false)),
        ("try-now", |world| {
            let step = Some("it".to_owned());
            verb(world, OperationVerb::TryNow { step })
        }),
        ("kill", |world| verb(world, OperationVerb::Kill)),
        ("kill, then retry `--ended`", |world| {
            verb(world, OperationVerb::Kill)?.ok()?;
            verb(world, OperationVerb::Rerun { found: Vec::new() })
        }),
        ("kill, then retry `--ended --not-done`", |world| {
            verb(world, OperationVerb::Kill)?.ok()?;
            rerun(world, &Found::NotDone)
        }),
        ("kill, then retry `--ended --done`", |world| {
            verb(world, OperationVerb::Kill)?.ok()?;
            rerun(world, &is_done())
        }),
    ];
    check(&table("Command", &scenes, &inputs, told_of_step));
}

/// What the table says of an attempt of unknown outcome is true of every way in which it is not known.
#[test]
fn a_result_that_comes_while_the_instance_is_killed_is_known_afterwards() {
    let mut world = begun();
    let command = newest(&world, STEP);
    verb(&mut world, OperationVerb::Kill)
        .expect("given")
        .expect("applied");
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    let timed_out = WorkOutcome::timed_out(String::new());
    result(&mut world, command, timed_out)
        .expect("given")
        .expect("ignored");
    result(&mut world, command, good())
        .expect("given")
        .expect("applied");
    assert!(world.ended.is_some(), "nothing is undone");
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    assert!(world.last().doubts.is_empty());
}
