//! Effects of machine states: how their ends are handled, tried again, left behind, undone.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::{Control, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::record::Phase;

const SAGA: &str = r#"
state: {init: {tries: 0}}
machine:
  initial: charging
  states:
    charging:
      entry:
        set: {tries: "${state.tries + 1}"}
        emit:
          - effect: payments-charge
            name: charge
            with: {n: "${state.tries}"}
            retry: {attempts: 2, errors: [transient]}
            compensate: {effect: payments-refund, on_unknown: ignore, with: {id: "${result.id}"}}
          - publish: {type: order.charging}
      handlers:
        result.charge: {set: {charge: "${result.id}"}, to: shipping}
        error.charge:
          - {when: error.class == "declined" && state.tries < 3, set: {why: "${error.message}"}, to: charging}
          - {when: error.class == "gone", fail: {code: gave_up, message: "after ${error.class}"}}
        Order.Held: {to: held}
    held:
      handlers:
        Order.Released: {to: charging}
    shipping:
      entry: {emit: [{effect: shipping-create, name: ship}]}
      handlers: {result.ship: {to: closed}}
    closed: {final: true}
"#;
const CHARGE: &str = "machine.charging.charge";
const REFUND: &str = "machine.charging.charge.compensate";
const SHIP: &str = "machine.shipping.ship";

fn placed() -> World {
    let mut world = World::of(Arc::new(loaded(SAGA)));
    world.event("Order.Placed", &json!({}));
    world
}

#[test]
fn the_result_of_an_effect_leads_the_machine_on() {
    let mut world = placed();
    assert_eq!(world.outstanding(), [CHARGE]);
    assert_eq!(world.payload(CHARGE), json!({"n": 1}));
    world.succeed(CHARGE, &json!({"id": "c-1"}));
    assert_eq!(world.data()["charge"], json!("c-1"));
    assert_eq!(world.outstanding(), [SHIP]);
    world.succeed(SHIP, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_error_is_answered_by_the_state_and_every_entry_is_new_work() {
    let mut world = placed();
    world.fail(CHARGE, "declined");
    assert_eq!(world.data(), json!({"tries": 2, "why": "no"}));
    assert_eq!(world.outstanding(), [CHARGE]);
    world.fail(CHARGE, "declined");
    let charges = world.sent.iter().filter(|item| item.path == CHARGE);
    let keys: BTreeSet<&str> = charges.map(|item| item.idempotency_key.as_str()).collect();
    assert_eq!(keys.len(), 3);
    world.fail(CHARGE, "declined");
    let failure = world.last().failure.clone().expect("no alternative holds");
    assert_eq!(failure.code, "declined");
}

#[test]
fn an_attempt_that_may_be_tried_again_is_not_an_error_yet() {
    let mut world = placed();
    world.fail(CHARGE, "transient");
    assert!(world.outstanding().is_empty());
    world.advance(60_000);
    assert_eq!(world.outstanding(), [CHARGE]);
    world.succeed(CHARGE, &json!({"id": "c-1"}));
    assert_eq!(world.outstanding(), [SHIP]);
}

#[test]
fn a_state_may_fail_the_instance_and_what_it_did_is_undone() {
    let mut world = placed();
    world.succeed(CHARGE, &json!({"id": "c-1"}));
    world.fail(SHIP, "no_stock");
    assert_eq!(world.payload(REFUND), json!({"id": "c-1"}));
    world.succeed(REFUND, &json!({}));
    assert_eq!(world.phase(), Phase::Failed);

    let mut world = placed();
    world.fail(CHARGE, "gone");
    let failure = world.last().failure.clone().expect("it gives up");
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("gave_up", "after gone")
    );
}

#[test]
fn an_effect_of_a_state_that_was_left_is_undone_when_it_succeeds_late() {
    let mut world = placed();
    let late = world.outbox.values().next().expect("the charge").command_id;
    world.event("Order.Held", &json!({}));
    world.event("Order.Released", &json!({}));
    let payload = json!({"id": "late"}).to_string().into();
    world.result(late, WorkOutcome::Succeeded { payload });
    assert_eq!(world.payload(REFUND), json!({"id": "late"}));
    world.succeed(CHARGE, &json!({"id": "c-2"}));
    assert_eq!(world.data()["charge"], json!("c-2"));
    world.succeed(REFUND, &json!({}));
    world.succeed(SHIP, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn state_effects_end_and_the_same_history_gives_the_same_bytes_under_random_inputs(
        turns in proptest::collection::vec((0..4_usize, 0..10_u8), 0..40),
    ) {
        let run = || {
            let mut world = placed();
            for (number, (which, kind)) in turns.iter().enumerate() {
                if world.ended.is_some() {
                    break;
                }
                let commands: Vec<_> = world.outbox.values().map(|item| item.command_id).collect();
                let command = commands.get(which % commands.len().max(1)).copied();
                let failed = |class: &str| WorkOutcome::failed(class.to_owned(), String::new());
                match (kind, command) {
                    (0..=2, Some(command)) => {
                        let payload = json!({"id": number}).to_string().into();
                        world.result(command, WorkOutcome::Succeeded { payload })
                    }
                    (3, Some(command)) => world.result(command, failed("declined")),
                    (4, Some(command)) => world.result(command, failed("transient")),
                    (5, _) => world.event("Order.Held", &json!({})),
                    (6, _) => world.event("Order.Released", &json!({})),
                    (7, _) if number > 8 => {
                        let reason = String::new();
                        world.control(&format!("c-{number}"), Control::cancel(reason))
                    }
                    _ => {
                        world.advance(2_000);
                        continue;
                    }
                };
            }
            let reason = String::new();
            if world.ended.is_none() {
                world.control("the-end", Control::cancel(reason));
            }
            for round in 0..300 {
                let Some(command) = world.outbox.values().next_back().map(|item| item.command_id) else {
                    if world.ended.is_some() {
                        break;
                    }
                    world.advance(3_600_000);
                    world.control(&format!("heal-{round}"), Control::Retry);
                    continue;
                };
                let payload = json!({"id": round}).to_string().into();
                world.result(command, WorkOutcome::Succeeded { payload });
            }
            world
        };
        let (world, again) = (run(), run());
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        prop_assert_eq!(world.last().encode(), again.last().encode());
        prop_assert_eq!(&world.sent, &again.sent);
        prop_assert!(world.ledger().iter().all(|status| *status == LedgerStatus::Undone));
    }
}
