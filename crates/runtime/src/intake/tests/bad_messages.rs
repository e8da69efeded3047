//! Each kind of bad message has its reason code, belongs to its tenant, and goes to one shard.

use serde_json::json;

use super::*;
use crate::intake::decode::Decoded;
use crate::kernel::ids::{Key, shard_of};
use crate::kernel::input::{UnknownClass, WorkOutcome};

const EVENTS: SourceStream = SourceStream::AggregateEvents;

fn reason(message: &Message) -> &'static str {
    unreadable(&router(), EVENTS, message).reason
}

fn reason_of(payload: &str) -> &'static str {
    reason(&message(SUBJECT, payload))
}

#[test]
fn bodies_that_are_no_events_have_a_reason() {
    let deep = |levels: usize| {
        let nest = "[".repeat(levels) + &"]".repeat(levels);
        let payload = format!(r#"{{"order_id":"o-1","deep":{nest}}}"#);
        event(json!({"payload": 0})).replace(r#""payload":0"#, &format!(r#""payload":{payload}"#))
    };
    let number = |text: &str| {
        event(json!({"payload": {"order_id": "o-1", "n": 0}})).replace(r#""n":0"#, &format!(r#""n":{text}"#))
    };
    let twice = event(json!({})).replacen('{', r#"{"event_id":"e-0","#, 1);
    let twice_inside = event(json!({})).replace(r#""order_id""#, r#""order_id":1,"order_id""#);
    for (name, payload, expected) in [
        ("empty", String::new(), "payload.empty"),
        ("syntax", "{\"event_id\":".to_owned(), "payload.syntax"),
        ("no json", "hello".to_owned(), "payload.syntax"),
        (
            "bad escape in the payload",
            event(json!({"payload": 0})).replace(r#""payload":0"#, r#""payload":"\x""#),
            "payload.syntax",
        ),
        ("depth", deep(64), "payload.depth"),
        ("very deep", deep(100_000), "payload.depth"),
        ("twice", twice, "payload.duplicate_key"),
        ("twice in the payload", twice_inside, "payload.duplicate_key"),
        ("1e400", number("1e400"), "number.range"),
        ("above 64 bits", number("18446744073709551617"), "number.range"),
        (
            "envelope number",
            event(json!({"sequence": 0})).replace(r#""sequence":0"#, r#""sequence":1e400"#),
            "number.range",
        ),
        (
            "no event type",
            event(json!({"event_type": null})),
            "payload.schema",
        ),
        (
            "no event id",
            event(json!({"event_id": null})),
            "event_id.missing",
        ),
        (
            "empty event id",
            event(json!({"event_id": ""})),
            "event_id.missing",
        ),
        (
            "control character",
            event(json!({"event_id": "a\u{7}"})),
            "event_id.invalid",
        ),
        (
            "long event id",
            event(json!({"event_id": "x".repeat(129)})),
            "event_id.invalid",
        ),
        (
            "other tenant",
            event(json!({"tenant_id": "other"})),
            "tenant.mismatch",
        ),
        ("no key", event(json!({"payload": {}})), "correlation.missing"),
        (
            "null key",
            event(json!({"payload": {"order_id": null}})),
            "correlation.missing",
        ),
        (
            "empty key",
            event(json!({"payload": {"order_id": ""}})),
            "correlation.invalid",
        ),
        (
            "long key",
            event(json!({"payload": {"order_id": "k".repeat(257)}})),
            "correlation.invalid",
        ),
        (
            "control character in key",
            event(json!({"payload": {"order_id": "a\nb"}})),
            "correlation.invalid",
        ),
        (
            "list as key",
            event(json!({"payload": {"order_id": []}})),
            "correlation.invalid",
        ),
    ] {
        assert_eq!(reason_of(&payload), expected, "{name}");
    }
}

#[test]
fn invalid_utf8_is_a_syntax_error_and_its_excerpt_is_kept() {
    let found = unreadable(&router(), EVENTS, &message(SUBJECT, b"{\"a\":\"\xff\"}"));
    assert_eq!(
        (found.reason, &found.excerpt[..]),
        ("payload.syntax", &b"{\"a\":\"\xff\"}"[..])
    );
}

#[test]
fn of_an_oversized_payload_a_kibibyte_and_the_hash_are_kept() {
    let payload = event(json!({"payload": {"order_id": "o-1", "fill": "x".repeat(1024 * 1024)}}));
    let found = unreadable(&router(), EVENTS, &message(SUBJECT, &payload));
    assert_eq!(found.reason, "payload.size");
    assert_eq!(&found.excerpt[..], &payload.as_bytes()[..1024]);
    assert_eq!(&found.payload_hash, blake3::hash(payload.as_bytes()).as_bytes());
    assert_eq!((found.tenant, found.sequence), (acme(), 7));
}

#[test]
fn subjects_that_are_none_have_a_reason_and_no_tenant() {
    for (subject, expected) in [
        ("tenant.*.aggregate.Order.o-1", "tenant.invalid"),
        ("tenant.>.aggregate.Order.o-1", "tenant.invalid"),
        ("tenant.a\0b.aggregate.Order.o-1", "tenant.invalid"),
        ("tenant.a b.aggregate.Order.o-1", "tenant.invalid"),
        ("tenant.Acme.aggregate.Order.o-1", "tenant.invalid"),
        ("tenant..aggregate.Order.o-1", "subject.shape"),
        ("tenant.acme.aggregate.Order.o-1.x", "subject.shape"),
        ("tenant.acme.aggregate.Order.", "subject.shape"),
        ("tenant.acme.aggregate.Order", "subject.shape"),
    ] {
        let found = unreadable(&router(), EVENTS, &message(subject, event(json!({}))));
        assert_eq!(
            (found.reason, found.tenant.is_none()),
            (expected, true),
            "{subject:?}"
        );
    }
    let long = format!("tenant.{}.aggregate.Order.o-1", "a".repeat(64));
    assert_eq!(reason(&message(&long, "{}")), "tenant.invalid");
    let effect = "tenant.acme.effect.charge.00000000-0000-0000-0000-000000000007";
    assert_eq!(reason(&message(effect, "{}")), "subject.shape");
}

#[test]
fn headers_may_not_contradict_the_subject_or_each_other() {
    let plain = message(SUBJECT, event(json!({})));
    let other = with_headers(plain.clone(), &[("X-Tenant-Id", "other")]);
    assert_eq!(reason(&other), "tenant.mismatch");
    let twice = with_headers(plain.clone(), &[("x-tenant-id", "acme"), ("X-Tenant-ID", "acme")]);
    assert_eq!(reason(&twice), "header.duplicate");
    let same = with_headers(plain, &[("x-tenant-id", "acme"), ("note", "1"), ("note", "2")]);
    assert_eq!(the_event(&router(), &same).event_id.as_str(), "e-1");
}

#[test]
fn a_tenant_that_is_not_served_is_refused_before_its_body_is_read() {
    let mut router = router();
    router.decoder.tenants = Some([TenantId::parse("other").expect("legal")].into());
    let found = unreadable(&router, EVENTS, &message(SUBJECT, "no json"));
    assert_eq!((found.reason, found.tenant), ("tenant.unknown", acme()));
}

#[test]
fn a_saga_without_key_does_not_keep_another_from_its_input() {
    let bill = saga("bill", 1, &["Order.Placed"], &[("*", "event.data.bill_id")]);
    let router = router_of(vec![order_saga(), bill], Vec::new());
    let found = routed(&router, EVENTS, &message(SUBJECT, event(json!({}))));
    let kinds: Vec<_> = found
        .iter()
        .map(|(_, arrival)| match arrival {
            Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => input.instance.saga.as_str(),
            Arrival::Unreadable(found) => found.reason,
        })
        .collect();
    assert_eq!(kinds, ["correlation.missing", "order"]);
}

#[test]
fn an_unreadable_message_always_goes_to_the_same_shard_of_its_tenant() {
    let bad = message(SUBJECT, "");
    let shards: Vec<u16> = [7, 8].map(|_| routed(&router(), EVENTS, &bad)[0].0).into();
    assert_eq!(shards[0], shards[1]);
    let hash = blake3::hash(SUBJECT.as_bytes()).to_hex();
    let key = Key::parse(&hash[..32]).expect("legal");
    assert_eq!(shards[0], shard_of(&acme(), &key, 8));
}

/// There is no second result for a command, so one that cannot be read completes it as an unknown outcome.
#[test]
fn results_that_cannot_be_read_are_unknown_outcomes() {
    const ID: &str = "00000000-0000-0000-0000-000000000007";
    let outcome = |body: String| {
        let subject = format!("tenant.acme.effect_result.charge.{ID}");
        let decoded = router()
            .decoder
            .decode(SourceStream::WorkflowEvents, &message(&subject, body));
        let (addressed, result) = match decoded {
            Ok(Decoded::Result { result, .. }) => (true, result),
            Ok(Decoded::Unaddressed { tenant, result }) => {
                assert_eq!(tenant, acme());
                (false, result)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(result.command_id.to_string(), ID);
        let WorkOutcome::TimedOut { class, message } = result.outcome else {
            panic!("{:?}", result.outcome);
        };
        assert_eq!(class, UnknownClass::ResultRefused);
        (addressed, message)
    };
    let of = |kind: &str, payload: &str| {
        format!(
            r#"{{"tenant_id":"acme","command_id":"{ID}","effect_name":"charge","result_type":"{kind}","payload":{payload},"metadata":{{"saga":"order","key":"o-1"}}}}"#
        )
    };
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    for (kind, payload, told) in [
        ("Succeeded", format!("1{}", "0".repeat(30)), "range"),
        ("Succeeded", r#"{"n":18446744073709551616}"#.to_owned(), "range"),
        ("Succeeded", r#"{"n":9223372036854775808}"#.to_owned(), "range"),
        ("Succeeded", r#"{"n":1,"n":2}"#.to_owned(), "twice"),
        ("Succeeded", deep, "deeper"),
        ("Failed", r#"{"message":"no class"}"#.to_owned(), "class"),
        ("Failed", r#"{"class":""}"#.to_owned(), "class"),
        ("TimedOut", "null".to_owned(), "payload"),
    ] {
        let (addressed, message) = outcome(of(kind, &payload));
        assert!(addressed && message.contains(told), "{payload}: {message}");
    }
    let large = of("Succeeded", &format!("{:?}", "x".repeat(1024 * 1024)));
    let good = of("Succeeded", "{}");
    for body in [
        large,
        String::new(),
        "no JSON".to_owned(),
        good.replace("Succeeded", "Perhaps"),
        good.replace("acme", "other"),
        good.replace("charge", "refund"),
        good.replace("0007", "0008"),
        r#"{"tenant_id":"acme"}"#.to_owned(),
    ] {
        let (addressed, _) = outcome(body.clone());
        assert!(!addressed, "{body:.200}");
    }
}

#[test]
fn controls_that_cannot_be_read_have_a_reason() {
    let by = |subject: &str, body: &str| {
        unreadable(&router(), SourceStream::WorkflowCommands, &message(subject, body)).reason
    };
    let control = |body: &str| by("runner.shop.control.acme.order.o-1", body);
    for subject in [
        "tenant.acme.workflow.order.o-1",
        "runner.shop.control.acme.order.o-1",
    ] {
        assert_eq!(
            by(subject, r#"{"request_id":"r","control":"explode"}"#),
            "payload.schema"
        );
    }
    assert_eq!(
        control(r#"{"request_id":"","control":"retry"}"#),
        "request_id.missing"
    );
    assert_eq!(
        control(r#"{"request_id":"\u0000","control":"retry"}"#),
        "request_id.invalid"
    );
    assert_eq!(
        control(r#"{"request_id":"r","control":"retry","control":"cancel"}"#),
        "payload.duplicate_key"
    );
    assert_eq!(
        control(r#"{"request_id":"r","control":"retry","mode":"drain"}"#),
        "payload.schema"
    );
    for said in [
        r#""retry","step":"s","as":"done""#,
        r#""skip","step":"s""#,
        r#""resolve","as":"done""#,
        r#""resolve","step":"s","as":"not_done","result":{}"#,
        r#""resolve","step":"s","result":{}"#,
    ] {
        let body = format!(r#"{{"request_id":"r","principal":{{"role":"operator"}},"control":{said}}}"#);
        assert_eq!(control(&body), "payload.schema", "{said}");
    }
    for said in [
        "",
        r#","ok":{},"error":{"class":"refused"}"#,
        r#","error":{"class":""}"#,
        r#","error":{"class":"two words"}"#,
        r#","ok":[]"#,
    ] {
        assert_eq!(
            control(&format!(
                r#"{{"request_id":"r","control":"callback","work":"w"{said}}}"#
            )),
            "payload.schema",
            "{said}"
        );
    }
    let long = format!("tenant.acme.workflow.order.{}", "k".repeat(257));
    let found = unreadable(&router(), SourceStream::WorkflowCommands, &message(&long, "{}"));
    assert_eq!(found.reason, "correlation.invalid");
}
