//! Instances that go over to another version and have started others, or were started by one.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::children::{CHILD, PARENT, PAY, ask, cancel, child, class, outcome, parent, reopened, tell};
use super::migrate::version;
use super::world::World;
use crate::children::CHILD_CANCELLED;
use crate::input::CancelMode;
use crate::ledger::LedgerStatus;
use crate::patch::Outcome;
use crate::record::Phase;
use crate::work::WorkKind;

#[test]
fn parent_and_child_find_each_other_after_both_have_migrated() {
    let renamed = |text: &str, from: &str, to: &str| {
        let migrate = format!("on_change: migrate\nmigrate: {{rename_steps: {{{from}: {to}}}}}\n");
        let text = text
            .replace(&format!("  {from}:"), &format!("  {to}:"))
            .replace(&format!("[{from}]"), &format!("[{to}]"));
        Arc::new(loaded(&(text + &migrate)))
    };
    let (next_parent, next_child) = (
        renamed(PARENT, "pay", "collect"),
        renamed(CHILD, "charge", "debit"),
    );
    for before_the_end in [true, false] {
        let (mut parent, mut child) = (parent(), child());
        ask(&parent, &mut child, PAY);
        if before_the_end {
            assert_eq!(parent.migrate(&next_parent), Ok(Outcome::Applied));
            assert_eq!(child.migrate(&next_child), Ok(Outcome::Applied));
        }
        child.succeed("steps.charge", &json!({}));
        assert_eq!(tell(&child, &mut parent), Outcome::Applied);
        assert_eq!(parent.data(), json!({"paid": 12, "by": "payment/o-1-pay"}));
        if !before_the_end {
            // The child has ended and stays with its version.
            assert_eq!(parent.migrate(&next_parent), Ok(Outcome::Applied));
        }
        parent.fail("steps.ship", "gone");
        let undo = parent.newest("steps.collect.compensate").clone();
        assert!(
            matches!(&undo.kind, WorkKind::Saga { saga, key, .. } if saga.as_str() == "payment" && key.as_str() == "o-1-pay")
        );
        reopened(&mut child, &undo);
        let path = child.outbox.values().next().expect("it is undone").path.clone();
        let step = if before_the_end { "debit" } else { "charge" };
        assert_eq!(path, format!("steps.{step}.compensate"));
        child.succeed(&path, &json!({}));
        assert_eq!(child.phase(), Phase::Cancelled);
        tell(&child, &mut parent);
        assert_eq!(
            (parent.phase(), parent.ledger()),
            (Phase::Failed, vec![LedgerStatus::Undone])
        );
    }
}

#[test]
fn a_child_is_cancelled_with_a_parent_that_has_migrated() {
    let text = PARENT
        .replace("  pay:", "  collect:")
        .replace("[pay]", "[collect]");
    let next = Arc::new(loaded(&(text + "migrate: {rename_steps: {pay: collect}}\n")));
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    parent.migrate(&next).expect("goes over");
    parent.control("stop", cancel(CancelMode::Compensate));
    assert_eq!(ask(&parent, &mut child, "steps.collect.cancel"), Outcome::Applied);
    child.fail("steps.charge", "declined");
    let (_, told) = outcome(child.newest("outcome"));
    assert_eq!(class(&told), CHILD_CANCELLED);
    tell(&child, &mut parent);
    assert!(parent.ended.is_some() && child.ended.is_some());
}

/// A step that starts an instance of another saga, and what undoes it.
fn paying(saga: &str, undo: &str) -> String {
    format!(
        r#"
state: {{init: {{}}}}
steps:
  pay: {{saga: {{name: {saga}, key: "${{key}}-pay", input: {{n: 5}}}}{undo}}}
  flight: {{needs: [pay], effect: flight-book, with: {{n: 3}}}}
"#
    )
}

const UNDONE: &str = ", compensate: {saga: undo}";

#[test]
fn an_instance_that_a_step_has_started_stays_what_it_is() {
    let effect = ", compensate: {effect: pay-back, with: {key: \"${input.key}\"}}";
    let other = "step pay has started an instance of payment, and";
    let nothing = "step pay has started an instance that keeps nothing to undo";
    for (from, to, of_running, of_done) in [
        (
            paying("payment", UNDONE),
            paying("other", UNDONE),
            Some(other),
            Some(other),
        ),
        (paying("payment", ""), paying("other", ""), Some(other), None),
        (
            paying("payment", ""),
            paying("payment", UNDONE),
            Some(nothing),
            None,
        ),
        (
            paying("payment", effect),
            paying("payment", UNDONE),
            Some(nothing),
            Some(nothing),
        ),
        (paying("payment", UNDONE), paying("payment", effect), None, None),
        (
            paying("payment", UNDONE),
            paying("payment", UNDONE) + "  more: {effect: hotel-book}\n",
            None,
            None,
        ),
    ] {
        for (ends, refused) in [(false, of_running), (true, of_done)] {
            let mut world = World::of(version(&from));
            world.event("Trip.Booked", &json!({"id": "o-1"}));
            if ends {
                world.succeed("steps.pay", &json!({"key": "o-1-pay", "state": {}}));
            }
            let told = world.migrate(&version(&to)).map_err(|refusal| refusal.message);
            match (&told, refused) {
                (Ok(Outcome::Applied), None) => {}
                (Err(message), Some(part)) => assert!(message.contains(part), "{message}"),
                _ => panic!("{from}{to}{ends}: {told:?}, not {refused:?}"),
            }
        }
    }
    // What it did may be left.
    let mut world = World::of(version(&paying("payment", UNDONE)));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.succeed("steps.pay", &json!({"key": "o-1-pay", "state": {}}));
    let left = paying("other", UNDONE) + "migrate: {drop: {ledger: [pay]}}\n";
    world.migrate(&version(&left)).expect("goes over");
    world.fail("steps.flight", "gone");
    assert!(!world.paths().contains(&"steps.pay.compensate"));
}

#[test]
fn a_late_success_is_undone_only_as_its_own_version_says() {
    let first_of_two = |undo: &str| {
        let join = "needs: [pay, note], join: any, stragglers: cancel";
        let steps = paying("payment", undo).replace("needs: [pay]", join);
        version(&(steps + "  note: {effect: note-write, with: {n: 2}}\n"))
    };
    let mut world = World::of(first_of_two(""));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world.succeed("steps.note", &json!({}));
    assert_eq!(
        world.last().strays.len(),
        1,
        "the outcome of the payment is still to come"
    );
    let refusal = world.migrate(&first_of_two(UNDONE)).expect_err("refused");
    assert!(
        refusal.message.contains("keeps nothing to undo"),
        "{}",
        refusal.message
    );
}
