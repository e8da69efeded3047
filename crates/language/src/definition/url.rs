//! The rule of URLs: the host is fixed by the file or the manifest, and a value can only fill the place that
//! is left for it.

use std::ops::Range;

use super::codes;
use super::findings::Findings;
use super::texts::place_of;
use super::yaml::Node;
use crate::expr::{Expr, Root, Template, TextPart};

/// Checks the template of a URL, which stands at `node`.
pub fn check(template: &Template, node: &Node<'_>, findings: &mut Findings<'_>) {
    let literal;
    let parts: &[TextPart] = match template {
        Template::Text(parts) => parts,
        Template::Value(expr) => {
            literal = [TextPart::Expr(expr.clone())];
            &literal
        }
        Template::Constant(json) => {
            let text = serde_json::from_slice(json).unwrap_or_default();
            literal = [TextPart::Literal(text)];
            &literal
        }
        Template::List(_) | Template::Map(_) => return,
    };
    if let Err((span, message)) = head(parts, node, findings.text()) {
        findings.error(codes::URL, span, message);
        return;
    }
    for part in parts.iter().skip(1) {
        if let TextPart::Expr(expr) = part
            && !expr.is_call_of("url")
        {
            let span = place_of(node, expr, expr.text(), findings.text());
            findings
                .error(
                    codes::URL,
                    span,
                    format!("`{}` could change the path of the url", expr.text()),
                )
                .help(Some(format!("write ${{url({})}}", expr.text().trim())));
        }
    }
}

/// The name in `upstreams.<name>`.
#[must_use]
pub fn upstream(expr: &Expr) -> Option<&str> {
    let name = expr.text().trim().strip_prefix("upstreams.")?;
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (plain && expr.reads(Root::Upstreams)).then_some(name)
}

/// Checks what fixes the host.
fn head(parts: &[TextPart], node: &Node<'_>, text: &str) -> Result<(), (Range<usize>, &'static str)> {
    let whole = || node.span.clone();
    match parts {
        [TextPart::Literal(head), rest @ ..] => {
            literal_head(head, rest.is_empty()).map_err(|message| (whole(), message))
        }
        [TextPart::Expr(base), ..] if upstream(base).is_none() => {
            let span = place_of(node, base, base.text(), text);
            Err((
                span,
                "a url begins with a fixed host, or with ${upstreams.<name>}",
            ))
        }
        [TextPart::Expr(_), rest @ ..] if !rest_is_path(rest) => {
            Err((whole(), "behind ${upstreams.<name>} there must be a \"/\""))
        }
        [TextPart::Expr(_), ..] => Ok(()),
        [] => Err((whole(), "the url is empty")),
    }
}

fn rest_is_path(rest: &[TextPart]) -> bool {
    match rest.first() {
        None => true,
        Some(TextPart::Literal(literal)) => literal.starts_with(['/', '?']),
        Some(TextPart::Expr(_)) => false,
    }
}

/// `http(s)://host[:port]`, closed by `/`, `?` or the end of the whole.
fn literal_head(head: &str, is_whole: bool) -> Result<(), &'static str> {
    const BEGIN: &str = "a url begins with http:// or https:// and a fixed host, or with ${upstreams.<name>}";
    let rest = head
        .strip_prefix("https://")
        .or_else(|| head.strip_prefix("http://"))
        .ok_or(BEGIN)?;
    let end = rest.find(['/', '?', '#']);
    let authority = &rest[..end.unwrap_or(rest.len())];
    if end.is_none() && !is_whole {
        return Err("host and port of a url are fixed, found an expression in them");
    }
    if authority.contains('@') {
        return Err("a url holds no user name and no password; use a header with a secret");
    }
    let (host, port) = match authority.rfind(':') {
        Some(at) if !authority.ends_with(']') => (&authority[..at], Some(&authority[at + 1..])),
        _ => (authority, None),
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    if host.is_empty() || !host.chars().all(legal) {
        return Err("the url has no host");
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("the port of the url is not a number up to 65535");
    }
    if rest.contains(char::is_whitespace) {
        return Err("a url holds no spaces");
    }
    Ok(())
}
