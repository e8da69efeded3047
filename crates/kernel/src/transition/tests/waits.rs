//! Delays, waits, signals, and what comes early.

use bytes::Bytes;
use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{
    Action, Awaited, Awaiting, Delay, Early, Emit, Step, Then, Wait,
};
use serde_json::{Value, json};

use super::build::{command, compensation, effect, expr, loaded, publish, saga, sets, step, template};
use super::errors::then;
use super::world::World;
use crate::input::{CallbackOutcome, CancelMode, Control, InputBody, Origin};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{Phase, StepStatus};

const HOUR_MS: i64 = 3_600_000;

pub(super) fn signal(name: &str, data: &Value) -> Control {
    Control::Signal {
        name: name.to_owned(),
        data: Bytes::from(data.to_string()),
        by: "ada".to_owned(),
        hops: 0,
    }
}

fn wait(on: Awaited, when: Option<&str>) -> Wait {
    Wait {
        any: vec![Awaiting {
            on,
            when: when.map(expr),
            set: Vec::new(),
        }],
        is_list: false,
        early: Early::Keep,
        timeout: Some(Delay::Fixed(2 * HOUR_MS)),
        heartbeat_ms: None,
    }
}

/// score, approve (a signal), ship (a command, then an event), tell (a fact).
pub(super) fn approving() -> Definition {
    let mut saga = saga("approving", "Order.Placed");
    saga.init = template(json!({"pause": "30m"}));
    let score = step("score", &[], effect("fraud-score", json!({})));
    let mut approve: Step = step("approve", &[0], Action::Nothing);
    approve.wait = Some(wait(Awaited::Signal("review".to_owned()), None));
    approve.set = sets(json!({"reviewer": "${signal.by}", "note": "${signal.note}"}));
    approve.fail_if = Some(expr("!signal.approved"));
    let mut ship = step(
        "ship",
        &[1],
        Action::Command(command("Shipment.Create", "shp-${key}", json!({}))),
    );
    ship.wait = Some(wait(
        Awaited::Event("Shipment.Created".to_owned()),
        Some(r#"event.data.parcel != """#),
    ));
    ship.set = sets(json!({"parcel": "${event.data.parcel}", "accepted": "${result.sequence}"}));
    ship.compensate = Some(compensation(Action::Command(command(
        "Shipment.Cancel",
        "shp-${key}",
        json!({}),
    ))));
    let Emit::Publish(fact) = publish("order.shipped", json!({"parcel": "${state.parcel}"})).emit else {
        panic!("a fact")
    };
    let mut tell = step("tell", &[2], Action::Publish(fact));
    tell.delay = Some(Delay::Rendered(template(json!("${state.pause}"))));
    saga.steps = vec![score, approve, ship, tell];
    saga
}

fn scored() -> World {
    let mut world = World::new(approving());
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.score", &json!({}));
    world
}

fn yes() -> Value {
    json!({"approved": true, "note": "fine", "by": "somebody else"})
}

#[test]
fn a_signal_ends_the_wait_and_a_command_waits_for_its_event() {
    let mut world = scored();
    assert_eq!(world.statuses()[1], StepStatus::Waiting);
    assert_eq!(
        world.timers.first().map(|row| row.name.as_str()),
        Some("wait:approve")
    );
    assert_eq!(world.control("s-1", signal("review", &yes())), Outcome::Applied);
    assert_eq!(world.data()["reviewer"], "ada", "who it is is not what they say");
    assert_eq!(world.data()["note"], "fine");
    assert!(world.timers.is_empty());
    world.succeed("steps.ship", &json!({"sequence": 7}));
    assert_eq!(world.statuses()[2], StepStatus::Waiting);
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Held],
        "it happened, whatever comes"
    );
    world.event("Shipment.Created", &json!({"parcel": ""}));
    assert_eq!(world.statuses()[2], StepStatus::Waiting, "`when` does not hold");
    world.event("Shipment.Created", &json!({"parcel": "p-1"}));
    assert_eq!(world.data()["parcel"], "p-1");
    assert_eq!(world.data()["accepted"], 7);
    assert_eq!(world.statuses()[3], StepStatus::Delayed);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(30 * 60_000);
    assert_eq!(world.payload("steps.tell"), json!({"parcel": "p-1"}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn early_inputs_are_kept_and_taken_in_order() {
    let mut world = World::new(approving());
    world.event("Order.Placed", &json!({}));
    world.control("s-1", signal("review", &yes()));
    world.event("Shipment.Created", &json!({"parcel": ""}));
    world.event("Shipment.Created", &json!({"parcel": "p-1"}));
    world.event("Shipment.Created", &json!({"parcel": "p-2"}));
    assert_eq!(world.last().buffer.len(), 4);
    world.succeed("steps.score", &json!({}));
    assert_eq!(world.statuses()[1..3], [StepStatus::Done, StepStatus::Running]);
    world.succeed("steps.ship", &json!({"sequence": 7}));
    assert_eq!(world.data()["parcel"], "p-1", "the first that fits");
    assert_eq!(world.last().buffer.len(), 2);
}

#[test]
fn the_awaited_event_settles_a_command_of_unknown_outcome() {
    let mut definition = approving();
    definition.steps[2].set.retain(|(name, _)| name == "parcel");
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.score", &json!({}));
    world.control("s-1", signal("review", &yes()));
    world.event("Shipment.Created", &json!({"parcel": "p-1"}));
    world.time_out("steps.ship");
    assert_eq!(world.statuses()[2], StepStatus::Done);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
}

#[test]
fn a_wait_that_nothing_ends_times_out() {
    let mut world = scored();
    world.advance(2 * HOUR_MS);
    let failure = world.last().failure.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("timeout", Some("approve"))
    );
    let mut definition = approving();
    definition.steps[1]
        .on_error
        .insert("timeout".to_owned(), vec![then(Then::Continue)]);
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.score", &json!({}));
    world.advance(2 * HOUR_MS);
    assert_eq!(world.statuses()[1..3], [StepStatus::Done, StepStatus::Running]);
    assert_eq!(
        world.control("s-1", signal("review", &yes())),
        Outcome::Ignored(IgnoreReason::NoHandler),
        "nothing will wait for it"
    );
}

#[test]
fn a_refused_approval_fails_the_saga_and_a_failed_one_waits_for_nothing() {
    let mut world = scored();
    world.control("s-1", signal("review", &json!({"approved": false, "note": ""})));
    assert_eq!(world.last().steps[1].error.as_deref(), Some("fail_if"));
    assert_eq!(world.phase(), Phase::Failed);
    let mut world = scored();
    world.control("c-1", Control::cancel(String::new()));
    assert_eq!(world.statuses()[1], StepStatus::Abandoned);
    assert!(world.timers.is_empty());
}

#[test]
fn a_buffer_that_is_full_refuses_and_blocks_nobody() {
    let mut definition = approving();
    definition.buffer = 2;
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({}));
    world.control("s-1", signal("review", &yes()));
    world.control("s-2", signal("review", &yes()));
    let input = world.input("s-3", Origin::Local, InputBody::Control(signal("review", &yes())));
    let rejection = world.give(&input).expect_err("no room");
    assert_eq!(rejection.reason, "buffer.full");
    assert!(!rejection.parks());
    assert_eq!(
        world.control("s-4", signal("other", &yes())),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
}

#[test]
fn a_delay_may_be_an_instant_and_the_past_is_now() {
    let delayed = |delay: &str| {
        let mut saga = saga("later", "Order.Placed");
        saga.init = template(json!({"at": delay}));
        let mut later = step("later", &[], Action::Nothing);
        later.delay = Some(Delay::Rendered(template(json!("${state.at}"))));
        saga.steps = vec![later];
        let mut world = World::new(saga);
        let input = world.event_input("Order.Placed", &json!({}));
        let given = world.give(&input);
        (world, given)
    };
    let (mut world, _) = delayed("2026-01-01T10:00:05Z");
    assert_eq!(world.statuses(), [StepStatus::Delayed]);
    world.advance(5_000);
    assert_eq!(world.phase(), Phase::Completed);
    let (world, _) = delayed("2025-01-01T10:00:00Z");
    assert_eq!(world.phase(), Phase::Completed);
    let (_, given) = delayed("soon");
    assert_eq!(given.expect_err("no duration").reason, "timer.value");
    let (_, given) = delayed("9000d");
    assert_eq!(given.expect_err("too long").reason, "timer.range");
}

/// ask (an effect that is called back), note (needs it).
fn asking() -> World {
    let mut saga = saga("asking", "Order.Placed");
    saga.init = template(json!({"signed": ""}));
    let mut ask = step("ask", &[], effect("signature-ask", json!({})));
    ask.wait = Some(wait(Awaited::Callback, None));
    ask.set = sets(json!({"signed": "${signal.name}"}));
    ask.compensate = Some(compensation(effect("signature-drop", json!({}))));
    ask.retry = vec![super::retry::table(&["transient", "timeout"], 3)];
    saga.steps = vec![ask];
    let mut world = World::new(saga);
    world.event("Order.Placed", &json!({}));
    world
}

fn called_back(world: &World, outcome: CallbackOutcome) -> Control {
    let work = world.newest("steps.ask").idempotency_key.clone();
    Control::Callback { work, outcome }
}

fn done(data: &Value) -> CallbackOutcome {
    CallbackOutcome::Done {
        data: Bytes::from(data.to_string()),
    }
}

fn refused() -> CallbackOutcome {
    CallbackOutcome::Failed {
        class: "refused".to_owned(),
        message: "not like this".to_owned(),
    }
}

#[test]
fn a_callback_ends_the_wait_of_its_work_and_of_no_other() {
    let mut world = asking();
    let callback = called_back(&world, done(&json!({"name": "ada", "time": "never"})));
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.statuses()[0], StepStatus::Waiting);
    let other = Control::Callback {
        work: "0".repeat(32),
        outcome: done(&json!({"name": "eve"})),
    };
    assert_eq!(world.control("c-0", other), Outcome::Ignored(IgnoreReason::Stale));
    assert_eq!(world.control("c-1", callback.clone()), Outcome::Applied);
    assert_eq!(world.last().phase, Phase::Completed);
    assert_eq!(world.data()["signed"], "ada");
    assert_eq!(
        world.control("c-2", callback),
        Outcome::Ignored(IgnoreReason::Ended)
    );
}

#[test]
fn another_answer_under_the_same_token_is_told_from_a_repetition() {
    let mut world = asking();
    let callback = called_back(&world, done(&json!({"name": "ada"})));
    let others = [done(&json!({"name": "eve"})), refused()].map(|outcome| called_back(&world, outcome));
    assert_eq!(world.control("c-1", callback.clone()), Outcome::Applied);
    let repeated = world.control("c-1", callback.clone());
    assert_eq!(repeated, Outcome::Ignored(IgnoreReason::Duplicate));
    for other in &others {
        let answered = world.control("c-1", other.clone());
        assert_eq!(answered, Outcome::Ignored(IgnoreReason::Mismatch));
    }
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.last().phase, Phase::Completed);
    // Nothing waits for either any more.
    for late in others.into_iter().chain([callback]) {
        assert_eq!(world.control("c-1", late), Outcome::Ignored(IgnoreReason::Ended));
    }
    assert_eq!(world.data()["signed"], "ada");
}

#[test]
fn a_callback_that_comes_before_the_result_is_kept() {
    let mut world = asking();
    let callback = called_back(&world, done(&json!({"name": "ada"})));
    assert_eq!(world.control("c-1", callback), Outcome::Applied);
    assert_eq!(world.statuses()[0], StepStatus::Running);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.last().phase, Phase::Completed);
    assert_eq!(world.data()["signed"], "ada");
}

#[test]
fn a_callback_that_says_failure_fails_the_step_and_what_was_asked_for_is_undone() {
    let mut world = asking();
    let callback = called_back(&world, refused());
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.control("c-1", callback), Outcome::Applied);
    assert_eq!(world.statuses()[0], StepStatus::Failed);
    assert_eq!(world.last().phase, Phase::Compensating);
    let failure = world.last().failure.as_ref().expect("a failure");
    assert_eq!(failure.code, "refused");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
}

#[test]
fn the_token_of_an_attempt_of_unknown_outcome_still_counts() {
    let mut world = asking();
    let callback = called_back(&world, done(&json!({"name": "ada"})));
    world.time_out("steps.ask");
    world.advance(30_000);
    assert_eq!(world.statuses()[0], StepStatus::Running, "the second attempt");
    assert_eq!(world.control("c-1", callback), Outcome::Applied);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.data()["signed"], "ada");
}

/// Nobody was given a seat before the event says so.
#[test]
fn a_step_that_only_waits_is_undone_only_if_what_it_waits_for_has_come() {
    let body = r"
steps:
  seat:
    wait: {event: Order.Seated, timeout: 1h}
    fail_if: event.data.late
    compensate: {command: {aggregate: Seat, id: '${key}', type: Seat.Release}}
";
    let placed = || {
        let mut world = World::new(loaded(body));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world
    };
    let mut world = placed();
    world.advance(2 * HOUR_MS);
    assert_eq!((world.phase(), world.sent.len()), (Phase::Failed, 0));

    let mut world = placed();
    let mode = CancelMode::Compensate;
    let reason = "gone".to_owned();
    world.control("c-1", Control::Cancel { reason, mode });
    assert_eq!((world.phase(), world.sent.len()), (Phase::Cancelled, 0));

    let mut world = placed();
    world.event("Order.Seated", &json!({"id": "o-1", "late": true}));
    assert_eq!(world.outstanding(), ["steps.seat.compensate"]);
}

const SHIPPING: &str = r#"
handlers: {Order.Stopped: {fail: {code: stopped}}}
steps:
  ship:
    command: {aggregate: Shipment, id: "${key}", type: Shipment.Create}
    wait: {event: Order.Shipped, timeout: 2h}
    set: {parcel: "${event.data.parcel}"}
    compensate: {command: {aggregate: Shipment, id: "${state.parcel}", type: Shipment.Cancel}}
  review: {wait: {signal: review, timeout: 9h}, compensate: {command: {aggregate: R, id: x, type: R.Drop}}}
  bill: {needs: [ship], effect: bill}
"#;

fn draining(accepted: bool) -> World {
    let mut world = World::new(loaded(&format!("state: {{init: {{parcel: none}}}}\n{SHIPPING}")));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    if accepted {
        world.succeed("steps.ship", &json!({}));
    }
    cancel(&mut world, CancelMode::Drain);
    world
}

fn cancel(world: &mut World, mode: CancelMode) -> Outcome {
    let id = format!("cancel-{mode:?}");
    let reason = "gone".to_owned();
    world.control(&id, Control::Cancel { reason, mode })
}

/// What has been asked for comes to its end, also where that is an event; a step that only waits is given up.
#[test]
fn draining_lets_a_step_wait_whose_action_has_happened() {
    for accepted in [true, false] {
        let mut world = draining(accepted);
        if !accepted {
            assert_eq!(world.statuses()[0], StepStatus::Running);
            world.succeed("steps.ship", &json!({}));
        }
        let waits = [StepStatus::Waiting, StepStatus::Abandoned, StepStatus::Pending];
        assert_eq!(world.statuses(), waits);
        assert_eq!(world.timers.len(), 1, "that of the wait: {:?}", world.timers);
        assert_eq!(
            world.event("Order.Stopped", &json!({"id": "o-1"})),
            Outcome::Ignored(IgnoreReason::NoHandler)
        );
        assert_eq!(
            (world.phase(), world.ledger()),
            (Phase::Compensating, vec![LedgerStatus::Held])
        );
        world.event("Order.Shipped", &json!({"id": "o-1", "parcel": "p-7"}));
        assert_eq!(world.outstanding(), ["steps.ship.compensate"]);
        let undo = world.sent.last().expect("sent");
        assert!(format!("{:?}", undo.kind).contains("p-7"), "{undo:?}");
        world.succeed("steps.ship.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Cancelled);
    }
}

#[test]
fn draining_ends_with_the_timeout_of_the_wait_or_with_another_cancel() {
    let mut world = draining(true);
    world.advance(HOUR_MS);
    assert_eq!(world.sent.len(), 1);
    world.advance(2 * HOUR_MS);
    assert_eq!(world.outstanding(), ["steps.ship.compensate"], "{}", world.story);

    let mut world = draining(true);
    assert_eq!(
        cancel(&mut world, CancelMode::Abandon),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    assert_eq!(cancel(&mut world, CancelMode::Compensate), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.ship.compensate"], "{}", world.story);
    assert!(world.timers.is_empty());
}

/// No other item begins, and none is forgotten.
#[test]
fn draining_lets_the_items_of_a_loop_wait() {
    let mut world = World::new(loaded(
        r"
state: {init: {items: [a, b, c], parcel: none}}
steps:
  each:
    foreach: {over: state.items, parallel: 2}
    effect: book
    retry: {attempts: 3}
    wait: {callback: true, timeout: 2h}
    compensate: {effect: unbook}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.each.item", &json!({}));
    cancel(&mut world, CancelMode::Drain);
    world.fail("steps.each.item", "transient");
    assert_eq!((world.phase(), world.sent.len()), (Phase::Compensating, 2));
    let work = world.sent[0].idempotency_key.clone();
    let outcome = CallbackOutcome::Done {
        data: Bytes::from_static(b"{}"),
    };
    assert_eq!(
        world.control("cb", Control::Callback { work, outcome }),
        Outcome::Applied
    );
    assert_eq!(world.outstanding(), ["steps.each.item.compensate"]);
    assert!(world.last().steps.iter().all(|step| step.items.is_none()));
    world.succeed("steps.each.item.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled, "{}", world.story);
}

/// A refusal of who has the token, or silence, is the end of an attempt where `retry` names it.
#[test]
fn retry_covers_the_wait_where_it_names_the_class() {
    let signing = |retry: &str| {
        let mut world = World::new(loaded(&format!(
            "steps:\n  sign:\n    effect: ask\n    wait: {{callback: true, timeout: 1h}}\n    retry: {retry}\n    compensate: {{effect: drop, on_unknown: ignore, with: {{id: '${{result.id}}'}}}}\n"
        )));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world.succeed("steps.sign", &json!({"id": 1}));
        world
    };
    let refuse = |world: &mut World| {
        let work = world.sent.last().expect("sent").idempotency_key.clone();
        let (class, message) = ("refused".to_owned(), "no".to_owned());
        let outcome = CallbackOutcome::Failed { class, message };
        let id = format!("cb-{}-{}", world.sent.len(), world.notes.len());
        world.control(&id, Control::Callback { work, outcome })
    };
    let backoff = "backoff: {initial: 10s}";
    for errors in ["[refused, timeout]", "'*'"] {
        let mut world = signing(&format!("{{errors: {errors}, attempts: 2, {backoff}}}"));
        assert_eq!(refuse(&mut world), Outcome::Applied);
        assert_eq!(world.statuses(), [StepStatus::BackingOff]);
        assert_eq!(
            refuse(&mut world),
            Outcome::Ignored(IgnoreReason::Stale),
            "an old token"
        );
        world.advance(10_000);
        assert_eq!(world.outstanding(), ["steps.sign"]);
        let keys: Vec<&str> = world
            .sent
            .iter()
            .map(|item| item.idempotency_key.as_str())
            .collect();
        assert_ne!(keys[0], keys[1]);
        world.succeed("steps.sign", &json!({"id": 2}));
        // Each class has its own attempts.
        world.advance(HOUR_MS);
        world.advance(10_000);
        world.succeed("steps.sign", &json!({"id": 3}));
        assert_eq!(world.statuses(), [StepStatus::Waiting]);
        assert_eq!(world.ledger(), [LedgerStatus::Held; 3]);
        world.advance(HOUR_MS);
        assert_eq!(world.phase(), Phase::Compensating, "{}", world.story);
        world.succeed("steps.sign.compensate", &json!({}));
        world.succeed("steps.sign.compensate", &json!({}));
        world.succeed("steps.sign.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Failed);
    }
    // Where it does not name the class, the wait that comes to nothing is the end of the step, and what it did is undone.
    for retry in ["{attempts: 3}", "{errors: [transient], attempts: 3}"] {
        for (silent, class, message) in [
            (false, "refused", "no"),
            (true, "timeout", "nothing came in time"),
        ] {
            let mut world = signing(retry);
            if silent {
                world.advance(HOUR_MS);
            } else {
                assert_eq!(refuse(&mut world), Outcome::Applied);
            }
            assert_eq!(world.statuses(), [StepStatus::Failed], "{retry}");
            assert_eq!(world.last().steps[0].error.as_deref(), Some(class), "{retry}");
            let failure = world.last().failure.clone().expect("it has failed");
            assert_eq!(
                (failure.code.as_str(), failure.step.as_deref()),
                (class, Some("sign")),
                "{retry}"
            );
            assert_eq!(failure.message, message, "{retry}");
            assert!(world.timers.is_empty(), "{retry}: no other attempt is ahead");
            assert_eq!(world.outstanding(), ["steps.sign.compensate"], "{retry}");
            assert_eq!(
                world.payload("steps.sign.compensate"),
                json!({"id": 1}),
                "{retry}"
            );
            assert_eq!(
                refuse(&mut world),
                Outcome::Ignored(IgnoreReason::NoHandler),
                "{retry}: its token is worth nothing"
            );
            world.succeed("steps.sign.compensate", &json!({}));
            assert_eq!(
                (world.phase(), world.ledger()),
                (Phase::Failed, vec![LedgerStatus::Undone]),
                "{retry}"
            );
            let calls = world.paths().iter().filter(|path| **path == "steps.sign").count();
            assert_eq!(calls, 1, "{retry}");
        }
    }
}

#[test]
fn a_command_is_sent_again_where_its_event_does_not_come() {
    let mut world = World::new(loaded(
        r#"
steps:
  ship:
    command: {aggregate: Shipment, id: "${key}", type: Shipment.Create}
    wait: {event: Order.Shipped, timeout: 1h}
    retry: {errors: [timeout], attempts: 2, backoff: {initial: 1m}}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.ship", &json!({}));
    world.advance(HOUR_MS + 60_000);
    assert_eq!(
        (world.sent.len(), world.statuses()),
        (2, vec![StepStatus::Running])
    );
    world.event("Order.Shipped", &json!({"id": "o-1"}));
    assert_eq!(world.statuses(), [StepStatus::Running], "it is kept");
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_command_hands_out_a_mark_that_stands_for_the_token_of_each_attempt() {
    let mut world = World::new(super::build::loaded(
        r#"
steps:
  check:
    command: {aggregate: Credit, id: "${key}", type: Credit.Check, payload: {to: "t ${command.token}", said: "${key}"}}
    retry: {errors: [rejected], attempts: 2}
    wait: {callback: true, timeout: 1h}
    set: {}
  plain: {command: {aggregate: Credit, id: "${key}", type: Credit.Note}}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let marked = |item: &crate::work::WorkItem| match &item.kind {
        crate::work::WorkKind::Command { token, payload, .. } => {
            let payload: Value = serde_json::from_slice(payload).expect("JSON");
            (token.clone(), payload, item.idempotency_key.clone())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(marked(world.newest("steps.plain")).0, None);
    let (mark, payload, first) = marked(world.newest("steps.check"));
    let mark = mark.expect("it hands out a token");
    assert_eq!(payload, json!({"to": format!("t {mark}"), "said": "o-1"}));
    world.refuse("steps.check", "rejected");
    world.advance(1_000);
    let (again, payload, second) = marked(world.newest("steps.check"));
    assert_ne!(first, second, "another piece of work, with a token of its own");
    assert_eq!(
        (again, &payload["to"]),
        (Some(mark.clone()), &json!(format!("t {mark}")))
    );
    world.succeed("steps.check", &json!({}));
    assert_eq!(world.last().steps[0].callback.as_deref(), Some(second.as_str()));
}
