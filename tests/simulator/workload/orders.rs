//! Orders: keys that are used again and again, people who approve and cancel, a saga that is started by another one, and
//! an event that finds its order by an alias.

use serde_json::json;

use super::{SPAN_MS, Script, Verb};

pub(super) fn draw(script: &mut Script<'_>, part: u64) {
    for order in 0..script.rng.within(0..=4) / part {
        let key = format!("o{order}");
        let mut at = script.rng.within(0..=SPAN_MS / 4);
        for round in 1..=script.rng.within(1..=3) {
            let number = round * 10;
            script.event(
                at,
                "Order.Opened",
                &key,
                number,
                json!({"order": key, "round": round}),
            );
            if script.rng.chance(600) {
                let later = at + script.rng.below(20_000);
                script.ask(later, "order", &key, Verb::Signal("order.approved"));
            }
            if script.rng.chance(300) {
                let later = at + script.rng.below(5_000);
                script.event(later, "Order.Changed", &key, number + 1, json!({"order": key}));
            }
            if script.rng.chance(150) {
                let later = at + script.rng.below(50_000);
                let mode = *script.rng.pick(&["compensate", "drain"]);
                script.ask(later, "order", &key, Verb::Cancel(mode));
            }
            if script.rng.chance(700) {
                // Of nobody's key: the order is found by the number.
                let parcel = format!("{key}-{round}");
                let later = at + script.rng.below(60_000);
                script.event(later, "Parcel.Delivered", &parcel, 0, json!({"parcel": parcel}));
            }
            at += script.rng.within(1_000..=40_000);
        }
    }
}
