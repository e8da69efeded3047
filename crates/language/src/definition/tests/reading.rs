//! What good files are compiled to.

use super::super::compile_archived;
use super::super::effect::{Provider, RuledOutcome};
use super::super::model::{
    Action, COMMAND_TIMEOUT_MS, COMPENSATION_RETRY, Delay, EFFECT_TIMEOUT_MS, Emission, Emit, OnUnknown,
};
use super::{effect, examples, folder, saga};
use crate::expr::{Budget, Root, Scope, Template};
use crate::json::Json;

fn rendered(template: &Template, scope: &Scope<'_>) -> String {
    let mut out = Vec::new();
    template
        .render(scope, &mut Budget { steps: 1_000 }, &mut out)
        .expect("renders");
    String::from_utf8(out).expect("JSON is text")
}

#[test]
fn the_order_saga_is_what_its_file_says() {
    let loaded = examples();
    let order = loaded
        .sagas
        .iter()
        .find(|saga| saga.name.as_str() == "order")
        .expect("there");
    let steps: Vec<(&str, &[u16])> = order
        .steps
        .iter()
        .map(|step| (step.name.as_str(), step.needs.as_slice()))
        .collect();
    assert_eq!(
        steps,
        [
            ("reserve", &[][..]),
            ("fraud", &[]),
            ("charge", &[0, 1]),
            ("ship", &[2]),
        ]
    );
    assert_eq!(order.event_types(), ["Order.CancelRequested", "Order.Placed"]);
    let charge = order.steps[2].compensate.as_ref().expect("a charge is refunded");
    assert_eq!(charge.on_unknown, OnUnknown::Compensate);
    let policy = charge.retry[0].policy;
    assert_eq!((policy.attempts, policy.max_ms), (20, 600_000));
    assert!(matches!(&charge.action, Action::Effect { effect, .. } if effect.as_str() == "payments-refund"));
    let unpaid = &order.timers[0];
    assert!(matches!(unpaid.after, Delay::Fixed(1_800_000)));
    assert_eq!(unpaid.name, "unpaid");
    assert!(unpaid.cancel_when.is_some());
    assert!(order.sends_commands());
    assert!(
        matches!(order.finally.failed[..], [Emission { emit: Emit::Command(ref command), .. }] if command.command_type == "Order.Cancel")
    );
    assert_eq!(order.finally.cancelled.len(), 1, "an alias stands for its value");
}

#[test]
fn the_consolidate_saga_goes_from_state_to_state() {
    let loaded = examples();
    let consolidate = loaded
        .sagas
        .iter()
        .find(|saga| saga.name.as_str() == "consolidate")
        .expect("there");
    let machine = consolidate.machine.as_ref().expect("a machine");
    let names: Vec<&str> = machine.states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["collecting", "flushing", "closed"]);
    assert_eq!(machine.initial, 0);
    let ready = &machine.states[0].handlers["Line.Ready"];
    assert_eq!(ready.len(), 2);
    assert_eq!(ready[0].actions.to, Some(1));
    assert!(ready[1].actions.timers[0].if_absent);
    assert_eq!(machine.states[0].timer_handlers["flush"][0].actions.to, Some(1));
    assert!(machine.states[1].handlers["Line.Ready"][0].actions.defer);
    assert!(machine.states[2].is_final);
}

#[test]
fn keys_left_out_of_a_saga_have_their_defaults() {
    let saga = saga(
        "steps:\n  pay: {effect: payments-charge, compensate: {effect: payments-refund}}\n  tell: {command: {aggregate: A, id: x, type: A.Do}, compensate: {command: {aggregate: A, id: x, type: A.Undo}, timeout: 1h}}\n",
    );
    let [pay, tell] = &saga.steps[..] else {
        panic!("two steps");
    };
    assert_eq!(
        (pay.timeout_ms, tell.timeout_ms),
        (EFFECT_TIMEOUT_MS, COMMAND_TIMEOUT_MS)
    );
    let undo = pay.compensate.as_ref().expect("declared");
    assert_eq!(
        (undo.on_unknown, undo.retry[0].policy, undo.timeout_ms),
        (OnUnknown::Compensate, COMPENSATION_RETRY, EFFECT_TIMEOUT_MS)
    );
    assert_eq!(
        tell.compensate.as_ref().map(|undo| undo.timeout_ms),
        Some(3_600_000)
    );
    let Action::Effect { with, .. } = &pay.action else {
        panic!("an effect");
    };
    assert_eq!(rendered(with, &Scope::default()), "{}");
    assert_eq!(rendered(&saga.init, &Scope::default()), "{}");
}

#[test]
fn values_keep_their_types() {
    let saga = saga(
        "state:\n  init: {b: [1, -2, 1.5, 0x10, 1e3], a: {no: no, yes: yes, t: true, n: null, e: , q: \"5\", date: 2026-01-01}, c: \"$${x}\"}\nsteps: {a: {effect: fraud-score}}\n",
    );
    assert_eq!(
        rendered(&saga.init, &Scope::default()),
        r#"{"a":{"date":"2026-01-01","e":null,"n":null,"no":"no","q":"5","t":true,"yes":"yes"},"b":[1,-2,1.5,16,1000.0],"c":"${x}"}"#
    );
}

#[test]
fn expressions_in_all_kinds_of_scalars_are_compiled() {
    let saga = saga(
        "handlers:\n  Order.Placed:\n    set:\n      plain: ${state.n + 1}\n      single: 'n is ${state.n}'\n      double: \"n\\tis ${state.n}\"\n      block: |\n        n is\n        ${state.n}\n      folded: >-\n        n is\n        ${state.n}\n      list: [\"${state.n}\", 1]\nsteps: {a: {effect: fraud-score}}\n",
    );
    let state = Json::parse(br#"{"n":4}"#, 8).expect("JSON");
    let scope = Scope::default().bind(Root::State, &state);
    let set: Vec<String> = saga.handlers["Order.Placed"][0]
        .actions
        .set
        .iter()
        .map(|(name, template)| format!("{name}={}", rendered(template, &scope)))
        .collect();
    assert_eq!(
        set,
        [
            r#"block="n is\n4\n""#,
            r#"double="n\tis 4""#,
            r#"folded="n is 4""#,
            "list=[4,1]",
            "plain=5",
            r#"single="n is 4""#,
        ]
    );
}

#[test]
fn keys_left_out_of_an_effect_have_their_defaults() {
    let effect = effect("http: {method: GET, url: \"https://pay.internal:8443/v1\"}\n");
    assert_eq!((effect.timeout_ms, effect.connect_timeout_ms), (10_000, 2_000));
    assert_eq!(
        (
            effect.retry.attempts,
            effect.retry.initial_ms,
            effect.retry.max_ms
        ),
        (3, 200, 3_000)
    );
    assert_eq!(
        effect.retry_classes,
        ["transient", "throttled", "timeout", "ambiguous"]
    );
    assert_eq!(effect.limits.concurrency, 32);
    assert!(effect.classify.is_empty() && effect.result.is_none());
    let Provider::Http(call) = &effect.provider else {
        panic!("a call");
    };
    assert!(call.headers.is_empty() && call.body.is_none());
}

#[test]
fn an_effect_names_what_the_manifest_must_give() {
    let effect = effect(
        "http:\n  method: POST\n  url: \"${upstreams.pay}/orders/${url(input.order)}?k=${url(secrets.query)}\"\n  headers: {Authorization: \"Bearer ${secrets.token}\", X-Time: 5}\n  body: {nested: [{pin: \"${secrets.pin}\"}]}\nretry: {errors: timeout}\nlimits: {concurrency: 4}\ntimeout: {total: 500ms}\n",
    );
    assert_eq!(effect.upstreams().into_iter().collect::<Vec<_>>(), ["pay"]);
    assert_eq!(
        effect.secrets().into_iter().collect::<Vec<_>>(),
        ["pin", "query", "token"]
    );
    assert_eq!(effect.retry_classes, ["timeout"]);
    assert_eq!(effect.limits.concurrency, 4);
    assert_eq!((effect.timeout_ms, effect.connect_timeout_ms), (500, 500));
}

#[test]
fn on_ambiguous_decides_whether_a_call_without_an_answer_is_repeated() {
    let classes = |more: &str| {
        effect(&format!(
            "http: {{method: POST, url: \"https://pay.internal/v1\"}}\n{more}"
        ))
        .retry_classes
        .clone()
    };
    assert_eq!(
        classes("on_ambiguous: fail\n"),
        ["transient", "throttled", "timeout"]
    );
    assert_eq!(
        classes("retry: {errors: throttled}\non_ambiguous: retry\n"),
        ["throttled", "ambiguous"]
    );
    assert_eq!(classes("retry: {errors: throttled}\n"), ["throttled"]);
    assert_eq!(
        classes("on_ambiguous: ask\n"),
        ["transient", "throttled", "timeout"]
    );
}

#[test]
fn a_second_call_after_one_of_unknown_outcome_is_forbidden_by_name_only() {
    let never = |method: &str, more: &str| {
        let call = format!("http: {{method: {method}, url: \"https://pay.internal/v1\"}}\n{more}");
        effect(&call).never_calls_twice()
    };
    assert!(never("POST", "on_ambiguous: fail\n") && never("POST", "on_ambiguous: ask\n"));
    assert!(!never("POST", "") && !never("POST", "on_ambiguous: retry\n"));
    assert!(!never("POST", "retry: {errors: throttled}\n"));
    assert!(!never("GET", "on_ambiguous: fail\n"), "it changes nothing");
}

#[test]
fn a_rule_on_an_answer_may_say_what_happened() {
    let effect = effect(
        "http: {method: POST, url: \"https://pay.internal/v1\"}\nclassify:\n  - {when: response.status == 500, as: transient, outcome: not_done}\n  - {when: response.status == 402, as: declined}\n  - {when: response.status == 409, as: clash, outcome: refused}\n  - {when: response.status == 422, as: odd, outcome: unknown}\n",
    );
    let rules = effect.classify.iter().map(|rule| (&*rule.class, rule.outcome));
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [
            ("transient", Some(RuledOutcome::NotDone)),
            ("declined", None),
            ("clash", Some(RuledOutcome::Refused)),
            ("odd", Some(RuledOutcome::Unknown)),
        ]
    );
}

#[test]
fn a_transformation_is_an_effect_without_a_call() {
    let effect = effect("transform: {}\nresult: {total: \"${input.a + input.b}\"}\n");
    assert!(matches!(effect.provider, Provider::Transform));
    assert!(effect.result.is_some() && effect.upstreams().is_empty());
}

#[test]
fn an_external_effect_says_what_it_takes_and_gives_and_nothing_else() {
    let effect = effect("external: {}\ninput: {type: object}\noutput: {type: object}\n");
    assert!(effect.is_external() && effect.provider.acts());
    assert!(effect.schemas.input.is_some() && effect.schemas.output.is_some());
    assert!(effect.upstreams().is_empty() && effect.secrets().is_empty() && !effect.hands_out_token());
}

#[test]
fn an_archived_source_compiles_to_the_same_version_without_its_effects() {
    for saga in examples().sagas {
        let again = compile_archived(&saga.source).expect("it passed before");
        assert_eq!(again.hash, saga.hash, "{}", saga.name);
        assert_eq!(again.source, saga.source);
    }
    assert!(!folder("sagas").is_empty());
}

#[test]
fn an_archived_source_that_does_not_compile_says_why() {
    let findings = compile_archived("kind: Saga\n").expect_err("incomplete");
    assert!(
        findings
            .iter()
            .all(|finding| finding.file == "archived definition")
    );
    assert!(findings.iter().any(|finding| finding.code == "SR0106"));
}

#[test]
fn a_command_of_a_step_hands_out_the_token_of_its_work() {
    let step = |payload: &str, wait: &str| {
        format!(
            "steps: {{ask: {{command: {{aggregate: A, id: x, type: A.Ask, payload: {{to: \"${{{payload}}}\"}}}}{wait}}}}}\n"
        )
    };
    let wait = ", wait: {callback: true, timeout: 1h}";
    assert!(saga(&step("command.token", wait)).hands_out_tokens());
    assert!(!saga(&step("key", "")).hands_out_tokens());
    let told = |body: &str| {
        let findings = super::load_saga(body).expect_err("a mistake");
        let messages = findings.iter().map(|finding| finding.message.as_str());
        messages.collect::<Vec<_>>().join("; ")
    };
    let told_of = told(&step("key", wait));
    assert!(
        told_of.contains("the command hands out no token, so nobody can call back"),
        "{told_of}"
    );
    let told_of = told(&step("command.id", wait));
    assert!(
        told_of.contains("no field \"id\"") || told_of.contains("`id`") || told_of.contains("\"id\""),
        "{told_of}"
    );
    let emitted = "handlers: {Order.B: {emit: {command: {aggregate: A, id: x, type: A.Ask, payload: {to: \"${command.token}\"}}}}}\nsteps: {a: {delay: 1s}}\n";
    let told_of = told(emitted);
    assert!(
        told_of.contains("command"),
        "nobody waits for what is emitted: {told_of}"
    );
}
