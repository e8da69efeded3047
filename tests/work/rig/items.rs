//! Rows of an outbox, and the subjects of their messages.

use bytes::Bytes;
use saga_runner::kernel::ids::{CommandId, EffectName, InstanceId, Key, SagaName, TenantId};
use saga_runner::kernel::subject::Subject;
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::ports::clock::Clock as _;
use uuid::Uuid;

use super::Rig;

pub fn at(log_sequence: u64, index: u16) -> WorkRef {
    WorkRef { log_sequence, index }
}

pub fn effect_name() -> EffectName {
    EffectName::parse("charge").unwrap()
}

/// A row of instance `key`, its ids made from `n`.
pub fn item(rig: &Rig, key: &str, n: u128, kind: WorkKind) -> WorkItem {
    let now = rig.clock.now();
    WorkItem {
        instance: InstanceId {
            tenant: TenantId::parse("acme").unwrap(),
            saga: SagaName::parse("order").unwrap(),
            key: Key::parse(key).unwrap(),
        },
        command_id: CommandId(Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0000 + n)),
        idempotency_key: format!("{n:032x}"),
        path: "steps.charge".to_owned(),
        attempt: 1,
        created: now,
        deadline: now.plus_ms(600_000),
        waited_ms: 0,
        causation_id: "e-1".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 1,
        kind,
    }
}

pub fn effect(rig: &Rig, key: &str, n: u128) -> WorkItem {
    let kind = WorkKind::Effect {
        effect: effect_name(),
        payload: Bytes::from_static(br#"{"amount":12}"#),
    };
    item(rig, key, n, kind)
}

pub fn command(rig: &Rig, key: &str, n: u128, awaited: bool) -> WorkItem {
    let kind = WorkKind::Command {
        aggregate_type: "Shipment".to_owned(),
        aggregate_id: format!("shp-{n}"),
        command_type: "Shipment.Create".to_owned(),
        payload: Bytes::from_static(b"{}"),
        token: None,
        awaited,
    };
    item(rig, key, n, kind)
}

pub fn fact(rig: &Rig, key: &str, n: u128) -> WorkItem {
    let kind = WorkKind::Fact {
        fact_type: "order.fulfilled".to_owned(),
        payload: Bytes::from_static(b"{}"),
    };
    item(rig, key, n, kind)
}

fn effect_of(item: &WorkItem) -> EffectName {
    match &item.kind {
        WorkKind::Effect { effect, .. } => effect.clone(),
        other => panic!("{other:?} is not an effect"),
    }
}

pub fn command_subject(item: &WorkItem) -> String {
    Subject::Effect {
        tenant: item.instance.tenant.clone(),
        effect: effect_of(item),
        command: item.command_id,
    }
    .render()
}

pub fn result_subject(item: &WorkItem) -> String {
    Subject::EffectResult {
        tenant: item.instance.tenant.clone(),
        effect: effect_of(item),
        command: item.command_id,
    }
    .render()
}
