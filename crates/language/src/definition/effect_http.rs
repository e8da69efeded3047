//! Reading the `http` section of an effect file.

use std::ops::Range;

use super::codes;
use super::effect::HttpCall;
use super::effect_file::REQUEST_ROOTS;
use super::effect_http_oauth2;
use super::effect_http_sign;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::texts::{self, Readable};
use super::url;
use super::yaml::{Entry, Value};
use crate::expr::types::{Env, Type};
use crate::expr::{Template, nearest};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// The header of a token.
const AUTHORIZATION: &str = "Authorization";

pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<HttpCall> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::HTTP, findings)?;
    let method = fields
        .require("method", findings)
        .and_then(|entry| method(entry, findings));
    let url = fields.require("url", findings).and_then(|entry| {
        let readable = Readable::knowing(REQUEST_ROOTS, env);
        let template = texts::text_template(&entry.value, &entry.key_span, "a url", readable, findings)?;
        url::check(&template, &entry.value, findings);
        Some(template)
    });
    let headers = fields
        .get("headers")
        .map(|entry| headers(entry, env, findings))
        .unwrap_or_default();
    let body = fields
        .get("body")
        .map(|entry| texts::template(&entry.value, Readable::knowing(REQUEST_ROOTS, env), findings));
    if let (Some("GET" | "HEAD"), Some(entry)) = (method, fields.get("body")) {
        let message = "GET and HEAD have no body";
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
    }
    let oauth2 = fields
        .get("auth")
        .and_then(|entry| effect_http_oauth2::read(entry, env, findings));
    let mut written: Vec<&str> = headers.iter().map(|(name, _)| &**name).collect();
    if let Some(entry) = fields.get("auth") {
        write_header(AUTHORIZATION, &mut written, &entry.key_span, findings);
    }
    let sign = fields.get("sign").and_then(|entry| {
        let has_body = fields.get("body").is_some();
        effect_http_sign::read(entry, has_body, &mut written, env, findings)
    });
    Some(HttpCall {
        method: method?.to_owned(),
        url: url?,
        headers,
        body,
        oauth2,
        sign,
    })
}

/// What expressions read as `response`.
pub fn response() -> Type {
    Type::object([
        ("status", Type::integer()),
        ("headers", Type::dynamic()),
        ("body", Type::dynamic()),
    ])
}

fn method(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<&'static str> {
    let text = fields::text(&entry.value, &entry.key_span, "a method", findings)?;
    let known = METHODS.into_iter().find(|method| *method == text);
    if known.is_none() {
        let upper = text.to_ascii_uppercase();
        let help = nearest(&upper, METHODS).map_or_else(
            || format!("methods are {}", METHODS.join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        );
        let message = format!("unknown method \"{}\"", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
            .help(Some(help));
    }
    known
}

/// Adds a header to those that a call has; `span` is where the file asks for it.
pub(super) fn write_header<'n>(
    name: &'n str,
    written: &mut Vec<&'n str>,
    span: &Range<usize>,
    findings: &mut Findings<'_>,
) {
    if written.iter().any(|other| other.eq_ignore_ascii_case(name)) {
        let message = format!("the header {name} is written already");
        findings.error(codes::CONTRADICTION, span.clone(), message);
    }
    written.push(name);
}

/// Whether a text is a token of RFC 9110.
pub(super) fn is_header_name(text: &str) -> bool {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_token)
}

fn headers(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Vec<(String, Template)> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    let entries = fields::entries(&entry.value, &entry.key_span, "headers", findings);
    for header in entries.unwrap_or_default() {
        if !is_header_name(&header.key) {
            let message = format!("\"{}\" is not a header name", header.key.escape_debug());
            findings.error(codes::NAME, header.key_span.clone(), message);
        }
        if headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case(&header.key))
        {
            let message = format!("header \"{}\" is there twice", header.key);
            findings.error(codes::DUPLICATE_KEY, header.key_span.clone(), message);
        }
        let readable = Readable::knowing(REQUEST_ROOTS, env);
        let value = texts::text_template(
            &header.value,
            &header.key_span,
            "a header value",
            readable,
            findings,
        );
        if let Value::Scalar(scalar) = &header.value.value
            && scalar.text.contains(char::is_control)
        {
            let span = fields::visible(&header.value, &header.key_span, findings.text());
            findings.error(codes::WRONG_VALUE, span, "a header value is one line");
        }
        headers.extend(value.map(|value| (header.key.clone().into_owned(), value)));
    }
    headers
}
