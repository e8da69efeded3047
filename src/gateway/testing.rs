//! What the tests of all gateways submit.

use serde_json::value::RawValue;
use uuid::Uuid;

use crate::kernel::envelope::{AggregateCommand, CommandMetadata};
use crate::kernel::ids::{CommandId, Key, SagaName, TenantId};

pub const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub const KEY: &str = "00112233445566778899aabbccddeeff";

/// A payload as the outbox holds it.
pub fn payload() -> Box<RawValue> {
    RawValue::from_string(r#"{"order":"o-1"}"#.to_owned()).expect("json")
}

/// A command with a value in every member.
pub fn command(payload: &RawValue) -> AggregateCommand<'_> {
    AggregateCommand {
        tenant_id: TenantId::parse("acme").expect("legal"),
        command_id: CommandId(Uuid::from_u128(7)),
        aggregate_id: "shp-1".to_owned(),
        aggregate_type: "Shipment".to_owned(),
        command_type: "Shipment.Create".to_owned(),
        payload_json: payload,
        metadata: CommandMetadata {
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o-1/ü").expect("legal"),
            correlation_id: "o-1/ü".to_owned(),
            root_correlation_id: Some("root-1".to_owned()),
            causation_id: "e-1".to_owned(),
            idempotency_key: KEY.to_owned(),
            path: "steps.ship".to_owned(),
            attempt: 3,
            deadline_ms: 1_800_000_000_123,
            traceparent: Some(TRACEPARENT.to_owned()),
            hops: 2,
        },
    }
}
