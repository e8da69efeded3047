//! The tables of docs/language.md that say what happens to which input: played on the transition, and compared.

use std::fmt::Write as _;

use bytes::Bytes;
use saga_runner_language::alias::{Alias, Via};
use saga_runner_language::ids::CommandId;
use serde_json::json;

use super::build::{loaded, loaded_as};
use super::compensation::decide;
use super::questions::asking;
use super::waits::signal;
use super::world::World;
use crate::input::{CallbackOutcome, CancelMode, Control, InputBody, Origin, Verdict, WorkOutcome};
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{Phase, StepStatus};
use crate::transition::Rejection;

const DOCS: &str = include_str!("../../../../../docs/language.md");

/// What an input did, and what it was.
pub(super) type Played = Option<Result<Outcome, Rejection>>;
pub(super) type Input = (&'static str, fn(&mut World) -> Played);
pub(super) type Scene = (&'static str, fn() -> World);

/// One row for each input, one column for each scene.
pub(super) fn table(
    corner: &str,
    scenes: &[Scene],
    inputs: &[Input],
    told: fn(&Before, &World, &str) -> String,
) -> String {
    let heads: Vec<&str> = scenes.iter().map(|(name, _)| *name).collect();
    let mut table = format!(
        "| {corner} | {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(scenes.len() + 1)
    );
    for (name, play) in inputs {
        write!(table, "| {name} |").expect("a string");
        for (_, scene) in scenes {
            let mut world = scene();
            let before = Before::of(&world);
            let cell = match play(&mut world) {
                None => "–".to_owned(),
                Some(Err(rejection)) => format!("dead letter `{}`", rejection.reason),
                Some(Ok(Outcome::Ignored(IgnoreReason::Conflict))) => "dead letter `conflict`".to_owned(),
                Some(Ok(Outcome::Ignored(reason))) => format!("ignored: `{}`", reason.as_str()),
                Some(Ok(Outcome::Deferred)) => {
                    let is_paused = world
                        .record
                        .as_ref()
                        .is_some_and(|record| record.paused.is_some());
                    let until = if is_paused { "it is resumed" } else { "the end" };
                    format!("pending until {until}")
                }
                Some(Ok(Outcome::Applied)) => told(&before, &world, "applied"),
            };
            write!(table, " {cell} |").expect("a string");
        }
        table.push('\n');
    }
    table
}

pub(super) fn check(table: &str) {
    assert!(DOCS.contains(table), "docs/language.md is to say:\n\n{table}");
}

/// What can be seen of an instance before an input.
pub(super) struct Before {
    exists: bool,
    ended: bool,
    pub generation: u32,
    pub phase: Option<Phase>,
    pub data: Option<Vec<u8>>,
    pub statuses: Vec<StepStatus>,
    pub buffered: usize,
    pub undone: usize,
}

impl Before {
    pub fn of(world: &World) -> Self {
        let record = world
            .record
            .as_ref()
            .or(world.ended.as_ref().map(|summary| &summary.record));
        Self {
            exists: record.is_some(),
            ended: world.record.is_none(),
            generation: record.map_or(0, |record| record.generation),
            phase: record.map(|record| record.phase),
            data: record.map(|record| record.data.to_vec()),
            statuses: record.map_or_else(Vec::new, |record| {
                record.steps.iter().map(|step| step.status).collect()
            }),
            buffered: record.map_or(0, |record| record.buffer.len()),
            undone: undone(world),
        }
    }
}

/// How many undos were sent so far.
fn undone(world: &World) -> usize {
    let undos = world
        .sent
        .iter()
        .filter(|item| item.path.ends_with(".compensate"));
    undos.count()
}

/// The newest command of what stands at `path`, if any was sent.
pub(super) fn newest(world: &World, path: &str) -> Option<CommandId> {
    let mut items = world.sent.iter().rev();
    items.find(|item| item.path == path).map(|item| item.command_id)
}

pub(super) fn result(world: &mut World, command: Option<CommandId>, outcome: WorkOutcome) -> Played {
    let input = world.result_input(command?, outcome);
    Some(world.give(&input))
}

#[allow(clippy::unnecessary_wraps, reason = "as what is played of others")]
pub(super) fn event(world: &mut World, event_type: &str) -> Played {
    let input = world.event_input(event_type, &json!({"id": "o-1"}));
    Some(world.give(&input))
}

#[allow(clippy::unnecessary_wraps, reason = "as what is played of others")]
pub(super) fn control(world: &mut World, control: Control) -> Played {
    let id = format!("asked-{}", world.log_length());
    let input = world.input(&id, Origin::Local, InputBody::Control(control));
    Some(world.give(&input))
}

pub(super) fn cancel(world: &mut World, mode: CancelMode) -> Played {
    let reason = String::new();
    control(world, Control::Cancel { reason, mode })
}

pub(super) fn good() -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: Bytes::from_static(br#"{"id":"r-1"}"#),
    }
}

pub(super) fn failed(class: &str) -> WorkOutcome {
    WorkOutcome::Failed {
        class: class.to_owned(),
        message: String::new(),
        refused: false,
    }
}

/// The work whose token somebody has.
fn token(world: &World, path: &str) -> Option<String> {
    let mut items = world.sent.iter().rev();
    items
        .find(|item| item.path == path)
        .map(|item| item.idempotency_key.clone())
}

pub(super) fn callback(world: &mut World, path: &str) -> Played {
    let work = token(world, path)?;
    let data = Bytes::from_static(b"{}");
    let outcome = CallbackOutcome::Done { data };
    control(world, Control::Callback { work, outcome })
}

pub(super) fn beat(world: &mut World, path: &str) -> Played {
    let work = token(world, path)?;
    world.advance(1_000);
    control(world, Control::Heartbeat { work })
}

/// What the alias says that `pay` has registered.
fn answer(world: &mut World, refused: bool) -> Played {
    let alias = Alias {
        name: "payment".to_owned(),
        value: "o-1".to_owned(),
    };
    let via = Via { alias, generation: 1 };
    control(world, Control::AliasAnswered { via, refused })
}

/// The timer of this name fires, or has fired before it was cleared.
pub(super) fn timer(world: &mut World, name: &str) -> Played {
    if world.record.is_none() && world.ended.is_none() {
        return None;
    }
    let set = world.timers.iter().find(|row| row.name == name).cloned();
    let name = name.to_owned();
    let input = match &set {
        Some(row) => world.timer_input(row),
        None => world.input(&format!("{name}@1"), Origin::Timer, InputBody::Timer { name }),
    };
    if let Some(row) = &set {
        world.timers.remove(row);
    }
    Some(world.give(&input))
}

const LIFE: &str = r#"
start: Order.Placed
reuse: {after: [failed]}
key: {"*": event.data.id}
state: {init: {heard: 0}}
deadline: 30d
handlers:
  Order.Noted: {set: {heard: "${state.heard + 1}"}}
  Order.Stopped: {fail: {code: stopped}}
  signal.note: {set: {heard: "${state.heard + 1}"}}
after_end:
  Order.Late: {set: {heard: "${state.heard + 1}"}}
  signal.late: {set: {heard: "${state.heard + 1}"}}
steps:
  guess: {effect: guess, on_error: {timeout: {continue: true}}, compensate: {effect: unguess}}
  pay: {effect: charge, alias: {payment: "${key}"}, compensate: {effect: refund, retry: {attempts: 1}}}
  sign: {effect: ask, wait: {callback: true, timeout: 1d, heartbeat: 1h}}
  pack: {effect: pack, wait: {event: Order.Packed, timeout: 1d}}
  approve: {wait: {signal: approve, timeout: 1d}}
  ship: {effect: ship, compensate: {effect: unship}}
finally:
  completed: [{effect: tell, name: tell}]
  failed: [{effect: tell, name: tell}]
"#;

/// `pay` is done, `guess` of unknown outcome, `ship` under way, and the others wait.
fn running() -> World {
    let mut world = World::new(loaded_as(LIFE));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.time_out("steps.guess");
    for step in ["pay", "sign", "pack"] {
        world.succeed(&format!("steps.{step}"), &json!({}));
    }
    world
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
    world
}

fn compensation_failed() -> World {
    let mut world = compensating();
    world.fail("steps.ship", "cancelled");
    world.fail("steps.pay.compensate", "refused");
    world
}

fn finishing() -> World {
    let mut world = compensating();
    world.fail("steps.ship", "cancelled");
    world.succeed("steps.pay.compensate", &json!({}));
    world.succeed("steps.guess.compensate", &json!({}));
    world
}

fn ended() -> World {
    let mut world = finishing();
    world.succeed("finally.failed.tell", &json!({}));
    world
}

fn completed() -> World {
    let mut world = running();
    world.succeed("steps.ship", &json!({}));
    world.event("Order.Packed", &json!({"id": "o-1"}));
    callback(&mut world, "steps.sign")
        .expect("given")
        .expect("applied");
    world.control("approve", signal("approve", &json!({})));
    world.succeed("finally.completed.tell", &json!({}));
    world
}

pub(super) fn told_of_instance(before: &Before, world: &World, applied: &str) -> String {
    let after = Before::of(world);
    if !before.exists || after.generation > before.generation {
        return "starts".to_owned();
    }
    let mut said = Vec::new();
    if after.buffered > before.buffered {
        said.push("kept for its step".to_owned());
    }
    if after.data != before.data {
        said.push("handled".to_owned());
    }
    let was = before.statuses.iter().zip(&after.statuses);
    if was.clone().any(|(was, is)| was != is && *is == StepStatus::Done) {
        said.push("its step is done".to_owned());
    }
    if after.undone > before.undone {
        said.push("undoes".to_owned());
    }
    if after.phase != before.phase {
        let phase = after.phase.expect("it exists");
        said.push(format!("`{}`", phase.as_str()));
    } else if after.ended != before.ended {
        said.push("reopens the ledger".to_owned());
    }
    if said.is_empty() {
        said.push(applied.to_owned());
    }
    said.join(", ")
}

#[test]
fn the_docs_say_what_happens_to_an_input_in_each_phase() {
    let scenes: [Scene; 8] = [
        ("no instance", || World::new(loaded_as(LIFE))),
        ("`running`", running),
        ("drains", draining),
        ("`compensating`", compensating),
        ("`compensation_failed`", compensation_failed),
        ("`finishing`", finishing),
        ("`completed`", completed),
        ("`failed`", ended),
    ];
    let inputs: [Input; 26] = [
        ("start event", |world| event(world, "Order.Placed")),
        ("event with a handler", |world| event(world, "Order.Noted")),
        ("event that a step waits for", |world| {
            event(world, "Order.Packed")
        }),
        ("event under `after_end`", |world| event(world, "Order.Late")),
        ("event received before", |world| {
            let input = world.event_input("Order.Late", &json!({"id": "o-1"}));
            world
                .record
                .as_ref()
                .or(world.ended.as_ref().map(|summary| &summary.record))?;
            let first = world.give(&input);
            (first == Ok(Outcome::Applied)).then(|| world.give(&input))
        }),
        ("other event", |world| event(world, "Order.Other")),
        ("signal with a handler", |world| {
            control(world, signal("note", &json!({})))
        }),
        ("signal that a step waits for", |world| {
            control(world, signal("approve", &json!({})))
        }),
        ("signal under `after_end`", |world| {
            control(world, signal("late", &json!({})))
        }),
        ("callback", |world| callback(world, "steps.sign")),
        ("heartbeat", |world| beat(world, "steps.sign")),
        ("success of a step", |world| {
            let command = newest(world, "steps.ship");
            result(world, command, good())
        }),
        ("failure of a step", |world| {
            let command = newest(world, "steps.ship");
            result(world, command, failed("permanent"))
        }),
        ("unknown outcome of a step", |world| {
            let command = newest(world, "steps.ship");
            result(world, command, WorkOutcome::timed_out(String::new()))
        }),
        ("success after an unknown outcome", |world| {
            let command = newest(world, "steps.guess");
            result(world, command, good())
        }),
        ("the same result again", |world| {
            let command = newest(world, "steps.pay");
            let payload = Bytes::from_static(b"{}");
            result(world, command, WorkOutcome::Succeeded { payload })
        }),
        ("another result of the same command", |world| {
            let command = newest(world, "steps.pay");
            result(world, command, good())
        }),
        ("an alias refuses it", |world| answer(world, true)),
        ("an alias takes it after all", |world| {
            let first = answer(world, true)?;
            (first == Ok(Outcome::Applied)).then(|| answer(world, false))?
        }),
        ("deadline of the saga", |world| timer(world, "deadline")),
        ("cancel, `compensate`", |world| {
            cancel(world, CancelMode::Compensate)
        }),
        ("cancel, `drain`", |world| cancel(world, CancelMode::Drain)),
        ("cancel, `abandon`", |world| cancel(world, CancelMode::Abandon)),
        ("operator: retry", |world| control(world, Control::Retry)),
        ("operator: skip", |world| {
            control(world, decide(Verdict::Skip, None))
        }),
        ("operator: resolve", |world| {
            control(world, decide(Verdict::Resolve, None))
        }),
    ];
    check(&table("Input", &scenes, &inputs, told_of_instance));
}

const STEP: &str = "steps.it";

/// One step among others that keep the instance running.
fn with_step(more: &str) -> World {
    with(more, "event: Order.Came")
}

fn with(more: &str, wait: &str) -> World {
    let definition = loaded(&format!(
        r"
state: {{init: {{n: 0}}}}
handlers: {{Order.Stopped: {{fail: {{code: stopped}}}}, Order.Withdrawn: {{interrupt: {{step: it, class: withdrawn}}}}}}
steps:
  first: {{wait: {{signal: first}}}}
  it:
    effect: act
    retry: {{errors: [transient, timeout], attempts: 3, backoff: {{initial: 1m, factor: 1}}}}
    wait: {{{wait}, timeout: 1h}}
    deadline: 1d
    compensate: {{effect: undo}}
    {more}
  rest: {{wait: {{signal: never}}}}
  next: {{needs: [it, first], join: any, stragglers: cancel, publish: {{type: order.next}}}}
"
    ));
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

fn begun() -> World {
    with_step("")
}

fn backing_off() -> World {
    let mut world = begun();
    world.time_out(STEP);
    world
}

fn again() -> World {
    let mut world = backing_off();
    world.advance(60_000);
    world
}

fn waiting() -> World {
    let mut world = begun();
    world.succeed(STEP, &json!({"id": "r-1"}));
    world
}

fn asked() -> World {
    let definition = begun().definition;
    let definition = std::sync::Arc::try_unwrap(definition).expect("nobody else has it");
    let mut world = World::new(asking(definition, &["act"]));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.time_out(STEP);
    world
}

fn done() -> World {
    let mut world = waiting();
    world.event("Order.Came", &json!({"id": "o-1"}));
    world
}

fn given_up() -> World {
    let mut world = begun();
    world.control("first", signal("first", &json!({})));
    world
}

fn over() -> World {
    let mut world = begun();
    world.time_out(STEP);
    world.advance(60_000);
    world.fail(STEP, "permanent");
    world
}

/// The first command of the step.
fn earliest(world: &World) -> Option<CommandId> {
    let mut items = world.sent.iter();
    let first = items.find(|item| item.path == STEP).map(|item| item.command_id);
    first.filter(|first| newest(world, STEP) != Some(*first) || !world.last().doubts.is_empty())
}

/// What the step does next under a timer of this kind.
fn step_timer(world: &mut World, kind: &str) -> Played {
    let name = format!("{kind}:it");
    world.timers.iter().any(|row| row.name == name).then_some(())?;
    timer(world, &name)
}

fn told_of_step(before: &Before, world: &World, _: &str) -> String {
    let after = Before::of(world);
    let (was, is) = (before.statuses[1], after.statuses[1]);
    let mut said = Vec::new();
    if was != is {
        said.push(format!("`{}`", is.as_str()));
    }
    if after.buffered > before.buffered {
        said.push("kept for it".to_owned());
    }
    if after.undone > before.undone {
        said.push("undone".to_owned());
    }
    if said.is_empty() {
        said.push("unchanged".to_owned());
    }
    said.join(", ")
}

#[test]
fn the_docs_say_what_happens_to_an_input_for_each_status_of_a_step() {
    let scenes: [Scene; 11] = [
        ("`pending`", || with_step("needs: [rest]")),
        ("`delayed`", || with_step("delay: 1h")),
        ("`running`", begun),
        ("`backing_off`", backing_off),
        ("`running` again", again),
        ("`stuck`", asked),
        ("`waiting`", waiting),
        ("`done`", done),
        ("`skipped`", || with_step("if: state.n > 5")),
        ("`failed`", over),
        ("`abandoned`", given_up),
    ];
    let inputs: [Input; 18] = [
        ("success", |world| {
            let command = newest(world, STEP);
            result(world, command, good())
        }),
        ("failure that `retry` names", |world| {
            let command = newest(world, STEP);
            result(world, command, failed("transient"))
        }),
        ("other failure", |world| {
            let command = newest(world, STEP);
            result(world, command, failed("permanent"))
        }),
        ("unknown outcome", |world| {
            let command = newest(world, STEP);
            result(world, command, WorkOutcome::timed_out(String::new()))
        }),
        ("success of an attempt of unknown outcome", |world| {
            let command = earliest(world);
            result(world, command, good())
        }),
        ("event that it waits for", |world| event(world, "Order.Came")),
        ("its pause is over", |world| {
            let delayed = step_timer(world, "delay");
            delayed.or_else(|| step_timer(world, "retry"))
        }),
        ("`wait.timeout` passes", |world| step_timer(world, "wait")),
        ("its `deadline` passes", |world| step_timer(world, "deadline")),
        ("a handler interrupts it", |world| event(world, "Order.Withdrawn")),
        ("a join has enough without it", |world| {
            control(world, signal("first", &json!({})))
        }),
        ("the instance fails", |world| event(world, "Order.Stopped")),
        ("cancel, `drain`", |world| cancel(world, CancelMode::Drain)),
        ("operator: retry", |world| control(world, Control::Retry)),
        ("operator: it has not happened", |world| {
            let found = Some(crate::input::Found::NotDone);
            control(world, super::questions::found("it", found, Verdict::Resolve))
        }),
        ("operator: skip it", |world| {
            control(world, super::questions::found("it", None, Verdict::Skip))
        }),
        ("operator: skip it, it has not happened", |world| {
            let found = Some(crate::input::Found::NotDone);
            control(world, super::questions::found("it", found, Verdict::Skip))
        }),
        ("operator: skip it, it has happened", |world| {
            let result = "{}".to_owned();
            let found = Some(crate::input::Found::Done { result });
            control(world, super::questions::found("it", found, Verdict::Skip))
        }),
    ];
    check(&table("Input", &scenes, &inputs, told_of_step));
}

/// The same of a step that waits for whoever has its token.
#[test]
fn the_docs_say_what_happens_to_messages_with_a_token() {
    fn started() -> World {
        with("", "callback: true, heartbeat: 10m")
    }
    fn waits() -> World {
        let mut world = started();
        world.succeed(STEP, &json!({}));
        world
    }
    let scenes: [Scene; 6] = [
        ("`running`", started),
        ("`backing_off`", || {
            let mut world = started();
            world.time_out(STEP);
            world
        }),
        ("`waiting`", waits),
        ("`waiting`, drains", || {
            let mut world = waits();
            cancel(&mut world, CancelMode::Drain)
                .expect("given")
                .expect("applied");
            world
        }),
        ("`done`", || {
            let mut world = waits();
            callback(&mut world, STEP).expect("given").expect("applied");
            world
        }),
        ("`abandoned`", || {
            let mut world = waits();
            world.control("first", signal("first", &json!({})));
            world
        }),
    ];
    let inputs: [Input; 4] = [
        ("callback `ok`", |world| callback(world, STEP)),
        ("callback `error`", |world| {
            let work = token(world, STEP)?;
            let (class, message) = ("refused".to_owned(), String::new());
            let outcome = CallbackOutcome::Failed { class, message };
            control(world, Control::Callback { work, outcome })
        }),
        ("heartbeat", |world| beat(world, STEP)),
        ("`heartbeat` passes", |world| step_timer(world, "heartbeat")),
    ];
    check(&table("Input", &scenes, &inputs, told_of_step));
}
