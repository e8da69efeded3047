//! The texts that a manifest is made of, as one: the file, and behind it what variables and flags say.
//!
//! So a place in any of them is one range, and finds its way back to where it was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::keys;
use super::overrides::{Overrides, Setting};
use crate::kernel::definition::Diagnostic;
use crate::kernel::definition::yaml::{Node, Value};

/// What was written where.
#[derive(Debug)]
pub struct Sources {
    text: String,
    /// The file first; one at least.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// The file as the user named it, the variable or the flag.
    name: String,
    origin: Origin,
    begin: usize,
    /// Lines before it.
    lines_before: usize,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    File,
    Variable,
    Flag,
}

impl Sources {
    pub fn of(path: &Path, text: &str, overrides: &Overrides) -> Self {
        let mut sources = Self {
            text: text.to_owned(),
            parts: vec![Part {
                name: path.display().to_string(),
                origin: Origin::File,
                begin: 0,
                lines_before: 0,
            }],
        };
        for setting in overrides.settings() {
            sources.text.push('\n');
            let begin = sources.text.len();
            sources.parts.push(Part {
                name: setting.name.clone(),
                origin: setting.origin,
                begin,
                lines_before: sources.text.matches('\n').count(),
            });
            sources.text.push_str(&setting.shown);
        }
        sources
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        &self.parts[0].name
    }

    /// The text of the file alone.
    pub fn text_of_file(&self) -> &str {
        self.of_part(0)
    }

    fn of_part(&self, index: usize) -> &str {
        let end = match self.parts.get(index + 1) {
            // Without the line end between them.
            Some(next) => next.begin - 1,
            None => self.text.len(),
        };
        &self.text[self.parts[index].begin..end]
    }

    /// Where the value of a setting lies, and what it is called.
    pub fn ranges(&self, index: usize, setting: &Setting) -> (Range<usize>, Range<usize>) {
        let begin = self.parts[index + 1].begin;
        let value = begin + setting.value_at;
        // The sign between them belongs to neither.
        (begin..value - 1, value..begin + setting.shown.len())
    }

    fn part(&self, at: usize) -> &Part {
        let index = self.parts.partition_point(|part| part.begin <= at);
        &self.parts[index.saturating_sub(1)]
    }

    /// What kind of source the place is in.
    pub fn origin(&self, at: usize) -> Origin {
        self.part(at).origin
    }

    /// The place as people read it: the line of a file, or the name of a variable or a flag.
    pub fn told(&self, at: usize) -> String {
        let part = self.part(at);
        match part.origin {
            Origin::File => {
                let line = self.text[..at].matches('\n').count() + 1;
                format!("{}:{line}", part.name)
            }
            Origin::Variable | Origin::Flag => part.name.clone(),
        }
    }

    /// The findings about the whole, each at its place in the source that it is about.
    pub fn relocated(&self, mut findings: Vec<Diagnostic>) -> Vec<Diagnostic> {
        for finding in &mut findings {
            let part = self.part(finding.span.start);
            finding.file.clone_from(&part.name);
            finding.line -= part.lines_before;
            let end = finding.span.end.max(part.begin);
            finding.span = finding.span.start - part.begin..end - part.begin;
        }
        findings
    }

    /// The texts by their names, for excerpts, with stars in place of what nobody may see. `root` is what was read of them; without
    /// it nothing is known to be harmless.
    pub fn texts(&self, root: Option<&Node<'_>>) -> BTreeMap<String, Arc<str>> {
        let Some(root) = root else {
            let words = ["password", "token", "secret", "seed", "@"];
            let is_harmless = !words.iter().any(|word| self.text_of_file().contains(word));
            let file = is_harmless.then(|| (self.file().to_owned(), Arc::from(self.text_of_file())));
            return file.into_iter().collect();
        };
        let mut hidden = Vec::new();
        secrets(root, &mut Vec::new(), &mut hidden);
        hidden.extend(credentials(&self.text));
        let masked = starred(&self.text, &hidden);
        let all = self.parts.iter().enumerate().map(|(index, part)| {
            let range = part.begin..part.begin + self.of_part(index).len();
            (part.name.clone(), Arc::from(&masked[range]))
        });
        all.collect()
    }
}

/// The places of values that nobody may see.
fn secrets(node: &Node<'_>, way: &mut Vec<String>, hidden: &mut Vec<Range<usize>>) {
    match &node.value {
        Value::Map(entries) => {
            for entry in entries {
                way.push(entry.key.to_string());
                secrets(&entry.value, way, hidden);
                way.pop();
            }
        }
        Value::Scalar(_) | Value::List(_) => {
            let path = way.join(".");
            let is_marked = keys::all().iter().any(|key| key.is_secret && key.path == path);
            // In the place of a reference.
            let is_inline = path == "callbacks.key" || (way.len() == 2 && way[0] == "secrets");
            if is_marked || is_inline {
                hidden.push(node.span.clone());
            }
        }
    }
}

/// Users and passwords in addresses, `//user:password@`. Rather too much of an address than too little.
fn credentials(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("//") {
        let begin = at + 2;
        let ends = |c: char| c.is_whitespace() || "\"',]}".contains(c);
        let authority = text[begin..].split(ends).next().unwrap_or_default();
        if let Some(end) = authority.rfind('@') {
            found.push(begin..begin + end);
        }
    }
    found
}

/// The text without users and passwords in addresses.
pub fn without_credentials(text: &str) -> String {
    starred(text, &credentials(text))
}

/// A star for each byte of the ranges, so that all places stay what they are.
fn starred(text: &str, hidden: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in hidden {
        for byte in bytes.get_mut(range.clone()).unwrap_or_default() {
            if *byte != b'\n' {
                *byte = b'*';
            }
        }
    }
    // The ranges are of whole characters.
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_addresses_are_not_shown() {
        for (text, expected) in [
            (
                "urls: [nats://me:pa/ss@h:4222, nats://b]",
                "urls: [nats://********@h:4222, nats://b]",
            ),
            ("a: \"nats://tokén@h\"", "a: \"nats://******@h\""),
            ("a: http://h/b, c: d@e", "a: http://h/b, c: d@e"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }
}
