//! Bills, which are paid in time or not.

use serde_json::json;

use super::{SPAN_MS, Script};

pub(super) fn draw(script: &mut Script<'_>, part: u64) {
    for bill in 0..script.rng.within(0..=8) / part {
        let key = format!("b{bill}");
        let at = script.rng.within(0..=SPAN_MS / 2);
        script.event(at, "Bill.Opened", &key, 0, json!({"bill": key}));
        if script.rng.chance(700) {
            let paid = at
                + *script
                    .rng
                    .pick(&[1_000, 15_000, 18_000, 19_500, 19_950, 20_050, 25_000]);
            script.event(paid, "Bill.Paid", &key, 1, json!({"bill": key}));
        }
    }
}
