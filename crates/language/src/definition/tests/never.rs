//! What no input can bring about is told before any input comes.

use super::super::{Severity, load};
use super::{file, untyped_effects};

const HEAD: &str =
    "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"Order.*\": event.data.id}\n";

/// What is found in a saga of this body, as `code message`, errors with a mark.
fn told(body: &str) -> Vec<String> {
    let loaded = load(
        &[file("probe.yaml", &format!("{HEAD}{body}"))],
        &untyped_effects(),
    );
    let shown = loaded.diagnostics.iter().map(|finding| {
        let mark = if finding.severity == Severity::Error {
            "!"
        } else {
            ""
        };
        format!("{mark}{} {}", finding.code, finding.message)
    });
    shown.collect()
}

fn step(more: &str) -> Vec<String> {
    told(&format!("steps: {{a: {{effect: fraud-score, {more}}}}}\n"))
}

#[test]
fn a_step_whose_condition_never_holds_is_an_error_and_one_that_always_does_a_warning() {
    for never in ["\"false\"", "\"1 == 2\"", "state.a == 1 && false", "\"!true\""] {
        assert_eq!(
            step(&format!("if: {never}")),
            ["!SR0176 this never holds: the step never runs"],
            "{never}"
        );
    }
    assert_eq!(step("if: \"true\""), ["SR0176 this always holds"]);
    assert_eq!(step("if: state.a == 1 || true"), ["SR0176 this always holds"]);
    assert!(step("if: state.a == 1").is_empty());
}

#[test]
fn conditions_of_every_kind_are_told_that_are_constant() {
    for (body, expected) in [
        (
            "handlers: {Order.Paid: {when: \"false\", set: {a: 1}}}\nsteps: {a: {delay: 1s}}\n",
            "!SR0176 this never holds: nothing is ever done here",
        ),
        (
            "steps: {a: {wait: {signal: x, when: \"false\", timeout: 1h}}}\n",
            "!SR0176 this never holds: the wait never ends by what it waits for",
        ),
        (
            "steps: {a: {effect: fraud-score, repeat: {while: \"false\", max: 3}}}\n",
            "!SR0176 this never holds: the steps of the loop never run",
        ),
        (
            "steps: {a: {effect: fraud-score, repeat: {until: \"true\", max: 3}}}\n",
            "SR0176 this always holds",
        ),
        (
            "steps: {a: {effect: fraud-score, fail_if: \"false\"}}\n",
            "SR0176 this never holds",
        ),
        (
            "cancel_when: \"true\"\nsteps: {a: {delay: 1s}}\n",
            "SR0176 this always holds",
        ),
        (
            "handlers: {Order.Paid: {complete: {outcome: x, when: \"false\"}}}\nsteps: {a: {delay: 1s}}\n",
            "SR0176 this never holds",
        ),
        (
            "steps: {a: {effect: fraud-score, compensate: {effect: fraud-score, when: \"false\"}}}\n",
            "SR0176 this never holds",
        ),
    ] {
        assert_eq!(told(body), [expected], "{body}");
    }
}

#[test]
fn a_status_that_a_need_cannot_have_when_its_step_starts_is_told() {
    let body = |status: &str| {
        format!(
            "steps:\n  a: {{effect: fraud-score}}\n  b: {{needs: a, if: steps.a.status == \"{status}\", effect: fraud-score}}\n"
        )
    };
    assert_eq!(
        told(&body("failed")),
        ["!SR0176 this never holds: \"done\" or \"skipped\" is compared with \"failed\""]
    );
    assert!(told(&body("skipped")).is_empty() && told(&body("done")).is_empty());
    let any = body("failed").replace("needs: a", "needs: a, join: any");
    assert!(
        told(&any).is_empty(),
        "a join may go on without it: {:?}",
        told(&any)
    );
    let later = "steps:\n  a: {effect: fraud-score}\n  b: {needs: a, effect: fraud-score, fail_if: steps.a.status == \"failed\"}\n";
    assert!(told(later).is_empty(), "it may begin anew meanwhile");
}

#[test]
fn of_two_alternatives_with_one_condition_the_second_is_never_taken() {
    let choice = "steps:\n  c:\n    choice:\n      - {when: state.a == 1, steps: {x: {delay: 1s}}}\n      - {when: state.a == 1, steps: {y: {delay: 1s}}}\n      - {else: {steps: {z: {delay: 1s}}}}\n";
    assert_eq!(
        told(choice),
        ["!SR0127 this alternative is never taken: one before it has the same condition"]
    );
    let handlers = "handlers:\n  Order.Paid:\n    - {when: event.data.n == 1, set: {a: 1}}\n    - {when: event.data.n == 1, set: {a: 2}}\nsteps: {a: {delay: 1s}}\n";
    assert_eq!(
        told(handlers),
        ["SR0127 this alternative is never taken: one before it has the same condition"]
    );
}

#[test]
fn an_alternative_behind_one_that_is_always_taken_is_an_error() {
    let choice = "steps:\n  c:\n    choice:\n      - {when: \"1 < 2\", steps: {x: {delay: 1s}}}\n      - {when: state.a == 1, steps: {y: {delay: 1s}}}\n";
    assert_eq!(
        told(choice),
        [
            "SR0176 this always holds",
            "!SR0127 this alternative is never taken: one before it always is",
        ]
    );
}

#[test]
fn a_join_over_alternatives_that_exclude_each_other_is_told_how_many_can_be_done() {
    let body = |count: u32, more: &str| {
        format!(
            "steps:\n  c:\n    choice:\n      - {{when: state.a == 1, steps: {{x: {{delay: 1s}}, w: {{delay: 1s}}}}}}\n      - {{else: {{steps: {{y: {{delay: 1s}}}}}}}}\n  d: {{delay: 1s}}\n  e: {{needs: [x, y{more}], join: {{at_least: {count}}}, delay: 1s}}\n"
        )
    };
    assert_eq!(
        told(&body(2, "")),
        ["!SR0133 \"e\" never starts: at most 1 of the steps that it needs can be done, and it waits for 2"]
    );
    assert!(told(&body(1, "")).is_empty());
    assert!(told(&body(2, ", d")).is_empty() && told(&body(3, ", d, w")).is_empty());
    assert_eq!(told(&body(3, ", d")).len(), 1);
}

#[test]
fn what_is_behind_a_step_that_always_fails_never_starts() {
    let body = |answer: &str| {
        format!(
            "steps:\n  a: {{delay: 1s, fail_if: \"true\"{answer}}}\n  b: {{needs: a, effect: fraud-score}}\n"
        )
    };
    assert_eq!(
        told(&body("")),
        ["!SR0133 \"b\" never starts: \"a\", which it needs, always fails"]
    );
    assert!(told(&body(", on_error: {fail_if: {continue: true}}")).is_empty());
    assert!(
        told("steps: {a: {delay: 1s, fail_if: \"true\"}}\n").is_empty(),
        "a way to fail"
    );
}

#[test]
fn a_bound_that_another_makes_useless_is_told() {
    for (body, expected) in [
        (
            "steps: {a: {effect: fraud-score, timeout: 2h, deadline: 1h}}\n",
            "SR0134 \"timeout\" is 2h and never passes: the \"deadline\" of the step is 1h",
        ),
        (
            "steps: {a: {wait: {signal: x, timeout: 2h}, deadline: 1h}}\n",
            "SR0134 \"timeout\" is 2h and never passes: the \"deadline\" of the step is 1h",
        ),
        (
            "steps: {a: {effect: fraud-score, wait: {callback: true, timeout: 1h, heartbeat: 2h}}}\n",
            "SR0134 \"heartbeat\" is 2h and never passes: the \"timeout\" of the wait is 1h",
        ),
        (
            "deadline: 1h\nsteps: {a: {effect: fraud-score, deadline: 2h}}\n",
            "SR0134 \"deadline\" is 2h and never passes: the \"deadline\" of the saga is 1h",
        ),
        (
            "deadline: 1h\nsteps: {a: {delay: 10m}}\ntimers: {late: {after: 2h, fail: {code: late}}}\n",
            "SR0134 \"after\" is 2h and never passes: the \"deadline\" of the saga is 1h",
        ),
    ] {
        assert_eq!(told(body), [expected], "{body}");
    }
    assert!(
        told("deadline: 5m\nsteps: {a: {effect: fraud-score}}\n").is_empty(),
        "a default is no contradiction"
    );
}

#[test]
fn more_emissions_than_a_transition_may_make_are_told() {
    let many = |count: usize| {
        let emits = vec!["{publish: {type: x}}"; count].join(", ");
        told(&format!(
            "handlers: {{Order.Paid: {{emit: [{emits}]}}}}\nsteps: {{a: {{delay: 1s}}}}\n"
        ))
    };
    assert!(many(128).is_empty());
    assert_eq!(
        many(129),
        ["!SR0128 129 emissions at once, at most 128 are allowed"]
    );
}
