//! Compiling the expressions and templates of a definition, with errors at their place in the file.

use std::borrow::Cow;
use std::ops::Range;

use granit_parser::ScalarStyle;

use super::actions::Reading;
use super::codes;
use super::fields::{expected, visible};
use super::findings::Findings;
use super::typing;
use super::yaml::{Entry, Node, Plain, Scalar, Value};
use crate::expr::types::Env;
use crate::expr::{CompileError, Expr, Root, Template, nearest, write_sorted};
use crate::json::Json;

/// What the expressions of one place may read.
#[derive(Debug, Clone, Copy)]
pub struct Readable<'s> {
    pub roots: &'static [Root],
    pub event: EventParts,
    /// The steps of the saga, for `steps.<name>`.
    pub steps: &'s [&'s str],
    /// What the item of the loop around is called.
    pub item: Option<&'s str>,
    /// Whether the saga takes an input, which `input` is wherever it has no other meaning.
    pub input: bool,
    /// What is known about what is read; `None` where types are not checked.
    pub types: Option<&'s Env>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventParts {
    /// The place belongs to an event.
    Whole,
    /// The input may be a timer or a result: it has a time and an id.
    Moment,
}

impl Readable<'_> {
    fn all_roots(&self) -> Cow<'static, [Root]> {
        if self.input && !self.roots.contains(&Root::Input) {
            Cow::Owned([self.roots, &[Root::Input]].concat())
        } else {
            Cow::Borrowed(self.roots)
        }
    }

    /// A place outside of sagas.
    pub const fn roots(roots: &'static [Root]) -> Self {
        Self {
            roots,
            event: EventParts::Whole,
            steps: &[],
            item: None,
            input: false,
            types: None,
        }
    }

    /// The same with what is known.
    pub const fn knowing<'e>(roots: &'static [Root], types: &'e Env) -> Readable<'e> {
        Readable {
            roots,
            event: EventParts::Whole,
            steps: &[],
            item: None,
            input: false,
            types: Some(types),
        }
    }
}

impl<'c> Reading<'_, 'c> {
    /// What expressions may read in this place of the saga, and where to say what is wrong with them.
    pub fn readable(
        &mut self,
        roots: &'static [Root],
        event: EventParts,
    ) -> (Readable<'_>, &mut Findings<'c>) {
        let readable = Readable {
            roots,
            event,
            steps: &self.steps,
            item: self.item,
            input: self.takes_input,
            types: self.types.as_ref().map(|types| &types.env),
        };
        (readable, self.findings)
    }

    /// Compiles a bare expression.
    pub fn expr(&mut self, entry: &Entry<'_>, roots: &'static [Root], event: EventParts) -> Expr {
        let (readable, findings) = self.readable(roots, event);
        expr(entry, readable, findings)
    }

    /// Compiles a text with expressions in it.
    pub fn text(
        &mut self,
        entry: &Entry<'_>,
        what: &str,
        roots: &'static [Root],
        event: EventParts,
    ) -> Template {
        let (readable, findings) = self.readable(roots, event);
        text_template(&entry.value, &entry.key_span, what, readable, findings).unwrap_or_else(unknown)
    }
}

/// Stands for a value that cannot be read, which has been told: nothing is known about it.
fn unknown() -> Template {
    Template::Value(Expr::unknown())
}

/// Compiles a bare expression: `when: state.paid`. Of what is wrong in it nothing is known.
pub fn expr(entry: &Entry<'_>, readable: Readable<'_>, findings: &mut Findings<'_>) -> Expr {
    let node = &entry.value;
    let Value::Scalar(scalar) = &node.value else {
        expected(node, &entry.key_span, "an expression", findings);
        return Expr::unknown();
    };
    if scalar.plain() == Plain::Null {
        expected(node, &entry.key_span, "an expression", findings);
        return Expr::unknown();
    }
    if scalar.text.starts_with("${") {
        let message = format!("\"{}\" holds an expression already", entry.key.escape_debug());
        findings
            .error(codes::EXPRESSION, node.span.clone(), message)
            .help(Some("leave out the ${ and }".to_owned()));
        return Expr::unknown();
    }
    let (expr, faults) = Expr::read_in(&scalar.text, &readable.all_roots(), readable.item);
    refused(faults, node, scalar, findings);
    check_reads(&expr, node, readable, findings);
    if let Some(env) = readable.types {
        typing::expression(entry, &expr, env, findings);
    }
    expr
}

/// Compiles any value. Parts without expressions become constants, and of those that are wrong nothing is known.
pub fn template(node: &Node<'_>, readable: Readable<'_>, findings: &mut Findings<'_>) -> Template {
    match &node.value {
        Value::Scalar(scalar) => match scalar.plain() {
            Plain::Text(_) => string(node, scalar, false, readable, findings).unwrap_or_else(unknown),
            Plain::Null => constant(&Json::Null),
            Plain::Bool(answer) => constant(&Json::Bool(answer)),
            Plain::Int(number) => constant(&Json::Int(number)),
            Plain::Double(number) => constant(&Json::Double(number)),
            Plain::Refused(reason) => {
                let message = format!("{} {reason}", scalar.text);
                findings
                    .error(codes::WRONG_VALUE, node.span.clone(), message)
                    .help(Some("put it in quotes if it is text".to_owned()));
                unknown()
            }
        },
        Value::List(items) => {
            let items = items.iter().map(|item| template(item, readable, findings));
            fold_list(items.collect())
        }
        Value::Map(entries) => fold_map(fields(entries, readable, findings)),
    }
}

/// Compiles the members of a map, in code-point order of their names.
pub fn fields(
    entries: &[Entry<'_>],
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Vec<(String, Template)> {
    let compiled = entries.iter().map(|entry| {
        let value = template(&entry.value, readable, findings);
        (entry.key.clone().into_owned(), value)
    });
    let mut compiled: Vec<(String, Template)> = compiled.collect();
    compiled.sort_by(|left, right| left.0.cmp(&right.0));
    compiled
}

/// Compiles a value that is rendered to text: an id, a header, a message.
pub fn text_template(
    node: &Node<'_>,
    at: &Range<usize>,
    what: &str,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<Template> {
    let Value::Scalar(scalar) = &node.value else {
        expected(node, at, what, findings);
        return None;
    };
    match scalar.plain() {
        Plain::Null => {
            expected(node, at, what, findings);
            None
        }
        Plain::Text("") => {
            findings.error(codes::WRONG_VALUE, node.span.clone(), format!("{what} is empty"));
            None
        }
        Plain::Text(_) => string(node, scalar, true, readable, findings),
        Plain::Bool(_) | Plain::Int(_) | Plain::Double(_) | Plain::Refused(_) => {
            Some(constant(&Json::Str(Cow::Borrowed(&scalar.text))))
        }
    }
}

/// Where an expression of a scalar reads `needle`, for findings about it.
pub fn place_of(node: &Node<'_>, expr: &Expr, needle: &str, text: &str) -> Range<usize> {
    let Value::Scalar(scalar) = &node.value else {
        return node.span.clone();
    };
    let within = expr.text().find(needle);
    let place = scalar
        .text
        .find(expr.text())
        .zip(within)
        .map(|(base, within)| base + within);
    match place {
        Some(offset) => span_within(node, scalar, offset, needle.len(), text),
        None => visible(node, &node.span, text),
    }
}

fn string(
    node: &Node<'_>,
    scalar: &Scalar<'_>,
    as_text: bool,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<Template> {
    let (template, faults) = Template::read_text_in(&scalar.text, &readable.all_roots(), readable.item);
    let is_read = faults.is_empty();
    refused(faults, node, scalar, findings);
    template.for_each_expr(&mut |expr| check_reads(expr, node, readable, findings));
    if let Some(env) = readable.types {
        typing::text(node, &template, as_text, env, findings);
    }
    is_read.then_some(template)
}

fn refused(faults: Vec<CompileError>, node: &Node<'_>, scalar: &Scalar<'_>, findings: &mut Findings<'_>) {
    for fault in faults {
        let span = span_within(node, scalar, fault.offset, fault.length, findings.text());
        let code = if fault.is_elsewhere {
            codes::NOT_READABLE
        } else {
            codes::EXPRESSION
        };
        findings.error(code, span, fault.message).help(fault.help);
    }
}

/// Checks what an expression reads below its roots, as far as the definition tells.
fn check_reads(expr: &Expr, node: &Node<'_>, readable: Readable<'_>, findings: &mut Findings<'_>) {
    if expr.reads(Root::Steps) {
        findings.read_results(expr.members_read(Root::Steps, "result"));
        for step in expr.fields_of(Root::Steps) {
            if readable.steps.contains(&step.as_str()) {
                continue;
            }
            let span = place_of(node, expr, &format!("steps.{step}"), findings.text());
            let help = nearest(&step, readable.steps.iter().copied())
                .map(|near| format!("did you mean \"{near}\"?"));
            findings
                .error(codes::UNKNOWN_STEP, span, format!("unknown step \"{step}\""))
                .help(help);
        }
    }
    if readable.event == EventParts::Moment && expr.reads(Root::Event) {
        let fields = expr.fields_of(Root::Event);
        let beyond = fields
            .iter()
            .find(|field| !matches!(field.as_str(), "time" | "id"))
            .map(|field| format!("event.{field}"))
            .or_else(|| fields.is_empty().then(|| "event".to_owned()));
        if let Some(beyond) = beyond {
            let span = place_of(node, expr, &beyond, findings.text());
            findings
                .error(
                    codes::NOT_READABLE,
                    span,
                    format!("`{beyond}` cannot be read here: the input may be a timer or a result"),
                )
                .help(Some(
                    "keep what is needed in the state, by `set` in the handler of the event; event.time and event.id are always there"
                        .to_owned(),
                ));
        }
    }
}

fn constant(json: &Json<'_>) -> Template {
    let mut bytes = Vec::new();
    write_sorted(json, &mut bytes);
    Template::Constant(bytes)
}

fn fold_list(items: Vec<Template>) -> Template {
    if !items.iter().all(|item| matches!(item, Template::Constant(_))) {
        return Template::List(items);
    }
    let parts = items.iter().filter_map(|item| match item {
        Template::Constant(json) => Some(json.as_slice()),
        _ => None,
    });
    let mut bytes = vec![b'['];
    for (index, json) in parts.enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        bytes.extend_from_slice(json);
    }
    bytes.push(b']');
    Template::Constant(bytes)
}

/// `members` are in order.
fn fold_map(members: Vec<(String, Template)>) -> Template {
    if !members
        .iter()
        .all(|(_, member)| matches!(member, Template::Constant(_)))
    {
        return Template::Map(members);
    }
    let mut bytes = vec![b'{'];
    for (index, (name, member)) in members.iter().enumerate() {
        let Template::Constant(json) = member else {
            continue;
        };
        if index > 0 {
            bytes.push(b',');
        }
        crate::json::write_string(name, &mut bytes);
        bytes.push(b':');
        bytes.extend_from_slice(json);
    }
    bytes.push(b'}');
    Template::Constant(bytes)
}

/// The place in the file of `length` bytes at `offset` of a scalar's value.
pub fn within(node: &Node<'_>, offset: usize, length: usize, text: &str) -> Range<usize> {
    match &node.value {
        Value::Scalar(scalar) => span_within(node, scalar, offset, length, text),
        Value::List(_) | Value::Map(_) => node.span.clone(),
    }
}

/// The place in the file of `length` bytes at `offset` of a scalar's value, as near as quoting and folding
/// let it be told.
fn span_within(
    node: &Node<'_>,
    scalar: &Scalar<'_>,
    offset: usize,
    length: usize,
    text: &str,
) -> Range<usize> {
    let raw = text.get(node.span.clone()).unwrap_or_default();
    let end = (offset + length).min(scalar.text.len());
    let found = match scalar.style {
        ScalarStyle::Plain if *raw == *scalar.text => Some((offset, end)),
        ScalarStyle::SingleQuoted if !raw.contains('\n') => {
            let at = |offset: usize| single_quoted(&scalar.text, offset);
            Some((at(offset), at(end)))
        }
        ScalarStyle::DoubleQuoted if !raw.contains('\n') => {
            double_quoted(raw, offset).zip(double_quoted(raw, end))
        }
        _ => None,
    };
    let found = found.or_else(|| {
        let needle = scalar
            .text
            .get(offset..end)
            .filter(|needle| !needle.trim().is_empty())?;
        let at = raw.find(needle)?;
        let once = raw[at + 1..].find(needle).is_none();
        once.then_some((at, at + needle.len()))
    });
    match found {
        Some((start, end)) if text.is_char_boundary(node.span.start + start) => {
            node.span.start + start..(node.span.start + end).min(node.span.end)
        }
        _ => visible(node, &node.span, text),
    }
}

/// Every quote before `offset` was written twice.
fn single_quoted(value: &str, offset: usize) -> usize {
    let before = value.get(..offset).unwrap_or(value);
    1 + offset + before.matches('\'').count()
}

/// Walks the escapes up to `offset` of the value.
fn double_quoted(raw: &str, offset: usize) -> Option<usize> {
    let mut value = 0;
    let mut at = 1;
    while value < offset {
        let rest = raw.get(at..)?;
        let mut chars = rest.chars();
        let first = chars.next()?;
        if first != '\\' {
            at += first.len_utf8();
            value += first.len_utf8();
            continue;
        }
        let escape = chars.next()?;
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        at += 1 + escape.len_utf8() + digits;
        value += match escape {
            'x' | 'u' | 'U' => {
                let code = u32::from_str_radix(rest.get(2..2 + digits)?, 16).ok()?;
                char::from_u32(code)?.len_utf8()
            }
            // Next line, no-break space; line and paragraph separator.
            'N' | '_' => 2,
            'L' | 'P' => 3,
            _ => 1,
        };
    }
    Some(at)
}
