//! Payments: stock and a card, both or none.

use serde_json::json;

use super::{SPAN_MS, Script, Verb};

pub(super) fn draw(script: &mut Script<'_>, part: u64) {
    for pay in 0..script.rng.within(0..=10) / part {
        let key = format!("p{pay}");
        let at = script.rng.within(0..=SPAN_MS / 2);
        script.event(at, "Pay.Opened", &key, 0, json!({"pay": key}));
        if script.rng.chance(250) {
            let at = at + script.rng.below(5_000);
            script.event(at, "Pay.Withdrawn", &key, 1, json!({"pay": key}));
        } else if !script.is_plain && script.rng.chance(150) {
            let at = at + script.rng.below(9_000);
            let mode = *script.rng.pick(&["compensate", "drain"]);
            script.ask(at, "pay", &key, Verb::Cancel(mode));
        }
    }
}
