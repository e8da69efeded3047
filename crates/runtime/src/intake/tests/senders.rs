//! Whose word counts: what a tenant may say to its instances, what operators may, and what only instances tell each other.

use serde_json::{Value, json};

use super::{inputs, message, router, unreadable};
use crate::kernel::envelope::{ControlMessage, Sender};
use crate::kernel::input::{
    Control, Input, InputBody, Operation, OperationVerb, SourceStream, StuckDecision,
};
use crate::telemetry::CONTROL_REFUSALS;

const CONTROLS: SourceStream = SourceStream::WorkflowCommands;
const OF_TENANT: &str = "tenant.acme.workflow.order.o-1";
const OF_RUNNER: &str = "runner.shop.control.acme.order.o-1";

/// What operators say, each with what it needs.
fn of_operators() -> Vec<Value> {
    vec![
        json!({"control": "retry"}),
        json!({"control": "retry", "step": "charge", "item": 1}),
        json!({"control": "skip", "step": "charge"}),
        json!({"control": "resolve", "step": "charge", "as": "done", "result": {"id": 1}}),
        json!({"control": "pause"}),
        json!({"control": "resume"}),
        json!({"control": "kill"}),
        json!({"control": "fire_timer", "timer": "unpaid"}),
        json!({"control": "cancel_timer", "timer": "unpaid"}),
        json!({"control": "try_now", "step": "charge"}),
        json!({"control": "rerun", "found": [{"step": "charge", "as": "not_done"}]}),
        json!({"control": "restart"}),
        json!({"control": "delete"}),
    ]
}

/// What instances say to each other, and who has a token by way of a runner.
fn of_runners() -> Vec<Value> {
    let command = "00000000-0000-0000-0000-000000000007";
    let parent = json!({"saga": "order", "key": "p", "command_id": command});
    let alias = json!({"name": "tracking", "value": "a"});
    vec![
        json!({"control": "start", "parent": parent}),
        json!({"control": "cancel_child", "parent": parent}),
        json!({"control": "outcome", "command_id": command, "result_type": "Succeeded", "payload": {}}),
        json!({"control": "callback", "work": "w", "ok": {}}),
        json!({"control": "heartbeat", "work": "w"}),
        json!({"control": "register_alias", "key": "o-1", "generation": 1}),
        json!({"control": "release_alias", "key": "o-1", "generation": 1}),
        json!({"control": "ask_alias", "key": "o-1", "due_ms": 1, "number": 1, "slot": 0}),
        json!({"control": "alias_read", "due_ms": 1, "number": 1, "slot": 0}),
        json!({"control": "alias_answered", "alias": alias, "generation": 1, "refused": true}),
    ]
}

fn of_tenants() -> Vec<Value> {
    vec![
        json!({"control": "start", "input": {"amount": 3}}),
        json!({"control": "signal", "name": "go"}),
        json!({"control": "cancel", "reason": "no more"}),
    ]
}

fn asked(mut body: Value) -> String {
    body["request_id"] = json!("r-1");
    body.to_string()
}

fn by(role: &str, mut body: Value) -> String {
    body["principal"] = json!({"who": "ann", "role": role, "reason": "asked to"});
    asked(body)
}

fn the_input(subject: &str, body: &str) -> Input {
    let mut found = inputs(&router(), CONTROLS, &message(subject, body));
    assert_eq!(found.len(), 1, "{body}: {found:?}");
    found.remove(0)
}

fn refusal(subject: &str, body: &str) -> &'static str {
    let found = unreadable(&router(), CONTROLS, &message(subject, body));
    assert_eq!(found.tenant.as_str(), "acme");
    found.reason
}

#[test]
fn every_verb_is_in_one_of_the_lists() {
    let is_said_by = |sender: Sender, bodies: Vec<Value>| {
        for body in bodies {
            let message: ControlMessage = serde_json::from_str(&asked(body)).expect("a control message");
            assert_eq!(message.verb.sender(), sender, "{message:?}");
            let written = serde_json::to_value(&message).expect("plain data");
            assert_eq!(written["control"], message.verb.as_str());
        }
    };
    is_said_by(Sender::Tenant, of_tenants());
    is_said_by(Sender::Operator, of_operators());
    is_said_by(Sender::Runner, of_runners());
}

#[test]
fn by_the_subject_of_a_tenant_come_start_signal_and_cancel_and_nothing_else() {
    for body in of_tenants() {
        the_input(OF_TENANT, &asked(body));
    }
    for body in of_operators() {
        // Neither who it says that it is nor a role that it gives itself helps.
        for said in [
            asked(body.clone()),
            by("operator", body.clone()),
            by("admin", body),
        ] {
            assert_eq!(refusal(OF_TENANT, &said), CONTROL_REFUSALS[0], "{said}");
        }
    }
    for body in of_runners() {
        let said = asked(body);
        assert_eq!(refusal(OF_TENANT, &said), CONTROL_REFUSALS[0], "{said}");
    }
    for body in of_tenants() {
        assert_eq!(refusal(OF_TENANT, &by("admin", body)), CONTROL_REFUSALS[0]);
    }
    let forwarded = json!({"control": "forward", "generation": 1, "time_ms": 1, "event": {}});
    assert_eq!(refusal(OF_TENANT, &asked(forwarded)), CONTROL_REFUSALS[0]);
    // A verb that may not come this way is told as such, also where it is written as it was before.
    let kill = json!({"control": "kill", "by": "ann", "reason": "why"});
    assert_eq!(refusal(OF_TENANT, &asked(kill)), CONTROL_REFUSALS[0]);
}

#[test]
fn a_decision_of_an_operator_needs_a_principal_with_that_role() {
    for body in of_operators() {
        the_input(OF_RUNNER, &by("admin", body.clone()));
        let of_operator = by("operator", body.clone());
        let of_admins_only = (body["control"] == "delete").then(|| of_operator.clone());
        if of_admins_only.is_none() {
            the_input(OF_RUNNER, &of_operator);
        }
        let refused = [by("viewer", body.clone()), asked(body.clone())];
        for said in refused.into_iter().chain(of_admins_only) {
            assert_eq!(refusal(OF_RUNNER, &said), CONTROL_REFUSALS[1], "{said}");
        }
        let said = by("owner", body);
        assert_eq!(refusal(OF_RUNNER, &said), "payload.schema", "{said}");
    }
    for body in of_tenants().into_iter().chain(of_runners()) {
        the_input(OF_RUNNER, &asked(body));
    }
}

#[test]
fn an_instance_is_told_who_decides_and_why() {
    let found = the_input(OF_RUNNER, &by("operator", json!({"control": "kill"})));
    assert_eq!(
        found.body,
        InputBody::Control(Control::Operate(Operation {
            verb: OperationVerb::Kill,
            by: "ann".to_owned(),
            reason: "asked to".to_owned(),
        }))
    );
    let found = the_input(
        OF_RUNNER,
        &by("admin", json!({"control": "skip", "step": "charge"})),
    );
    let InputBody::Control(Control::DecideStuck(StuckDecision { by, reason, .. })) = found.body else {
        panic!("{found:?}")
    };
    assert_eq!((by.as_str(), reason.as_str()), ("ann", "asked to"));
    for (member, longest) in [("who", 256), ("reason", 1_024)] {
        let said = |length: usize| {
            let mut body = json!({"control": "pause", "principal": {"role": "operator"}});
            body["principal"][member] = json!("n".repeat(length));
            asked(body)
        };
        the_input(OF_RUNNER, &said(longest));
        assert_eq!(refusal(OF_RUNNER, &said(longest + 1)), "payload.schema");
    }
    let unexplained = json!({"control": "kill", "principal": {"who": "ann", "role": "operator"}});
    assert_eq!(refusal(OF_RUNNER, &asked(unexplained)), "payload.schema");
}

#[test]
fn the_runners_of_another_cluster_have_nothing_to_say() {
    let pause = by("operator", json!({"control": "pause"}));
    let other = "runner.other.control.acme.order.o-1";
    assert_eq!(refusal(other, &pause), "subject.shape");
    let found = the_input("runner.shop.control.acme.order.o=2F1", &pause);
    assert_eq!(found.instance.to_string(), "acme/order/o/1");
}
