//! YAML as a tree in which every value knows its place.
//!
//! Bounded in bytes, depth and repetition through aliases. Knows nothing about definitions; what the values
//! mean, and that there may be more than one mistake, is the business of the readers of the tree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

pub use granit_parser::ScalarStyle;
use granit_parser::{Event, Options, Parser, Span};

use super::codes;
use super::findings::Findings;

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Deepest nesting of maps and lists, in levels.
pub const DEPTH_MAX: usize = 64;
/// What all aliases of a file may repeat, in bytes of text and of tree.
const ALIAS_BYTES_MAX: usize = 1024 * 1024;
/// What a value counts besides its text.
const NODE_BYTES: usize = 16;

/// A value and its place in the text.
#[derive(Debug, Clone)]
pub struct Node<'t> {
    pub span: Range<usize>,
    pub value: Value<'t>,
}

#[derive(Debug, Clone)]
pub enum Value<'t> {
    Scalar(Scalar<'t>),
    List(Vec<Node<'t>>),
    Map(Vec<Entry<'t>>),
}

#[derive(Debug, Clone)]
pub struct Scalar<'t> {
    pub text: Cow<'t, str>,
    pub style: ScalarStyle,
}

/// One member of a map. Keys are unique in their map.
#[derive(Debug, Clone)]
pub struct Entry<'t> {
    pub key: Cow<'t, str>,
    pub key_span: Range<usize>,
    pub value: Node<'t>,
}

/// What a scalar stands for. Only the words of the YAML 1.2 core schema are not strings, so `no` is one.
#[derive(Debug, Clone, PartialEq)]
pub enum Plain<'s> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'s str),
    /// A number that cannot be kept, with the reason.
    Refused(&'static str),
}

impl Scalar<'_> {
    /// Reads the scalar by the core schema.
    #[must_use]
    pub fn plain(&self) -> Plain<'_> {
        if self.style != ScalarStyle::Plain {
            return Plain::Text(&self.text);
        }
        match &*self.text {
            "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
            "true" | "True" | "TRUE" => Plain::Bool(true),
            "false" | "False" | "FALSE" => Plain::Bool(false),
            text if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => number(text),
            text => Plain::Text(text),
        }
    }
}

fn number(text: &str) -> Plain<'_> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(unsigned) {
        if unsigned.len() > 1 && unsigned.starts_with('0') {
            return Plain::Refused("has a leading zero, which YAML readers do not agree about");
        }
        return text
            .parse()
            .map_or(Plain::Refused("does not fit 64 bits"), Plain::Int);
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(rest) = text.strip_prefix(prefix)
            && !rest.is_empty()
            && rest.chars().all(|c| c.is_digit(radix))
        {
            return i64::from_str_radix(rest, radix)
                .map_or(Plain::Refused("does not fit 64 bits"), Plain::Int);
        }
    }
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return Plain::Refused("is not a JSON number");
    }
    if !is_float(unsigned) {
        return Plain::Text(text);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Plain::Double(number),
        _ => Plain::Refused("is out of range"),
    }
}

/// `[0-9]+ (. [0-9]*)? (e [-+]? [0-9]+)?`, or the same beginning with the point.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_is_legal = exponent.is_none_or(|exponent| {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !unsigned.is_empty() && digits(unsigned)
    });
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent_is_legal
}

/// Parses the one document of a file. `None` where the text is not YAML; duplicate keys are found all, and
/// the first of them is kept.
pub fn parse<'t>(text: &'t str, findings: &mut Findings<'_>) -> Option<Node<'t>> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!(
            "file is {} bytes long, at most {FILE_BYTES_MAX} are allowed",
            text.len()
        );
        findings.error(codes::LIMIT, 0..0, message);
        return None;
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut builder = Builder {
        text,
        events: Parser::new_from_str_with_options(text, options),
        findings,
        anchors: BTreeMap::new(),
        alias_bytes: 0,
    };
    builder.document().ok()
}

/// The finding is reported; the file is not read further.
struct Stop;

struct Anchored<'t> {
    node: Node<'t>,
    bytes: usize,
}

struct Builder<'t, 'f, 'c, P> {
    text: &'t str,
    events: P,
    findings: &'f mut Findings<'c>,
    anchors: BTreeMap<usize, Anchored<'t>>,
    alias_bytes: usize,
}

impl<'t, P> Builder<'t, '_, '_, P>
where
    P: Iterator<Item = Result<(Event<'t>, Span), granit_parser::ScanError>>,
{
    fn document(&mut self) -> Result<Node<'t>, Stop> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::DocumentStart(..) if root.is_some() => {
                    return self.stop(codes::SYNTAX, span, "more than one YAML document in one file");
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                event => root = Some(self.node(event, span, 0)?),
            }
        }
        root.ok_or_else(|| {
            self.findings.error(codes::SYNTAX, 0..0, "file is empty");
            Stop
        })
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Stop> {
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let at = error.marker().byte_offset().unwrap_or(0);
                let (start, end) = around(self.text, at);
                let line = self.text[..end].rsplit('\n').next().unwrap_or_default();
                let line_holds_braces = line.contains("${")
                    || self.text[start..]
                        .lines()
                        .next()
                        .is_some_and(|l| l.contains("${"));
                let help = line_holds_braces
                    .then(|| "inside { } and [ ], put values with ${...} in quotes".to_owned());
                let message = format!("not valid YAML: {}", error.info());
                self.findings.error(codes::SYNTAX, start..end, message).help(help);
                Err(Stop)
            }
            None => Err(Stop),
        }
    }

    fn stop<T>(&mut self, code: &'static str, span: Span, message: impl Into<String>) -> Result<T, Stop> {
        self.findings.error(code, self.range(&span), message);
        Err(Stop)
    }

    fn range(&self, span: &Span) -> Range<usize> {
        let range = span.byte_range().unwrap_or(0..0);
        range.start.min(self.text.len())..range.end.min(self.text.len())
    }

    /// Builds the value that begins with `event`.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node<'t>, Stop> {
        if depth > DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels");
            return self.stop(codes::LIMIT, span, message);
        }
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(_, anchor, tag)
            | Event::MappingStart(_, anchor, tag) => (*anchor, tag.is_some()),
            _ => (0, false),
        };
        if tag {
            let span = span.tag_span().unwrap_or(span);
            return self.stop(codes::SYNTAX, span, "tags are not read; leave it out");
        }
        let node = match event {
            Event::Scalar(text, style, ..) => Node {
                span: trimmed(self.text, self.range(&span)),
                value: Value::Scalar(Scalar { text, style }),
            },
            Event::SequenceStart(..) => self.list(&span, depth)?,
            Event::MappingStart(..) => self.map(&span, depth)?,
            Event::Alias(id) => return self.alias(id, span, depth),
            _ => return self.stop(codes::SYNTAX, span, "not valid YAML: expected a value"),
        };
        if anchor != 0 {
            let bytes = weight(&node);
            // The copy that is kept for aliases counts like one.
            self.count(bytes, &span)?;
            let kept = node.clone();
            self.anchors.insert(anchor, Anchored { node: kept, bytes });
        }
        Ok(node)
    }

    fn list(&mut self, span: &Span, depth: usize) -> Result<Node<'t>, Stop> {
        let start = self.range(span).start;
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                let span = trimmed(self.text, start..self.range(&span).end.max(start));
                return Ok(Node {
                    span,
                    value: Value::List(items),
                });
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn map(&mut self, span: &Span, depth: usize) -> Result<Node<'t>, Stop> {
        let start = self.range(span).start;
        let mut entries: Vec<Entry<'t>> = Vec::new();
        let mut places: BTreeMap<Cow<'t, str>, usize> = BTreeMap::new();
        loop {
            let (event, span) = self.next()?;
            let (key, style) = match event {
                Event::MappingEnd => {
                    let span = trimmed(self.text, start..self.range(&span).end.max(start));
                    return Ok(Node {
                        span,
                        value: Value::Map(entries),
                    });
                }
                Event::Scalar(text, style, ..) => (text, style),
                _ => return self.stop(codes::SYNTAX, span, "a key must be plain text"),
            };
            let key_span = self.range(&span);
            let (event, value_span) = self.next()?;
            let value = self.node(event, value_span, depth + 1)?;
            if key == "<<" && style == ScalarStyle::Plain {
                self.findings
                    .error(codes::SYNTAX, key_span, "merge keys (`<<`) are not read")
                    .help(Some(
                        "write the members out, or use an alias as a whole value".to_owned(),
                    ));
                continue;
            }
            if let Some(first) = places.get(&key) {
                let message = format!(
                    "key \"{}\" is there twice, first in line {}",
                    key.escape_debug(),
                    self.findings.line(*first)
                );
                self.findings.error(codes::DUPLICATE_KEY, key_span, message);
                continue;
            }
            places.insert(key.clone(), key_span.start);
            entries.push(Entry { key, key_span, value });
        }
    }

    fn alias(&mut self, id: usize, span: Span, depth: usize) -> Result<Node<'t>, Stop> {
        let Some(anchored) = self.anchors.get(&id) else {
            return self.stop(codes::SYNTAX, span, "the alias stands inside of what it repeats");
        };
        let (bytes, deep) = (anchored.bytes, height(&anchored.node));
        if depth + deep > DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels");
            return self.stop(codes::LIMIT, span, message);
        }
        self.count(bytes, &span)?;
        Ok(self.anchors[&id].node.clone())
    }

    fn count(&mut self, bytes: usize, span: &Span) -> Result<(), Stop> {
        self.alias_bytes = self.alias_bytes.saturating_add(bytes);
        if self.alias_bytes <= ALIAS_BYTES_MAX {
            return Ok(());
        }
        let message = format!("aliases repeat more than {ALIAS_BYTES_MAX} bytes");
        self.stop(codes::LIMIT, *span, message)
    }
}

fn weight(node: &Node<'_>) -> usize {
    let inside = match &node.value {
        Value::Scalar(scalar) => scalar.text.len(),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(entries) => entries
            .iter()
            .map(|entry| entry.key.len() + weight(&entry.value))
            .sum(),
    };
    inside + NODE_BYTES
}

fn height(node: &Node<'_>) -> usize {
    match &node.value {
        Value::Scalar(_) => 0,
        Value::List(items) => 1 + items.iter().map(height).max().unwrap_or(0),
        Value::Map(entries) => {
            1 + entries
                .iter()
                .map(|entry| height(&entry.value))
                .max()
                .unwrap_or(0)
        }
    }
}

/// The parser ends blocks where the next token begins; a reader of a finding does not.
fn trimmed(text: &str, span: Range<usize>) -> Range<usize> {
    let inside = text.get(span.clone()).unwrap_or_default();
    span.start..span.start + inside.trim_end().len()
}

/// The character at `at`, or the one before it at the end of the text.
fn around(text: &str, at: usize) -> (usize, usize) {
    let mut start = at.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let length = text[start..].chars().next().map_or(0, char::len_utf8);
    (start, start + length)
}
