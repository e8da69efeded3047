//! Work items as tests name and show them.

use serde_json::{Value, json};

use super::world::World;
use crate::kernel::work::{WorkItem, WorkKind};

/// What a test writes as `of` for a work item: its path without the leading `steps.`.
#[must_use]
pub fn name(item: &WorkItem) -> &str {
    item.path.strip_prefix("steps.").unwrap_or(&item.path)
}

/// The piece of work that `of` names: the oldest one whose result is awaited, else the newest one that was sent.
#[must_use]
pub fn find<'w>(world: &'w World, of: &str) -> Option<&'w WorkItem> {
    let is = |item: &&WorkItem| name(item) == of || item.path == of;
    let mut sent = world.sent.iter().rev();
    world
        .outbox
        .values()
        .find(is)
        .or_else(|| sent.find(|item| item.kind.awaits_result() && is(item)))
}

/// What may be written as `of` at present.
#[must_use]
pub fn awaited(world: &World) -> Vec<&str> {
    let mut names: Vec<&str> = world.outbox.values().map(name).collect();
    names.dedup();
    names
}

/// A work item with the keys that expectations have.
#[must_use]
pub fn shown(item: &WorkItem) -> Value {
    let payload =
        |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).expect("payloads of the kernel are JSON") };
    let mut shown = match &item.kind {
        WorkKind::Effect {
            effect,
            payload: with,
        } => {
            json!({"effect": effect.as_str(), "with": payload(with)})
        }
        WorkKind::Command {
            aggregate_type,
            aggregate_id,
            command_type,
            payload: body,
            ..
        } => json!({
            "command": command_type,
            "aggregate": aggregate_type,
            "id": aggregate_id,
            "payload": payload(body),
        }),
        WorkKind::Fact {
            fact_type,
            payload: body,
        } => json!({"fact": fact_type, "payload": payload(body)}),
    };
    shown["of"] = Value::from(name(item));
    shown["attempt"] = Value::from(item.attempt);
    shown
}

/// The keys that say which piece of work is meant, without the others.
#[must_use]
pub fn brief(shown: &Value) -> Value {
    let mut brief = shown.clone();
    if let Some(members) = brief.as_object_mut() {
        members.retain(|key, _| key != "of" && key != "attempt");
    }
    brief
}
