//! Reading the `nats` section of an effect file.

use super::codes;
use super::effect::{NatsAct, NatsCall, SubjectPart};
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar;
use super::texts::{self, Readable};
use super::yaml::Entry;
use crate::expr::types::{Env, Type};
use crate::expr::{Template, TextPart};

/// Reads the section.
pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<NatsCall> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::NATS, findings)?;
    let readable = Readable::knowing(REQUEST_ROOTS, env);
    let read_only = fields
        .get("read_only")
        .and_then(|entry| fields::boolean(entry, findings))
        .unwrap_or(false);
    let act = fields.chosen(findings);
    if let (Some(act), Some(entry)) = (act, fields.get("read_only"))
        && act.key != "request"
    {
        let message = format!(
            "\"read_only\" belongs to a request; \"{}\" changes something",
            act.key
        );
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
    }
    let target = act.and_then(|entry| match &*entry.key {
        "request" => subject(entry, NatsAct::Request { read_only }, readable, findings),
        "publish" => subject(entry, NatsAct::Publish, readable, findings),
        "store" => subject(entry, NatsAct::Store, readable, findings),
        _ => put(entry, readable, findings),
    });
    let headers = fields
        .get("headers")
        .map(|entry| headers(entry, readable, findings))
        .unwrap_or_default();
    let body = fields
        .get("body")
        .map(|entry| texts::template(&entry.value, readable, findings));
    if let (Some(act), None) = (act, fields.get("body"))
        && act.key == "put"
    {
        let message = "a value that is put needs the key \"body\"";
        findings.error(codes::MISSING_KEY, entry.key_span.clone(), message);
    }
    let (act, subject) = target?;
    Some(NatsCall {
        act,
        subject,
        headers,
        body,
    })
}

/// What expressions read as `response`.
pub fn response() -> Type {
    Type::object([
        ("body", Type::dynamic()),
        ("code", Type::integer()),
        ("headers", Type::dynamic()),
        ("message", Type::string()),
    ])
}

/// Bucket and key of a value.
fn put(
    entry: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<(NatsAct, Vec<SubjectPart>)> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::PUT, findings)?;
    let bucket = fields.require("bucket", findings).and_then(|entry| {
        let text = fields::text(&entry.value, &entry.key_span, "the name of a bucket", findings)?;
        let span = &entry.value.span;
        fields::is_name(text, span, "bucket", NameRule::Dashed, findings).then(|| text.to_owned())
    });
    let has_bucket = bucket.is_some();
    let act = NatsAct::Put {
        bucket: bucket.unwrap_or_default(),
    };
    let key = fields.require("key", findings)?;
    let template = texts::text_template(&key.value, &key.key_span, "a key", readable, findings)?;
    let parts = parts(template);
    if let Err(fault) = shape(&parts, &act) {
        findings.error(codes::SUBJECT, key.value.span.clone(), fault);
    }
    has_bucket.then_some((act, parts))
}

/// A subject whose first token is fixed, so that no value can lead the message to the server's own subjects.
fn subject(
    entry: &Entry<'_>,
    act: NatsAct,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<(NatsAct, Vec<SubjectPart>)> {
    let template = texts::text_template(&entry.value, &entry.key_span, "a subject", readable, findings)?;
    let parts = parts(template);
    let fixed = match parts.first() {
        Some(SubjectPart::Literal(text)) => match text.split_once('.') {
            Some((first, _)) => Some(first),
            None => (parts.len() == 1).then_some(&**text),
        },
        Some(SubjectPart::Value(_)) | None => None,
    };
    let fault = match fixed {
        None => Some("the first token of a subject is fixed, found an expression in it".to_owned()),
        Some(first) if first.starts_with('$') || first == "_INBOX" => {
            Some(format!("subjects below \"{first}\" belong to the server"))
        }
        Some(_) => shape(&parts, &act).err(),
    };
    if let Some(fault) = fault {
        findings.error(codes::SUBJECT, entry.value.span.clone(), fault);
    }
    Some((act, parts))
}

fn parts(template: Template) -> Vec<SubjectPart> {
    match template {
        Template::Text(parts) => parts
            .into_iter()
            .map(|part| match part {
                TextPart::Literal(text) => SubjectPart::Literal(text),
                TextPart::Expr(expr) => SubjectPart::Value(Template::Value(expr)),
            })
            .collect(),
        Template::Constant(json) => {
            vec![SubjectPart::Literal(
                serde_json::from_slice(&json).unwrap_or_default(),
            )]
        }
        value => vec![SubjectPart::Value(value)],
    }
}

/// Checks what is fixed, with a letter in the place of each value.
fn shape(parts: &[SubjectPart], act: &NatsAct) -> Result<(), String> {
    let what = match act {
        NatsAct::Put { .. } => "a key",
        NatsAct::Request { .. } | NatsAct::Publish | NatsAct::Store => "a subject",
    };
    let text: String = parts
        .iter()
        .map(|part| match part {
            SubjectPart::Literal(text) => text,
            SubjectPart::Value(_) => "x",
        })
        .collect();
    if text.split('.').any(str::is_empty) {
        return Err(format!(
            "{what} is made of tokens with dots between them, found an empty one"
        ));
    }
    match text.chars().find(|c| *c != '.' && !act.allows(*c)) {
        Some(other) => Err(format!("{what} may not hold '{}'", other.escape_debug())),
        None => Ok(()),
    }
}

fn headers(
    entry: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Vec<(String, Template)> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    let entries = fields::entries(&entry.value, &entry.key_span, "headers", findings);
    for item in entries.unwrap_or_default() {
        check_header(item, &headers, findings);
        let value = texts::text_template(&item.value, &item.key_span, "a header value", readable, findings);
        headers.extend(value.map(|value| (item.key.clone().into_owned(), value)));
    }
    headers
}

fn check_header(item: &Entry<'_>, before: &[(String, Template)], findings: &mut Findings<'_>) {
    let name = &*item.key;
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let reserved = name.to_ascii_lowercase().starts_with("nats-");
    if name.is_empty() || !name.chars().all(legal) || reserved {
        let message = format!("\"{}\" is not a header that may be set", name.escape_debug());
        let help = reserved.then(|| "the server obeys headers that begin with Nats-".to_owned());
        findings
            .error(codes::NAME, item.key_span.clone(), message)
            .help(help);
    }
    if before.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
        let message = format!("header \"{}\" is there twice", name.escape_debug());
        findings.error(codes::DUPLICATE_KEY, item.key_span.clone(), message);
    }
}
