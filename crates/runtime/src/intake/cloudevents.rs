//! `CloudEvents` 1.0 as domain events, structured and binary (the NATS protocol binding).
//!
//! The aggregate is the one that the subject names; a type without a dot is short for
//! `<AggregateType>.<type>`.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::decode::{Decoder, Defect, Place, RawEvent};
use super::headers::Headers;
use crate::kernel::outcome::slice;
use crate::ports::broker::Message;

#[derive(Debug, Deserialize)]
struct CloudEvent<'a> {
    specversion: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(rename = "type")]
    event_type: String,
    #[serde(default)]
    tenantid: Option<String>,
    #[serde(default)]
    correlationid: Option<String>,
    #[serde(default)]
    partitionkey: Option<String>,
    #[serde(default)]
    causationid: Option<String>,
    #[serde(default)]
    traceparent: Option<String>,
    #[serde(default)]
    sequence: Option<String>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data_base64: Option<&'a RawValue>,
}

pub(super) fn structured<'a>(
    decoder: &Decoder,
    place: Place<'a>,
    message: &Message,
) -> Result<RawEvent<'a>, Defect> {
    let event: CloudEvent<'_> = decoder.read(&message.payload)?;
    known_version(&event.specversion)?;
    if event.data_base64.is_some() {
        return Err(Defect::new("payload.schema", "data_base64 is not JSON data"));
    }
    Ok(RawEvent {
        event_type: full_type(&place, &event.event_type),
        place,
        tenant: event.tenantid,
        event_id: event.id,
        sequence: number(event.sequence.as_deref()),
        schema_version: 1,
        correlation_id: event.correlationid.or(event.partitionkey),
        causation_id: event.causationid,
        traceparent: event.traceparent,
        hops: 0,
        payload: event.data.map_or_else(
            || Bytes::from_static(b"null"),
            |data| slice(&message.payload, data),
        ),
    })
}

pub(super) fn binary<'a>(
    place: Place<'a>,
    headers: &Headers<'_>,
    message: &Message,
) -> Result<RawEvent<'a>, Defect> {
    let event = &headers.cloud_event;
    known_version(event.specversion.unwrap_or_default())?;
    let event_type = event
        .event_type
        .map(|text| decoded("ce-type", text))
        .transpose()?
        .ok_or_else(|| Defect::new("payload.schema", "header ce-type is missing"))?;
    let text = |name, value: Option<&str>| value.map(|value| decoded(name, value)).transpose();
    Ok(RawEvent {
        event_type: full_type(&place, &event_type),
        place,
        tenant: text("ce-tenantid", event.tenant)?,
        event_id: text("ce-id", event.id)?,
        sequence: number(event.sequence),
        schema_version: 1,
        correlation_id: text(
            "ce-correlationid or ce-partitionkey",
            event.correlation.or(event.partition_key),
        )?,
        causation_id: text("ce-causationid", event.causation)?,
        traceparent: event.traceparent.map(str::to_owned),
        hops: 0,
        payload: message.payload.clone(),
    })
}

fn known_version(version: &str) -> Result<(), Defect> {
    if version == "1.0" {
        return Ok(());
    }
    let text = format!("CloudEvents version {version:?} is not 1.0");
    Err(Defect::new("payload.schema", text))
}

fn full_type(place: &Place<'_>, event_type: &str) -> String {
    if event_type.contains('.') {
        event_type.to_owned()
    } else {
        format!("{}.{event_type}", place.aggregate_type)
    }
}

/// The sequence extension is text of any shape; one that is not a number says nothing about order.
fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Undoes the percent-encoding of a header value.
fn decoded(name: &str, value: &str) -> Result<String, Defect> {
    let wrong = || Defect::new("payload.schema", format!("{name} is not percent-encoded UTF-8"));
    if !value.contains('%') {
        return Ok(value.to_owned());
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}
