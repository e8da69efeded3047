//! Templates: JSON with expressions in it.

use super::budget::Spender;
use super::output::{write, write_text};
use super::scan::closing_brace;
use super::value::Value;
use super::{Budget, CompileError, EvalError, Expr, Root, Roots, Scope};
use crate::json::{Json, write_string};

/// JSON with expressions in it: what `with:`, `set:`, `payload:`, `body:` and `result:` hold.
#[derive(Debug, Clone)]
pub enum Template {
    /// Constant JSON, compact.
    Constant(Vec<u8>),
    /// A whole string that is `${expr}`: the value of the expression, of any type.
    Value(Expr),
    /// Text with `${expr}` in it: a string, numbers and booleans printed as in JSON.
    Text(Vec<TextPart>),
    List(Vec<Template>),
    /// Members in the order of the text; rendered in code-point order of their keys.
    Map(Vec<(String, Template)>),
}

/// Deepest nesting of constants of a definition.
const CONSTANT_DEPTH_MAX: usize = 256;

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
        Self::compile_text_in(text, roots, None)
    }

    /// The same within a loop over a list, as [`Expr::compile_in`].
    ///
    /// # Errors
    /// As [`Template::compile_text`].
    pub fn compile_text_in(text: &str, roots: &[Root], item: Option<&str>) -> Result<Self, CompileError> {
        let (template, faults) = Self::read_text_in(text, roots, item);
        match faults.into_iter().next() {
            Some(first) => Err(first),
            None => Ok(template),
        }
    }

    /// The same with all that is wrong with the text, as [`Expr::read_in`].
    #[must_use]
    pub fn read_text_in(text: &str, roots: &[Root], item: Option<&str>) -> (Self, Vec<CompileError>) {
        let mut faults = Vec::new();
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
            let Some(end) = closing_brace(inside) else {
                faults.push(CompileError {
                    message: "`${` without its `}`".to_owned(),
                    offset: begin,
                    length: text.len() - begin,
                    help: Some("write `$${` for a literal `${`".to_owned()),
                    is_elsewhere: false,
                });
                return (Self::Value(Expr::unknown()), faults);
            };
            let (expr, wrong) = Expr::read_in(&inside[..end], roots, item);
            faults.extend(wrong.into_iter().map(|fault| CompileError {
                offset: begin + 2 + fault.offset,
                ..fault
            }));
            rest = &inside[end + 1..];
            if parts.is_empty() && literal.is_empty() && rest.is_empty() {
                return (Self::Value(expr), faults);
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
            return (Self::Constant(constant), faults);
        }
        if !literal.is_empty() {
            parts.push(TextPart::Literal(literal));
        }
        (Self::Text(parts), faults)
    }

    #[must_use]
    pub fn reads(&self, root: Root) -> bool {
        self.roots().contains(root)
    }

    /// All that its expressions read.
    #[must_use]
    pub fn roots(&self) -> Roots {
        let mut found = Roots::default();
        self.for_each_expr(&mut |expr| found = found.union(expr.roots()));
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
            Self::Value(expr) => {
                let value = expr.value(scope, budget)?;
                write(&value, out, &mut Spender::new(budget))?;
            }
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
        let mut text = String::new();
        match self {
            Self::Value(expr) => {
                let value = expr.value(scope, budget)?;
                write_text(&value, &mut text, &mut Spender::new(budget))?;
            }
            Self::Constant(json) => {
                let json = Json::parse(json, CONSTANT_DEPTH_MAX)
                    .map_err(|error| EvalError::Other(format!("a constant is not JSON: {error}")))?;
                write_text(&Value::of(&json), &mut text, &mut Spender::new(budget))?;
            }
            Self::Text(parts) => {
                for part in parts {
                    match part {
                        TextPart::Literal(literal) => text.push_str(literal),
                        TextPart::Expr(expr) => {
                            let value = expr.value(scope, budget)?;
                            write_text(&value, &mut text, &mut Spender::new(budget))?;
                        }
                    }
                }
            }
            Self::List(_) => return Err(no_text("a list")),
            Self::Map(_) => return Err(no_text("a map")),
        }
        Ok(text)
    }
}

fn no_text(found: &str) -> EvalError {
    EvalError::Type {
        operation: "text".to_owned(),
        found: found.to_owned(),
    }
}
