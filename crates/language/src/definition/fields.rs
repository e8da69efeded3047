//! Reading maps and scalars of a definition: what is there, what is missing, what does not belong.

use std::ops::{Range, RangeInclusive};

use super::codes;
use super::findings::Findings;
use super::grammar::Shape;
use super::yaml::{Entry, Node, Plain, Value};
use crate::duration::Millis;
use crate::expr::nearest;

/// Longest name of a step, state, timer, event type or code, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// What people want of a step that is said elsewhere, with the places.
const DEEDS: [(&str, &str); 2] = [
    (
        "emit",
        "what a step does is its \"effect\", \"command\", \"publish\" or \"signal\"; \"emit\" stands in handlers, states and timers",
    ),
    ("when", "the condition of a step is its \"if\""),
];

/// A map whose keys have been checked.
#[derive(Debug, Clone)]
pub struct Fields<'n, 't> {
    entries: &'n [Entry<'t>],
    /// Where a missing key is reported.
    at: Range<usize>,
    shape: &'static Shape,
    /// The allowed keys that those seem to mean that are not allowed, as far as they mean any.
    meant: Vec<Option<&'static str>>,
}

impl<'n, 't> Fields<'n, 't> {
    /// Takes `node`, which belongs to what stands at `at`, as a map of this shape, and reports keys that it does not have.
    pub fn read(
        node: &'n Node<'t>,
        at: &Range<usize>,
        shape: &'static Shape,
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        let entries = entries(node, at, shape.what, findings)?;
        let strangers = entries.iter().filter(|entry| shape.key(&entry.key).is_none());
        let meant = strangers.map(|entry| unknown(entry, shape, findings));
        Some(Self {
            entries,
            at: at.clone(),
            shape,
            meant: meant.collect(),
        })
    }

    /// Where a missing key is reported.
    pub fn place(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Whether there is a key that is not allowed.
    pub fn has_strangers(&self) -> bool {
        !self.meant.is_empty()
    }

    /// Whether `key` is there under a name that is wrong, which has been told.
    pub fn is_meant(&self, key: &str) -> bool {
        self.meant.iter().flatten().any(|meant| *meant == key)
    }

    /// The same for an item of a list, which has a place of its own.
    pub fn item(
        node: &'n Node<'t>,
        at: &Range<usize>,
        shape: &'static Shape,
        findings: &mut Findings<'_>,
    ) -> Option<Self> {
        let at = visible(node, at, findings.text());
        Self::read(node, &at, shape, findings)
    }

    /// The entry of `key`, where it is allowed.
    pub fn get(&self, key: &str) -> Option<&'n Entry<'t>> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.key == key && self.shape.key(key).is_some())
    }

    /// The entry of `key`, whose absence is an error.
    pub fn require(&self, key: &str, findings: &mut Findings<'_>) -> Option<&'n Entry<'t>> {
        let entry = self.get(key);
        if entry.is_none() && !self.is_meant(key) {
            let message = format!("{} needs the key \"{key}\"", self.shape.what);
            findings.error(codes::MISSING_KEY, self.at.clone(), message);
        }
        entry
    }

    /// The one entry among the keys of which the shape has one.
    pub fn chosen(&self, findings: &mut Findings<'_>) -> Option<&'n Entry<'t>> {
        self.one_of(self.shape.one_of, findings)
    }

    /// The one entry among `keys`: none and several are errors.
    pub fn one_of(&self, keys: &[&str], findings: &mut Findings<'_>) -> Option<&'n Entry<'t>> {
        let names = keys.join(" or ");
        let mut found = keys.iter().filter_map(|key| self.get(key));
        let Some(first) = found.next() else {
            // What is there instead has been told.
            if self.has_strangers() {
                return None;
            }
            let message = format!("{} needs one of the keys {names}", self.shape.what);
            findings.error(codes::MISSING_KEY, self.at.clone(), message);
            return None;
        };
        if let Some(second) = found.next() {
            let message = format!("{} has either {names}, not both", self.shape.what);
            findings.error(codes::CONTRADICTION, second.key_span.clone(), message);
        }
        Some(first)
    }
}

/// The members of a map with free keys.
pub fn entries<'n, 't>(
    node: &'n Node<'t>,
    at: &Range<usize>,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n [Entry<'t>]> {
    if let Value::Map(entries) = &node.value {
        return Some(entries);
    }
    expected(node, at, &format!("{what} as a map"), findings);
    None
}

/// A list, or one value that stands for a list of one.
pub fn one_or_many<'n, 't>(node: &'n Node<'t>) -> &'n [Node<'t>] {
    match &node.value {
        Value::List(items) => items,
        Value::Scalar(_) | Value::Map(_) => std::slice::from_ref(node),
    }
}

/// Reports a key that is not allowed, and returns the one that it seems to mean.
fn unknown(entry: &Entry<'_>, shape: &'static Shape, findings: &mut Findings<'_>) -> Option<&'static str> {
    let span = entry.key_span.clone();
    let (what, allowed) = (shape.what, shape.names());
    if entry.key == "on" && allowed.contains(&"handlers") {
        findings
            .error(
                codes::UNKNOWN_KEY,
                span,
                "the key \"on\" is not used: YAML 1.1 tools read it as true",
            )
            .help(Some("write \"handlers\"".to_owned()));
        return Some("handlers");
    }
    let near = nearest(&entry.key, allowed.iter().copied());
    if let ("a step", Some((_, help))) = (what, DEEDS.iter().find(|(deed, _)| *deed == entry.key)) {
        let message = format!("a step has no \"{}\"", entry.key);
        let help = Some((*help).to_owned());
        findings.error(codes::UNKNOWN_KEY, span, message).help(help);
        return None;
    }
    let names = match &*allowed {
        [] => format!("{what} has no keys"),
        allowed => format!("{what} may have {}", allowed.join(", ")),
    };
    let help = match near {
        Some(near) => format!("did you mean \"{near}\"? {names}"),
        None => names,
    };
    let message = format!("unknown key \"{}\" in {what}", entry.key.escape_debug());
    findings.error(codes::UNKNOWN_KEY, span, message).help(Some(help));
    near
}

/// Reports a value of another type than expected.
pub fn expected(node: &Node<'_>, at: &Range<usize>, what: &str, findings: &mut Findings<'_>) {
    let found = match &node.value {
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        Value::Scalar(scalar) => match scalar.plain() {
            Plain::Null => "nothing",
            Plain::Bool(_) => "`true` or `false`",
            Plain::Int(_) | Plain::Double(_) | Plain::Refused(_) => "a number",
            Plain::Text(_) => "text",
        },
    };
    let message = format!("expected {what}, found {found}");
    findings.error(codes::WRONG_TYPE, visible(node, at, findings.text()), message);
}

/// The first line of a value, or the place of its key where the value is empty.
pub fn visible(node: &Node<'_>, at: &Range<usize>, text: &str) -> Range<usize> {
    if node.span.is_empty() {
        return at.clone();
    }
    let inside = text.get(node.span.clone()).unwrap_or_default();
    let length = inside.find('\n').unwrap_or(inside.len());
    node.span.start..node.span.start + length
}

/// A string that is not empty.
pub fn text<'n>(
    node: &'n Node<'_>,
    at: &Range<usize>,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n str> {
    if let Value::Scalar(scalar) = &node.value
        && let Plain::Text(text) = scalar.plain()
    {
        if text.is_empty() {
            findings.error(codes::WRONG_VALUE, node.span.clone(), format!("{what} is empty"));
            return None;
        }
        return Some(text);
    }
    expected(node, at, what, findings);
    None
}

/// A whole number, without any finding.
pub fn whole(node: &Node<'_>) -> Option<i64> {
    match &node.value {
        Value::Scalar(scalar) => match scalar.plain() {
            Plain::Int(number) => Some(number),
            _ => None,
        },
        Value::List(_) | Value::Map(_) => None,
    }
}

pub fn boolean(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<bool> {
    if let Value::Scalar(scalar) = &entry.value.value
        && let Plain::Bool(answer) = scalar.plain()
    {
        return Some(answer);
    }
    expected(&entry.value, &entry.key_span, "`true` or `false`", findings);
    None
}

pub fn integer(
    entry: &Entry<'_>,
    range: RangeInclusive<u32>,
    code: &'static str,
    findings: &mut Findings<'_>,
) -> Option<u32> {
    if let Value::Scalar(scalar) = &entry.value.value
        && let Plain::Int(number) = scalar.plain()
    {
        if let Ok(number) = u32::try_from(number)
            && range.contains(&number)
        {
            return Some(number);
        }
        let message = format!(
            "{} is {number}, allowed are {} to {}",
            entry.key,
            range.start(),
            range.end()
        );
        findings.error(code, entry.value.span.clone(), message);
        return None;
    }
    expected(&entry.value, &entry.key_span, "a whole number", findings);
    None
}

/// A duration within `range`, in milliseconds.
pub fn duration(
    entry: &Entry<'_>,
    range: RangeInclusive<u64>,
    code: &'static str,
    findings: &mut Findings<'_>,
) -> Option<u64> {
    let what = "a duration such as 500ms, 30s, 15m, 1h 30m or 7d";
    let text = text(&entry.value, &entry.key_span, what, findings)?;
    match Millis::parse(text) {
        Ok(Millis(ms)) if range.contains(&ms) => Some(ms),
        Ok(found) => {
            let message = format!(
                "{} is {found}, allowed are {} to {}",
                entry.key,
                Millis(*range.start()),
                Millis(*range.end())
            );
            findings.error(code, entry.value.span.clone(), message);
            None
        }
        Err(error) => {
            findings.error(codes::WRONG_VALUE, entry.value.span.clone(), error.to_string());
            None
        }
    }
}

/// Which characters a name may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// A name that expressions can write behind a dot.
    Identifier,
    /// The same, and dashes.
    Dashed,
    /// Dots, too: codes and error classes.
    Dotted,
}

/// Checks a name: `[A-Za-z][A-Za-z0-9_]*`, and what the rule adds.
pub fn is_name(
    name: &str,
    span: &Range<usize>,
    what: &str,
    rule: NameRule,
    findings: &mut Findings<'_>,
) -> bool {
    let allowed = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => true,
        '-' => rule == NameRule::Dashed,
        '.' => rule == NameRule::Dotted,
        _ => false,
    };
    let extra = match rule {
        NameRule::Identifier => "",
        NameRule::Dashed => " and '-'",
        NameRule::Dotted => " and '.'",
    };
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let legal = begins && name.chars().all(allowed) && name.len() <= WORD_BYTES_MAX;
    if !legal {
        let message = format!(
            "{what} \"{}\" is not a name: letters, digits, '_'{extra}, beginning with a letter, at most {WORD_BYTES_MAX} bytes",
            name.escape_debug()
        );
        findings.error(codes::NAME, span.clone(), message);
    }
    legal
}

/// Checks a type as it is sent: printable, without spaces.
pub fn is_word(text: &str, span: &Range<usize>, what: &str, findings: &mut Findings<'_>) -> bool {
    let legal = text.len() <= WORD_BYTES_MAX && !text.contains(|c: char| c.is_control() || c.is_whitespace());
    if !legal {
        let message = format!(
            "{what} \"{}\" may hold no spaces and at most {WORD_BYTES_MAX} bytes",
            text.escape_debug()
        );
        findings.error(codes::NAME, span.clone(), message);
    }
    legal
}

/// First words of handlers that are not for events.
const RESERVED_TYPES: [&str; 4] = ["timer", "signal", "result", "error"];

/// Checks `<AggregateType>.<Event>`.
pub fn is_event_type(text: &str, span: &Range<usize>, findings: &mut Findings<'_>) -> bool {
    if !is_word(text, span, "event type", findings) {
        return false;
    }
    if let Some((word, name)) = text.split_once('.')
        && RESERVED_TYPES.contains(&word)
    {
        let message = format!("\"{word}\" is not an aggregate type: it is reserved");
        let help = format!(
            "\"{word}.{name}\" is understood under \"handlers\" of a state{}",
            match word {
                "signal" => ", of the saga, and under \"after_end\"",
                _ => "",
            }
        );
        findings
            .error(codes::NAME, span.clone(), message)
            .help(Some(help));
        return false;
    }
    let shaped = text.split_once('.').is_some_and(|(aggregate, event)| {
        !aggregate.is_empty() && !event.is_empty() && !event.ends_with('*')
    });
    if !shaped {
        let message = format!(
            "\"{}\" is not an event type, expected <AggregateType>.<Event>",
            text.escape_debug()
        );
        findings.error(codes::NAME, span.clone(), message);
    }
    shaped
}
