//! When the loader warns of a step that stays done, and when not.

use super::super::{codes, load};
use super::file;

const COMPENSATE: &str = "compensate: {effect: undo}";

/// The warnings about a saga with these steps, each as `step: reason`.
fn told(steps: &str) -> Vec<String> {
    let effect = |name: &str, body: &str| {
        file(
            name,
            &format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\n{body}\n"),
        )
    };
    let http = |method: &str| format!("http: {{method: {method}, url: \"https://shop.example/x\"}}");
    let effects = [
        effect("do", &http("POST")),
        effect("undo", &http("DELETE")),
        effect("ask", &http("GET")),
        effect("count", "transform: {}\nresult: {n: 1}"),
    ];
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"Order.*\": event.data.id}\n";
    let child =
        "apiVersion: sagas/v1\nkind: Saga\nname: child\ninput: {type: object}\nsteps: {a: {effect: count}}\n";
    let steps = steps.replace("COMPENSATE", COMPENSATE);
    let sagas = [
        file("probe.yaml", &format!("{head}steps:\n{steps}")),
        file("child.yaml", child),
    ];
    let loaded = load(&sagas, &effects);
    assert_eq!(loaded.sagas.len(), 2, "{:#?}", loaded.diagnostics);
    let about = loaded
        .diagnostics
        .iter()
        .filter(|found| found.code == codes::UNCOMPENSATED);
    let short = |message: &str| {
        let message = message.strip_prefix("what \"").expect("the usual words");
        message.replacen("\" has done stays done when ", ": ", 1)
    };
    about.map(|found| short(&found.message)).collect()
}

/// Steps, and what is said about them. The last step is undone where several could be told.
const WARNED: [(&str, &str); 20] = [
    (
        "  a: {effect: do}\n  b: {needs: [a], if: state.n == 1, cancel: {mode: abandon}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {\"*\": [{when: state.n == 1, continue: true}]}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], if: state.n == 1, fail: {code: x}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], effect: ask}\n",
        "a: \"b\" fails",
    ),
    ("  a: {effect: do}\n  b: {effect: ask}\n", "a: \"b\" fails"),
    (
        "  a: {command: {aggregate: X, id: x, type: X.Y}}\n  b: {needs: [a], publish: {type: x.y}}\n  c: {needs: [b], effect: count}\n",
        "a: \"c\" fails",
    ),
    (
        "  a: {saga: {name: child, key: x, input: {}}, wait: none}\n  b: {needs: [a], effect: ask}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], wait: {signal: s, timeout: 1d}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], wait: {callback: true, timeout: 1d}, effect: count, on_timeout: {continue: true}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], wait: {signal: s, timeout: 1d}, on_timeout: {continue: true}, fail_if: state.x}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do, wait: {signal: s, timeout: 1d}}\n",
        "a: it fails after it has acted",
    ),
    (
        "  a: {effect: do, fail_if: state.x}\n",
        "a: it fails after it has acted",
    ),
    (
        "  a: {foreach: {over: \"[1, 2]\"}, effect: do}\n",
        "a: another turn or item of it fails",
    ),
    (
        "  a: {repeat: {until: state.x, max: 3}, effect: do, on_error: {\"*\": {continue: true}}}\n",
        "a: the loop around it fails",
    ),
    (
        "  a: {foreach: {over: \"[1, 2]\", join: any}, effect: do}\n",
        "a: the loop around it fails",
    ),
    (
        "  l:\n    repeat: {until: state.x, max: 3}\n    steps: {a: {effect: ask}, b: {needs: [a], effect: do, on_error: {\"*\": {continue: true}}}}\n",
        "b: \"l\" fails",
    ),
    (
        "  c: {choice: [{when: state.x, steps: {a: {effect: do}}}, {else: {steps: {b: {effect: ask}}}}]}\n  d: {needs: [c], effect: ask}\n",
        "a: \"d\" fails",
    ),
    // An answer for some classes leaves the others, and one that fails or goes back is none.
    (
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {transient: {continue: true}}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {\"*\": {continue: true}, gone: {fail: {code: gone}}}}\n",
        "a: \"b\" fails",
    ),
    (
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {\"*\": {goto: a}}}\n",
        "a: \"b\" fails",
    ),
];

#[test]
fn a_step_that_stays_done_when_the_instance_fails_after_it_is_told() {
    for (steps, expected) in WARNED {
        assert_eq!(told(steps), [expected], "{steps}");
    }
}

#[test]
fn a_step_with_compensate_or_compensate_none_gives_no_warning() {
    for (steps, _) in WARNED {
        for instead in ["compensate: none", COMPENSATE] {
            let undone = steps
                .replace("effect: do", &format!("{instead}, effect: do"))
                .replace("type: X.Y}", &format!("type: X.Y}}, {instead}"))
                .replace("wait: none", &format!("wait: none, {instead}"));
            assert_ne!(undone, steps);
            assert!(told(&undone).is_empty(), "{undone}");
        }
    }
}

#[test]
fn work_that_cannot_be_compensated_gives_no_warning() {
    for steps in [
        // The last ones.
        "  a: {effect: do}\n",
        "  a: {effect: ask}\n  b: {needs: [a], effect: do}\n",
        "  a: {effect: do}\n  b: {needs: [a], publish: {type: x.y}}\n  c: {needs: [b], delay: 1d}\n",
        // Nothing is changed.
        "  a: {effect: ask}\n  b: {needs: [a], effect: count}\n  c: {needs: [b], effect: ask}\n",
        // No failure comes through.
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {\"*\": {continue: true}}}\n",
        "  a: {effect: do}\n  b: {needs: [a], effect: ask, on_error: {\"*\": {complete: {outcome: enough}}}}\n",
        "  a: {effect: do}\n  b: {needs: [a], wait: {signal: s, timeout: 1d}, on_timeout: {continue: true}}\n",
        "  a: {foreach: {over: \"[1, 2]\", on_item_error: collect}, effect: do}\n",
        "  a: {effect: do, COMPENSATE}\n  b: {effect: ask, needs: [a]}\n  c: {needs: [a], effect: ask}\n  d: {needs: [b, c], join: any, effect: do}\n",
        // Only one of them runs.
        "  c: {choice: [{when: state.x, steps: {a: {effect: do}}}, {else: {steps: {b: {effect: ask}}}}]}\n",
    ] {
        assert!(told(steps).is_empty(), "{steps}: {:?}", told(steps));
    }
}

#[test]
fn a_step_that_joins_can_do_without_fails_nothing() {
    let steps = |join: &str| {
        format!(
            "  a: {{effect: do}}\n  b: {{effect: ask}}\n  c: {{needs: [a, b], {join}publish: {{type: x.y}}, on_error: {{join_unreachable: {{continue: true}}}}}}\n"
        )
    };
    assert_eq!(told(&steps("")), ["a: \"b\" fails"]);
    assert!(told(&steps("join: any, ")).is_empty());
}

#[test]
fn alternatives_that_a_loop_runs_one_after_the_other_do_not_exclude_each_other() {
    let choice = "choice: [{when: state.x, steps: {a: {effect: do}}}, {else: {steps: {b: {effect: ask}}}}]";
    let steps = format!("  l:\n    repeat: {{until: state.x, max: 3}}\n    steps: {{c: {{{choice}}}}}\n");
    assert_eq!(told(&steps), ["a: another turn or item of it fails"]);
}

#[test]
fn a_saga_that_undoes_nothing_is_told_once() {
    let steps = "  a: {effect: do}\n  b: {needs: [a], effect: do}\n  c: {needs: [b], effect: do}\n";
    let all = ["a: \"b\" fails, and so do others, since this saga undoes nothing"];
    assert_eq!(told(steps), all);
    let one = steps.replace("c: {needs: [b], ", "c: {needs: [b], COMPENSATE, ");
    assert_eq!(told(&one), ["a: \"b\" fails", "b: \"c\" fails"]);
}
