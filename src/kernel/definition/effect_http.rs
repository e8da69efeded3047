//! Reading the `http` section of an effect file.

use super::codes;
use super::effect::HttpCall;
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::texts::{self, Readable};
use super::url;
use super::yaml::{Entry, Value};
use crate::kernel::expr::types::{Env, Type};
use crate::kernel::expr::{Template, nearest};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<HttpCall> {
    let keys = &["method", "url", "headers", "body"];
    let fields = Fields::read(&entry.value, &entry.key_span, "a call", keys, findings)?;
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
        .and_then(|entry| texts::template(&entry.value, Readable::knowing(REQUEST_ROOTS, env), findings));
    if let (Some("GET" | "HEAD"), Some(entry)) = (method, fields.get("body")) {
        let message = "GET and HEAD have no body";
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
    }
    Some(HttpCall {
        method: method?.to_owned(),
        url: url?,
        headers,
        body,
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

fn headers(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Vec<(String, Template)> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    let entries = fields::entries(&entry.value, &entry.key_span, "headers", findings);
    for header in entries.unwrap_or_default() {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if header.key.is_empty() || !header.key.chars().all(is_token) {
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
