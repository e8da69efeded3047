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
            "steps:\n  a: {{effect: fraud-score, if: state.x == 1}}\n  b: {{needs: a, if: steps.a.status == \"{status}\", effect: fraud-score}}\n"
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
fn steps_after_one_that_always_fails_never_start() {
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
        "a default is not a contradiction"
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

#[test]
fn a_status_that_a_step_cannot_have_is_told() {
    let body = |step: &str, status: &str, more: &str| {
        told(&format!(
            "{more}handlers: {{Order.Paid: {{when: steps.a.status == \"{status}\", set: {{x: 1}}}}}}\nsteps: {{a: {{effect: fraud-score{step}}}}}\n"
        ))
    };
    for (status, key) in [
        ("skipped", ", if: state.x == 1"),
        ("delayed", ", delay: 1s"),
        ("waiting", ", wait: {signal: x, timeout: 1h}"),
        ("backing_off", ", retry: {attempts: 2}"),
    ] {
        let never = body("", status, "");
        assert_eq!(never.len(), 1, "{never:?}");
        assert!(never[0].starts_with("!SR0176 this never holds: "), "{never:?}");
        assert!(body(key, status, "").is_empty(), "{key}");
        assert!(
            body("", status, "on_change: migrate\n").is_empty(),
            "one that came over may have it"
        );
    }
    for status in ["running", "done", "failed", "abandoned", "pending", "stuck"] {
        assert!(body("", status, "").is_empty(), "{status}");
    }
    let nonsense = body("", "dnoe", "on_change: migrate\n");
    assert_eq!(nonsense.len(), 1, "{nonsense:?}");
    let typo = body(", iff: state.x == 1", "skipped", "");
    assert!(typo.len() == 1 && typo[0].contains("iff"), "{typo:?}");
}

#[test]
fn answers_to_failures_that_cannot_be_are_told() {
    let answers = |step: &str, class: &str| {
        told(&format!(
            "steps: {{a: {{{step}, on_error: {{{class}: {{continue: true}}}}}}}}\n"
        ))
    };
    let plain = "effect: fraud-score";
    for (class, why, with) in [
        (
            "fail_if",
            "it has no \"fail_if\"",
            "effect: fraud-score, fail_if: state.x == 1",
        ),
        (
            "exhausted",
            "it is not a \"repeat\"",
            "effect: fraud-score, repeat: {until: state.x == 1, max: 3}",
        ),
        (
            "too_many_items",
            "it is not a \"foreach\"",
            "effect: fraud-score, foreach: {over: state.x}",
        ),
    ] {
        assert_eq!(
            answers(plain, class),
            [format!("SR0127 \"a\" never fails with \"{class}\": {why}")]
        );
        assert!(
            answers(with, class).is_empty(),
            "{class}: {:?}",
            answers(with, class)
        );
    }
    let join = |join: &str| {
        told(&format!(
            "steps:\n  a: {{effect: fraud-score}}\n  b: {{effect: fraud-score}}\n  c: {{needs: [a, b]{join}, delay: 1s, on_error: {{join_unreachable: {{continue: true}}}}}}\n"
        ))
    };
    assert_eq!(
        join(""),
        ["SR0127 \"c\" never fails with \"join_unreachable\": it waits for all that it needs"]
    );
    assert!(join(", join: any").is_empty());
    assert!(answers(plain, "out_of_stock").is_empty(), "a class of the effect");
}

#[test]
fn more_than_one_transition_may_do_is_told_where_it_adds_up() {
    let emits = |count: usize| vec!["{publish: {type: x}}"; count].join(", ");
    let machine = |handler: usize, entry: usize| {
        told(&format!(
            "handlers: {{Order.Paid: {{emit: [{}], to: b}}}}\nmachine: {{initial: a, states: {{a: {{}}, b: {{entry: {{emit: [{}]}}, final: true}}}}}}\n",
            emits(handler),
            emits(entry)
        ))
    };
    assert!(machine(64, 64).is_empty());
    assert_eq!(
        machine(64, 65),
        ["!SR0128 a handler that goes to \"b\" emits 64, and the entry 65: at most 128 are allowed at once"]
    );
    let steps = |count: usize, more: &str| {
        let steps: Vec<String> = (0..count)
            .map(|n| format!("s{n}: {{publish: {{type: x}}{more}}}"))
            .collect();
        told(&format!("steps: {{{}}}\n", steps.join(", ")))
    };
    assert!(steps(128, "").is_empty());
    assert_eq!(
        steps(129, ""),
        ["!SR0128 129 pieces of work begin with the instance, at most 128 are allowed at once"]
    );
    assert!(steps(200, ", delay: 1s").is_empty());
}

#[test]
fn bounds_of_loops_and_pauses_that_contradict_others_are_told() {
    for (body, expected) in [
        (
            "steps: {a: {effect: fraud-score, foreach: {over: state.x, max: 3, join: {at_least: 4}}}}\n",
            "!SR0125 4 items are to succeed, and there are at most 3",
        ),
        (
            "steps: {a: {effect: fraud-score, foreach: {over: state.x, max: 3, parallel: 4}}}\n",
            "SR0134 4 items never run at the same time: there are at most 3",
        ),
        (
            "steps: {a: {effect: fraud-score, deadline: 1h, retry: {backoff: {initial: 2h}}}}\n",
            "SR0134 \"initial\" is 2h and never passes: the \"deadline\" of the step is 1h",
        ),
        (
            "deadline: 1h\nsteps: {a: {effect: fraud-score, retry: {backoff: {initial: 2h}}}}\n",
            "SR0134 \"initial\" is 2h and never passes: the \"deadline\" of the saga is 1h",
        ),
    ] {
        assert_eq!(told(body), [expected], "{body}");
    }
    let quiet = "steps: {a: {effect: fraud-score, foreach: {over: state.x, max: 3}}}\n";
    assert!(
        told(quiet).is_empty(),
        "a default is not a contradiction: {:?}",
        told(quiet)
    );
}

#[test]
fn handlers_of_a_final_state_never_run() {
    let body = "machine: {initial: a, states: {a: {handlers: {Order.Paid: {to: b}}}, b: {final: true, handlers: {Order.Paid: {set: {x: 1}}}}}}\n";
    assert_eq!(
        told(body),
        ["!SR0133 these handlers never run: the instance ends when it enters a final state"]
    );
}

#[test]
fn rules_of_effects_that_never_apply_are_told() {
    let rules = |rules: &str| {
        let head =
            "apiVersion: sagas/v1\nkind: Effect\nname: probe\nhttp: {method: GET, url: \"https://a.b/c\"}\n";
        let loaded = load(&[], &[file("probe.yaml", &format!("{head}classify: {rules}\n"))]);
        let shown = loaded.diagnostics.iter();
        shown
            .map(|finding| format!("{} {}", finding.code, finding.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        rules("[{when: \"false\", as: transient}]"),
        ["SR0176 this never holds: the rule never applies"]
    );
    assert_eq!(
        rules("[{when: \"true\", as: transient}, {when: response.status == 404, as: gone}]"),
        ["SR0127 this rule never applies: one before it always does"]
    );
    assert!(rules("[{when: response.status == 404, as: gone}, {when: \"true\", as: transient}]").is_empty());
}

#[test]
fn a_step_behind_one_that_ends_the_instance_never_starts() {
    for end in [
        "fail: {code: x}",
        "complete: {outcome: x}",
        "complete: {outcome: x, when: state.a == 1}, fail: {code: y}",
    ] {
        assert_eq!(
            told(&format!("steps: {{a: {{{end}}}, b: {{needs: a, delay: 1s}}}}\n")),
            ["!SR0133 \"b\" never starts: \"a\", which it needs, ends the instance"],
            "{end}"
        );
        let skipped = format!("steps: {{a: {{if: state.b == 1, {end}}}, b: {{needs: a, delay: 1s}}}}\n");
        assert!(told(&skipped).is_empty(), "{end}");
    }
    assert!(
        told("steps: {a: {complete: {outcome: x, when: state.a == 1}}, b: {needs: a, delay: 1s}}\n")
            .is_empty()
    );
    assert_eq!(
        told(
            "steps: {a: {if: state.b == 1, fail: {code: x}}, b: {delay: 1s}, c: {needs: [a, b], join: {at_least: 2}, delay: 1s}}\n"
        ),
        ["!SR0133 \"c\" never starts: at most 1 of the steps that it needs can be done, and it waits for 2"]
    );
}
