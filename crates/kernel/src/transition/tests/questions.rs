//! Steps of unknown outcome, where the effect asks an operator.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::EffectContract;
use saga_runner_language::ids::{CommandId, EffectName};
use serde_json::{Value, json};

use super::build::{loaded, loaded_as};
use super::properties::{decisions, lived};
use super::retry::charging;
use super::world::World;
use crate::input::{CallbackOutcome, CancelMode, Control, Found, StuckDecision, Verdict, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};
use crate::view::{InstanceView, StuckIn};

const CHARGE: &str = "steps.charge";
const ASKED: &str = "steps.charge.asked";
const OF_STATE: &str = "machine.charging.charge";
const REFUND: &str = "steps.charge.compensate";

/// The same saga whose effects of these names ask.
pub(super) fn asking(mut definition: Definition, effects: &[&str]) -> Definition {
    for effect in effects {
        let contract = EffectContract {
            asks: true,
            ..EffectContract::default()
        };
        let name = EffectName::parse(effect).expect("legal");
        definition.effects.insert(name, contract);
    }
    definition
}

fn saga(more: &str) -> World {
    let body = format!(
        r#"
state: {{init: {{n: 1}}}}
handlers: {{Order.Told: {{set: {{n: 2}}}}}}
steps:
  charge:
    effect: pay
    with: {{n: "${{state.n}}"}}
    set: {{charge: "${{result.id}}"}}
    {more}
  ship: {{needs: [charge], effect: ship}}
"#
    );
    let mut world = World::of(Arc::new(asking(loaded(&body), &["pay"])));
    world.event("Order.Placed", &json!({}));
    world
}

const UNDONE: &str =
    "compensate: {effect: refund, with: {n: '${input.n}', of: '${result}'}, on_unknown: compensate}";

fn stuck(more: &str) -> World {
    let mut world = saga(more);
    world.time_out(CHARGE);
    assert_eq!(world.statuses()[0], StepStatus::Stuck);
    world
}

pub(super) fn found(step: &str, found: Option<Found>, verdict: Verdict) -> Control {
    Control::DecideStuck(StuckDecision {
        verdict,
        step: Some(step.to_owned()),
        item: None,
        by: "ada".to_owned(),
        reason: "asked the bank".to_owned(),
        found,
        result: None,
    })
}

fn done(result: &Value) -> Control {
    let result = result.to_string();
    found("charge", Some(Found::Done { result }), Verdict::Resolve)
}

fn not_done() -> Control {
    found("charge", Some(Found::NotDone), Verdict::Resolve)
}

fn ok(result: &Value) -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: Bytes::from(result.to_string()),
    }
}

fn no(class: &str) -> WorkOutcome {
    WorkOutcome::failed(class.to_owned(), "no".to_owned())
}

fn command(world: &World) -> CommandId {
    world.newest(CHARGE).command_id
}

#[test]
fn a_step_of_unknown_outcome_is_stuck_and_its_view_says_so() {
    let mut world = stuck("retry: {attempts: 5}");
    assert_eq!(world.phase(), Phase::Running);
    assert!(world.outstanding().is_empty(), "nothing is tried again");
    assert!(world.timers.is_empty(), "nor will be");
    assert_eq!(world.payload(ASKED), json!({"step": "charge"}));
    let asked = Note::StepAsked {
        step: "charge".to_owned(),
    };
    assert_eq!(world.notes.iter().filter(|note| **note == asked).count(), 1);
    let view = InstanceView::new(&world.instance, world.last(), Some(&world.definition));
    assert_eq!(view.stuck.len(), 1);
    assert_eq!(
        (view.stuck[0].step.as_str(), view.stuck[0].what),
        ("charge", StuckIn::Step)
    );
    assert_eq!(view.stuck[0].message.as_deref(), Some("deadline"));
    assert_eq!(view.stuck[0].since.as_deref(), Some(world.now.rfc3339().as_str()));
    assert_eq!(
        view.stuck[0].command_id.as_deref(),
        Some(command(&world).to_string().as_str())
    );
    assert_eq!(
        view.stuck[0].idempotency_key.as_ref(),
        Some(&world.newest(CHARGE).idempotency_key)
    );
    world.advance(365 * 24 * 3_600_000);
    assert_eq!(world.statuses(), [StepStatus::Stuck, StepStatus::Pending]);
    world.event("Order.Told", &json!({}));
    assert_eq!(world.data()["n"], json!(2), "the instance goes on beside it");
}

#[test]
fn a_question_answered_as_done_completes_the_step_with_the_given_result() {
    let mut world = stuck(UNDONE);
    assert_eq!(
        world.control("r-1", done(&json!({"id": "ch-1"}))),
        Outcome::Applied
    );
    assert_eq!(world.statuses(), [StepStatus::Done, StepStatus::Running]);
    assert_eq!(world.data()["charge"], json!("ch-1"));
    let state = &world.last().steps[0];
    assert_eq!((&state.question, &state.error), (&None, &None));
    let settled = Note::StuckDecided {
        step: "charge".to_owned(),
        verdict: "done".to_owned(),
        by: "ada".to_owned(),
        reason: "asked the bank".to_owned(),
    };
    assert!(world.notes.contains(&settled));
    world.fail("steps.ship", "gone");
    assert_eq!(
        world.payload(REFUND),
        json!({"n": 1, "of": {"id": "ch-1"}}),
        "it is undone as if the upstream had told"
    );
}

#[test]
fn a_question_answered_as_not_done_fails_like_a_rejected_attempt() {
    let mut world = stuck("retry: {attempts: 2, backoff: {initial: 30s}}");
    let first = world.newest(CHARGE).idempotency_key.clone();
    world.control("r-1", not_done());
    assert_eq!(world.statuses()[0], StepStatus::BackingOff);
    world.advance(30_000);
    assert_eq!(
        world.newest(CHARGE).idempotency_key,
        first,
        "nobody has refused it"
    );
    world.time_out(CHARGE);
    world.control("r-2", not_done());
    assert_eq!(world.phase(), Phase::Failed);
    let failure = world.last().failure.clone().expect("failed");
    assert_eq!(
        (
            failure.code.as_str(),
            failure.message.as_str(),
            failure.step.as_deref()
        ),
        ("timeout", "deadline", Some("charge"))
    );
    assert!(world.ledger().is_empty(), "there is nothing to undo");

    let mut world = stuck("on_error: {timeout: {continue: true}}");
    world.control("r-1", not_done());
    assert_eq!(world.statuses(), [StepStatus::Done, StepStatus::Running]);
}

#[test]
fn an_answer_of_not_done_removes_the_ledger_entry_and_earlier_doubts() {
    let mut world = saga(&format!(
        "{UNDONE}\n    retry: {{attempts: 9, errors: [transient]}}"
    ));
    world.time_out(CHARGE);
    world.control("r-1", Control::Retry);
    world.time_out(CHARGE);
    world.control("r-2", not_done());
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some() && world.ledger().is_empty());
}

#[test]
fn a_retry_sends_the_same_work_again_under_the_same_key() {
    for control in [Control::Retry, found("charge", None, Verdict::Retry)] {
        let mut world = stuck("");
        world.event("Order.Told", &json!({}));
        let first = world.newest(CHARGE).clone();
        assert_eq!(world.control("r-1", control), Outcome::Applied);
        let second = world.newest(CHARGE).clone();
        assert_eq!(world.statuses()[0], StepStatus::Running);
        assert_eq!(second.idempotency_key, first.idempotency_key);
        assert_ne!(second.command_id, first.command_id);
        assert_eq!(second.attempt, 2);
        assert_eq!(
            second.kind, first.kind,
            "what was sent, not what would be sent now"
        );
        world.time_out(CHARGE);
        assert_eq!(world.statuses()[0], StepStatus::Stuck, "and it asks again");
        world.control("r-2", Control::Retry);
        world.succeed(CHARGE, &json!({"id": "ch-1"}));
        assert_eq!(world.statuses()[0], StepStatus::Done);
    }
}

#[test]
fn a_result_that_comes_after_all_answers_the_question() {
    let mut world = stuck(UNDONE);
    let first = command(&world);
    let again = WorkOutcome::timed_out("deadline".to_owned());
    assert_eq!(
        world.result(first, again),
        Outcome::Ignored(IgnoreReason::Orphan),
        "the outcome is known to be unknown"
    );
    assert_eq!(world.result(first, ok(&json!({"id": "ch-1"}))), Outcome::Applied);
    assert_eq!(world.data()["charge"], json!("ch-1"));
    assert_eq!(
        world.control("r-1", not_done()),
        Outcome::Ignored(IgnoreReason::NoHandler),
        "nobody asks any more"
    );
    assert_eq!(
        world.result(first, no("declined")),
        Outcome::Ignored(IgnoreReason::Conflict)
    );

    let mut world = stuck(&format!(
        "{UNDONE}\n    on_error: {{declined: {{fail: {{code: card}}}}}}"
    ));
    let first = command(&world);
    assert_eq!(world.result(first, no("declined")), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Failed);
    assert!(
        world.ledger().is_empty(),
        "it is certain that it has not happened"
    );
}

#[test]
fn a_failure_that_comes_after_all_says_nothing_about_attempts_before() {
    let mut world = stuck(UNDONE);
    world.control("r-1", Control::Retry);
    world.time_out(CHARGE);
    let second = command(&world);
    world.result(second, no("declined"));
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Undoing],
        "the first may have happened"
    );
}

#[test]
fn an_answer_that_is_none_changes_nothing() {
    let mut world = stuck("");
    assert_eq!(
        world.control("r-8", found("charge", None, Verdict::Skip)),
        Outcome::Ignored(IgnoreReason::Refused),
        "it says nothing about what was done"
    );
    let refused = [
        found("charge", None, Verdict::Resolve),
        found("ship", Some(Found::NotDone), Verdict::Resolve),
        found("ship", None, Verdict::Retry),
    ];
    for (n, control) in refused.into_iter().enumerate() {
        assert_eq!(
            world.control(&format!("r-{n}"), control),
            Outcome::Ignored(IgnoreReason::NoHandler)
        );
    }
    let origin = crate::input::Origin::Local;
    let body = crate::input::InputBody::Control(done(&json!({})));
    let input = world.input("r-9", origin, body);
    let rejection = world.give(&input).expect_err("it lacks what the step reads");
    assert_eq!(rejection.reason, "expression");
    assert_eq!(world.statuses()[0], StepStatus::Stuck);
    world.control("r-10", done(&json!({"id": "ch-1"})));
    assert_eq!(world.statuses()[0], StepStatus::Done);
}

#[test]
fn giving_a_step_up_removes_its_question() {
    for (more, phase) in [("deadline: 1h", Phase::Failed), ("", Phase::Cancelled)] {
        for (on_unknown, status) in [
            ("compensate", Some(LedgerStatus::Undoing)),
            ("ask", Some(LedgerStatus::Stuck)),
            ("ignore", None),
        ] {
            let undo = format!("compensate: {{effect: refund, on_unknown: {on_unknown}}}\n    {more}");
            let mut world = stuck(&undo);
            if more.is_empty() {
                world.control("c-1", Control::cancel("enough"));
            } else {
                world.advance(3_600_000);
                let failure = world.last().failure.as_ref().expect("failed");
                assert_eq!(failure.code, "deadline");
            }
            assert_eq!(world.ledger(), Vec::from_iter(status), "{on_unknown}");
            assert_eq!(world.last().steps[0].question, None);
            let late = world.result(command(&world), ok(&json!({"id": "ch-1"})));
            // It has happened after all, and is undone: behind the undo that may have come too early, where there is one.
            assert_eq!(late, Outcome::Applied);
            if status == Some(LedgerStatus::Undoing) {
                world.succeed(REFUND, &json!({}));
            }
            world.succeed(REFUND, &json!({}));
            assert_eq!(world.phase(), phase);
            assert!(world.ended.is_some());
        }
    }
}

#[test]
fn a_cancel_that_waits_for_what_runs_does_not_wait_for_an_operator() {
    for (mode, ledger) in [
        (CancelMode::Drain, vec![LedgerStatus::Undoing]),
        (CancelMode::Abandon, vec![LedgerStatus::Kept]),
    ] {
        let mut world = stuck(UNDONE);
        let reason = String::new();
        world.control("c-1", Control::Cancel { reason, mode });
        assert_eq!(world.ledger(), ledger, "{mode:?}");
    }
}

#[test]
fn each_item_of_a_loop_asks_for_itself() {
    let body = r#"
state: {init: {}}
steps:
  pack:
    foreach: {over: 'range(3)', as: item, parallel: 2}
    effect: pack
    with: {item: "${item}"}
    set: {packed: "${result}"}
"#;
    let mut world = World::of(Arc::new(asking(loaded(body), &["pack"])));
    world.event("Order.Placed", &json!({}));
    for _ in 0..2 {
        world.time_out("steps.pack.item");
    }
    let stuck = |world: &World| -> Vec<Option<u32>> {
        let view = InstanceView::new(&world.instance, world.last(), Some(&world.definition));
        view.stuck.iter().map(|stuck| stuck.item).collect()
    };
    assert_eq!(stuck(&world), [Some(0), Some(1)]);
    let second = Control::DecideStuck(StuckDecision {
        verdict: Verdict::Resolve,
        step: Some("pack".to_owned()),
        item: Some(1),
        by: String::new(),
        reason: String::new(),
        found: Some(Found::Done {
            result: json!({"box": 7}).to_string(),
        }),
        result: None,
    });
    world.control("r-1", second);
    assert_eq!(stuck(&world), [Some(0)]);
    assert_eq!(world.outstanding(), ["steps.pack.item"], "the third has begun");
    world.control("r-2", Control::Retry);
    assert_eq!(world.payload("steps.pack.item"), json!({"item": 0}));
    world.succeed("steps.pack.item", &json!({"box": 2}));
    world.succeed("steps.pack.item", &json!({"box": 0}));
    assert_eq!(world.phase(), Phase::Completed);
    let mut boxes: Vec<_> = world.data()["packed"].as_array().expect("a list").clone();
    boxes.sort_by_key(|found| found["box"].as_i64());
    assert_eq!(boxes, [json!({"box": 0}), json!({"box": 2}), json!({"box": 7})]);
}

#[test]
fn the_awaited_event_answers_the_question_of_a_step_whose_result_is_not_read() {
    let body = |set: &str| {
        format!(
            "state: {{init: {{}}}}\nsteps:\n  charge:\n    effect: pay\n    {set}\n    wait: {{event: Other.Thing}}\n"
        )
    };
    let world = |set: &str| {
        let mut world = World::of(Arc::new(asking(loaded(&body(set)), &["pay"])));
        world.event("Order.Placed", &json!({}));
        world
    };
    let mut unread = world("");
    unread.time_out(CHARGE);
    assert_eq!(unread.statuses(), [StepStatus::Stuck]);
    unread.event("Other.Thing", &json!({}));
    assert_eq!(unread.phase(), Phase::Completed);
    // Early, it is known before anybody has to be asked.
    let mut early = world("");
    early.event("Other.Thing", &json!({}));
    early.time_out(CHARGE);
    assert_eq!(early.phase(), Phase::Completed);
    assert!(!early.paths().contains(&ASKED));
    let mut read = world("set: {charge: '${result.id}'}");
    read.time_out(CHARGE);
    read.event("Other.Thing", &json!({}));
    assert_eq!(
        read.statuses(),
        [StepStatus::Stuck],
        "it is kept until the result is told"
    );
    read.control("r-1", done(&json!({"id": "ch-1"})));
    assert_eq!(read.phase(), Phase::Completed);
    assert_eq!(read.data(), json!({"charge": "ch-1"}));
}

#[test]
fn a_callback_with_the_token_answers_the_question() {
    let body = "state: {init: {}}\nsteps:\n  charge:\n    effect: pay\n    wait: {callback: true}\n    set: {by: '${signal.who}'}\n";
    let mut world = World::of(Arc::new(asking(loaded(body), &["pay"])));
    world.event("Order.Placed", &json!({}));
    let work = world.newest(CHARGE).idempotency_key.clone();
    world.time_out(CHARGE);
    let outcome = CallbackOutcome::Done {
        data: Bytes::from_static(br#"{"who": "bank"}"#),
    };
    world.control("b-1", Control::Callback { work, outcome });
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.data(), json!({"by": "bank"}));
}

#[test]
fn an_undoing_of_unknown_outcome_leaves_its_entry_to_an_operator() {
    let world = || {
        let body = format!(
            "state: {{init: {{n: 1}}}}\nsteps:\n  charge: {{effect: pay, with: {{n: 1}}, {UNDONE}}}\n  ship: {{needs: [charge], effect: ship}}\n"
        );
        let mut world = World::of(Arc::new(asking(loaded(&body), &["refund"])));
        world.event("Order.Placed", &json!({}));
        world.succeed(CHARGE, &json!({"id": "ch-1"}));
        world.fail("steps.ship", "gone");
        world.time_out(REFUND);
        assert_eq!(world.phase(), Phase::CompensationFailed);
        assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
        assert_eq!(
            world.payload("steps.charge.compensate.asked"),
            json!({"step": "charge"})
        );
        assert!(world.timers.is_empty(), "nothing is tried again");
        let view = InstanceView::new(&world.instance, world.last(), Some(&world.definition));
        assert_eq!(
            view.stuck[0].idempotency_key.as_ref(),
            Some(&world.newest(REFUND).idempotency_key)
        );
        world
    };
    let mut again = world();
    let first = again.newest(REFUND).clone();
    again.control("r-1", found("charge", None, Verdict::Retry));
    let second = again.newest(REFUND);
    assert_eq!(second.idempotency_key, first.idempotency_key);
    assert_eq!(second.kind, first.kind);
    again.succeed(REFUND, &json!({}));
    assert_eq!(again.ledger(), [LedgerStatus::Undone]);
    assert!(again.ended.is_some());
    let mut late = world();
    let command = late.newest(REFUND).command_id;
    late.result(command, ok(&json!({})));
    assert_eq!(late.ledger(), [LedgerStatus::Undone], "its result answers it");
    assert!(late.ended.is_some());
    let mut failed = world();
    failed.result(command, no("transient"));
    assert_eq!(failed.phase(), Phase::Compensating);
    assert_eq!(
        failed.ledger(),
        [LedgerStatus::BackingOff],
        "it is known, and tried again"
    );
    failed.advance(60_000);
    failed.succeed(REFUND, &json!({}));
    assert!(failed.ended.is_some());
    for (verdict, status) in [
        (Verdict::Resolve, LedgerStatus::Undone),
        (Verdict::Skip, LedgerStatus::Kept),
    ] {
        let mut world = world();
        world.control("r-1", found("charge", None, verdict));
        assert_eq!(world.ledger(), [status]);
        assert!(world.ended.is_some());
    }
}

#[test]
fn an_effect_of_the_end_holds_the_end_up_until_it_is_told() {
    let body = "state: {init: {}}\nsteps:\n  charge: {effect: pay}\nfinally:\n  completed: [{effect: mail, name: mail, retry: {attempts: 3}}]\n";
    let answers = [
        (Some(Found::NotDone), Verdict::Resolve, Phase::Finishing),
        (
            Some(Found::Done {
                result: "{}".to_owned(),
            }),
            Verdict::Resolve,
            Phase::Completed,
        ),
    ];
    for (said, verdict, phase) in answers {
        let mut world = World::of(Arc::new(asking(loaded(body), &["mail"])));
        world.event("Order.Placed", &json!({}));
        world.succeed(CHARGE, &json!({}));
        world.time_out("finally.completed.mail");
        assert_eq!(world.phase(), Phase::Finishing);
        assert!(world.timers.is_empty());
        world.control("r-1", found("finally.completed.mail", said, verdict));
        assert_eq!(world.phase(), phase);
    }
}

#[test]
fn an_effect_of_a_state_asks_and_its_handlers_hear_the_answer() {
    let body = r#"
state: {init: {}}
machine:
  initial: charging
  states:
    charging:
      entry: {emit: [{effect: pay, name: charge, compensate: {effect: refund, on_unknown: compensate}}]}
      handlers:
        result.charge: {set: {charge: "${result.id}"}, to: closed}
        error.charge: {when: error.class == "timeout", fail: {code: unpaid}}
        Order.Held: {to: closed}
    closed: {final: true}
"#;
    let world = || {
        let mut world = World::of(Arc::new(asking(loaded(body), &["pay"])));
        world.event("Order.Placed", &json!({}));
        world.time_out(OF_STATE);
        assert_eq!(world.phase(), Phase::Running);
        world
    };
    let mut happened = world();
    let result = json!({"id": "ch-1"}).to_string();
    happened.control(
        "r-1",
        found(OF_STATE, Some(Found::Done { result }), Verdict::Resolve),
    );
    assert_eq!(happened.phase(), Phase::Completed);
    assert_eq!(happened.data(), json!({"charge": "ch-1"}));
    let mut not = world();
    not.control("r-1", found(OF_STATE, Some(Found::NotDone), Verdict::Resolve));
    assert_eq!(not.last().failure.as_ref().expect("failed").code, "unpaid");
    assert!(not.ledger().is_empty());
    // Left behind, it is as unknown as without a question.
    let mut left = world();
    left.event("Order.Held", &json!({}));
    left.succeed(&format!("{OF_STATE}.compensate"), &json!({}));
    assert_eq!(left.phase(), Phase::Completed);
}

#[test]
fn a_question_migrates_to_another_version_with_its_step() {
    let text = "start: Order.Placed\nkey: {\"*\": event.data.id}\nstate: {init: {}}\nsteps:\n  charge: {effect: pay, with: {n: 1}, set: {id: '${result.id}'}}\n";
    let first = asking(loaded_as(text), &["pay"]);
    let second = text.replace("charge:", "debit:");
    let second = format!("{second}on_change: migrate\nmigrate: {{rename_steps: {{charge: debit}}}}\n");
    let second = Arc::new(asking(loaded_as(&second), &["pay"]));
    for answer in ["result", "retry", "done"] {
        let mut world = World::of(Arc::new(asking(loaded_as(text), &["pay"])));
        assert_eq!(world.definition.hash, first.hash);
        world.event("Order.Placed", &json!({}));
        let key = world.newest(CHARGE).idempotency_key.clone();
        world.time_out(CHARGE);
        let asked = command(&world);
        assert_eq!(world.migrate(&second), Ok(Outcome::Applied));
        assert_eq!(world.statuses(), [StepStatus::Stuck]);
        match answer {
            "result" => world.result(asked, ok(&json!({"id": "ch-1"}))),
            "retry" => {
                world.control("r-1", Control::Retry);
                assert_eq!(world.newest("steps.debit").idempotency_key, key);
                world.succeed("steps.debit", &json!({"id": "ch-1"}))
            }
            _ => {
                let result = json!({"id": "ch-1"}).to_string();
                world.control(
                    "r-1",
                    found("debit", Some(Found::Done { result }), Verdict::Resolve),
                )
            }
        };
        assert_eq!(world.phase(), Phase::Completed, "{answer}");
        assert_eq!(world.data(), json!({"id": "ch-1"}));
    }
}

#[test]
fn work_that_was_sent_before_the_effect_asked_is_rendered_again() {
    let text = "start: Order.Placed\nkey: {\"*\": event.data.id}\nstate: {init: {n: 1}}\nsteps:\n  charge: {effect: pay, with: {n: '${state.n}'}}\n";
    let second = format!("{text}on_change: migrate\nbuffer: 7\n");
    let second = Arc::new(asking(loaded_as(&second), &["pay"]));
    let mut world = World::of(Arc::new(loaded_as(text)));
    world.event("Order.Placed", &json!({}));
    assert_eq!(world.last().steps[0].sent, None, "nobody was to read it again");
    assert_eq!(world.migrate(&second), Ok(Outcome::Applied));
    world.time_out(CHARGE);
    assert_eq!(world.statuses(), [StepStatus::Stuck]);
    world.control("r-1", Control::Retry);
    assert_eq!(world.payload(CHARGE), json!({"n": 1}));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn answers_of_operators_undo_a_step_as_often_as_it_was_done(
        happenings in decisions(2, 60),
        refunds in any::<bool>(),
    ) {
        let effects = ["payments-charge", "payments-refund"];
        let effects = if refunds { &effects[..] } else { &effects[..1] };
        let definition = Arc::new(asking(charging(true), effects));
        let (world, done) = lived(&definition, &happenings);
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        prop_assert!(world.questions().is_empty());
        let record = world.last();
        let times = |path: &str| done.get(path).copied().unwrap_or(0) as usize;
        let (charged, refunded) = (times("steps.charge"), times("steps.charge.compensate"));
        prop_assert!(charged <= 1, "it was charged {} times", charged);
        if record.phase != Phase::Completed {
            prop_assert!(record.ledger.iter().all(|entry| entry.status.is_over()));
            prop_assert!(refunded <= record.ledger.len());
            let kept = record.ledger.iter().any(|entry| entry.status == LedgerStatus::Kept);
            let resolved = world.notes.iter().any(|note| matches!(note, Note::StuckDecided { verdict, .. } if verdict == "resolve"));
            let cancelled = record.failure.as_ref().and_then(|failure| failure.cancelled);
            let left = kept || resolved || cancelled == Some(CancelMode::Abandon);
            prop_assert!(charged <= refunded || left, "it was charged and not refunded");
        }
        let asked = world.notes.iter().filter(|note| matches!(note, Note::StepAsked { .. })).count();
        let unknown = world.sent.iter().filter(|item| item.path == "steps.charge.asked").count();
        prop_assert_eq!(asked, unknown);
    }
}
