//! Templates: JSON with expressions in it.

use std::borrow::Cow;

use super::functions::scalar_text;
use super::{Budget, CompileError, EvalError, Expr, Root, Scope};
use crate::kernel::json::{Json, write_string};

/// JSON with expressions in it: what `with:`, `set:`, `payload:`, `body:` and `result:` hold.
#[derive(Debug, Clone)]
pub enum Template {
    /// Constant JSON, compact.
    Constant(Vec<u8>),
    /// A whole string that is `${expr}`: the value of the expression, whatever its type.
    Value(Expr),
    /// Text with `${expr}` in it: a string, numbers and booleans printed as in JSON.
    Text(Vec<TextPart>),
    List(Vec<Template>),
    /// Members in the order of the text; rendered in code-point order of their keys.
    Map(Vec<(String, Template)>),
}

#[derive(Debug, Clone)]
pub enum TextPart {
    Literal(String),
    Expr(Expr),
}

impl Template {
    /// Compiles a string of a definition: constant text, one `${expr}`, or text with `${expr}` in it.
    /// `$${` stands for a literal `${`.
    ///
    /// # Errors
    /// [`CompileError`] with the place within `text`.
    pub fn compile_text(text: &str, roots: &[Root]) -> Result<Self, CompileError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let begin = text.len() - rest.len() + at;
            if rest[..at].ends_with('$') {
                literal.push_str(&rest[..at]);
                literal.push('{');
                rest = &rest[at + 2..];
                continue;
            }
            literal.push_str(&rest[..at]);
            let inside = &rest[at + 2..];
            let end = closing_brace(inside).ok_or_else(|| CompileError {
                message: "`${` without its `}`".to_owned(),
                offset: begin,
                length: text.len() - begin,
                help: Some("write `$${` for a literal `${`".to_owned()),
            })?;
            let expr = Expr::compile(&inside[..end], roots).map_err(|error| CompileError {
                offset: begin + 2 + error.offset,
                ..error
            })?;
            rest = &inside[end + 1..];
            if parts.is_empty() && literal.is_empty() && rest.is_empty() {
                return Ok(Self::Value(expr));
            }
            if !literal.is_empty() {
                parts.push(TextPart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(TextPart::Expr(expr));
        }
        literal.push_str(rest);
        if parts.is_empty() {
            let mut constant = Vec::new();
            write_string(&literal, &mut constant);
            return Ok(Self::Constant(constant));
        }
        if !literal.is_empty() {
            parts.push(TextPart::Literal(literal));
        }
        Ok(Self::Text(parts))
    }

    #[must_use]
    pub fn reads(&self, root: Root) -> bool {
        let mut found = false;
        self.for_each_expr(&mut |expr| found |= expr.reads(root));
        found
    }

    /// Calls `visit` for every expression, in the order of the text.
    pub fn for_each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        match self {
            Self::Constant(_) => {}
            Self::Value(expr) => visit(expr),
            Self::Text(parts) => {
                for part in parts {
                    if let TextPart::Expr(expr) = part {
                        visit(expr);
                    }
                }
            }
            Self::List(items) => items.iter().for_each(|item| item.for_each_expr(visit)),
            Self::Map(members) => members.iter().for_each(|(_, member)| member.for_each_expr(visit)),
        }
    }

    /// Appends the rendered JSON to `out`, maps with sorted keys.
    ///
    /// # Errors
    /// [`EvalError`]; `out` then holds a part that is to be thrown away.
    pub fn render(&self, scope: &Scope<'_>, budget: &mut Budget, out: &mut Vec<u8>) -> Result<(), EvalError> {
        match self {
            Self::Constant(json) => out.extend_from_slice(json),
            Self::Value(expr) => expr.with_value(scope, budget, |json| write_sorted(json, out))?,
            Self::Text(_) => write_string(&self.render_text(scope, budget)?, out),
            Self::List(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.render(scope, budget, out)?;
                }
                out.push(b']');
            }
            Self::Map(members) => {
                let mut sorted: Vec<&(String, Self)> = members.iter().collect();
                sorted.sort_unstable_by(|left, right| left.0.cmp(&right.0));
                out.push(b'{');
                for (index, (key, value)) in sorted.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_string(key, out);
                    out.push(b':');
                    value.render(scope, budget, out)?;
                }
                out.push(b'}');
            }
        }
        Ok(())
    }

    /// Renders to a string: the text itself for strings, JSON for numbers and booleans.
    ///
    /// # Errors
    /// [`EvalError`], also where the value is null, a list or a map.
    pub fn render_text(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<String, EvalError> {
        let no_text = |found: &str| EvalError::Type {
            operation: "text".to_owned(),
            found: found.to_owned(),
        };
        match self {
            Self::Constant(json) => match Json::parse(json, 2) {
                Ok(json) => text_of(&json).ok_or_else(|| no_text("JSON")),
                Err(_) => Err(no_text("JSON")),
            },
            Self::Value(expr) => expr.with_value(scope, budget, |json| {
                text_of(json).ok_or_else(|| no_text(super::value::type_name(json)))
            })?,
            Self::Text(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        TextPart::Literal(literal) => text.push_str(literal),
                        TextPart::Expr(expr) => {
                            let part = expr.with_value(scope, budget, |json| {
                                text_of(json).ok_or_else(|| no_text(super::value::type_name(json)))
                            })??;
                            text.push_str(&part);
                        }
                    }
                }
                Ok(text)
            }
            Self::List(_) => Err(no_text("a list")),
            Self::Map(_) => Err(no_text("a map")),
        }
    }
}

fn text_of(json: &Json<'_>) -> Option<String> {
    match json {
        Json::Str(text) => Some(text.clone().into_owned()),
        Json::Int(_) | Json::Double(_) | Json::Bool(_) => Some(scalar_text(json)),
        Json::Null | Json::List(_) | Json::Map(_) => None,
    }
}

/// Appends compact JSON with sorted keys at every level: the canonical form of what is kept.
pub fn write_sorted(json: &Json<'_>, out: &mut Vec<u8>) {
    match json {
        Json::List(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_sorted(item, out);
            }
            out.push(b']');
        }
        Json::Map(members) => {
            let mut sorted: Vec<&(Cow<'_, str>, Json<'_>)> = members.iter().collect();
            sorted.sort_unstable_by(|left, right| left.0.cmp(&right.0));
            out.push(b'{');
            for (index, (key, value)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(key, out);
                out.push(b':');
                write_sorted(value, out);
            }
            out.push(b'}');
        }
        scalar => scalar.write(out),
    }
}

/// Byte offset of the `}` that ends an expression: braces inside it and inside its strings do not count.
fn closing_brace(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    let mut quote: Option<u8> = None;
    while let Some(&byte) = bytes.get(at) {
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'{') => depth += 1,
            (None, b'}') if depth == 0 => return Some(at),
            (None, b'}') => depth -= 1,
            (None, _) => {}
        }
        at += 1;
    }
    None
}
