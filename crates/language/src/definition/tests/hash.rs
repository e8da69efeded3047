//! The hash of a saga: what changes it and what does not.

use super::super::{canonical, load};
use super::{examples, file, saga, untyped_effects};

const BODY: &str = r#"
state: {init: {paid: false, n: 1}}
handlers:
  Order.Placed: {set: {a: "${event.data.a + 1}", b: 2}, timer: {x: {after: 1m}, y: {after: 2m}}}
  Order.Held: [{when: state.paid && state.n > 1, fail: {code: held}}, {set: {c: 3}}]
steps:
  pay:
    effect: payments-charge
    with: {order: "${key}", cents: "${state.n}"}
    set: {paid: true}
    compensate: {effect: payments-refund, retry: {attempts: 3}}
  ship: {needs: [pay], command: {aggregate: Parcel, id: "p-${key}", type: Parcel.Send}}
timers:
  x: {after: 5m, fail: {code: late}}
  y: {after: 6m, cancel_when: state.paid, fail: {code: later}}
finally: {completed: {publish: {type: order.done, payload: {order: "${key}"}}}}
"#;

fn hash(body: &str) -> String {
    saga(body).hash.to_string()
}

/// `BODY` with one place changed.
fn changed(from: &str, to: &str) -> String {
    assert_eq!(BODY.matches(from).count(), 1, "{from:?} is one place");
    BODY.replace(from, to)
}

#[test]
fn layout_comments_quoting_and_insignificant_order_do_not_change_the_hash() {
    let same = hash(BODY);
    for (from, to) in [
        ("state: {init", "# why\nstate:   {init"),
        ("{paid: false, n: 1}", "{n: 1, \"paid\": false}"),
        (
            "{set: {a: \"${event.data.a + 1}\", b: 2}",
            "{set: {b: 2, a: '${event.data.a+1}'}",
        ),
        (
            "{x: {after: 1m}, y: {after: 2m}}",
            "{y: {after: 120s}, x: {after: 60s, if_absent: false}}",
        ),
        ("state.paid && state.n > 1", "state.paid  &&  state.n>1"),
        ("needs: [pay]", "needs: pay"),
        (
            "    set: {paid: true}\n",
            "    set: {paid: true}\n    on_error: {}\n",
        ),
        ("needs: [pay]", "needs: [pay, pay]"),
        ("type: Parcel.Send}", "type: Parcel.Send, payload: {}}"),
        (
            "retry: {attempts: 3}",
            "retry: {attempts: 3, backoff: {initial: 1s, factor: 2, max: 60s}}, on_unknown: compensate, timeout: 15m",
        ),
        (
            "    set: {paid: true}\n",
            "    set:\n      paid: true\n    timeout: 15m\n",
        ),
        (
            "  x: {after: 5m, fail: {code: late}}\n  y: {after: 6m, cancel_when: state.paid, fail: {code: later}}",
            "  y: {after: 6m, cancel_when: state.paid, fail: {code: later}}\n  x: {after: 5m, fail: {code: late}}",
        ),
        (
            "finally: {completed: {publish",
            "finally: {completed: &it {publish",
        ),
        ("{order: \"${key}\"}}}}", "{order: \"${ key }\"}}}}"),
    ] {
        assert_eq!(hash(&changed(from, to)), same, "{from} -> {to}");
    }
}

#[test]
fn line_ends_of_other_systems_do_not_change_the_hash() {
    assert_eq!(hash(&BODY.replace('\n', "\r\n")), hash(BODY));
}

#[test]
fn every_change_of_meaning_changes_the_hash() {
    let mut hashes = std::collections::BTreeMap::from([(hash(BODY), "unchanged")]);
    for (from, to) in [
        ("paid: false", "paid: true"),
        ("n: 1}}", "n: \"1\"}}"),
        ("n: 1}}", "n: 1.0}}"),
        ("b: 2}", "b: 3}"),
        ("a: \"${event.data.a + 1}\"", "a: \"${event.data.a - 1}\""),
        ("a: \"${event.data.a + 1}\"", "a: \"$${event.data.a + 1}\""),
        ("x: {after: 1m}", "x: {after: 61s}"),
        ("x: {after: 1m}", "x: {after: 1m, if_absent: true}"),
        ("state.n > 1", "state.n > 2"),
        ("state.n > 1", "state.n >= 1"),
        ("code: held", "code: hold"),
        ("code: held}", "code: held, message: why}"),
        (
            "{code: held}}, {set: {c: 3}}]",
            "{code: held}}, {when: state.paid, set: {c: 3}}]",
        ),
        ("Order.Held:", "Order.Kept:"),
        ("effect: payments-charge", "effect: fraud-score"),
        ("order: \"${key}\", cents", "orders: \"${key}\", cents"),
        ("order: \"${key}\", cents", "order: \" ${key}\", cents"),
        ("set: {paid: true}", "set: {payed: true}"),
        ("attempts: 3}", "attempts: 4}"),
        ("attempts: 3}}", "attempts: 3}, on_unknown: ignore}"),
        ("attempts: 3}}", "attempts: 3, backoff: {factor: 3}}}"),
        ("attempts: 3}}", "attempts: 3}, timeout: 1m}"),
        ("needs: [pay], ", ""),
        ("needs: [pay], ", "needs: [pay], if: state.paid, "),
        ("needs: [pay], ", "needs: [pay], timeout: 1h, "),
        ("needs: [pay], ", "needs: [pay], deadline: 1h, "),
        ("needs: [pay], ", "needs: [pay], compensate: none, "),
        ("needs: [pay], ", "needs: [pay], retry: {}, "),
        ("needs: [pay], ", "needs: [pay], retry: {errors: x}, "),
        ("needs: [pay], ", "needs: [pay], fail_if: state.paid, "),
        ("needs: [pay], ", "needs: [pay], on_timeout: {continue: true}, "),
        ("needs: [pay], ", "needs: [pay], on_timeout: {undo: pay}, "),
        ("needs: [pay], ", "needs: [pay], on_timeout: {cancel: {}}, "),
        (
            "needs: [pay], ",
            "needs: [pay], on_timeout: {cancel: {mode: drain}}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], on_timeout: {when: state.paid, continue: true}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], on_timeout: [{when: state.paid, continue: true}, {cancel: {}}], ",
        ),
        ("fail: {code: held}", "cancel: {reason: held}"),
        ("fail: {code: held}", "interrupt: {step: pay, class: held}"),
        ("fail: {code: held}", "interrupt: {step: ship, class: held}"),
        ("fail: {code: held}", "interrupt: {step: pay, class: hold}"),
        (
            "needs: [pay], ",
            "needs: [pay], wait: {event: Order.Sent, timeout: 1h}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], wait: {event: Order.Sent, timeout: 1h, early: ignore}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], wait: {any: [{event: Order.Sent}], timeout: 1h}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], wait: {any: [{event: Order.Sent}, {signal: x}], timeout: 1h}, ",
        ),
        (
            "needs: [pay], ",
            "needs: [pay], wait: {any: [{event: Order.Sent, set: {n: 1}}, {signal: x}], timeout: 1h}, ",
        ),
        (
            "{publish: {type: order.done",
            "{when: state.paid, publish: {type: order.done",
        ),
        ("needs: [pay], ", "needs: [pay], on_timeout: {goto: pay}, "),
        ("id: \"p-${key}\"", "id: \"q-${key}\""),
        ("aggregate: Parcel", "aggregate: Box"),
        ("type: Parcel.Send", "type: Parcel.Take"),
        ("after: 5m", "after: 4m"),
        ("cancel_when: state.paid, ", ""),
        ("after: 5m", "after: 5m, every: 1h"),
        ("after: 5m", "after: 5m, every: 1h, max: 2"),
        ("after: 5m", "after: 5m, emit: {effect: fraud-score, name: a}"),
        ("after: 5m", "after: 5m, emit: {effect: fraud-score, name: b}"),
        ("publish: {type: order.done", "publish: {type: order.gone"),
        ("finally: {completed", "finally: {failed"),
        ("finally: {completed", "finally: {cancelled"),
    ] {
        let hash = hash(&changed(from, to));
        if let Some(other) = hashes.insert(hash, to) {
            panic!("{from} -> {to} has the hash of {other}");
        }
    }
}

#[test]
fn name_start_and_key_rules_are_part_of_the_hash() {
    let text = |name: &str, start: &str, key: &str| {
        format!(
            "apiVersion: sagas/v1\nkind: Saga\nname: {name}\nstart: {start}\nkey: {key}\nsteps: {{a: {{effect: fraud-score}}}}\n"
        )
    };
    let hash = |text: String| {
        let loaded = load(&[file("a.yaml", &text)], &untyped_effects());
        assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics[0]);
        loaded.sagas[0].hash
    };
    let keys = r#"{"A.*": event.data.a, "A.B": event.data.b}"#;
    let base = hash(text("one", "A.B", keys));
    assert_eq!(base, hash(text("one", "[A.B, A.B]", keys)));
    let swapped = r#"{"A.B": event.data.b, "A.*": event.data.a}"#;
    for other in [
        text("two", "A.B", keys),
        text("one", "[A.B, A.C]", keys),
        text("one", "A.B", swapped),
        text("one", "A.B", r#"{"A.*": event.data.a}"#),
    ] {
        assert_ne!(base, hash(other));
    }
}

#[test]
fn steps_and_states_keep_their_order_since_records_refer_to_them_by_index() {
    let two = |first: &str, second: &str| {
        hash(&format!(
            "steps:\n  {first}: {{effect: fraud-score}}\n  {second}: {{effect: fraud-score}}\n"
        ))
    };
    assert_ne!(two("a", "b"), two("b", "a"));
}

#[test]
fn the_canonical_form_is_frozen() {
    let saga = saga(BODY);
    let form = String::from_utf8(canonical::bytes(&saga)).expect("JSON is text");
    let value: serde_json::Value = serde_json::from_str(&form).expect("JSON");
    assert_eq!(value.to_string(), form, "compact, with sorted keys");
    insta::assert_json_snapshot!("canonical_form", value);
    insta::assert_snapshot!(saga.hash.to_string(), @"sha256:232fe8f099e6eb29ade4564ad2a4f314ae361b15e84dcf59f20366bf4e6c899f");
}

#[test]
fn the_canonical_form_has_no_empty_members() {
    fn silent(value: &serde_json::Value) -> Vec<&str> {
        match value {
            serde_json::Value::Object(members) => members
                .iter()
                .flat_map(|(name, value)| {
                    let says_nothing = match value {
                        serde_json::Value::Null | serde_json::Value::Bool(false) => true,
                        serde_json::Value::Array(items) => items.is_empty(),
                        serde_json::Value::Object(members) => members.is_empty(),
                        _ => false,
                    };
                    let here = says_nothing.then_some(name.as_str());
                    here.into_iter().chain(silent(value))
                })
                .collect(),
            serde_json::Value::Array(items) => items.iter().flat_map(silent).collect(),
            _ => Vec::new(),
        }
    }
    let form = canonical::bytes(&saga(BODY));
    let form: serde_json::Value = serde_json::from_slice(&form).expect("JSON");
    assert_eq!(silent(&form), Vec::<&str>::new());
}

#[test]
fn how_long_ended_instances_are_kept_is_no_part_of_what_a_saga_does() {
    for kept in ["30d", "{completed: 1d, failed: 90d}"] {
        assert_eq!(hash(&format!("{BODY}keep_ended: {kept}\n")), hash(BODY), "{kept}");
    }
}

#[test]
fn the_hashes_of_the_examples_differ() {
    let loaded = examples();
    assert_ne!(loaded.sagas[0].hash, loaded.sagas[1].hash);
}

#[test]
fn the_decision_of_a_step_is_part_of_the_hash() {
    let mut hashes = std::collections::BTreeSet::new();
    for step in [
        "delay: 1s",
        "set: {n: 1}",
        "fail: {code: x}",
        "set: {n: 1}, fail: {code: x}",
        "complete: {outcome: x}",
        "complete: {outcome: x, when: state.n == 1}",
        "complete: {outcome: x, when: state.n == 1}, fail: {code: x}",
        "cancel: {}",
        "cancel: {mode: drain}",
        "cancel: {reason: x}",
    ] {
        let body = format!("state: {{init: {{n: 0}}}}\nsteps: {{a: {{{step}}}}}\n");
        assert!(hashes.insert(hash(&body)), "{step}");
    }
}

#[test]
fn a_schedule_is_part_of_what_a_saga_does() {
    let scheduled = |schedule: &str| {
        let text = format!(
            "apiVersion: sagas/v1\nkind: Saga\nname: nightly\nschedule: {schedule}\nstate: {{init: {{}}}}\n\
             steps: {{pay: {{effect: payments-charge, with: {{at: \"${{input.time}}\"}}}}}}\n"
        );
        let loaded = load(&[file("nightly.yaml", &text)], &untyped_effects());
        assert_eq!(loaded.diagnostics, []);
        loaded.sagas[0].hash
    };
    let same = scheduled("{cron: 0 6 * * *}");
    assert_eq!(
        scheduled("{overlap: skip, catch_up: last, zone: UTC, cron: \"0  6 * * *\"}"),
        same
    );
    for other in [
        "{cron: 0 7 * * *}",
        "{cron: 0 6 * * *, zone: Europe/Berlin}",
        "{cron: 0 6 * * *, catch_up: none}",
        "{cron: 0 6 * * *, overlap: allow}",
        "{cron: 0 6 * * *, catch_up: {max: 1}}",
        "{cron: 0 6 * * *, catch_up: {max: 1, within: 1h}}",
        "{cron: 0 6 * * *, catch_up: {max: 2}, overlap: allow}",
    ] {
        assert_ne!(scheduled(other), same, "{other}");
    }
}

#[test]
fn the_order_of_steps_is_part_of_the_hash_since_those_that_can_start_together_start_in_it() {
    let both = "state: {init: {n: 1}}\nsteps:\n  A\n  B\n";
    let add = "add: {set: {n: \"${state.n + 1}\"}}";
    let double = "double: {set: {n: \"${state.n * 2}\"}}";
    let of = |first: &str, second: &str| hash(&both.replace('A', first).replace('B', second));
    assert_ne!(of(add, double), of(double, add));
}
