//! Facts of sagas, for the sagas that hear them.

use serde_json::{Value, json};

use super::*;
use crate::kernel::definition::{self, SourceFile};
use crate::kernel::envelope::POSITION_HEADER;

const RESULTS: SourceStream = SourceStream::WorkflowEvents;
const FACT: &str = "018f3a1c-0000-7000-8000-000000000001";

fn guest(from: &str) -> Arc<Definition> {
    let file = |name: &str, text: String| SourceFile {
        path: format!("{name}.yaml"),
        text: text.into(),
    };
    let head = |name: &str| format!("apiVersion: sagas/v1\nkind: Saga\nname: {name}\n");
    let publisher = |name: &str| {
        let body = "start: A.B\nkey: {\"*\": event.id}\nsteps: {tell: {publish: {type: seat.confirmed}}}\n";
        file(name, head(name) + body)
    };
    let body = format!(
        "start: seat.confirmed\nkey: {{seat.confirmed: event.data.guest}}\nevents: {{seat.confirmed: {{{from}}}}}\nsteps: {{rest: {{delay: 1h}}}}\n"
    );
    let files = [
        publisher("hall"),
        publisher("tour"),
        file("guest", head("guest") + &body),
    ];
    let mut loaded = definition::load(&files, &[]);
    loaded.sagas.pop().expect("it loads")
}

fn fact(saga: &str, changes: &Value) -> Message {
    let mut body = json!({
        "tenant_id": "acme", "event_id": FACT, "event_type": "seat.confirmed", "saga": saga, "key": "h-1",
        "payload": {"guest": "g-1"},
        "metadata": {"correlation_id": "h-1", "causation_id": "x", "hops": 3},
    });
    for (name, value) in changes.as_object().expect("members") {
        body[name] = value.clone();
    }
    let subject = format!("tenant.acme.workflow_event.{saga}.h-1");
    with_headers(
        message(&subject, body.to_string()),
        &[(POSITION_HEADER, "65537-proof")],
    )
}

#[test]
fn a_fact_is_an_event_of_the_instance_that_has_published_it() {
    let router = router_of(vec![guest("from: hall")], Vec::new());
    let input = inputs(&router, RESULTS, &fact("hall", &json!({}))).remove(0);
    assert_eq!(input.instance.to_string(), "acme/guest/g-1");
    assert_eq!(input.id, FACT);
    let InputBody::Event(event) = input.body else {
        panic!("an event")
    };
    assert!(event.fact);
    assert_eq!(
        (
            event.event_type.as_str(),
            event.aggregate_type.as_str(),
            event.aggregate_id.as_str()
        ),
        ("seat.confirmed", "hall", "h-1")
    );
    assert_eq!((event.sequence, event.schema_version, event.hops), (65_537, 1, 3));
    assert_eq!(event.correlation_id.as_deref(), Some("h-1"));
}

#[test]
fn facts_of_other_sagas_and_events_of_that_type_concern_nobody() {
    let router = router_of(vec![guest("from: hall")], Vec::new());
    assert!(routed(&router, RESULTS, &fact("tour", &json!({}))).is_empty());
    let other = fact("hall", &json!({"event_type": "seat.moved"}));
    assert!(routed(&router, RESULTS, &other).is_empty());
    let event =
        event(json!({"event_type": "confirmed", "aggregate_type": "seat", "payload": {"guest": "g-1"}}));
    let event = message("tenant.acme.aggregate.seat.s-1", event);
    assert!(routed(&router, SourceStream::AggregateEvents, &event).is_empty());
    let both = router_of(vec![guest("from: [hall, tour]")], vec![guest("")]);
    assert_eq!(inputs(&both, RESULTS, &fact("tour", &json!({}))).len(), 1);
    assert_eq!(inputs(&both, SourceStream::AggregateEvents, &event).len(), 1);
}

#[test]
fn the_version_of_an_instance_has_the_last_word_on_where_a_fact_comes_from() {
    let (hall, plain) = (guest("from: hall"), guest(""));
    let router = router_of(vec![Arc::clone(&hall)], vec![Arc::clone(&plain)]);
    assert!(
        router
            .definitions
            .now()
            .is_contested(&hall.name, "seat.confirmed")
    );
    let input = inputs(&router, RESULTS, &fact("hall", &json!({}))).remove(0);
    let InputBody::Event(event) = &input.body else {
        panic!("an event")
    };
    let finds =
        |version: &Definition| version.addresses(&input.instance.key, event, TimeMs(0), &Limits::default());
    assert!(finds(&hall) && !finds(&plain));
}

#[test]
fn a_fact_that_cannot_be_read_or_names_another_tenant_is_a_dead_letter() {
    let router = router_of(vec![guest("from: hall")], Vec::new());
    for (changes, reason) in [
        (json!({"tenant_id": "globex"}), "tenant.mismatch"),
        (json!({"event_id": "e-1"}), "payload.schema"),
        (json!({"payload": {"guest": null}}), "correlation.missing"),
    ] {
        let found = unreadable(&router, RESULTS, &fact("hall", &changes));
        assert_eq!(found.reason, reason, "{}", found.message);
        assert_eq!(found.tenant, acme());
    }
}
