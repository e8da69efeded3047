//! The tables of docs/language.md about waits for one of several, loops, effects of timers, and what is given up.

use std::fmt::Write as _;

use serde_json::json;

use super::build::{loaded, loaded_as};
use super::table::{
    Before, Input, Played, Scene, callback, cancel, check, control, event, failed, good, newest, result,
    table, timer, told_of_instance,
};
use super::waits::signal;
use super::world::World;
use crate::input::{CancelMode, InputBody, Origin, SourceStream, WorkOutcome};
use crate::record::StepStatus;

const LIFE: &str = r#"
start: Order.Placed
reuse: {after: [failed]}
key: {"*": event.data.id}
events: {seat.confirmed: {from: booking}, seat.released: {from: booking}}
state: {init: {heard: 0}}
handlers:
  seat.confirmed: {set: {heard: "${state.heard + 1}"}}
  Order.Withdrawn: {interrupt: {step: paid, class: withdrawn}}
  Order.Settled: {complete: {outcome: settled}}
  Order.Called: {cancel: {mode: drain}}
  Order.Stopped: {fail: {code: stopped}}
  Order.Asked: {emit: {effect: ask, name: asked, compensate: {effect: unask}}}
  result.tell: {set: {heard: "${state.heard + 1}"}}
  error.tell: {when: error.class == "gone", set: {heard: "${state.heard + 1}"}}
after_end: {seat.released: {set: {heard: "${state.heard + 1}"}}}
steps:
  pay: {effect: charge, compensate: {effect: refund, retry: {attempts: 1}}}
  paid:
    effect: ask
    wait: {any: [{event: Order.Paid}, {signal: waive}, {callback: true}], timeout: 1d}
    on_error: {withdrawn: {continue: true}}
    compensate: {effect: unask, retry: {attempts: 1}}
  ship: {effect: ship, compensate: {effect: unship}}
timers:
  nudge: {after: 1m, every: 10m, emit: {effect: nudge, name: tell, compensate: {effect: unnudge}}}
finally:
  completed: [{effect: tell, name: told}]
  failed: [{effect: tell, name: told}]
"#;

const TELL: &str = "timers.nudge.tell";

/// `pay` is done, `paid` waits, `ship` and the effect of the timer are under way.
fn running() -> World {
    let mut world = World::new(loaded_as(LIFE));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    for step in ["pay", "paid"] {
        world.succeed(&format!("steps.{step}"), &json!({}));
    }
    world.advance(60_000);
    world
}

fn draining() -> World {
    let mut world = running();
    given(cancel(&mut world, CancelMode::Drain));
    world
}

fn given(played: Played) {
    played.expect("given").expect("applied");
}

fn compensating() -> World {
    let mut world = running();
    world.event("Order.Stopped", &json!({"id": "o-1"}));
    world
}

fn compensation_failed() -> World {
    let mut world = compensating();
    world.fail("steps.paid.compensate", "refused");
    world
}

fn finishing() -> World {
    let mut world = compensating();
    for path in ["steps.ship", TELL] {
        world.fail(path, "cancelled");
    }
    for path in ["steps.paid.compensate", "steps.pay.compensate"] {
        world.succeed(path, &json!({}));
    }
    world
}

fn ended() -> World {
    let mut world = finishing();
    world.succeed("finally.failed.told", &json!({}));
    world
}

fn completed() -> World {
    let mut world = running();
    world.succeed("steps.ship", &json!({}));
    given(callback(&mut world, "steps.paid"));
    world.succeed(TELL, &json!({}));
    world.succeed("finally.completed.told", &json!({}));
    world
}

fn phases() -> [Scene; 8] {
    [
        ("no instance", || World::new(loaded_as(LIFE))),
        ("`running`", running),
        ("drains", draining),
        ("`compensating`", compensating),
        ("`compensation_failed`", compensation_failed),
        ("`finishing`", finishing),
        ("`completed`", completed),
        ("`failed`", ended),
    ]
}

/// A fact of the saga that is heard.
#[allow(clippy::unnecessary_wraps, reason = "as what is played of others")]
fn fact(world: &mut World, fact_type: &str) -> Played {
    let mut told = world.domain_event(fact_type, &json!({"id": "o-1"}));
    told.aggregate_type = "booking".to_owned();
    told.fact = true;
    let origin = Origin::Stream {
        stream: SourceStream::AggregateEvents,
        sequence: told.sequence,
    };
    let input = world.input(&told.event_id.to_string(), origin, InputBody::Event(told));
    Some(world.give(&input))
}

fn of_tell(world: &mut World, outcome: WorkOutcome) -> Played {
    let command = newest(world, TELL);
    result(world, command, outcome)
}

#[test]
fn the_docs_say_what_happens_to_facts_and_timers_in_each_phase() {
    let inputs: [Input; 15] = [
        ("fact of another saga with a handler", |world| {
            fact(world, "seat.confirmed")
        }),
        ("fact under `after_end`", |world| fact(world, "seat.released")),
        ("event whose handler has `interrupt`", |world| {
            event(world, "Order.Withdrawn")
        }),
        ("event whose handler has `complete`", |world| {
            event(world, "Order.Settled")
        }),
        ("event whose handler has `cancel`, `drain`", |world| {
            event(world, "Order.Called")
        }),
        ("event whose handler begins an effect", |world| {
            let before = world.sent.len();
            let played = event(world, "Order.Asked");
            let path = "handlers.Order.Asked.asked.item";
            assert!(world.sent[before..].iter().all(|item| item.path == path));
            played
        }),
        ("event of a wait for one of several", |world| {
            event(world, "Order.Paid")
        }),
        ("signal of the same wait", |world| {
            control(world, signal("waive", &json!({})))
        }),
        ("callback of the same wait", |world| callback(world, "steps.paid")),
        ("timer fires, its effect in progress", |world| {
            let played = timer(world, "nudge");
            assert!(world.sent.iter().filter(|item| item.path == TELL).count() <= 1);
            played
        }),
        ("timer fires and begins an effect", |world| {
            if newest(world, TELL)
                .is_some_and(|command| world.outbox.values().any(|item| item.command_id == command))
            {
                world.succeed(TELL, &json!({}));
            }
            timer(world, "nudge")
        }),
        ("success of such an effect", |world| of_tell(world, good())),
        ("failure that a handler takes", |world| {
            of_tell(world, failed("gone"))
        }),
        ("other failure", |world| of_tell(world, failed("refused"))),
        ("unknown outcome", |world| {
            of_tell(world, WorkOutcome::timed_out(String::new()))
        }),
    ];
    check(&table("Input", &phases(), &inputs, told_of_life));
}

fn told_of_life(before: &Before, world: &World, applied: &str) -> String {
    let begun = |statuses: &[StepStatus]| {
        let steps = world.definition.steps.iter().zip(statuses);
        steps
            .filter(|(step, status)| step.emitted && **status == StepStatus::Running)
            .count()
    };
    let after = Before::of(world);
    let gone = before
        .statuses
        .iter()
        .zip(&after.statuses)
        .zip(&world.definition.steps);
    let mut gone =
        gone.filter(|((was, is), _)| **was == StepStatus::Waiting && **is == StepStatus::Abandoned);
    let applied = if begun(&after.statuses) > begun(&before.statuses) {
        "the effect begins"
    } else if gone.next().is_some() {
        "its step is given up"
    } else {
        applied
    };
    told_of_instance(before, world, applied)
}

/// A loop whose step waits for an event behind its action.
fn looping(early: &str) -> World {
    let mut world = World::new(loaded(&format!(
        r"
state: {{init: {{n: 0}}}}
steps:
  first: {{effect: first}}
  rounds:
    needs: [first]
    repeat: {{until: steps.last.status == 'done' && state.n > 1, max: 5, delay: 1m}}
    steps:
      begin: {{effect: begin, set: {{n: '${{state.n + 1}}'}}}}
      it: {{needs: [begin], effect: act, wait: {{event: Order.Came, timeout: 1d, early: {early}}}}}
      last: {{needs: [it], effect: last}}
  rest: {{needs: [rounds], wait: {{signal: never}}}}
"
    )));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

/// Where the loop is when the event comes.
fn at(world: &mut World, place: &str) {
    let path = ["steps.first", "steps.begin", "steps.it"];
    let far = [
        "before the loop",
        "in its turn",
        "during its action",
        "while it waits",
    ]
    .iter()
    .position(|known| *known == place)
    .unwrap_or(path.len());
    for path in &path[..far] {
        world.succeed(path, &json!({}));
    }
    let turns = match place {
        "after its wait" | "between two turns" => 1,
        "in a later turn" | "after the loop" => 2,
        _ => return,
    };
    for turn in 1..=turns {
        if turn > 1 {
            world.advance(60_000);
            world.succeed("steps.begin", &json!({}));
            if place == "in a later turn" {
                return;
            }
            world.succeed("steps.it", &json!({}));
        }
        world.event("Order.Came", &json!({"id": "o-1"}));
        if place == "after its wait" {
            return;
        }
        world.succeed("steps.last", &json!({}));
    }
}

#[test]
fn the_docs_say_what_is_kept_where_in_a_loop() {
    const PLACES: [&str; 8] = [
        "before the loop",
        "in its turn",
        "during its action",
        "while it waits",
        "after its wait",
        "between two turns",
        "in a later turn",
        "after the loop",
    ];
    let mut told = format!(
        "| `early` | {} |\n|{}\n",
        PLACES.join(" | "),
        "---|".repeat(PLACES.len() + 1)
    );
    for early in ["keep", "turn", "ignore"] {
        write!(told, "| `{early}` |").expect("a string");
        for place in PLACES {
            let mut world = looping(early);
            at(&mut world, place);
            let before = Before::of(&world);
            let played = event(&mut world, "Order.Came")
                .expect("given")
                .expect("no dead letter");
            let after = Before::of(&world);
            let cell = match played {
                crate::patch::Outcome::Ignored(reason) => format!("ignored: `{}`", reason.as_str()),
                _ if after.buffered > before.buffered => "kept".to_owned(),
                _ => "ends the wait".to_owned(),
            };
            write!(told, " {cell} |").expect("a string");
        }
        told.push('\n');
    }
    check(&told);
}

/// Three items of which two run; `first` has one failure behind it.
fn items(foreach: &str, has_failed: bool) -> World {
    let mut world = World::new(loaded(&format!(
        r"
handlers: {{Order.Withdrawn: {{interrupt: {{step: all, class: withdrawn}}}}, Order.Picked: {{interrupt: {{step: pick, class: withdrawn}}}}}}
steps:
  all:
    foreach: {{over: '[1, 2, 3, 4]', parallel: 2, {foreach}}}
    steps:
      pick: {{effect: pick, compensate: {{effect: unpick}}}}
  spare: {{wait: {{signal: spare}}}}
  rest: {{needs: [all, spare], join: any, wait: {{signal: never}}}}
"
    )));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    if has_failed {
        world.fail("steps.pick", "gone");
    }
    world
}

fn of_item(world: &mut World, outcome: WorkOutcome) -> Played {
    let first = world.outbox.values().find(|item| item.path == "steps.pick");
    let command = first.map(|item| item.command_id);
    result(world, command, outcome)
}

fn told_of_loop(before: &Before, world: &World, _: &str) -> String {
    let after = Before::of(world);
    let mut said = match after.statuses[0] {
        StepStatus::Running => "continues".to_owned(),
        status => format!("`{}`", status.as_str()),
    };
    if after.undone > before.undone {
        said.push_str(", undone");
    }
    let strays = world.last().strays.len();
    if strays > 0 {
        write!(said, ", {strays} given up").expect("a string");
    }
    said
}

#[test]
fn the_docs_say_what_ends_a_loop_over_a_list() {
    let scenes: [Scene; 6] = [
        ("`on_item_error: fail`", || items("on_item_error: fail", false)),
        ("`continue`", || items("on_item_error: continue", true)),
        ("`tolerate: 1`, none has failed", || items("tolerate: 1", false)),
        ("`tolerate: 1`, one has failed", || items("tolerate: 1", true)),
        ("`join: any`", || items("join: any", true)),
        ("`join: any`, `let_run`", || {
            items("join: any, stragglers: let_run", true)
        }),
    ];
    let inputs: [Input; 5] = [
        ("an item succeeds", |world| of_item(world, good())),
        ("an item fails", |world| of_item(world, failed("gone"))),
        ("its outcome is unknown", |world| {
            of_item(world, WorkOutcome::timed_out(String::new()))
        }),
        ("a handler interrupts the step in it", |world| {
            event(world, "Order.Picked")
        }),
        ("a handler interrupts the loop", |world| {
            event(world, "Order.Withdrawn")
        }),
    ];
    check(&table("Input", &scenes, &inputs, told_of_loop));
}
