//! What a readable message becomes.

use serde_json::json;

use super::*;
use crate::kernel::input::{Control, Origin, WorkOutcome};

const EVENTS: SourceStream = SourceStream::AggregateEvents;
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn an_event_becomes_one_input_at_the_brokers_time_with_its_payload_in_place() {
    let source = message(SUBJECT, event(json!({"timestamp": "9999-12-31T23:59:59Z"})));
    let input = inputs(&router(), EVENTS, &source).remove(0);
    assert_eq!(input.instance.to_string(), "acme/order/o-1");
    assert_eq!((input.id.as_str(), input.time), ("e-1", source.time));
    assert_eq!(
        input.origin,
        Origin::Stream {
            stream: EVENTS,
            sequence: 7
        }
    );
    let InputBody::Event(event) = input.body else {
        panic!("an event")
    };
    assert_eq!(event.event_type, "Order.Placed");
    assert_eq!((event.sequence, event.schema_version, event.hops), (3, 2, 0));
    assert_eq!(event.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(&event.payload[..], br#"{"order_id":"o-1"}"#);
    assert!(
        source.payload.as_ptr_range().contains(&event.payload.as_ptr()),
        "no copy"
    );
}

#[test]
fn a_type_that_names_its_aggregate_is_not_prefixed_again() {
    let source = message(SUBJECT, event(json!({"event_type": "Order.Placed"})));
    assert_eq!(the_event(&router(), &source).event_type, "Order.Placed");
    let near = message(SUBJECT, event(json!({"event_type": "OrderPlaced"})));
    assert!(
        routed(&router(), EVENTS, &near).is_empty(),
        "Order.OrderPlaced interests nobody"
    );
}

#[test]
fn an_event_without_a_handler_yields_nothing_and_its_payload_is_not_checked() {
    let source =
        event(json!({"event_type": "Seen", "payload": {"a": 1}})).replace(r#""a":1"#, r#""a":1,"a":2"#);
    assert!(routed(&router(), EVENTS, &message(SUBJECT, source)).is_empty());
}

#[test]
fn keys_are_text_or_whole_numbers_and_may_hold_any_separator() {
    let key = |order_id: serde_json::Value| {
        let source = message(SUBJECT, event(json!({"payload": {"order_id": order_id}})));
        inputs(&router(), EVENTS, &source)
            .remove(0)
            .instance
            .key
            .as_str()
            .to_owned()
    };
    assert_eq!(key(json!("a:b/c.d")), "a:b/c.d");
    assert_eq!(key(json!(9_007_199_254_740_993_i64)), "9007199254740993");
}

#[test]
fn a_traceparent_is_taken_if_it_is_one_and_ignored_if_not() {
    let body = |traceparent: &str| event(json!({"metadata": {"traceparent": traceparent}}));
    let trace = |source: &Message| the_event(&router(), source).traceparent;
    assert_eq!(trace(&message(SUBJECT, body(TRACE))).as_deref(), Some(TRACE));
    assert_eq!(trace(&message(SUBJECT, body("00-zz"))), None);
    let header = with_headers(message(SUBJECT, body("00-zz")), &[("Traceparent", TRACE)]);
    assert_eq!(trace(&header).as_deref(), Some(TRACE));
}

#[test]
fn an_event_without_id_gets_one_of_its_place_if_so_configured() {
    let mut router = router();
    router.decoder.event_id_from = Some("EVENTS".to_owned());
    let source = message(SUBJECT, event(json!({"event_id": null})));
    assert_eq!(the_event(&router, &source).event_id.as_str(), "EVENTS:7");
}

#[test]
fn without_tenants_the_tenant_of_a_producer_is_only_data() {
    let mut router = router();
    router.decoder.tenancy = Tenancy::Single;
    let source = message("aggregate.Order.o-1", event(json!({})));
    let input = inputs(&router, EVENTS, &source).remove(0);
    assert!(input.instance.tenant.is_none());
}

#[test]
fn cloud_events_are_events_structured_or_binary() {
    let body = json!({
        "specversion": "1.0", "id": "ce-1", "source": "/shop", "type": "Placed", "tenantid": "acme",
        "partitionkey": "p-1", "time": "1970-01-01T00:00:00Z", "data": {"order_id": "o-9"}
    });
    let structured = with_headers(
        message(SUBJECT, body.to_string()),
        &[("Content-Type", "application/cloudevents+json; charset=utf-8")],
    );
    let binary = with_headers(
        message(SUBJECT, r#"{"order_id":"o-9"}"#),
        &[
            ("ce-specversion", "1.0"),
            ("ce-id", "ce%2D1"),
            ("ce-source", "/shop"),
            ("ce-type", "Placed"),
            ("ce-tenantid", "acme"),
            ("ce-partitionkey", "p-1"),
            ("content-type", "application/json"),
        ],
    );
    let read = [&structured, &binary].map(|source| the_event(&router(), source));
    assert_eq!(read[0], read[1]);
    assert_eq!(read[0].event_id.as_str(), "ce-1");
    assert_eq!(read[0].event_type, "Order.Placed");
    assert_eq!(read[0].aggregate_id, "o-1");
    assert_eq!(read[0].correlation_id.as_deref(), Some("p-1"));
    assert_eq!(&read[0].payload[..], br#"{"order_id":"o-9"}"#);

    let foreign = with_headers(
        binary,
        &[
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-type", "Placed"),
            ("ce-tenantid", "other"),
        ],
    );
    assert_eq!(unreadable(&router(), EVENTS, &foreign).reason, "tenant.mismatch");
}

#[test]
fn a_cloud_event_type_with_a_dot_stands_for_itself() {
    let saga = saga("order", 1, &["com.shop.order.placed"], &[("com.*", "event.id")]);
    let source = with_headers(
        message(SUBJECT, "{}"),
        &[
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-type", "com.shop.order.placed"),
        ],
    );
    let router = router_of(vec![saga], Vec::new());
    assert_eq!(the_event(&router, &source).event_type, "com.shop.order.placed");
}

#[test]
fn every_distinct_rule_of_the_live_versions_is_evaluated_the_active_ones_first() {
    let old = saga("order", 1, &["Order.Placed"], &[("Order.*", "event.data.old")]);
    let new = saga("order", 2, &["Order.Placed"], &[("Order.*", "event.data.new")]);
    let source = message(SUBJECT, event(json!({"payload": {"old": "o", "new": "n"}})));
    let router = router_of(vec![Arc::clone(&new)], vec![Arc::clone(&old)]);
    let keys = |source: &Message| -> Vec<String> {
        let found = inputs(&router, EVENTS, source);
        found.iter().map(|input| input.instance.key.to_string()).collect()
    };
    assert_eq!(keys(&source), ["n", "o"]);
    let same = message(SUBJECT, event(json!({"payload": {"old": "k", "new": "k"}})));
    assert_eq!(keys(&same), ["k"], "one key is one input");
    let one = message(SUBJECT, event(json!({"payload": {"old": "o"}})));
    assert_eq!(keys(&one), ["o"], "what one version cannot read another can");
    let none = message(SUBJECT, event(json!({"payload": {}})));
    assert_eq!(unreadable(&router, EVENTS, &none).reason, "correlation.missing");

    let silent = saga(
        "order",
        3,
        &["Order.Opened"],
        &[("Order.Opened", "event.data.new")],
    );
    let router = router_of(vec![silent], vec![old]);
    assert_eq!(inputs(&router, EVENTS, &source)[0].instance.key.as_str(), "o");
}

#[test]
fn a_result_that_its_instance_knows_is_for_others() {
    const ID: &str = "00000000-0000-0000-0000-000000000007";
    let body = json!({
        "tenant_id": "acme", "command_id": ID, "effect_name": "charge", "result_type": "Succeeded",
        "payload": {}, "metadata": {"saga": "order", "key": "o/1"}
    });
    let mut known = message(
        &format!("tenant.acme.effect_result.charge.{ID}"),
        body.to_string(),
    );
    assert_eq!(inputs(&router(), SourceStream::WorkflowEvents, &known).len(), 1);
    known
        .headers
        .push(("saga-runner-applied".to_owned(), "true".to_owned()));
    assert_eq!(inputs(&router(), SourceStream::WorkflowEvents, &known).len(), 0);
    let resumed = router();
    resumed
        .decoder
        .takes_applied
        .store(true, std::sync::atomic::Ordering::Release);
    let taken = inputs(&resumed, SourceStream::WorkflowEvents, &known);
    assert_eq!(taken.len(), 1, "a shard goes on from an older state");
}

/// What a shard that goes on from an older state gets of a result with these headers, stored at 1,700,000,000,000.
fn taken_again(command: &str, headers: &[(&str, &str)]) -> Arrival {
    let body = json!({
        "tenant_id": "acme", "command_id": command, "effect_name": "charge", "result_type": "Succeeded",
        "payload": {}, "metadata": {"saga": "order", "key": "o/1"}
    });
    let subject = format!("tenant.acme.effect_result.charge.{command}");
    let known = with_headers(message(&subject, body.to_string()), headers);
    let resumed = router();
    let takes_applied = &resumed.decoder.takes_applied;
    takes_applied.store(true, std::sync::atomic::Ordering::Release);
    let mut found = routed(&resumed, SourceStream::WorkflowEvents, &known);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).1
}

const APPLIED: (&str, &str) = ("saga-runner-applied", "true");
/// A command that an input of the time 1,699,999,990,000 has caused.
const COMMAND: &str = "018bcfe5-40f0-7000-8000-000000000007";

#[test]
fn a_result_that_was_applied_before_it_was_stored_is_the_same_input_once_more() {
    let found = taken_again(COMMAND, &[APPLIED, ("saga-runner-applied-ms", "1699999995000")]);
    let Arrival::Applied(Applied {
        input,
        stored,
        sequence,
    }) = found
    else {
        panic!("{found:?}")
    };
    let said = (input.time, input.origin, input.id.as_str());
    assert_eq!(said, (TimeMs(1_699_999_995_000), Origin::Local, COMMAND));
    assert_eq!(input.instance.to_string(), "acme/order/o/1");
    assert_eq!((stored, sequence), (TimeMs(1_700_000_000_000), 7));
}

#[test]
fn a_result_that_was_not_applied_by_its_shard_or_says_a_time_that_cannot_be_has_the_time_of_its_message() {
    let at = |time| ("saga-runner-applied-ms", time);
    let derived_from_nothing = "00000000-0000-0000-0000-000000000007";
    let cases: [(&str, &[(&str, &str)]); 6] = [
        (COMMAND, &[APPLIED]),
        (COMMAND, &[at("1699999995000")]),
        (COMMAND, &[APPLIED, at("soon")]),
        // Before the input that has caused the command.
        (COMMAND, &[APPLIED, at("1699999989999")]),
        // Later than any clock may be ahead of the broker's.
        (COMMAND, &[APPLIED, at("1700000300001")]),
        (derived_from_nothing, &[APPLIED, at("1699999995000")]),
    ];
    for (command, headers) in cases {
        let found = taken_again(command, headers);
        let Arrival::Input(input) = found else {
            panic!("{headers:?}: {found:?}")
        };
        assert_eq!(input.time, TimeMs(1_700_000_000_000), "{headers:?}");
        assert!(matches!(input.origin, Origin::Stream { sequence: 7, .. }));
    }
}

#[test]
fn results_and_controls_find_the_instance_that_they_name() {
    const ID: &str = "00000000-0000-0000-0000-000000000007";
    let result = |kind: &str, payload: serde_json::Value| {
        let body = json!({
            "tenant_id": "acme", "command_id": ID, "effect_name": "charge", "result_type": kind,
            "payload": payload, "metadata": {"saga": "order", "key": "o/1"}
        });
        let subject = format!("tenant.acme.effect_result.charge.{ID}");
        let input = inputs(
            &router(),
            SourceStream::WorkflowEvents,
            &message(&subject, body.to_string()),
        )
        .remove(0);
        assert_eq!(
            (input.instance.to_string().as_str(), input.id.as_str()),
            ("acme/order/o/1", ID)
        );
        let InputBody::Result(result) = input.body else {
            panic!("a result")
        };
        result.outcome
    };
    assert_eq!(
        result("Succeeded", json!({"charge_id": 1})),
        WorkOutcome::Succeeded {
            payload: Bytes::from_static(br#"{"charge_id":1}"#)
        }
    );
    assert_eq!(
        result("Failed", json!({"class": "declined", "message": "no money"})),
        WorkOutcome::failed("declined", "no money")
    );
    assert_eq!(
        result("Failed", json!({"class": "declined", "refused": true})),
        WorkOutcome::Failed {
            class: "declined".to_owned(),
            message: String::new(),
            refused: true
        }
    );
    assert_eq!(
        result("TimedOut", json!({"class": "timeout"})),
        WorkOutcome::timed_out("")
    );

    let control = |body: &str| {
        let source = message("tenant.acme.workflow.order.o=2F1", body);
        let input = inputs(&router(), SourceStream::WorkflowCommands, &source).remove(0);
        assert_eq!(
            (input.instance.to_string().as_str(), input.id.as_str()),
            ("acme/order/o/1", "r-1")
        );
        input.body
    };
    assert_eq!(
        control(r#"{"request_id":"r-1","control":"cancel","reason":"enough"}"#),
        InputBody::Control(Control::cancel("enough".to_owned()))
    );
    assert_eq!(
        control(
            r#"{"request_id":"r-1","control":"signal","name":"review","data":{"ok":true,"n":9007199254740993},"by":"ada"}"#
        ),
        InputBody::Control(Control::Signal {
            name: "review".to_owned(),
            data: r#"{"n":9007199254740993,"ok":true}"#.into(),
            by: "ada".to_owned(),
            hops: 0,
        })
    );
    assert_eq!(
        control(r#"{"request_id":"r-1","control":"signal","name":"go"}"#),
        InputBody::Control(Control::Signal {
            name: "go".to_owned(),
            data: "{}".into(),
            by: String::new(),
            hops: 0,
        })
    );
}
