//! Instances that go over to another version keep all they have, or stay where they are.

use std::sync::Arc;

use saga_runner_language::definition::{Definition, compile_archived};
use serde_json::json;

use super::super::REFUSED;
use super::world::World;
use crate::input::Control;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};

pub(super) fn version(body: &str) -> Arc<Definition> {
    let text = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: trip\nstart: Trip.Booked\nkey: {{\"Trip.*\": event.data.id}}\n{body}"
    );
    Arc::new(compile_archived(&text).unwrap_or_else(|findings| panic!("{findings:#?}")))
}

const FIRST: &str = r#"
state: {init: {cents: 5, old: 1}}
handlers: {Trip.Told: {set: {told: true}}}
steps:
  hotel: {effect: hotel-book, with: {n: 1}, set: {hotel: "${result.id}"}, compensate: {effect: hotel-cancel, on_unknown: ignore, with: {id: "${result.id}"}}}
  note: {effect: note-write, with: {n: 2}}
  flight: {needs: [hotel], effect: flight-book, with: {n: 3}, retry: {attempts: 3, backoff: {initial: 1s}}}
timers:
  unpaid: {after: 1h, fail: {code: unpaid}}
"#;

/// One step has another name, one is gone, one is new; so are a timer and a field of the state.
const SECOND: &str = r#"
state: {init: {total: 0}}
handlers: {Trip.Told: {set: {told: 2}}}
steps:
  flight_out: {needs: [stay], effect: flight-book, with: {n: 3}, retry: {attempts: 3, backoff: {initial: 1s}}}
  stay: {effect: hotel-book, with: {n: 1}, set: {hotel: "${result.id}"}, compensate: {effect: hotel-cancel, on_unknown: ignore, with: {id: "${result.id}"}}}
  insure: {needs: [flight_out], effect: insurance-buy, with: {cents: "${state.total}"}}
timers:
  late: {after: 2h, fail: {code: late}}
  check: {after: 3h, set: {checked: true}}
"#;

const MAPPING: &str = r#"
on_change: migrate
migrate:
  set: {total: "${state.cents * 10}"}
  rename_steps: {hotel: stay, flight: flight_out}
  rename_timers: {unpaid: late}
  drop: {steps: [note], state: [cents, old]}
"#;

/// The hotel and the note are done, the flight is under way.
fn under_way(first: &Arc<Definition>) -> World {
    let mut world = World::of(Arc::clone(first));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.succeed("steps.note", &json!({}));
    world.succeed("steps.hotel", &json!({"id": "h-1"}));
    world
}

#[test]
fn steps_migrate_by_name_and_new_steps_of_the_version_begin() {
    let second = version(&format!("{SECOND}{MAPPING}"));
    let mut world = under_way(&version(FIRST));
    let due = world.timers.first().expect("set").due;
    assert_eq!(world.migrate(&second), Ok(Outcome::Applied));
    assert!(
        world
            .notes
            .iter()
            .any(|note| matches!(note, Note::Migrated { .. }))
    );
    assert_eq!(world.data(), json!({"hotel": "h-1", "total": 50}));
    assert_eq!(world.last().definition, second.hash);
    let timers: Vec<_> = world
        .timers
        .iter()
        .map(|row| (row.name.as_str(), row.due))
        .collect();
    assert_eq!(timers[0], ("late", due), "it keeps its time");
    assert_eq!(timers[1].0, "check");
    assert_eq!(world.last().steps[0].status, StepStatus::Running);
    // The command that was sent before is answered after.
    world.succeed("steps.flight", &json!({}));
    assert_eq!(world.payload("steps.insure"), json!({"cents": 50}));
    // And what was done before is undone after.
    world.fail("steps.insure", "refused");
    assert_eq!(world.payload("steps.stay.compensate"), json!({"id": "h-1"}));
    world.succeed("steps.stay.compensate", &json!({}));
    assert_eq!(world.ended.as_ref().expect("ended").record.phase, Phase::Failed);
}

#[test]
fn a_migration_that_leaves_something_without_a_place_is_refused_with_all_reasons() {
    let mut world = under_way(&version(FIRST));
    let before = world.record.clone();
    let refusal = world.migrate(&version(SECOND)).expect_err("must be refused");
    assert_eq!(refusal.reason, REFUSED);
    for part in [
        "step hotel is done",
        "step note is done",
        "step flight is under way",
        "what step hotel did",
        "timer unpaid",
    ] {
        assert!(refusal.message.contains(part), "{part}: {}", refusal.message);
    }
    assert_eq!(world.record, before);
    let elsewhere = MAPPING.replace(
        "migrate:\n  set",
        &format!("migrate:\n  from: sha256:{}\n  set", "0".repeat(64)),
    );
    let refusal = world
        .migrate(&version(&format!("{SECOND}{elsewhere}")))
        .expect_err("not from there");
    assert!(
        refusal.message.contains("migrate.from does not name sha256:"),
        "{}",
        refusal.message
    );
}

#[test]
fn timers_of_steps_go_with_their_steps() {
    let second = version(&format!("{SECOND}{MAPPING}"));
    let mut world = under_way(&version(FIRST));
    world.fail("steps.flight", "transient");
    assert!(world.timers.iter().any(|row| row.name == "retry:flight"));
    world.migrate(&second).expect("goes over");
    assert!(world.timers.iter().any(|row| row.name == "retry:flight_out"));
    world.advance(60_000);
    world.succeed("steps.flight_out", &json!({}));
    assert_eq!(world.payload("steps.insure"), json!({"cents": 50}));
}

#[test]
fn the_way_back_leads_to_the_very_version_that_was_left() {
    let (first, second) = (version(FIRST), version(&format!("{SECOND}{MAPPING}")));
    let back = r#"
migrate:
  set: {cents: "${state.total / 10}", old: 1}
  rename_steps: {stay: hotel, flight_out: flight}
  rename_timers: {late: unpaid}
  drop: {timers: [check], state: [total]}
"#;
    let again = version(&format!("{FIRST}{back}"));
    assert_eq!(
        again.hash, first.hash,
        "how to come to a version is no part of it"
    );
    let mut world = under_way(&first);
    world.migrate(&second).expect("goes over");
    world.migrate(&again).expect("goes back");
    assert_eq!(world.data(), json!({"cents": 5, "hotel": "h-1", "old": 1}));
    let stays = world.control(
        "same",
        Control::Migrate {
            to: first.hash,
            back: false,
        },
    );
    assert_eq!(stays, Outcome::Ignored(IgnoreReason::Duplicate));
    world.succeed("steps.flight", &json!({}));
    assert_eq!(
        world.last().steps[1].status,
        StepStatus::Running,
        "it was forgotten, and begins anew"
    );
}

const MACHINE: &str = r#"
state: {init: {n: 0}}
machine:
  initial: open
  states:
    open: {handlers: {Trip.Added: {set: {n: "${state.n + 1}"}}, Trip.Held: {to: held}}}
    held: {handlers: {Trip.Added: {defer: true}, Trip.Freed: {to: open}, Trip.Closed: {to: closed}}}
    closed: {final: true}
"#;

#[test]
fn a_machine_goes_on_in_the_state_that_is_named_and_deferred_events_come_again() {
    let mut world = World::of(version(MACHINE));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.event("Trip.Held", &json!({}));
    assert_eq!(world.event("Trip.Added", &json!({})), Outcome::Deferred);
    let counts = MACHINE
        .replace("held:", "waiting:")
        .replace("to: held", "to: waiting")
        .replace("{defer: true}", "{set: {n: \"${state.n + 10}\"}}");
    let refusal = world.migrate(&version(&counts)).expect_err("held is nowhere");
    assert!(
        refusal.message.contains("state held has no place"),
        "{}",
        refusal.message
    );
    let mapped = version(&format!("{counts}migrate: {{fsm: {{held: waiting}}}}\n"));
    world.migrate(&mapped).expect("goes over");
    world.give_what_waits();
    assert_eq!((world.data(), world.last().deferred), (json!({"n": 10}), 0));
    world.event("Trip.Closed", &json!({}));
    assert_eq!(
        world.ended.as_ref().expect("ended").record.phase,
        Phase::Completed
    );
}

#[test]
fn an_effect_of_a_state_goes_with_the_state() {
    let text = r#"
state: {init: {}}
machine:
  initial: asking
  states:
    asking:
      entry: {emit: {effect: quote-ask, name: quote, with: {n: 1}}}
      handlers: {result.quote: {set: {cents: "${result.cents}"}, to: closed}, Trip.Left: {to: closed}}
    closed: {final: true}
"#;
    let mut world = World::of(version(text));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    let renamed = text.replace("asking", "quoting");
    let mapped = version(&format!("{renamed}migrate: {{fsm: {{asking: quoting}}}}\n"));
    world.migrate(&mapped).expect("goes over");
    world.succeed("machine.asking.quote", &json!({"cents": 7}));
    let ended = world.ended.as_ref().expect("ended");
    assert_eq!(
        (ended.record.phase, world.data()),
        (Phase::Completed, json!({"cents": 7}))
    );
}

const LOOP: &str = r#"
state: {init: {lines: [1, 2, 3]}}
handlers: {Trip.Told: {set: {told: true}}}
steps:
  pack:
    foreach: {over: state.lines, as: line, parallel: 1}
    effect: pack-line
    with: {line: "${line}"}
"#;

#[test]
fn a_loop_that_is_under_way_goes_on_with_the_items_that_are_left() {
    let mut world = World::of(version(LOOP));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    let outstanding = |world: &World| {
        let item = world.outbox.values().next().expect("an item runs");
        item.command_id
    };
    let done = |payload: &str| crate::input::WorkOutcome::Succeeded {
        payload: payload.to_owned().into(),
    };
    let first = outstanding(&world);
    world.result(first, done("{}"));
    let second = version(
        &LOOP
            .replace("  pack:", "  first: {effect: note-write, with: {n: 1}}\n  wrap:")
            .replace("Trip.Told: {set: {told: true}}", "Trip.Told: {set: {told: 1}}")
            .replace("\"${line}\"", "\"${line}\", wrapped: true"),
    );
    let refusal = world.migrate(&second).expect_err("pack has no place");
    assert!(refusal.message.contains("step pack"), "{}", refusal.message);
    let text = format!("{}migrate: {{rename_steps: {{pack: wrap}}}}\n", body_of(&second));
    world.migrate(&version(&text)).expect("goes over");
    world.succeed("steps.first", &json!({}));
    for _ in 0..2 {
        let next = outstanding(&world);
        world.result(next, done("{}"));
    }
    let lines: Vec<_> = world
        .sent
        .iter()
        .filter_map(|item| match &item.kind {
            crate::work::WorkKind::Effect { effect, payload } if effect.as_str() == "pack-line" => {
                Some(serde_json::from_slice::<serde_json::Value>(payload).expect("JSON"))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        lines,
        [
            json!({"line": 1}),
            json!({"line": 2}),
            json!({"line": 3, "wrapped": true})
        ]
    );
    assert_eq!(
        world.ended.as_ref().expect("ended").record.phase,
        Phase::Completed
    );
}

/// The text of a definition without its head.
fn body_of(definition: &Definition) -> String {
    let (_, body) = definition.source.split_once("event.data.id}\n").expect("a head");
    body.to_owned()
}

#[test]
fn the_state_is_read_as_it_was_and_must_fit_the_schema_of_the_new_version() {
    let typed = |set: &str| {
        let schema = "{type: object, properties: {total: {type: integer}}, required: [total], additionalProperties: false}";
        version(&format!(
            "state: {{schema: {schema}, init: {{total: 0}}}}\nsteps: {{note: {{effect: note-write, with: {{n: 2}}}}}}\nmigrate: {{{set}, drop: {{steps: [hotel, flight], timers: [unpaid], state: [cents, old, hotel]}}}}\n"
        ))
    };
    let mut world = World::of(version(
        &FIRST.replace("compensate:", "on_error: {gone: {continue: true}}, compensate:"),
    ));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.fail("steps.hotel", "gone");
    world.succeed("steps.flight", &json!({}));
    let refusal = world
        .migrate(&typed("set: {total: \"${string(state.cents)}\"}"))
        .expect_err("a string");
    assert_eq!(refusal.reason, "state.schema");
    world
        .migrate(&typed("set: {total: \"${state.cents}\"}"))
        .expect("an integer");
    assert_eq!(world.data(), json!({"total": 5}));
}

const UNDO: &str = r#"
on_change: migrate
migrate:
  set: {total: "${state.cents * 10}"}
  rename_steps: {hotel: stay, flight: flight_out}
  rename_timers: {unpaid: late}
  drop: {steps: [note], state: [cents, old]}
  undo:
    set: {cents: "${state.total / 10}", old: 1}
    drop: {timers: [check], state: [total]}
"#;

#[test]
fn undoing_leads_each_instance_back_to_where_it_came_from_and_repeats_nothing() {
    let (first, second) = (version(FIRST), version(&format!("{SECOND}{UNDO}")));
    let mut world = under_way(&first);
    let refusal = world.go_back(&second).expect_err("it has gone nowhere");
    assert!(
        refusal.message.contains("it was not brought over"),
        "{}",
        refusal.message
    );
    world.migrate(&second).expect("goes over");
    let left = world.last().left.clone().expect("remembered");
    assert_eq!(
        (left.definition, left.forgotten),
        (first.hash, vec![(1, StepStatus::Done)])
    );
    world.fail("steps.flight", "transient");
    world.go_back(&first).expect("goes back");
    assert_eq!(world.data(), json!({"cents": 5, "hotel": "h-1", "old": 1}));
    assert_eq!(
        (world.last().definition, world.last().left.is_none()),
        (first.hash, true)
    );
    assert_eq!(
        world.last().steps[1].status,
        StepStatus::Done,
        "the note was written"
    );
    assert!(world.timers.iter().any(|row| row.name == "retry:flight"));
    world.advance(60_000);
    world.succeed("steps.flight", &json!({}));
    assert_eq!(
        world.ended.as_ref().expect("ended").record.phase,
        Phase::Completed
    );
}

#[test]
fn work_of_the_new_version_blocks_the_way_back_unless_undo_covers_it() {
    let (first, second) = (version(FIRST), version(&format!("{SECOND}{UNDO}")));
    let mut world = under_way(&first);
    world.migrate(&second).expect("goes over");
    world.succeed("steps.flight", &json!({}));
    let refusal = world.go_back(&first).expect_err("insure runs");
    assert!(
        refusal.message.contains("step insure is under way"),
        "{}",
        refusal.message
    );
    assert_eq!(world.last().definition, second.hash);
}

const WAITING: &str = r"
state: {init: {}}
steps:
  book: {effect: hotel-book, with: {n: 1}, compensate: {effect: hotel-cancel, with: {n: 1}}}
  review: {needs: [book], wait: {signal: review, timeout: 1h}}
  paid: {needs: [review], wait: {event: Trip.Paid, timeout: 1h}}
";

/// A signal and an event have come early.
fn expectant(first: &Arc<Definition>) -> World {
    let mut world = World::of(Arc::clone(first));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.event("Trip.Paid", &json!({"sum": 3}));
    world.control("s-1", super::waits::signal("review", &json!({"ok": true})));
    assert_eq!(world.last().buffer.len(), 2);
    world
}

#[test]
fn an_early_event_migrates_if_the_new_version_waits_for_it() {
    let mut world = expectant(&version(WAITING));
    let slower = WAITING.replace("timeout: 1h", "timeout: 2h");
    world.migrate(&version(&slower)).expect("goes over");
    world.succeed("steps.book", &json!({}));
    assert_eq!(
        world.ended.as_ref().expect("ended").record.phase,
        Phase::Completed
    );
}

#[test]
fn an_early_event_without_a_wait_in_the_new_version_refuses_the_migration_or_is_dropped_by_name() {
    let mut world = expectant(&version(WAITING));
    let cut = WAITING
        .replace(
            "  paid: {needs: [review], wait: {event: Trip.Paid, timeout: 1h}}\n",
            "",
        )
        .replace("signal: review", "signal: verdict");
    let refusal = world.migrate(&version(&cut)).expect_err("nobody waits");
    for part in [
        "event Trip.Paid came early",
        "signal review came early",
        "drop.signals",
    ] {
        assert!(refusal.message.contains(part), "{part}: {}", refusal.message);
    }
    let dropped = format!("{cut}migrate: {{drop: {{events: [Trip.Paid], signals: [review]}}}}\n");
    world.migrate(&version(&dropped)).expect("goes over");
    assert_eq!(world.last().buffer, []);
    // A step that waits goes on to wait, and keeps its time.
    world.succeed("steps.book", &json!({}));
    let third = version(&dropped.replace("timeout: 1h", "timeout: 3h"));
    let due = world.timers.first().expect("the end of the wait").due;
    world.migrate(&third).expect("goes over");
    assert_eq!(world.timers.first().map(|row| row.due), Some(due));
    let hasty = version(&cut.replace(
        "wait: {signal: verdict, timeout: 1h}",
        "effect: note-write, with: {n: 2}",
    ));
    let refusal = world.migrate(&hasty).expect_err("it waits for something");
    assert!(
        refusal.message.contains("step review waits"),
        "{}",
        refusal.message
    );
}

#[test]
fn deferred_events_that_the_new_version_has_no_use_for_are_refused_or_dropped_by_name() {
    let mut world = World::of(version(MACHINE));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.event("Trip.Held", &json!({}));
    world.event("Trip.Added", &json!({}));
    let cut = MACHINE
        .replace("Trip.Added: {set: {n: \"${state.n + 1}\"}}, ", "")
        .replace("Trip.Added: {defer: true}, ", "");
    let refusal = world.migrate(&version(&cut)).expect_err("nobody adds");
    assert!(
        refusal.message.contains("perhaps Trip.Added"),
        "{}",
        refusal.message
    );
    let dropped = version(&format!("{cut}migrate: {{drop: {{events: Trip.Added}}}}\n"));
    world.migrate(&dropped).expect("goes over");
    world.give_what_waits();
    assert_eq!((world.last().deferred, world.waiting.len()), (0, 0));
}

#[test]
fn work_that_the_new_version_cannot_undo_refuses_the_migration_or_stays_done_by_name() {
    let first = version(FIRST);
    let kept = FIRST.replace(
        ", compensate: {effect: hotel-cancel, on_unknown: ignore, with: {id: \"${result.id}\"}}",
        "",
    );
    let mut world = under_way(&first);
    let refusal = world.migrate(&version(&kept)).expect_err("hotel could be undone");
    assert!(
        refusal.message.contains("what step hotel did"),
        "{}",
        refusal.message
    );
    let other = FIRST.replace("with: {id: \"${result.id}\"}}", "with: {n: \"${input.n}\"}}");
    let refusal = world
        .migrate(&version(&other))
        .expect_err("its input was not kept");
    assert!(refusal.message.contains("reads its input"), "{}", refusal.message);
    let dropped = version(&format!("{kept}migrate: {{drop: {{ledger: hotel}}}}\n"));
    world.migrate(&dropped).expect("goes over");
    world.fail("steps.flight", "refused");
    assert_eq!(world.ended.as_ref().expect("ended").record.phase, Phase::Failed);
    // One that undoes already is done with it.
    let mut world = under_way(&first);
    world.fail("steps.flight", "refused");
    let refusal = world.migrate(&dropped).expect_err("hotel is being undone");
    assert!(refusal.message.contains("right now"), "{}", refusal.message);
    world.fail("steps.hotel.compensate", "transient");
    world.migrate(&dropped).expect("goes over");
    assert_eq!(world.ended.as_ref().expect("ended").record.phase, Phase::Failed);
    assert!(world.timers.is_empty());
}

#[test]
fn both_schemas_are_held_against_the_way_between_them() {
    use saga_runner_language::definition::misfits;
    let typed = |fields: &str, rest: &str| {
        let schema = format!("{{type: object, properties: {{{fields}}}, additionalProperties: false}}");
        version(&format!(
            "state: {{schema: {schema}, init: {{}}}}\nhandlers: {{Trip.Told: {{set: {{}}}}}}\n{rest}"
        ))
    };
    let old = typed("cents: {type: integer}, note: {type: string}", "");
    let told = |new: &Definition| -> Vec<String> {
        misfits(&old, new, false)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let new = typed(
        "total: {type: integer}, note: {type: integer}",
        "migrate:\n  set: {total: \"${state.cent}\"}\n",
    );
    let found = told(&new);
    for part in [
        "unknown field `cent`",
        "the field \"cents\" of the old state has no place",
        "the field \"note\" of the old state: expected an integer",
    ] {
        assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:#?}");
    }
    assert!(
        found.iter().all(|line| line.starts_with("archived definition:")),
        "{found:#?}"
    );
    let new = typed(
        "total: {type: integer}",
        "migrate:\n  set: {total: \"${has(state.cents) ? state.cents : 0}\"}\n  drop: {state: [cents, note]}\n  undo:\n    set: {cents: \"${string(state.total)}\"}\n",
    );
    assert_eq!(told(&new), Vec::<String>::new());
    let back = misfits(&new, &old, true);
    assert!(
        back.iter()
            .any(|found| found.message.contains("expected an integer")),
        "{back:#?}"
    );
}

#[test]
fn a_retry_after_a_rename_keeps_its_idempotency_key() {
    let second = version(&format!("{SECOND}{MAPPING}"));
    let mut world = under_way(&version(FIRST));
    let before = world.newest("steps.flight").clone();
    world.time_out("steps.flight");
    world.migrate(&second).expect("goes over");
    world.advance(60_000);
    let after = world.newest("steps.flight_out").clone();
    assert_eq!(
        (after.attempt, &after.idempotency_key),
        (2, &before.idempotency_key)
    );
    // And what is being undone: one attempt of it may have happened.
    world.fail("steps.flight_out", "refused");
    let before = world.newest("steps.stay.compensate").clone();
    world.time_out("steps.stay.compensate");
    let third = SECOND.replace("stay", "inn");
    let mapping = "migrate: {rename_steps: {stay: inn}}\n";
    world
        .migrate(&version(&format!("{third}{mapping}")))
        .expect("goes over");
    world.advance(60_000);
    let after = world.newest("steps.inn.compensate");
    assert_eq!(after.idempotency_key, before.idempotency_key);
}

#[test]
fn no_other_step_begins_under_a_name_that_was_used() {
    let mut world = under_way(&version(FIRST));
    let reused = FIRST
        .replace("  hotel:", "  stay:")
        .replace("[hotel]", "[stay]")
        .replace(
            "  note: {effect: note-write, with: {n: 2}}",
            "  hotel: {effect: hotel-rate, with: {n: 2}}",
        );
    let mapping = "migrate: {rename_steps: {hotel: stay}, drop: {steps: [note]}}\n";
    let refusal = world
        .migrate(&version(&format!("{reused}{mapping}")))
        .expect_err("the name is used");
    assert!(
        refusal.message.contains("another one would begin under its name"),
        "{}",
        refusal.message
    );
}
