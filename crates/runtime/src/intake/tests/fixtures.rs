//! A saga and its events.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use crate::kernel::definition::Definition;
use crate::kernel::definition::model::{Finally, KeyRule, Lifecycle, Migration, UndoOrder};
use crate::kernel::expr::{Expr, Root, Template};
use crate::kernel::ids::{DefinitionHash, SagaName, TenantId};

/// A saga that starts with `Order.Placed`, with these key rules.
pub(super) fn saga(name: &str, version: u8, events: &[&str], keys: &[(&str, &str)]) -> Arc<Definition> {
    let rule = |(pattern, key): &(&str, &str)| KeyRule {
        pattern: (*pattern).to_owned(),
        key: Expr::compile(key, &[Root::Event]).expect("the test's expression compiles"),
    };
    let mut hash = [version; 32];
    hash[..name.len()].copy_from_slice(name.as_bytes());
    Arc::new(Definition {
        result_handlers: BTreeMap::new(),
        error_handlers: BTreeMap::new(),
        name: SagaName::parse(name).expect("legal"),
        hash: DefinitionHash(hash),
        source: "".into(),
        input: None,
        lifecycle: Lifecycle::default(),
        schedule: None,
        start: events.iter().map(|event| (*event).to_owned()).collect(),
        keys: keys.iter().map(rule).collect(),
        by: BTreeMap::new(),
        events: BTreeMap::new(),
        state_schema: None,
        effects: BTreeMap::new(),
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

pub(super) fn order_saga() -> Arc<Definition> {
    saga(
        "order",
        1,
        &["Order.Placed"],
        &[("Order.*", "event.data.order_id")],
    )
}

/// A domain event, with members replaced (or removed, by null).
#[allow(clippy::needless_pass_by_value, reason = "callers write json! in place")]
pub(super) fn event(changes: serde_json::Value) -> String {
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

pub(super) fn acme() -> TenantId {
    TenantId::parse("acme").expect("legal")
}
