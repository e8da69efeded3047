//! Reading the `smtp` section of an effect file.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::codes;
use super::effect::{Attachment, AttachmentBody, SmtpMail, SmtpSecurity};
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::texts::{self, Readable};
use super::url;
use super::yaml::{Entry, Node, Value};
use crate::expr::types::{Env, Type};
use crate::expr::{Template, TextPart};

const SECURITY: &[(&str, SmtpSecurity)] = &[
    ("starttls", SmtpSecurity::StartTls),
    ("tls", SmtpSecurity::Tls),
    ("none", SmtpSecurity::None),
];
/// Headers that other keys or the runner write.
const RESERVED: &[&str] = &[
    "from",
    "to",
    "cc",
    "bcc",
    "reply-to",
    "subject",
    "date",
    "message-id",
    "mime-version",
    "content-type",
    "content-transfer-encoding",
    "content-disposition",
];
/// Most attachments of a message.
const ATTACHMENTS_MAX: usize = 16;

/// What expressions read as `response`.
pub fn response() -> Type {
    Type::object([
        ("body", Type::object([("message_id", Type::string())])),
        ("code", Type::integer()),
        ("message", Type::string()),
    ])
}

pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<SmtpMail> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::SMTP, findings)?;
    let readable = Readable::knowing(REQUEST_ROOTS, env);
    let text = |entry: &Entry<'_>, what: &str, findings: &mut Findings<'_>| {
        texts::text_template(&entry.value, &entry.key_span, what, readable, findings)
    };
    let server = fields.require("server", findings).and_then(|entry| {
        let server = text(entry, "a server", findings)?;
        address(&server, &entry.value, findings);
        Some(server)
    });
    let security = fields.get("security").and_then(|entry| security(entry, findings));
    let hello = fields.get("hello").and_then(|entry| hello(entry, findings));
    let user = fields
        .get("user")
        .and_then(|entry| text(entry, "a user", findings));
    let password = fields
        .get("password")
        .and_then(|entry| text(entry, "a password", findings));
    together(&fields, "user", "password", findings);
    if let (Some(SmtpSecurity::None), Some(entry)) = (security, fields.get("password")) {
        let message = "a password would be sent for everybody to read; leave out \"security: none\"";
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
    }
    let from = fields
        .require("from", findings)
        .and_then(|entry| text(entry, "an address", findings));
    let reply_to = fields
        .get("reply_to")
        .and_then(|entry| text(entry, "an address", findings));
    let subject = fields
        .require("subject", findings)
        .and_then(|entry| text(entry, "a subject", findings));
    let plain = fields
        .get("text")
        .and_then(|entry| text(entry, "a text", findings));
    let html = fields
        .get("html")
        .and_then(|entry| text(entry, "a text", findings));
    if fields.get("text").is_none() && fields.get("html").is_none() {
        let message = "a message needs \"text\", \"html\" or both";
        findings.error(codes::MISSING_KEY, entry.key_span.clone(), message);
    }
    let addresses = |key: &str, findings: &mut Findings<'_>| {
        let entry = fields.get(key)?;
        Some(texts::template(&entry.value, readable, findings))
    };
    let recipients = ["to", "cc", "bcc"].map(|key| addresses(key, findings));
    if !["to", "cc", "bcc"].iter().any(|key| fields.get(key).is_some()) {
        let message = "a message needs recipients: \"to\", \"cc\" or \"bcc\"";
        findings.error(codes::MISSING_KEY, entry.key_span.clone(), message);
    }
    let headers = fields
        .get("headers")
        .map(|entry| headers(entry, readable, findings))
        .unwrap_or_default();
    let attachments = fields
        .get("attachments")
        .map(|entry| attachments(entry, readable, findings))
        .unwrap_or_default();
    let [to, cc, bcc] = recipients;
    Some(SmtpMail {
        server: server?,
        security,
        hello,
        user,
        password,
        from: from?,
        to,
        cc,
        bcc,
        reply_to,
        subject: subject?,
        text: plain,
        html,
        headers,
        attachments,
    })
}

fn together(fields: &Fields<'_, '_>, one: &str, other: &str, findings: &mut Findings<'_>) {
    for (present, absent) in [(one, other), (other, one)] {
        if let (Some(entry), None) = (fields.get(present), fields.get(absent)) {
            let message = format!("\"{present}\" needs \"{absent}\"");
            findings.error(codes::MISSING_KEY, entry.key_span.clone(), message);
        }
    }
}

/// A server is fixed by the file or the manifest.
fn address(template: &Template, node: &Node<'_>, findings: &mut Findings<'_>) {
    let is_fixed = match template {
        Template::Constant(json) => serde_json::from_slice(json).is_ok_and(is_server),
        Template::Text(parts) => match &parts[..] {
            [TextPart::Literal(text)] => is_server(text),
            [TextPart::Expr(base)] => url::upstream(base).is_some(),
            _ => false,
        },
        Template::Value(base) => url::upstream(base).is_some(),
        Template::List(_) | Template::Map(_) => false,
    };
    if !is_fixed {
        let message = "a server is smtp://host:port, smtps://host:port or ${upstreams.<name>}";
        findings.error(codes::URL, node.span.clone(), message);
    }
}

fn is_server(text: &str) -> bool {
    let rest = text
        .strip_prefix("smtps://")
        .or_else(|| text.strip_prefix("smtp://"));
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(legal))
}

fn security(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<SmtpSecurity> {
    let text = fields::text(&entry.value, &entry.key_span, "a kind of security", findings)?;
    let known = SECURITY.iter().find(|(name, _)| *name == text);
    if known.is_none() {
        let message = format!("unknown security \"{}\"", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
            .help(Some("kinds are starttls, tls and none".to_owned()));
    }
    known.map(|(_, security)| *security)
}

/// The name is the same for all messages, so that a server can check it against the address that calls.
fn hello(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<String> {
    let text = fields::text(&entry.value, &entry.key_span, "the name of this host", findings)?;
    if !is_host(text) {
        let message = format!("\"{}\" is not the name of a host", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
            .help(Some(
                "write a domain, or an address such as [192.0.2.1]".to_owned(),
            ));
        return None;
    }
    Some(text.to_owned())
}

/// A domain of letters, digits and `-`, or an address in brackets.
fn is_host(text: &str) -> bool {
    if let Some(literal) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let v6 = literal.strip_prefix("IPv6:");
        return v6.map_or_else(
            || literal.parse::<Ipv4Addr>().is_ok(),
            |literal| literal.parse::<Ipv6Addr>().is_ok(),
        );
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

fn headers(
    entry: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Vec<(String, Template)> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    let entries = fields::entries(&entry.value, &entry.key_span, "headers", findings);
    for item in entries.unwrap_or_default() {
        let name = item.key.to_ascii_lowercase();
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if name.is_empty() || !name.chars().all(legal) || RESERVED.contains(&name.as_str()) {
            let message = format!("\"{}\" is not a header that may be set", item.key.escape_debug());
            findings.error(codes::NAME, item.key_span.clone(), message);
        }
        if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            let message = format!("header \"{}\" is there twice", item.key.escape_debug());
            findings.error(codes::DUPLICATE_KEY, item.key_span.clone(), message);
        }
        let value = texts::text_template(&item.value, &item.key_span, "a header value", readable, findings);
        headers.extend(value.map(|value| (item.key.clone().into_owned(), value)));
    }
    headers
}

fn attachments(entry: &Entry<'_>, readable: Readable<'_>, findings: &mut Findings<'_>) -> Vec<Attachment> {
    let Value::List(items) = &entry.value.value else {
        fields::expected(&entry.value, &entry.key_span, "a list of attachments", findings);
        return Vec::new();
    };
    if items.len() > ATTACHMENTS_MAX {
        let message = format!(
            "there are {} attachments, at most {ATTACHMENTS_MAX} are allowed",
            items.len()
        );
        findings.error(codes::WRONG_VALUE, entry.key_span.clone(), message);
    }
    items
        .iter()
        .filter_map(|item| attachment(item, entry, readable, findings))
        .collect()
}

fn attachment(
    node: &Node<'_>,
    list: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<Attachment> {
    let fields = Fields::item(node, &list.key_span, &grammar::effect::ATTACHMENT, findings)?;
    let text = |entry: &Entry<'_>, what: &str, findings: &mut Findings<'_>| {
        texts::text_template(&entry.value, &entry.key_span, what, readable, findings)
    };
    let name = fields
        .require("name", findings)
        .and_then(|entry| text(entry, "a file name", findings));
    let media_type = fields
        .get("type")
        .and_then(|entry| text(entry, "a media type", findings));
    let body = fields.chosen(findings).and_then(|entry| {
        let body = text(entry, "the content", findings)?;
        Some(if entry.key == "text" {
            AttachmentBody::Text(body)
        } else {
            AttachmentBody::Base64(body)
        })
    });
    Some(Attachment {
        name: name?,
        media_type,
        body: body?,
    })
}
