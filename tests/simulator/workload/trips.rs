//! Trips of several seats, which somebody accepts, withdraws or forgets.

use serde_json::json;

use super::{SPAN_MS, Script, Verb};

pub(super) fn draw(script: &mut Script<'_>) {
    for trip in 0..script.rng.within(1..=4) {
        let key = format!("t{trip}");
        let seats = script.rng.within(0..=5);
        let seats: Vec<String> = (0..seats).map(|seat| format!("seat{seat}")).collect();
        let at = script.rng.within(0..=SPAN_MS / 2);
        let data = json!({"trip": key, "seats": seats});
        script.event(at, "Trip.Opened", &key, 0, data);
        let later = |script: &mut Script<'_>| at + script.rng.within(1..=50_000);
        match script.rng.below(10) {
            0..=4 => {
                let at = later(script);
                script.event(at, "Trip.Accepted", &key, 1, json!({"trip": key}));
            }
            5 | 6 => {
                let at = later(script);
                script.ask(at, "trip", &key, Verb::Signal("trip.accepted"));
            }
            _ => {}
        }
        if script.rng.chance(250) {
            let at = later(script);
            script.event(at, "Trip.Withdrawn", &key, 2, json!({"trip": key}));
        }
        if script.rng.chance(100) {
            let at = later(script);
            let mode = *script.rng.pick(&["compensate", "drain"]);
            script.ask(at, "trip", &key, Verb::Cancel(mode));
        }
    }
}
