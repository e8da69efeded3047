//! Promises of the intake.

mod aliases;
mod bad_messages;
mod broker;
mod good_messages;
mod identity;
mod reading;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::decode::Decoder;
use super::route::{Outcome, Routed, Router};
use super::versions::Versions;
use crate::kernel::definition::model::{Finally, KeyRule, Lifecycle, Migration, UndoOrder};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::expr::{Expr, Root, Template};
use crate::kernel::ids::{DefinitionHash, SagaName, TenantId, TimeMs};
use crate::kernel::input::{DomainEvent, Input, InputBody, SourceStream};
use crate::kernel::limits::Limits;
use crate::kernel::subject::Tenancy;
use crate::ports::broker::Message;
use crate::shard::mailbox::{Arrival, Unreadable};

/// A saga that starts with `Order.Placed`, with these key rules.
fn saga(name: &str, version: u8, events: &[&str], keys: &[(&str, &str)]) -> Arc<Definition> {
    let rule = |(pattern, key): &(&str, &str)| KeyRule {
        pattern: (*pattern).to_owned(),
        key: Expr::compile(key, &[Root::Event]).expect("the test's expression compiles"),
    };
    let mut hash = [version; 32];
    hash[..name.len()].copy_from_slice(name.as_bytes());
    Arc::new(Definition {
        name: SagaName::parse(name).expect("legal"),
        hash: DefinitionHash(hash),
        source: "".into(),
        input: None,
        lifecycle: Lifecycle::default(),
        schedule: None,
        start: events.iter().map(|event| (*event).to_owned()).collect(),
        keys: keys.iter().map(rule).collect(),
        by: std::collections::BTreeMap::new(),
        events: std::collections::BTreeMap::new(),
        state_schema: None,
        effects: std::collections::BTreeMap::new(),
        init: Template::Constant(b"{}".to_vec()),
        handlers: BTreeMap::new(),
        machine: None,
        program: None,
        steps: Vec::new(),
        timers: Vec::new(),
        cancel_when: None,
        finally: Finally::default(),
        undo_order: UndoOrder::Sequential,
        buffer: 32,
        migration: Migration::default(),
    })
}

fn order_saga() -> Arc<Definition> {
    saga(
        "order",
        1,
        &["Order.Placed"],
        &[("Order.*", "event.data.order_id")],
    )
}

fn router_of(active: Vec<Arc<Definition>>, archived: Vec<Arc<Definition>>) -> Router {
    Router {
        decoder: Decoder {
            tenancy: Tenancy::Multi,
            tenants: None,
            limits: Limits::default(),
            takes_applied: false,
            event_id_from: None,
        },
        definitions: Versions::new(Arc::new(DefinitionSet::new(active, archived))),
        shards: 8,
    }
}

fn router() -> Router {
    router_of(vec![order_saga()], Vec::new())
}

const SUBJECT: &str = "tenant.acme.aggregate.Order.o-1";

fn message(subject: &str, payload: impl AsRef<[u8]>) -> Message {
    Message {
        subject: subject.to_owned(),
        headers: Vec::new(),
        payload: Bytes::copy_from_slice(payload.as_ref()),
        stream_sequence: 7,
        consumer_sequence: 1,
        delivered: 1,
        pending: 0,
        time: TimeMs(1_700_000_000_000),
    }
}

fn with_headers(mut message: Message, headers: &[(&str, &str)]) -> Message {
    message.headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    message
}

/// A domain event, with members replaced (or removed, by null).
#[allow(clippy::needless_pass_by_value, reason = "callers write json! in place")]
fn event(changes: serde_json::Value) -> String {
    let mut event = json!({
        "tenant_id": "acme", "event_id": "e-1", "event_type": "Placed", "aggregate_type": "Order",
        "aggregate_id": "o-1", "sequence": 3, "schema_version": 2, "payload": {"order_id": "o-1"},
        "metadata": {"correlation_id": "c-1", "causation_id": "x-1"}, "timestamp": "2026-01-01T00:00:00Z"
    });
    let members = event.as_object_mut().expect("a map");
    for (name, value) in changes.as_object().expect("a map") {
        if value.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    event.to_string()
}

fn routed(router: &Router, stream: SourceStream, message: &Message) -> Vec<Routed> {
    let mut out = Vec::new();
    assert!(matches!(router.route(stream, message, &mut out), Outcome::Routed));
    out
}

fn inputs(router: &Router, stream: SourceStream, message: &Message) -> Vec<Input> {
    let each = routed(router, stream, message).into_iter();
    each.map(|(_, arrival)| match arrival {
        Arrival::Input(input) => input,
        Arrival::Unreadable(found) => panic!("unreadable: {found:?}"),
    })
    .collect()
}

fn the_event(router: &Router, message: &Message) -> DomainEvent {
    let mut found = inputs(router, SourceStream::AggregateEvents, message);
    assert_eq!(found.len(), 1, "{found:?}");
    match found.remove(0).body {
        InputBody::Event(event) => event,
        other => panic!("not an event: {other:?}"),
    }
}

fn unreadable(router: &Router, stream: SourceStream, message: &Message) -> Unreadable {
    let mut found = routed(router, stream, message);
    assert_eq!(found.len(), 1, "{found:?}");
    match found.remove(0).1 {
        Arrival::Unreadable(found) => found,
        Arrival::Input(input) => panic!("readable: {input:?}"),
    }
}

fn acme() -> TenantId {
    TenantId::parse("acme").expect("legal")
}
