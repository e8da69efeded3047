//! Whole histories as golden text: ids, payloads and paths of stored work may not change unnoticed, since a
//! runner that derives other ids than the one before it repeats effects.

use serde_json::json;

use super::build::consolidate;
use super::order::{charged, reserved};
use super::world::World;
use crate::input::Control;

#[test]
fn a_charge_that_comes_after_the_timeout() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    world.succeed("steps.reserve.compensate", &json!({}));
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    world.succeed("steps.charge.compensate", &json!({}));
    insta::assert_snapshot!(world.story);
}

#[test]
fn a_refund_that_needs_an_operator() {
    let mut world = charged();
    world.fail("steps.ship", "rejected");
    world.time_out("steps.charge.compensate");
    world.advance(1_000);
    world.fail("steps.charge.compensate", "transient");
    world.advance(2_000);
    world.fail("steps.charge.compensate", "transient");
    world.control("req-1", Control::Retry);
    world.succeed("steps.charge.compensate", &json!({}));
    world.succeed("steps.reserve.compensate", &json!({}));
    insta::assert_snapshot!(world.story);
}

#[test]
fn two_batches_of_lines() {
    let mut world = World::new(consolidate());
    let line = |world: &mut World, id: &str, grams: i64| {
        world.event("Line.Ready", &json!({"line_id": id, "grams": grams}));
    };
    line(&mut world, "l-1", 100);
    line(&mut world, "l-2", 19_900);
    line(&mut world, "l-3", 300);
    world.event("Dock.Accepted", &json!({}));
    world.give_what_waits();
    world.advance(15 * 60_000);
    world.event("Dock.Closed", &json!({}));
    insta::assert_snapshot!(world.story);
}
