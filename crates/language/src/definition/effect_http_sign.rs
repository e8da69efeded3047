//! Reading `sign` of the `http` section of an effect file.

use std::ops::Range;

use super::codes;
use super::effect_file::REQUEST_ROOTS;
use super::effect_http::{is_header_name, write_header};
use super::effect_http_oauth2::secret;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::http_proof::{Signature, SignatureEncoding, SignatureHash, SignaturePart, TimestampUnit};
use super::texts::{self, Readable};
use super::yaml::Entry;
use crate::expr::nearest;
use crate::expr::types::Env;

const HASHES: &[(&str, SignatureHash)] = &[
    ("sha256", SignatureHash::Sha256),
    ("sha512", SignatureHash::Sha512),
];
const ENCODINGS: &[(&str, SignatureEncoding)] = &[
    ("hex", SignatureEncoding::Hex),
    ("base64", SignatureEncoding::Base64),
];
const UNITS: &[(&str, TimestampUnit)] = &[("s", TimestampUnit::Seconds), ("ms", TimestampUnit::Milliseconds)];
/// What can be signed.
const CONTENT: &[(&str, SignaturePart)] = &[
    ("method", SignaturePart::Method),
    ("path", SignaturePart::Path),
    ("timestamp", SignaturePart::Timestamp),
    ("body", SignaturePart::Body),
];
/// What the header can tell.
const VALUE: &[(&str, SignaturePart)] = &[
    ("signature", SignaturePart::Signature),
    ("timestamp", SignaturePart::Timestamp),
];

/// `written` are the headers that the call has without it.
pub fn read<'n>(
    entry: &'n Entry<'_>,
    has_body: bool,
    written: &mut Vec<&'n str>,
    env: &Env,
    findings: &mut Findings<'_>,
) -> Option<Box<Signature>> {
    let fields = Fields::read(
        &entry.value,
        &entry.key_span,
        &grammar::effect::SIGNATURE,
        findings,
    )?;
    let readable = Readable::knowing(REQUEST_ROOTS, env);
    let key = fields
        .require("key", findings)
        .and_then(|entry| secret(entry, "a key", readable, findings));
    let hash = fields
        .get("algorithm")
        .and_then(|entry| word(entry, "algorithm", HASHES, findings));
    let encoding = fields
        .get("encoding")
        .and_then(|entry| word(entry, "encoding", ENCODINGS, findings));
    let header = fields
        .require("header", findings)
        .and_then(|entry| header(entry, written, findings));
    let value = match fields.get("value") {
        None => Some(vec![SignaturePart::Signature]),
        Some(entry) => value(entry, findings),
    };
    let content = match fields.get("content") {
        None if has_body => Some(vec![SignaturePart::Body]),
        None => {
            let message = "the call has no body to sign; say with \"content\" what is signed";
            findings
                .error(codes::SIGNATURE, entry.key_span.clone(), message)
                .help(Some(
                    "write for example content: \"${timestamp}.${method}.${path}\"".to_owned(),
                ));
            None
        }
        Some(entry) => content(entry, findings),
    };
    let (timestamp_header, timestamp_unit) = timestamp(&fields, written, findings);
    if let (Some(value), Some(content)) = (&value, &content) {
        let signed = content.contains(&SignaturePart::Timestamp);
        let told = timestamp_header.is_some() || value.contains(&SignaturePart::Timestamp);
        if let (true, false, Some(entry)) = (signed, told, fields.get("content")) {
            let message = "the receiver does not learn the timestamp that is signed";
            findings
                .error(codes::SIGNATURE, entry.key_span.clone(), message)
                .help(Some(
                "name a header for it, timestamp: {header: X-Timestamp}, or put ${timestamp} into \"value\""
                    .to_owned(),
            ));
        }
    }
    Some(Box::new(Signature {
        key: key?,
        hash: hash.unwrap_or_default(),
        encoding: encoding.unwrap_or_default(),
        header: header?,
        value: value?,
        content: content?,
        timestamp_header,
        timestamp_unit,
    }))
}

fn word<T: Copy>(
    entry: &Entry<'_>,
    what: &str,
    known: &[(&'static str, T)],
    findings: &mut Findings<'_>,
) -> Option<T> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let names = names.join(" or ");
    let text = fields::text(&entry.value, &entry.key_span, &names, findings)?;
    let found = known.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let message = format!("unknown {what} \"{}\"", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
            .help(Some(format!("write {names}")));
    }
    found.map(|(_, value)| *value)
}

fn header<'n>(
    entry: &'n Entry<'_>,
    written: &mut Vec<&'n str>,
    findings: &mut Findings<'_>,
) -> Option<String> {
    let text = fields::text(&entry.value, &entry.key_span, "the name of a header", findings)?;
    if !is_header_name(text) {
        let message = format!("\"{}\" is not a header name", text.escape_debug());
        findings.error(codes::NAME, entry.value.span.clone(), message);
        return None;
    }
    write_header(text, written, &entry.value.span, findings);
    Some(text.to_owned())
}

fn value(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Vec<SignaturePart>> {
    let parts = parts(entry, VALUE, findings)?;
    if !parts.contains(&SignaturePart::Signature) {
        let span = fields::visible(&entry.value, &entry.key_span, findings.text());
        let message = "the header does not carry the signature";
        findings
            .error(codes::SIGNATURE, span, message)
            .help(Some("write ${signature} where it belongs".to_owned()));
    }
    let unprintable = |part: &SignaturePart| match part {
        SignaturePart::Literal(text) => text.contains(|c: char| c.is_control()),
        _ => false,
    };
    if parts.iter().any(unprintable) {
        let span = fields::visible(&entry.value, &entry.key_span, findings.text());
        findings.error(codes::WRONG_VALUE, span, "a header value is one line");
    }
    Some(parts)
}

fn content(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Vec<SignaturePart>> {
    let parts = parts(entry, CONTENT, findings)?;
    let of_the_call = |part: &SignaturePart| {
        matches!(
            part,
            SignaturePart::Method | SignaturePart::Path | SignaturePart::Body
        )
    };
    if !parts.iter().any(of_the_call) {
        let span = fields::visible(&entry.value, &entry.key_span, findings.text());
        let message = "nothing of the call is signed";
        findings
            .error(codes::SIGNATURE, span, message)
            .help(Some("write ${body}, ${path} or ${method}".to_owned()));
    }
    Some(parts)
}

/// Where the time of the signature is told, and how it is counted.
fn timestamp<'n>(
    fields: &Fields<'n, '_>,
    written: &mut Vec<&'n str>,
    findings: &mut Findings<'_>,
) -> (Option<String>, TimestampUnit) {
    let Some(fields) = fields.get("timestamp").and_then(|entry| {
        Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::effect::TIMESTAMP,
            findings,
        )
    }) else {
        return (None, TimestampUnit::default());
    };
    let name = fields
        .get("header")
        .and_then(|entry| header(entry, written, findings));
    let unit = fields
        .get("unit")
        .and_then(|entry| word(entry, "unit", UNITS, findings));
    (name, unit.unwrap_or_default())
}

/// A text with `${name}` for each of `known`. These are no expressions: they stand for bytes of the request, which
/// no expression sees.
fn parts(
    entry: &Entry<'_>,
    known: &[(&'static str, SignaturePart)],
    findings: &mut Findings<'_>,
) -> Option<Vec<SignaturePart>> {
    let text = fields::text(&entry.value, &entry.key_span, "a text", findings)?;
    let mut parts = Vec::new();
    let mut all_known = true;
    let mut at = 0;
    while let Some(begin) = text[at..].find("${").map(|found| at + found) {
        if begin > at {
            parts.push(SignaturePart::Literal(text[at..begin].to_owned()));
        }
        let Some(end) = text[begin..].find('}').map(|found| begin + found) else {
            let span = texts::within(&entry.value, begin, text.len() - begin, findings.text());
            findings.error(codes::SIGNATURE, span, "`${` without its `}`");
            return None;
        };
        let name = text[begin + 2..end].trim();
        if let Some((_, part)) = known.iter().find(|(known, _)| *known == name) {
            parts.push(part.clone());
        } else {
            all_known = false;
            let span = texts::within(&entry.value, begin, end + 1 - begin, findings.text());
            unknown_part(entry, name, known, span, findings);
        }
        at = end + 1;
    }
    if at < text.len() {
        parts.push(SignaturePart::Literal(text[at..].to_owned()));
    }
    all_known.then_some(parts)
}

fn unknown_part(
    entry: &Entry<'_>,
    name: &str,
    known: &[(&'static str, SignaturePart)],
    span: Range<usize>,
    findings: &mut Findings<'_>,
) {
    let names: Vec<String> = known.iter().map(|(name, _)| format!("${{{name}}}")).collect();
    let names = format!("{} may have {}", entry.key, names.join(", "));
    let help = match nearest(name, known.iter().map(|(name, _)| *name)) {
        Some(near) => format!("did you mean ${{{near}}}? {names}"),
        None => names,
    };
    let message = format!("unknown part \"{}\"", name.escape_debug());
    findings.error(codes::SIGNATURE, span, message).help(Some(help));
}
