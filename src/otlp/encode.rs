//! Spans as messages of OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind as Kind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Wire, Status};

use crate::telemetry::{Span, SpanKind};

/// Who sends the spans.
#[derive(Debug, Clone)]
pub struct Origin {
    pub cluster: String,
    pub version: &'static str,
}

/// One request with all of these spans.
pub(super) fn request(origin: &Origin, spans: &[Span]) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            attribute("service.name", "saga-runner"),
            attribute("service.version", origin.version),
            attribute("service.namespace", &origin.cluster),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "saga-runner".to_owned(),
        version: origin.version.to_owned(),
        ..InstrumentationScope::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans: spans.iter().filter_map(wire).collect(),
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

/// None where the span is in no trace.
fn wire(span: &Span) -> Option<Wire> {
    let (trace_id, span_id) = ids(&span.traceparent)?;
    let start = u64::try_from(span.began_ms)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    let took = u64::try_from(span.took.as_nanos()).unwrap_or(u64::MAX);
    let attributes = span.attributes.iter().map(|(name, value)| attribute(name, value));
    let error = span.error.as_deref();
    let links = span
        .link
        .as_deref()
        .and_then(ids)
        .map(|(trace_id, span_id)| Link {
            trace_id,
            span_id,
            ..Link::default()
        });
    Some(Wire {
        trace_id,
        span_id,
        parent_span_id: span.parent.as_deref().and_then(bytes).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: match span.kind {
            SpanKind::Server => Kind::Server,
            SpanKind::Consumer => Kind::Consumer,
            SpanKind::Client => Kind::Client,
        }
        .into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(took),
        attributes: attributes
            .chain(error.map(|class| attribute("error.type", class)))
            .collect(),
        links: links.into_iter().collect(),
        status: error.map(|class| Status {
            message: class.to_owned(),
            code: StatusCode::Error.into(),
        }),
        ..Wire::default()
    })
}

fn attribute(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

/// Trace and span of a `traceparent`.
fn ids(traceparent: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    Some((bytes(traceparent.get(3..35)?)?, bytes(traceparent.get(36..52)?)?))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let pairs = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    pairs.collect()
}
