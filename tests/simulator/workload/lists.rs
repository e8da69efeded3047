//! Lists, which two sagas write down. What comes before a list is opened waits in one of them, and is nothing to the other.

use serde_json::json;

use super::{SPAN_MS, Script};
use crate::plan::Action;

pub(super) fn draw(script: &mut Script<'_>, part: u64) {
    for list in 0..script.rng.within(1..=8) / part {
        let key = format!("l{list}");
        let mut at = script.rng.within(0..=SPAN_MS / 4);
        let adds = script.rng.within(0..=14);
        let pace = *script.rng.pick(&[5, 300, 3_000]);
        // So many come before the list is there.
        let early = if !script.is_plain && script.rng.chance(200) {
            script.rng.below(4)
        } else {
            0
        };
        let opened = |script: &mut Script<'_>, at| {
            script.event(at, "List.Opened", &key, 0, json!({"list": key}));
        };
        if early == 0 {
            opened(script, at);
        }
        for n in 1..=adds {
            at += script.rng.below(pace);
            if script.rng.chance(15) {
                script.event(at, "List.Divided", &key, n, json!({"list": key, "by": 0}));
            } else {
                script.event(at, "List.Added", &key, n, json!({"list": key, "n": n}));
            }
            if n == early {
                at += 1;
                opened(script, at);
            }
        }
        if early > adds {
            opened(script, at + 1);
        }
        at += 2 + script.rng.below(2_000);
        script.event(at, "List.Closed", &key, 99, json!({"list": key}));
        if script.rng.chance(100) {
            let (kind, tenant) = ("List", script.tenant);
            script.act(at, Action::Garbage { tenant, kind, key });
        }
    }
}
