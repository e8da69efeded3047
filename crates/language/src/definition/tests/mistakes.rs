//! Every mistake of a file is told at once, and nothing that only follows from one.

use super::super::load;
use super::{file, untyped_effects};

const HEAD: &str =
    "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"Order.*\": event.data.id}\n";

/// What is found in a saga of this body, as `code message`.
fn told(body: &str) -> Vec<String> {
    let loaded = load(
        &[file("probe.yaml", &format!("{HEAD}{body}"))],
        &untyped_effects(),
    );
    let findings = loaded.diagnostics.iter();
    findings
        .map(|finding| format!("{} {}", finding.code, finding.message))
        .collect()
}

fn helps(body: &str) -> Vec<String> {
    let loaded = load(
        &[file("probe.yaml", &format!("{HEAD}{body}"))],
        &untyped_effects(),
    );
    loaded
        .diagnostics
        .into_iter()
        .filter_map(|finding| finding.help)
        .collect()
}

#[test]
fn a_step_that_is_wrong_hides_no_cycle_among_the_others() {
    let found = told(
        "steps:\n  a: {publish: {type: x, payload: {n: \"${nope}\"}}}\n  b: {needs: [c], delay: 1s}\n  c: {needs: [b], delay: 1s}\n",
    );
    assert_eq!(
        found,
        [
            "SR0112 unknown name `nope`",
            "SR0116 steps wait for each other: b -> c -> b"
        ]
    );
}

#[test]
fn a_step_that_is_wrong_keeps_its_place_in_a_cycle() {
    let found = told("steps:\n  a: {needs: [b], effect: nope}\n  b: {needs: [a], efect: fraud-score}\n");
    assert_eq!(
        found,
        [
            "SR0116 steps wait for each other: a -> b -> a",
            "SR0102 unknown effect \"nope\"",
            "SR0105 unknown key \"efect\" in a step",
        ]
    );
}

#[test]
fn a_cycle_hides_neither_another_one_nor_what_else_is_wrong_with_the_order() {
    let found = told(
        "steps:\n  a: {needs: [b], delay: 1s}\n  b: {needs: [a], delay: 1s}\n  c: {needs: [d], delay: 1s}\n  d: {needs: [c], delay: 1s}\n  one: {effect: fraud-score, set: {n: 1}}\n  two: {effect: fraud-score, set: {n: 2}, on_error: {x: {goto: one}}}\n",
    );
    assert_eq!(
        found,
        [
            "SR0116 steps wait for each other: a -> b -> a",
            "SR0116 steps wait for each other: c -> d -> c",
            "SR0121 steps \"one\" and \"two\" may run at the same time and both set \"n\"",
            "SR0125 \"two\" cannot go to \"one\", which does not come before it",
        ]
        .map(|line| line.replace("SR0125", "SR0108"))
    );
}

#[test]
fn a_cycle_through_a_group_is_told_once() {
    let found = told(
        "steps:\n  x: {needs: [g], delay: 1s}\n  g:\n    needs: [x]\n    choice:\n      - {when: state.a == 1, steps: {one: {delay: 1s}, two: {delay: 1s}}}\n      - {else: {steps: {three: {delay: 1s}}}}\n",
    );
    assert_eq!(found, ["SR0116 steps wait for each other: x -> g -> x"]);
}

#[test]
fn all_mistakes_of_one_text_are_told() {
    let found = told(
        "steps:\n  a: {publish: {type: x, payload: {n: \"${nope + state.a + gone} and ${lost}\", m: \"${event.data.id}\"}}}\n",
    );
    assert_eq!(
        found,
        [
            "SR0112 unknown name `nope`",
            "SR0112 unknown name `gone`",
            "SR0112 unknown name `lost`",
            "SR0113 `event.data` cannot be read here: the input may be a timer or a result",
        ]
    );
}

#[test]
fn the_id_and_the_time_of_the_input_are_read_wherever_the_state_is() {
    let part = |name: &str| {
        let read = format!("event.{name}");
        let body = "handlers: {Order.Paid: {when: string(READ) != \"x\", set: {at: \"${READ}\"}}}\nsteps:\n  a:\n    if: string(READ) != \"x\"\n    effect: fraud-score\n    with: {at: \"${READ}\"}\n    set: {at: \"${READ}\"}\n    fail_if: string(READ) == \"x\"\n    on_error: {x: {when: string(READ) != \"x\", continue: true}}\n    compensate: {effect: fraud-score, with: {at: \"${READ}\"}}\ntimers: {t: {after: 1h, emit: {publish: {type: x, payload: {at: \"${READ}\"}}}}}\nfinally: {completed: {publish: {type: y, payload: {at: \"${READ}\"}}}}\n";
        told(&body.replace("READ", &read))
    };
    for name in ["id", "time"] {
        assert_eq!(part(name), [""; 0], "{name}");
    }
    let refused = part("data.n");
    assert_eq!(refused.len(), 8, "all but those of the handler: {refused:?}");
    assert!(
        refused.iter().all(|found| found.starts_with("SR0113 ")),
        "{refused:?}"
    );
}

#[test]
fn a_value_that_is_wrong_hides_no_misfit_beside_it() {
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: probe\ninput: {type: object, required: [n, m], properties: {n: {type: integer}, m: {type: integer}}, additionalProperties: false}\ntransform: {}\nresult: {}\n";
    let saga = format!("{HEAD}steps:\n  a: {{effect: probe, with: {{n: \"${{nope}}\", m: text, l: 1}}}}\n");
    let loaded = load(&[file("probe.yaml", &saga)], &[file("e.yaml", effect)]);
    let found: Vec<&str> = loaded.diagnostics.iter().map(|finding| finding.code).collect();
    assert_eq!(found, ["SR0112", "SR0178", "SR0178"]);
}

#[test]
fn an_effect_of_a_state_that_is_wrong_is_one_whose_end_is_handled() {
    let found = told(
        "machine:\n  initial: first\n  states:\n    first:\n      entry: {emit: [{effect: fraud-score, name: score, with: {n: \"${nope}\"}}]}\n      handlers:\n        result.score: {to: last}\n    last: {final: true}\n",
    );
    assert_eq!(found, ["SR0112 unknown name `nope`"]);
}

#[test]
fn states_reached_through_handlers_of_an_unknown_effect_count_as_reached() {
    let found = told(
        "machine:\n  initial: first\n  states:\n    first:\n      entry: {emit: [{effect: fraud-score, name: score}]}\n      handlers:\n        result.scoer: {to: last}\n        nonsense: {set: {a: \"${nope}\"}, to: other}\n    last: {final: true}\n    other: {final: true}\n",
    );
    assert_eq!(
        found,
        [
            "SR0115 the entry of the state emits no effect \"scoer\"",
            "SR0110 \"nonsense\" is not an event type, expected <AggregateType>.<Event>",
            "SR0112 unknown name `nope`",
        ]
    );
}

#[test]
fn a_wait_that_is_wrong_leaves_open_what_can_be_read_behind_it() {
    let found = told(
        "steps:\n  a:\n    wait: {evnt: Order.Paid, when: event.data.ok, timeout: 1h}\n    set: {n: \"${event.data.n}\", by: \"${signal.by}\"}\n",
    );
    assert_eq!(found, ["SR0105 unknown key \"evnt\" in a wait"]);
}

#[test]
fn a_key_that_is_misspelt_is_not_missing_as_well() {
    for body in [
        "steps: {a: {publishh: {type: x}}}\n",
        "steps: {a: {publish: {tpye: x}}}\n",
        "steps: {a: {command: {aggregate: A, idd: x, type: A.Do}}}\n",
        "steps: {a: {wait: {signal: x, timeot: 1h}}}\n",
        "steps: {b: {delay: 1s}, a: {neds: [b], join: any, delay: 1s}}\n",
    ] {
        let found = told(body);
        assert_eq!(found.len(), 1, "{body}: {found:?}");
        assert!(found[0].starts_with("SR0105"), "{found:?}");
    }
}

#[test]
fn an_undo_that_is_wrong_is_one() {
    let found = told(
        "steps:\n  a: {effect: fraud-score, compensate: {effect: nope, with: {n: \"${gone}\"}}}\n  b: {needs: a, effect: fraud-score, on_error: {x: {undo: a, fail: {code: c, keep: a}}}}\n",
    );
    assert_eq!(
        found,
        ["SR0102 unknown effect \"nope\"", "SR0112 unknown name `gone`"]
    );
}

#[test]
fn an_effect_without_a_readable_name_hides_no_mistake_of_sagas() {
    let saga = format!(
        "{HEAD}state: {{init: {{n: 1}}, schema: {{type: object, properties: {{n: {{type: integer}}}}, additionalProperties: false}}}}\nsteps:\n  a: {{effect: anything, set: {{n: text}}}}\n"
    );
    let loaded = load(
        &[file("probe.yaml", &saga)],
        &[file("e.yaml", "kind: Effect\nname: [\n")],
    );
    let files: Vec<(&str, &str)> = loaded
        .diagnostics
        .iter()
        .map(|finding| (finding.file.as_str(), finding.code))
        .collect();
    assert_eq!(files, [("e.yaml", "SR0101"), ("probe.yaml", "SR0178")]);
}

#[test]
fn a_step_without_anything_to_do_is_told_what_there_is() {
    assert_eq!(
        told("steps: {a: {if: state.n == 1}}\n"),
        ["SR0106 a step needs something to do"]
    );
    let help = helps("steps: {a: {if: state.n == 1}}\n");
    assert_eq!(
        help,
        [
            "give it one of effect, command, publish, signal, saga, wait, delay, set, complete, cancel, fail, choice, repeat and foreach"
        ]
    );
}

#[test]
fn a_misplaced_key_of_a_step_is_reported_with_its_right_place() {
    for (deed, place) in [
        ("emit: []", "\"effect\", \"command\", \"publish\" or \"signal\""),
        ("when: state.a == 1", "its \"if\""),
    ] {
        let body = format!("steps: {{a: {{{deed}}}}}\n");
        let (found, help) = (told(&body), helps(&body));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("SR0105 a step has no "), "{found:?}");
        assert!(help[0].contains(place), "{help:?}");
    }
}

#[test]
fn an_effect_that_is_emitted_where_nobody_waits_for_it_is_one_mistake() {
    let emit = "{emit: [{effect: fraud-score, name: x, with: {a: 1}}]}";
    for body in [
        format!("steps: {{a: {{delay: 1h}}}}\nafter_end: {{Order.Paid: {emit}}}\n"),
        format!(
            "machine: {{initial: a, states: {{a: {{handlers: {{Order.Paid: {emit}, Order.Held: {{to: b}}}}}}, b: {{final: true}}}}}}\n"
        ),
    ] {
        let refused = "SR0105 no effect is emitted here: nobody would wait for how it ends";
        assert_eq!(told(&body), [refused], "{body}");
    }
}

#[test]
fn mistakes_in_the_effect_of_a_handler_are_reported_at_their_place() {
    let body = |emit: &str, more: &str| {
        format!(
            "steps: {{a: {{delay: 1h}}}}\ntimers: {{t: {{after: 1h, emit: [{{effect: fraud-score, name: of_t}}]}}}}\nhandlers: {{Order.Paid: {{emit: [{emit}]}}{more}}}\n"
        )
    };
    for (emit, more, expected) in [
        ("{effect: fraud-score, name: x}", "", None),
        (
            "{effect: fraud-score, name: x}, {effect: fraud-score, name: y}",
            ", result.y: {set: {n: 1}}",
            None,
        ),
        ("{effect: fraud-score}", "", Some("SR0106")),
        ("{effect: fraud-scor, name: x}", "", Some("SR0102")),
        (
            "{effect: fraud-score, name: x}, {effect: fraud-score, name: x}",
            "",
            Some("SR0111 a timer or a handler emits an effect \"x\" already"),
        ),
        (
            "{effect: fraud-score, name: of_t}",
            "",
            Some("SR0111 a timer or a handler emits an effect \"of_t\" already"),
        ),
        ("{publish: {type: a.b}, name: x}", "", Some("SR0125")),
        (
            "{effect: fraud-score, name: x, with: {n: \"${result.n}\"}}",
            "",
            Some("SR0113"),
        ),
    ] {
        let found = told(&body(emit, more));
        assert_eq!(
            found.len(),
            usize::from(expected.is_some()),
            "{emit} {more}: {found:?}"
        );
        assert!(
            expected.is_none_or(|expected| found[0].starts_with(expected)),
            "{emit} {more}: {found:?}"
        );
    }
}

#[test]
fn steps_that_a_join_orders_are_told_how_they_overlap() {
    let body = |stragglers: &str| {
        format!(
            "steps:\n  a: {{effect: fraud-score, set: {{n: 1}}}}\n  b: {{effect: fraud-score}}\n  c: {{needs: [a, b], join: any{stragglers}, effect: fraud-score, set: {{n: 2}}}}\n"
        )
    };
    assert_eq!(
        told(&body("")),
        ["SR0121 \"c\" may begin before \"a\" is over, and both set \"n\""]
    );
    assert!(
        told(&body(", stragglers: cancel")).is_empty(),
        "what is given up sets nothing"
    );
}

#[test]
fn a_shared_expression_that_is_constant_in_one_place_only_is_no_mistake() {
    let shared = "handlers:\n  Order.Paid: &h {when: event.type == \"Order.Paid\", set: {paid: true}}\n  Order.Held: *h\nsteps: {a: {delay: 1h}}\n";
    let shared = told(shared);
    assert!(
        !shared.iter().any(|found| found.starts_with("SR0176")),
        "{shared:?}"
    );
    let never = told(
        "handlers:\n  Order.Paid: &h {when: event.type == \"Order.Lost\", set: {paid: true}}\n  Order.Held: *h\nsteps: {a: {delay: 1h}}\n",
    );
    assert_eq!(never.len(), 1, "{never:?}");
    assert!(never[0].starts_with("SR0176"), "{never:?}");
}

#[test]
fn a_city_that_is_no_zone_is_not_taken_for_another_one() {
    let zone = |name: &str| {
        let body = format!("schedule: {{cron: \"0 6 * * *\", zone: {name}}}\nsteps: {{a: {{delay: 1h}}}}\n");
        helps(&body).concat()
    };
    assert!(zone("Europe/Wien").contains("IANA"), "{}", zone("Europe/Wien"));
    assert!(zone("Europe/Berlni").contains("did you mean \"Europe/Berlin\"?"));
    assert!(zone("America/NewYork").contains("did you mean \"America/New_York\"?"));
}

#[test]
fn a_wait_for_the_event_that_starts_the_instance_is_a_finding() {
    let start = "steps: {a: {wait: {event: Order.Placed, timeout: 1h}}}\n";
    assert_eq!(
        told(start),
        ["SR0135 the Order.Placed that starts the instance does not end this wait"]
    );
    assert!(told(&start.replace("timeout", "when: event.data.n > 1, timeout")).is_empty());
}

#[test]
fn keys_beside_an_ending_step_are_mistakes_at_their_place() {
    for key in [
        "effect: fraud-score",
        "wait: {signal: x, timeout: 1h}",
        "fail_if: state.n == 1",
        "retry: {}",
        "repeat: {while: state.n == 1, max: 3}",
    ] {
        let (word, _) = key.split_once(':').expect("a key");
        let found = told(&format!("steps: {{a: {{fail: {{code: x}}, {key}}}}}\n"));
        let message = format!(
            "SR0125 \"fail\" ends the instance as soon as the step starts, so there is no \"{word}\" beside it"
        );
        assert!(found.contains(&message), "{key}: {found:?}");
    }
    for (step, message) in [
        (
            "set: {n: 1}, compensate: {effect: fraud-score}",
            "SR0125 a step that only decides leaves nothing to undo",
        ),
        (
            "set: {n: 1}, with: {n: 1}",
            "SR0125 \"with\" belongs to an effect or a command, and the step has none",
        ),
        (
            "set: {n: 1}, deadline: 1h",
            "SR0125 a \"deadline\" bounds what takes time, and the step is done as soon as it starts",
        ),
        (
            "complete: {outcome: x}, fail: {code: y}",
            "SR0125 an instance that has completed goes nowhere: \"complete\" without \"when\" and \"fail\" exclude each other",
        ),
        ("set: {n: \"${result.n}\"}", "SR0113 `result` cannot be read here"),
    ] {
        let found = told(&format!("steps: {{a: {{{step}}}}}\n"));
        assert!(
            found.iter().any(|found| found.starts_with(message)),
            "{step}: {found:?}"
        );
    }
}

#[test]
fn ways_on_that_exclude_each_other_are_told_at_the_second() {
    for (body, message) in [
        (
            "handlers: {Order.Paid: {cancel: {}, fail: {code: x}}}\nsteps: {a: {delay: 1s}}\n",
            "SR0125 an instance that is cancelled goes nowhere else: \"cancel\" and \"fail\" exclude each other",
        ),
        (
            "handlers: {Order.Paid: {complete: {outcome: x}, cancel: {}}}\nsteps: {a: {delay: 1s}}\n",
            "SR0125 an instance that has completed goes nowhere: \"complete\" without \"when\" and \"cancel\" exclude each other",
        ),
        (
            "steps: {a: {effect: fraud-score, on_error: {x: {cancel: {}, continue: true}}}}\n",
            "SR0125 what follows an error is one of continue, cancel, fail and goto",
        ),
        (
            "deadline: {after: 1h, cancel: {}, drain: true}\nsteps: {a: {delay: 1s}}\n",
            "SR0125 an instance that is cancelled goes nowhere else: \"cancel\" and \"drain\" exclude each other",
        ),
        (
            "steps: {a: {cancel: {mode: at_once}}}\n",
            "SR0108 mode is one of compensate, drain, abandon",
        ),
        (
            "steps: {a: {effect: fraud-score, on_error: {x: [{continue: true}, {when: state.a == 1, fail: {code: y}}]}}}\n",
            "SR0127 this alternative is never taken: one before it always is",
        ),
        (
            "steps: {a: {effect: fraud-score, on_error: {x: [{when: \"false\", continue: true}]}}}\n",
            "SR0176 this never holds: this answer is never taken",
        ),
        (
            "steps: {a: {delay: 1s}}\nfinally: {completed: [{when: \"false\", publish: {type: x}}]}\n",
            "SR0176 this never holds: this is never emitted",
        ),
        (
            "steps: {a: {delay: 1s}}\nfinally: {completed: [{when: failure.code == \"x\", publish: {type: x}}]}\n",
            "SR0113 `failure` cannot be read here",
        ),
    ] {
        let found = told(body);
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{body}: {found:?}"
        );
    }
}

#[test]
fn mistakes_in_a_wait_for_one_of_several_are_reported_at_their_place() {
    for (wait, message) in [
        (
            "{any: [{event: Order.Paid}, {signal: x}], when: state.a == 1, timeout: 1h}",
            "SR0125 each of several has a \"when\" of its own",
        ),
        ("{any: [], timeout: 1h}", "SR0108 a wait is for 1 to 16, found 0"),
        (
            "{any: [{event: Order.Paid}, {event: Order.Paid, when: event.data.n == 1}], timeout: 1h}",
            "SR0127 this alternative is never taken: one before it always is",
        ),
        (
            "{any: [{event: Order.Paid, set: {n: \"${signal.n}\"}}], timeout: 1h}",
            "SR0113 `signal` cannot be read here",
        ),
        (
            "{any: [{event: Order.Paid}, {callback: true}], timeout: 1h}",
            "SR0125 a callback belongs to an effect or a command, and the step has none",
        ),
        (
            "{any: [{event: Order.Paid}], heartbeat: 1h, timeout: 1h}",
            "SR0125 only who was given a token can tell that it is alive",
        ),
        (
            "{any: [{event: Order.Paid}, {signal: x, whn: \"true\"}], timeout: 1h}",
            "SR0105 unknown key \"whn\" in an alternative of a wait",
        ),
    ] {
        let body = format!("steps: {{a: {{wait: {wait}}}}}\n");
        let found = told(&body);
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{wait}: {found:?}"
        );
    }
}

#[test]
fn the_end_of_a_step_may_read_only_fields_that_every_awaited_input_has() {
    let step = |any: &str, set: &str| {
        told(&format!(
            "steps: {{a: {{wait: {{any: [{any}], timeout: 1h}}, set: {{n: \"{set}\"}}}}}}\n"
        ))
    };
    assert_eq!(
        step("{event: Order.Paid}, {signal: x}", "${wait.index}"),
        Vec::<String>::new()
    );
    assert_eq!(
        step("{event: Order.Paid}, {event: Order.Sent}", "${event.data.n}"),
        Vec::<String>::new()
    );
    assert_eq!(
        step("{signal: x}, {signal: y}", "${signal.by}"),
        Vec::<String>::new()
    );
    for (any, set) in [
        ("{event: Order.Paid}, {signal: x}", "${event.data.n}"),
        ("{event: Order.Paid}, {signal: x}", "${signal.n}"),
    ] {
        let found = step(any, set);
        assert!(
            found.len() == 1 && found[0].starts_with("SR0113 "),
            "{set}: {found:?}"
        );
    }
    let found = told("steps: {a: {wait: {signal: x, timeout: 1h}, set: {n: \"${wait.index}\"}}}\n");
    assert!(
        found.len() == 1 && found[0].starts_with("SR0113 `wait`"),
        "{found:?}"
    );
}

#[test]
fn an_interrupt_names_a_step_and_a_class() {
    for (interrupt, message) in [
        ("{step: pay, class: x}", "SR0115 unknown step \"pay\""),
        ("{step: paid}", "SR0106 an interrupt needs the key \"class\""),
        ("{step: paid, class: \"a b\"}", "SR0110 "),
    ] {
        let found = told(&format!(
            "handlers: {{Order.Gone: {{interrupt: {interrupt}}}}}\nsteps: {{paid: {{delay: 1s}}}}\n"
        ));
        assert_eq!(found.len(), 1, "{interrupt}: {found:?}");
        assert!(found[0].starts_with(message), "{interrupt}: {found:?}");
    }
}

#[test]
fn mistakes_in_early_are_reported() {
    for (step, message) in [
        (
            "{wait: {signal: x, timeout: 1h, early: turn}}",
            "SR0125 the step stands in no loop, so there are no turns",
        ),
        (
            "{effect: fraud-score, wait: {callback: true, timeout: 1h, early: keep}}",
            "SR0125 a callback is for one piece of work, and is kept for it in any case",
        ),
        (
            "{wait: {signal: x, timeout: 1h, early: never}}",
            "SR0108 early is one of keep, turn, ignore",
        ),
    ] {
        let found = told(&format!("steps: {{a: {step}}}\n"));
        assert_eq!(found, [message], "{step}");
    }
    let found = told(
        "steps: {a: {repeat: {until: state.n == 1, max: 3}, wait: {signal: x, timeout: 1h, early: turn}}}\n",
    );
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn mistakes_in_the_effect_of_a_timer_are_reported_at_their_place() {
    let timer = |timers: &str, handlers: &str| {
        told(&format!(
            "handlers: {handlers}\nsteps: {{a: {{delay: 1s}}}}\ntimers: {timers}\n"
        ))
    };
    let good = "{t: {every: 1h, max: 2, emit: [{effect: fraud-score, name: ask}]}}";
    assert_eq!(
        timer(
            good,
            "{result.ask: {set: {n: \"${result.score}\"}}, error.ask: [{when: error.class == \"x\", set: {n: 1}}]}"
        ),
        Vec::<String>::new()
    );
    for (timers, handlers, message) in [
        (
            "{t: {after: 1h, emit: [{effect: fraud-score}]}}",
            "{}",
            "SR0106 an emission of a timer needs the key \"name\"",
        ),
        (
            "{t: {after: 1h, emit: [{effect: fraud-score, name: a}]}, u: {after: 1h, emit: [{effect: fraud-score, name: a}]}}",
            "{}",
            "SR0111 a timer or a handler emits an effect \"a\" already",
        ),
        (
            "{t: {after: 1h, emit: [{publish: {type: x}, retry: {}}]}}",
            "{}",
            "SR0125 \"retry\" belongs to an effect; nobody waits for a publish",
        ),
        (
            "{t: {after: 1h, max: 2, set: {n: 1}}}",
            "{}",
            "SR0125 a timer without \"every\" fires once",
        ),
        (good, "{result.asked: {set: {n: 1}}}", "SR01"),
        (
            good,
            "{result.ask: {set: {n: \"${error.class}\"}}}",
            "SR0113 `error` cannot be read here",
        ),
    ] {
        let found = timer(timers, handlers);
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{timers} {handlers}: {found:?}"
        );
    }
}
