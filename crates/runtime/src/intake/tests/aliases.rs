//! Events that an alias matches: where they go, and how they come to the instances that have it.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::kernel::alias::{Alias, Via};
use crate::kernel::definition::compile_archived;
use crate::kernel::envelope::{AggregateEvent, EventMetadata, FORWARD, ForwardedEvent};
use crate::kernel::ids::shard_of;
use crate::kernel::input::{Control, Owner};

const EVENTS: SourceStream = SourceStream::AggregateEvents;
const CONTROLS: SourceStream = SourceStream::WorkflowCommands;

/// A saga with what `more` says about `Order.Shipped`.
fn tracked(more: &str) -> Arc<Definition> {
    let text = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: order\nstart: Order.Placed\nkey: {{Order.*: event.data.order_id}}\n\
         handlers: {{Order.Placed: {{alias: {{tracking: 't', parcel: 'p'}}}}, Order.Shipped: {{set: {{a: 1}}}}}}\n\
         state: {{init: {{}}}}\n{more}"
    );
    Arc::new(compile_archived(&text).unwrap_or_else(|findings| panic!("{findings:#?}")))
}

fn by(value: &str) -> Arc<Definition> {
    tracked(&format!(
        "events: {{Order.Shipped: {{by: {{tracking: {value}}}}}}}\n"
    ))
}

fn shipped(data: &serde_json::Value) -> Message {
    message(SUBJECT, event(json!({"event_type": "Shipped", "payload": data})))
}

fn keys(router: &Router, message: &Message) -> Vec<String> {
    let inputs = inputs(router, EVENTS, message);
    inputs
        .into_iter()
        .map(|input| input.instance.key.to_string())
        .collect()
}

#[test]
fn an_event_with_an_alias_goes_to_its_address_and_no_key_rule_is_asked() {
    let router = router_of(vec![by("event.data.no")], Vec::new());
    // The pattern under `key` would fit as well.
    let message = shipped(&json!({"order_id": "o-1", "no": 77}));
    let found = routed(&router, EVENTS, &message);
    let [(shard, Arrival::Input(input))] = found.as_slice() else {
        panic!("one input: {found:?}")
    };
    assert_eq!(input.instance.key.as_str(), "@alias/tracking/77");
    assert_eq!(*shard, shard_of(&acme(), &input.instance.key, 8));
    let InputBody::Event(event) = &input.body else {
        panic!("{input:?}")
    };
    assert_eq!(event.via, None);
    // Other events of the saga are found by key.
    let placed = message_of_order(&router);
    assert_eq!(placed, ["o-1"]);
}

fn message_of_order(router: &Router) -> Vec<String> {
    keys(router, &message(SUBJECT, event(json!({}))))
}

#[test]
fn every_version_says_by_itself_how_an_event_finds_its_instances() {
    let (present, before) = (by("event.data.no"), by("event.data.number"));
    let keyed = tracked("");
    let router = router_of(
        vec![Arc::clone(&present)],
        vec![Arc::clone(&before), Arc::clone(&keyed)],
    );
    let mut found = keys(
        &router,
        &shipped(&json!({"order_id": "o-1", "no": "a", "number": "b"})),
    );
    found.sort();
    assert_eq!(found, ["@alias/tracking/a", "@alias/tracking/b", "o-1"]);
    assert_eq!(
        keys(&router, &shipped(&json!({"no": "a"}))),
        ["@alias/tracking/a"]
    );
    assert!(
        router
            .definitions
            .now()
            .is_contested(&present.name, "Order.Shipped")
    );

    // At the instance the version that it runs under has the last word.
    let input = inputs(
        &router,
        EVENTS,
        &shipped(&json!({"order_id": "o-1", "no": "a", "number": "b"})),
    );
    let InputBody::Event(mut event) = input[0].body.clone() else {
        panic!("{input:?}")
    };
    let via = |name: &str, value: &str| {
        let alias = Alias {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        Some(Box::new(Via { alias, generation: 1 }))
    };
    let instance = crate::kernel::ids::Key::parse("o-1").expect("legal");
    let mut finds = |version: &Definition, name: &str, value: &str| {
        event.via = via(name, value);
        version.addresses(&instance, &event, TimeMs(0), &Limits::default())
    };
    assert!(finds(&present, "tracking", "a") && finds(&before, "tracking", "b"));
    assert!(!finds(&present, "tracking", "b") && !finds(&before, "tracking", "a"));
    assert!(!finds(&present, "parcel", "a") && !finds(&keyed, "tracking", "a"));
}

#[test]
fn without_a_value_there_is_no_address_and_no_key_is_one() {
    let router = router_of(vec![by("event.data.no")], Vec::new());
    for (data, reason) in [
        (json!({"no": null}), "correlation.missing"),
        (json!({}), "correlation.missing"),
        (json!({"no": ""}), "correlation.invalid"),
        (json!({"no": "x".repeat(121)}), "correlation.invalid"),
        (json!({"no": [1]}), "correlation.invalid"),
    ] {
        assert_eq!(
            unreadable(&router, EVENTS, &shipped(&data)).reason,
            reason,
            "{data}"
        );
    }
    // A key that an event brings is never taken for an address.
    let router = router_of(vec![tracked("")], Vec::new());
    let forged = shipped(&json!({"order_id": "@alias/tracking/a"}));
    assert_eq!(unreadable(&router, EVENTS, &forged).reason, "correlation.invalid");
}

const ADDRESS: &str = "runner.shop.control.acme.order.=40alias=2Ftracking=2Fa";
const INSTANCE: &str = "runner.shop.control.acme.order.o-1";

#[test]
fn owners_tell_an_alias_that_they_have_it_and_that_they_do_not() {
    let owner = Owner {
        key: crate::kernel::ids::Key::parse("o-1").expect("legal"),
        generation: 3,
    };
    for (verb, control) in [
        ("register_alias", Control::RegisterAlias { owner: owner.clone() }),
        (
            "release_alias",
            Control::ReleaseAlias {
                owner: owner.clone(),
                hears: false,
            },
        ),
        (
            "release_alias",
            Control::ReleaseAlias {
                owner: owner.clone(),
                hears: true,
            },
        ),
    ] {
        let mut body = json!({"request_id": "r-1", "control": verb, "key": "o-1", "generation": 3});
        if let Control::ReleaseAlias { hears: true, .. } = &control {
            body["hears"] = json!(true);
        }
        let found = inputs(&router(), CONTROLS, &message(ADDRESS, body.to_string()));
        assert_eq!(found[0].instance.key.as_str(), "@alias/tracking/a");
        assert_eq!(found[0].body, InputBody::Control(control));
    }
}

#[test]
fn an_alias_answers_a_generation_of_an_instance() {
    let said = |value: &str, refused: bool| {
        let alias = json!({"name": "tracking", "value": value});
        json!({"request_id": "r-1", "control": "alias_answered", "alias": alias, "generation": 2, "refused": refused})
    };
    for refused in [true, false] {
        let found = inputs(
            &router(),
            CONTROLS,
            &message(INSTANCE, said("a", refused).to_string()),
        );
        let alias = Alias {
            name: "tracking".to_owned(),
            value: "a".to_owned(),
        };
        let via = Via { alias, generation: 2 };
        assert_eq!(found[0].instance.key.as_str(), "o-1");
        assert_eq!(
            found[0].body,
            InputBody::Control(Control::AliasAnswered { via, refused })
        );
    }
    let forged = message(INSTANCE, said("", true).to_string());
    assert_eq!(unreadable(&router(), CONTROLS, &forged).reason, "payload.schema");
}

#[test]
fn a_forwarded_event_is_the_event_as_it_was() {
    // Order of members, numbers and escapes stay as the producer wrote them.
    let payload = r#"{"b": 1.50, "a": [9007199254740993, "é"],  "control":"forward"}"#;
    let envelope = ForwardedEvent {
        fact: false,
        request_id: "r-1".to_owned(),
        control: FORWARD,
        alias: Alias {
            name: "tracking".to_owned(),
            value: "a".to_owned(),
        },
        generation: 2,
        time_ms: 1_600_000_000_000,
        event: AggregateEvent {
            tenant_id: "acme".to_owned(),
            event_id: Some("e-9".to_owned()),
            // As a CloudEvent may be called.
            event_type: "com.carrier.Shipped".to_owned(),
            aggregate_type: "Order".to_owned(),
            aggregate_id: "o-9".to_owned(),
            sequence: 4,
            schema_version: 2,
            payload: serde_json::from_str::<&RawValue>(payload).expect("JSON"),
            metadata: EventMetadata {
                correlation_id: Some("c-9".to_owned()),
                causation_id: None,
                traceparent: None,
                hops: 5,
            },
            timestamp: None,
        },
    };
    let body = serde_json::to_vec(&envelope).expect("JSON");
    let found = inputs(&router(), CONTROLS, &message(INSTANCE, body));
    let [input] = found.as_slice() else {
        panic!("one input: {found:?}")
    };
    assert_eq!((input.instance.key.as_str(), input.id.as_str()), ("o-1", "e-9"));
    // The time of the event, not of the message that forwards it; the place is that message's.
    assert_eq!(input.time, TimeMs(1_600_000_000_000));
    let InputBody::Event(event) = &input.body else {
        panic!("{input:?}")
    };
    assert_eq!(event.payload, payload.as_bytes());
    assert_eq!(
        (event.event_type.as_str(), event.hops, event.schema_version),
        ("com.carrier.Shipped", 5, 2)
    );
    let via = event.via.as_ref().expect("it came by an alias");
    assert_eq!((via.alias.value.as_str(), via.generation), ("a", 2));
}

#[test]
fn a_control_message_that_speaks_of_forwarding_is_none() {
    let signal =
        json!({"request_id": "r-1", "control": "signal", "name": "go", "data": {"control": "forward"}});
    let found = inputs(&router(), CONTROLS, &message(INSTANCE, signal.to_string()));
    assert!(matches!(
        found[0].body,
        InputBody::Control(Control::Signal { .. })
    ));
    let event = json!({"event_id": "e", "event_type": "A.B", "aggregate_type": "A", "aggregate_id": "a"});
    let long = "n".repeat(300);
    for broken in [
        json!({"request_id": "r-1", "control": "forward", "alias": {"name": long, "value": "v"}, "generation": 1, "time_ms": 1, "event": event}),
        json!({"request_id": "r-1", "control": "forward"}),
        json!({"request_id": "r-1", "control": "forward", "alias": {"name": "tracking"}, "generation": 1, "time_ms": 1, "event": {}}),
    ] {
        let found = unreadable(&router(), CONTROLS, &message(INSTANCE, broken.to_string()));
        assert_eq!(found.reason, "payload.schema");
    }
}
