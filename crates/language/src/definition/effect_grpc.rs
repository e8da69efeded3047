//! Reading the `grpc` section of an effect file.

use std::sync::Arc;

use super::binary_files::{DESCRIPTORS_ENDING, is_reference};
use super::codes;
use super::effect::GrpcCall;
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::schema_files::{Schemas, resolved};
use super::texts::{self, Readable};
use super::url;
use super::yaml::{Entry, Node};
use crate::expr::types::{Env, Type};
use crate::expr::{Expr, Template, TextPart};

/// Reads the section. What the descriptors say is checked where this runner can read them.
pub fn read(
    entry: &Entry<'_>,
    env: &Env,
    schemas: &Schemas<'_>,
    findings: &mut Findings<'_>,
) -> Option<GrpcCall> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::GRPC, findings)?;
    let readable = Readable::knowing(REQUEST_ROOTS, env);
    let address = fields.require("url", findings).and_then(|entry| {
        let url = texts::text_template(&entry.value, &entry.key_span, "a url", readable, findings)?;
        address(&url, &entry.value, findings);
        Some(url)
    });
    let method = fields
        .require("method", findings)
        .and_then(|entry| method(entry, findings));
    let descriptors = match fields.chosen(findings) {
        Some(entry) if entry.key == "descriptors" => descriptors(entry, schemas, findings).map(Some),
        Some(entry) => reflection(entry, findings).map(|()| None),
        None => None,
    };
    let metadata = fields
        .get("metadata")
        .map(|entry| metadata(entry, readable, findings))
        .unwrap_or_default();
    let message = match fields.get("message") {
        Some(entry) => texts::template(&entry.value, readable, findings),
        None => Template::Map(Vec::new()),
    };
    let (service, method) = method?;
    let descriptors = descriptors?;
    let is_safe = match &descriptors {
        #[cfg(feature = "effect-grpc")]
        Some(bytes) => described::check(&fields, bytes, (service, method), findings),
        _ => false,
    };
    Some(GrpcCall {
        url: address?,
        service: service.to_owned(),
        method: method.to_owned(),
        descriptors,
        is_safe,
        metadata,
        message,
    })
}

/// What expressions read as `response`.
pub fn response() -> Type {
    Type::object([
        ("body", Type::dynamic()),
        ("code", Type::integer()),
        ("message", Type::string()),
        ("metadata", Type::dynamic()),
        ("status", Type::string()),
    ])
}

/// A server is an origin without a path.
fn address(template: &Template, node: &Node<'_>, findings: &mut Findings<'_>) {
    let before = findings.has(codes::URL);
    url::check(template, node, findings);
    if findings.has(codes::URL) && !before {
        return;
    }
    let is_origin = |text: &str| {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        !rest.trim_end_matches('/').contains(['/', '?', '#'])
    };
    let is_bare = match template {
        Template::Constant(json) => serde_json::from_slice::<String>(json).is_ok_and(|text| is_origin(&text)),
        Template::Text(parts) => match &parts[..] {
            [TextPart::Literal(text)] => is_origin(text),
            [TextPart::Expr(base)] => is_upstream(base),
            _ => false,
        },
        Template::Value(base) => is_upstream(base),
        Template::List(_) | Template::Map(_) => false,
    };
    if !is_bare {
        let message = "the url of a gRPC server has no path: http(s)://host:port, or ${upstreams.<name>}";
        findings.error(codes::URL, node.span.clone(), message);
    }
}

fn is_upstream(expr: &Expr) -> bool {
    url::upstream(expr).is_some()
}

/// `package.Service/Method`.
fn method<'n>(entry: &'n Entry<'_>, findings: &mut Findings<'_>) -> Option<(&'n str, &'n str)> {
    let text = fields::text(&entry.value, &entry.key_span, "a method", findings)?;
    let is_word = |word: &str| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let parts = text
        .strip_prefix('/')
        .unwrap_or(text)
        .split_once('/')
        .filter(|(service, method)| service.split('.').all(is_word) && is_word(method));
    if parts.is_none() {
        let message = format!("\"{}\" is not package.Service/Method", text.escape_debug());
        findings.error(codes::WRONG_VALUE, entry.value.span.clone(), message);
    }
    parts
}

fn reflection(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<()> {
    let asked = fields::boolean(entry, findings)?;
    if !asked {
        let message = "without reflection a call needs \"descriptors\"";
        findings.error(codes::WRONG_VALUE, entry.value.span.clone(), message);
    }
    asked.then_some(())
}

fn descriptors(entry: &Entry<'_>, schemas: &Schemas<'_>, findings: &mut Findings<'_>) -> Option<Arc<[u8]>> {
    let what = "the path of a set of descriptors";
    let reference = fields::text(&entry.value, &entry.key_span, what, findings)?;
    let span = entry.value.span.clone();
    if !is_reference(reference, DESCRIPTORS_ENDING) {
        let message = format!("\"{}\" is not {what}", reference.escape_debug());
        findings
            .error(codes::DESCRIPTORS, span, message)
            .help(Some(format!(
                "write a path relative to this file that ends with {DESCRIPTORS_ENDING}"
            )));
        return None;
    }
    let path = resolved(findings.path(), reference);
    match schemas.binary(&path) {
        Some(Ok(bytes)) => Some(Arc::clone(bytes)),
        Some(Err(reason)) => {
            let message = format!("the descriptors {path} cannot be read: {reason}");
            findings.error(codes::DESCRIPTORS, span, message);
            None
        }
        None => {
            let message = format!("there are no descriptors {path}");
            findings.error(codes::DESCRIPTORS, span, message);
            None
        }
    }
}

/// Names are sent in lower case; those of gRPC itself and binary values cannot be set.
fn metadata(
    entry: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Vec<(String, Template)> {
    let mut metadata: Vec<(String, Template)> = Vec::new();
    let entries = fields::entries(&entry.value, &entry.key_span, "metadata", findings);
    for item in entries.unwrap_or_default() {
        let name = item.key.to_ascii_lowercase();
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let reserved = name.starts_with("grpc-") || name.ends_with("-bin");
        if name.is_empty() || !name.chars().all(legal) || reserved {
            let message = format!(
                "\"{}\" is not a name of metadata with text",
                item.key.escape_debug()
            );
            findings.error(codes::NAME, item.key_span.clone(), message);
        }
        if metadata.iter().any(|(other, _)| *other == name) {
            let message = format!("metadata \"{name}\" is there twice");
            findings.error(codes::DUPLICATE_KEY, item.key_span.clone(), message);
        }
        let value = texts::text_template(&item.value, &item.key_span, "a value", readable, findings);
        metadata.extend(value.map(|value| (name, value)));
    }
    metadata
}

/// What only a runner that makes such calls can check.
#[cfg(feature = "effect-grpc")]
mod described {
    use prost_reflect::prost_types::method_options::IdempotencyLevel;
    use prost_reflect::{
        Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor,
        ServiceDescriptor,
    };

    use super::super::codes;
    use super::super::fields::Fields;
    use super::super::findings::Findings;
    use super::super::yaml::{Node, Value};
    use crate::expr::nearest;

    /// Looks whether the descriptors have the method, and its request the fields of the message. Returns whether
    /// the method is said to change nothing.
    pub fn check(
        fields: &Fields<'_, '_>,
        bytes: &[u8],
        (service, method): (&str, &str),
        findings: &mut Findings<'_>,
    ) -> bool {
        let place = |key: &str| fields.get(key).map_or(0..0, |entry| entry.value.span.clone());
        let pool = match DescriptorPool::decode(bytes) {
            Ok(pool) => pool,
            Err(error) => {
                let message = format!("these are not descriptors: {error}");
                findings.error(codes::DESCRIPTORS, place("descriptors"), message);
                return false;
            }
        };
        let at = place("method");
        let Some(found) = pool.get_service_by_name(service) else {
            let services: Vec<_> = pool.services().collect();
            let help = meant(service, services.iter().map(ServiceDescriptor::full_name));
            let message = format!("the descriptors have no service \"{service}\"");
            findings.error(codes::METHOD, at, message).help(help);
            return false;
        };
        let Some(found) = found.methods().find(|known| known.name() == method) else {
            let methods: Vec<_> = found.methods().collect();
            let help = meant(method, methods.iter().map(MethodDescriptor::name));
            let message = format!("\"{service}\" has no method \"{method}\"");
            findings.error(codes::METHOD, at, message).help(help);
            return false;
        };
        if found.is_client_streaming() || found.is_server_streaming() {
            let message = format!("\"{method}\" streams; an effect is one request and one answer");
            findings.error(codes::METHOD, at, message);
            return false;
        }
        if let Some(entry) = fields.get("message") {
            members(&entry.value, &found.input(), findings);
        }
        is_safe(&found)
    }

    /// Whether the members that stand in the file are fields of the message. Types that JSON writes in a way of
    /// their own are left to the call.
    fn members(node: &Node<'_>, message: &MessageDescriptor, findings: &mut Findings<'_>) {
        let Value::Map(entries) = &node.value else { return };
        if message.full_name().starts_with("google.protobuf.") {
            return;
        }
        for entry in entries {
            let field = message
                .get_field_by_json_name(&entry.key)
                .or_else(|| message.get_field_by_name(&entry.key));
            if let Some(field) = field {
                inner(&entry.value, &field, findings);
                continue;
            }
            let known: Vec<_> = message.fields().collect();
            let help = meant(&entry.key, known.iter().map(FieldDescriptor::json_name));
            let name = entry.key.escape_debug();
            let text = format!("\"{}\" has no field \"{name}\"", message.full_name());
            findings
                .error(codes::UNKNOWN_FIELD, entry.key_span.clone(), text)
                .help(help);
        }
    }

    fn inner(node: &Node<'_>, field: &FieldDescriptor, findings: &mut Findings<'_>) {
        let Kind::Message(message) = field.kind() else {
            return;
        };
        match (&node.value, field.is_map(), field.cardinality()) {
            (Value::Map(entries), true, _) => {
                let value = message.map_entry_value_field();
                for entry in entries {
                    inner(&entry.value, &value, findings);
                }
            }
            (Value::List(items), false, Cardinality::Repeated) => {
                for item in items {
                    members(item, &message, findings);
                }
            }
            (_, false, _) => members(node, &message, findings),
            (_, true, _) => {}
        }
    }

    fn is_safe(method: &MethodDescriptor) -> bool {
        let options = &method.method_descriptor_proto().options;
        options
            .as_ref()
            .is_some_and(|options| options.idempotency_level() == IdempotencyLevel::NoSideEffects)
    }

    fn meant<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<String> {
        nearest(name, known).map(|near| format!("did you mean \"{near}\"?"))
    }
}
