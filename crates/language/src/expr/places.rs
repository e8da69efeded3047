//! Where the operations of an expression stand in its text.

use std::sync::Arc;

/// The text of one operation: its own token, or all of a path. In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub start: usize,
    pub end: usize,
}

impl Place {
    pub fn joined(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The place with the name of the function before its bracket and the bracket behind its arguments.
    pub fn closed(self, text: &str) -> Self {
        let mut closed = Self {
            start: text.floor_char_boundary(self.start),
            end: text.ceil_char_boundary(self.end.max(self.start)),
        };
        let opening = text[closed.start..closed.end].bytes();
        let open = opening.clone().filter(|byte| matches!(byte, b'(' | b'[')).count();
        let close = opening.filter(|byte| matches!(byte, b')' | b']')).count();
        let before = &text[..closed.start];
        if text[closed.start..].starts_with('(') {
            let name = before
                .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
                .map_or(0, |at| at + 1);
            closed.start = text.ceil_char_boundary(name);
        }
        let behind = &text[closed.end..];
        let spaces = behind.len() - behind.trim_start().len();
        if open > close && behind.trim_start().starts_with([')', ']']) {
            closed.end += spaces + 1;
        }
        closed
    }

    /// Where the field number `depth` of the path at this place stands: offset and length.
    pub fn field(self, text: &str, fields: &[Arc<str>], depth: usize) -> (usize, usize) {
        let mut at = self.start;
        let mut found = (self.start, self.end.saturating_sub(self.start));
        // Behind the root; every field follows a dot or stands in brackets.
        for field in &fields[..=depth] {
            let rest = text.get(at..self.end).unwrap_or_default();
            let Some(mark) = rest.find(['.', '[']) else { break };
            let Some(begin) = rest[mark..].find(&**field) else {
                break;
            };
            found = (at + mark + begin, field.len());
            at = found.0 + found.1;
        }
        found
    }
}

/// Places in the order in which operations are come upon from above: each before what is below it.
#[derive(Debug, Default)]
pub(super) struct Places(pub Vec<Place>);

impl Places {
    /// Makes room for an operation whose parts come next. Until it gets its place it stands nowhere, as what the
    /// text does not show.
    pub fn open(&mut self) -> usize {
        self.0.push(Place {
            start: usize::MAX,
            end: 0,
        });
        self.0.len() - 1
    }

    /// Sets the place of an operation. Where it became one without parts, theirs are forgotten.
    pub fn close(&mut self, at: usize, place: Place, has_parts: bool) {
        self.0[at] = place;
        if !has_parts {
            self.0.truncate(at + 1);
        }
    }
}
