//! The headers that mean something to the intake, each at most once.

use super::decode::Defect;
use crate::kernel::envelope::{APPLIED_HEADER, APPLIED_TIME_HEADER, POSITION_HEADER};

/// Picked out in one pass over all headers, so a message with very many of them costs linear time.
#[derive(Debug, Default)]
pub(super) struct Headers<'a> {
    pub tenant: Option<&'a str>,
    pub content_type: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    /// The instance of this result knows it already.
    pub applied: Option<&'a str>,
    /// The time of the input by which it knows it.
    pub applied_ms: Option<&'a str>,
    /// Where a fact stood in the log of its shard.
    pub position: Option<&'a str>,
    pub cloud_event: CloudEventHeaders<'a>,
}

/// The attributes of a `CloudEvents` event in binary mode, as they came: still percent-encoded.
#[derive(Debug, Default)]
pub(super) struct CloudEventHeaders<'a> {
    pub specversion: Option<&'a str>,
    pub id: Option<&'a str>,
    pub event_type: Option<&'a str>,
    pub tenant: Option<&'a str>,
    pub correlation: Option<&'a str>,
    pub partition_key: Option<&'a str>,
    pub causation: Option<&'a str>,
    pub sequence: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    source: Option<&'a str>,
    subject: Option<&'a str>,
    time: Option<&'a str>,
}

impl<'a> Headers<'a> {
    pub fn pick(headers: &'a [(String, String)]) -> Result<Self, Defect> {
        let mut picked = Self::default();
        for (name, value) in headers {
            let lower = name.to_ascii_lowercase();
            let Some(place) = picked.place(&lower) else {
                continue;
            };
            if place.replace(value).is_some() {
                return Err(Defect::new(
                    "header.duplicate",
                    format!("header {lower} appears more than once"),
                ));
            }
        }
        Ok(picked)
    }

    fn place(&mut self, name: &str) -> Option<&mut Option<&'a str>> {
        let event = &mut self.cloud_event;
        Some(match name {
            "x-tenant-id" => &mut self.tenant,
            "content-type" => &mut self.content_type,
            "traceparent" => &mut self.traceparent,
            APPLIED_HEADER => &mut self.applied,
            APPLIED_TIME_HEADER => &mut self.applied_ms,
            POSITION_HEADER => &mut self.position,
            "ce-specversion" => &mut event.specversion,
            "ce-id" => &mut event.id,
            "ce-type" => &mut event.event_type,
            "ce-source" => &mut event.source,
            "ce-subject" => &mut event.subject,
            "ce-time" => &mut event.time,
            "ce-tenantid" => &mut event.tenant,
            "ce-correlationid" => &mut event.correlation,
            "ce-partitionkey" => &mut event.partition_key,
            "ce-causationid" => &mut event.causation,
            "ce-sequence" => &mut event.sequence,
            "ce-traceparent" => &mut event.traceparent,
            _ => return None,
        })
    }

    /// Whether the body is a whole `CloudEvents` event in JSON.
    pub fn is_structured(&self) -> bool {
        self.content_type
            .and_then(|value| value.split(';').next())
            .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/cloudevents+json"))
    }
}
