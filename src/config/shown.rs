//! A manifest as it is read: one key, value or bracket in a line, so that the line of an error says what it is about.

use std::fmt::Write as _;
use std::ops::Range;

use crate::kernel::definition::fields;
use crate::kernel::definition::yaml::{Entry, Node, Plain, Value};

/// Where a line of the shown text comes from.
pub(super) struct Place {
    pub span: Range<usize>,
    /// Indices of members and items, from the top; what is taken out for a mistake in this line.
    pub way: Vec<usize>,
}

/// A manifest with one key, value or bracket in a line, so that the line of a mistake says what it is about.
pub(super) struct Shown {
    pub text: String,
    pub places: Vec<Place>,
}

impl Shown {
    /// Of a whole manifest.
    pub fn of(root: &Node<'_>, text: &str) -> Self {
        Self::with(root, text, &[])
    }

    /// Of one whose members at the top may be missing: `stand_ins` are read in their place.
    pub fn with(root: &Node<'_>, text: &str, stand_ins: &[(&str, &str)]) -> Self {
        let mut shown = Self {
            text: String::new(),
            places: Vec::new(),
        };
        let Value::Map(entries) = &root.value else {
            shown.node(root, text, root.span.clone(), &mut Vec::new());
            return shown;
        };
        shown.line("{", &root.span, &[]);
        let missing = stand_ins
            .iter()
            .filter(|(key, _)| !entries.iter().any(|entry| entry.key == *key));
        for (key, value) in missing {
            shown.line(&format!("\"{key}\": \"{value}\","), &root.span, &[]);
        }
        for (index, entry) in entries.iter().enumerate() {
            shown.entry(entry, text, &mut vec![index]);
        }
        shown.line("}", &root.span, &[]);
        shown
    }

    /// What the reader's error is about.
    pub fn place(&self, error: &serde_saphyr::Error) -> Option<&Place> {
        let line = usize::try_from(error.location()?.line()).ok()?;
        self.places.get(line.checked_sub(1)?)
    }

    fn line(&mut self, line: &str, span: &Range<usize>, way: &[usize]) {
        self.text.push_str(line);
        self.text.push('\n');
        self.places.push(Place {
            span: span.clone(),
            way: way.to_vec(),
        });
    }

    fn entry(&mut self, entry: &Entry<'_>, text: &str, way: &mut Vec<usize>) {
        self.line(&format!("{}:", quoted(&entry.key)), &entry.key_span, way);
        self.node(&entry.value, text, entry.key_span.clone(), way);
        self.line(",", &entry.key_span, way);
    }

    /// `at` stands for a value that is empty.
    fn node(&mut self, node: &Node<'_>, text: &str, at: Range<usize>, way: &mut Vec<usize>) {
        let span = fields::visible(node, &at, text);
        match &node.value {
            Value::Scalar(scalar) => {
                let plain = !matches!(scalar.plain(), Plain::Text(_));
                let raw = text.get(node.span.clone()).unwrap_or_default();
                let shown = match (plain, raw.is_empty()) {
                    (true, true) => "null".to_owned(),
                    (true, false) => raw.to_owned(),
                    (false, _) => quoted(&scalar.text),
                };
                self.line(&format!(" {shown}"), &span, way);
            }
            Value::List(items) => {
                self.line(" [", &span, way);
                for (index, item) in items.iter().enumerate() {
                    way.push(index);
                    self.node(item, text, span.clone(), way);
                    self.line(" ,", &span, way);
                    way.pop();
                }
                self.line(" ]", &span, way);
            }
            Value::Map(entries) => {
                self.line(" {", &span, way);
                for (index, entry) in entries.iter().enumerate() {
                    way.push(index);
                    self.entry(entry, text, way);
                    way.pop();
                }
                self.line(" }", &span, way);
            }
        }
    }
}

/// A text in double quotes, in one line.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _written = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
