//! The values within the canonical form: texts, expressions, lists and objects.

use std::borrow::Cow;

use crate::expr::{Expr, Template, TextPart};
use crate::json::Json;

pub(super) fn members(set: &[(String, Template)]) -> Json<'_> {
    Json::Map(
        set.iter()
            .map(|(name, value)| (Cow::Borrowed(name.as_str()), template(value)))
            .collect(),
    )
}

/// Each kind of template has a form of its own, so that a constant is never taken for an expression.
pub(super) fn template(template: &Template) -> Json<'_> {
    match template {
        Template::Constant(json) => object([("constant", Json::Str(String::from_utf8_lossy(json)))]),
        Template::Value(expr) => object([("value", expression(expr))]),
        Template::Text(parts) => {
            let parts = parts.iter().map(|part| match part {
                TextPart::Literal(literal) => text(literal),
                TextPart::Expr(expr) => object([("value", expression(expr))]),
            });
            object([("text", list(parts))])
        }
        Template::List(items) => exact("list", list(items.iter().map(self::template))),
        Template::Map(entries) => exact("map", members(entries)),
    }
}

pub(super) fn expression(expr: &Expr) -> Json<'_> {
    Json::Str(compact(expr.text()))
}

/// The expression without the white space and comments that mean nothing. Texts with triple quotes or raw
/// strings stay as they are.
pub(super) fn compact(text: &str) -> Cow<'_, str> {
    if text.contains("\"\"\"") || text.contains("'''") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut quote: Option<char> = None;
    let mut chars = text.chars().peekable();
    let mut gap = false;
    while let Some(c) = chars.next() {
        if let Some(open) = quote {
            out.push(c);
            if c == '\\' {
                out.extend(chars.next());
            } else if c == open {
                quote = None;
            }
            continue;
        }
        if c == '/' && chars.peek() == Some(&'/') {
            while chars.next_if(|c| *c != '\n').is_some() {}
            gap = true;
            continue;
        }
        if c.is_whitespace() {
            gap = true;
            continue;
        }
        let ends_word = out.bytes().last().is_some_and(is_word);
        if gap && ends_word && u8::try_from(c).is_ok_and(is_word) {
            out.push(' ');
        }
        gap = false;
        if matches!(c, '"' | '\'') {
            if out.ends_with(['r', 'R', 'b', 'B']) {
                return Cow::Borrowed(text);
            }
            quote = Some(c);
        }
        out.push(c);
    }
    Cow::Owned(out)
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

pub(super) fn text(text: &str) -> Json<'_> {
    Json::Str(Cow::Borrowed(text))
}

pub(super) fn list<'a>(items: impl Iterator<Item = Json<'a>>) -> Json<'a> {
    Json::List(items.collect())
}

/// An object without the members that say nothing: null, false, an empty list or map.
pub(super) fn object<'a, const N: usize>(members: [(&'static str, Json<'a>); N]) -> Json<'a> {
    Json::Map(
        members
            .into_iter()
            .filter(|(_, value)| says_something(value))
            .map(|(name, value)| (Cow::Borrowed(name), value))
            .collect(),
    )
}

fn says_something(value: &Json<'_>) -> bool {
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::List(items) => !items.is_empty(),
        Json::Map(members) => !members.is_empty(),
        _ => true,
    }
}

/// An object of one member that stays even if it is empty.
fn exact<'a>(name: &'static str, value: Json<'a>) -> Json<'a> {
    Json::Map(vec![(Cow::Borrowed(name), value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_meaningless_white_space_leaves_an_expression() {
        for (text, expected) in [
            ("a  +\n b", "a+b"),
            ("x in  state.lines", "x in state.lines"),
            ("'a  b' + \" c \"", "'a  b'+\" c \""),
            (r#""a\"  b" + 'c'"#, r#""a\"  b"+'c'"#),
            ("a // why\n + b", "a+b"),
            ("a ? b : c", "a?b:c"),
            (r"r'\' + ' x'", r"r'\' + ' x'"),
            ("'''a  b'''  + c", "'''a  b'''  + c"),
        ] {
            assert_eq!(compact(text), expected, "{text}");
        }
    }
}
