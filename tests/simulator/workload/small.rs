//! Loops that do the same work again, and steps that cannot be begun.

use serde_json::json;

use super::{SPAN_MS, Script};

pub(super) fn draw(script: &mut Script<'_>, part: u64) {
    for at in 0..script.rng.within(0..=4) / part {
        let key = format!("r{at}");
        let turns = script.rng.within(0..=4);
        let at = script.rng.within(0..=SPAN_MS / 2);
        let data = json!({"rounds": key, "turns": turns});
        script.event(at, "Rounds.Opened", &key, 0, data);
    }
    for at in 0..script.rng.within(0..=3) / part {
        let key = format!("s{at}");
        // By nothing one cannot divide, and a timer that does so is a dead letter.
        let by = script.rng.below(2);
        let at = script.rng.within(0..=SPAN_MS / 2);
        script.event(at, "Stall.Opened", &key, 0, json!({"stall": key, "by": by}));
    }
}
