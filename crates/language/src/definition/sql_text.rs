//! Reading the text of one SQL statement: where its placeholders are, and that it is one statement that a
//! transaction may hold.
//!
//! The text is not understood beyond that. What databases read differently is refused, so that what is counted
//! here is what the database sees.

use std::collections::BTreeSet;
use std::ops::Range;

/// Most values of one statement.
pub const BINDS_MAX: usize = 64;
/// What a statement may begin with. Everything else ends transactions, in some database or other.
const VERBS: [&str; 8] = [
    "SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "WITH", "VALUES",
];
/// What a statement may begin with that only reads.
const READING_VERBS: [&str; 3] = ["SELECT", "WITH", "VALUES"];

/// A statement whose placeholders have been found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlText {
    pieces: Vec<Piece>,
    /// The word that it begins with, in upper case.
    verb: String,
    /// Whether `?` stands outside of literals, which some databases take for a placeholder.
    has_question_mark: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// `$n`, counted from 1.
    Bind(usize),
}

/// What is wrong with a text, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlFault {
    pub place: Range<usize>,
    pub message: String,
    pub help: Option<String>,
}

impl SqlFault {
    fn at(place: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            place,
            message: message.into(),
            help: None,
        }
    }

    fn helped(self, help: &str) -> Self {
        Self {
            help: Some(help.to_owned()),
            ..self
        }
    }
}

impl SqlText {
    /// Reads the text.
    ///
    /// # Errors
    /// [`SqlFault`] names the first thing that makes it no single statement.
    pub fn read(text: &str) -> Result<Self, SqlFault> {
        if let Some(at) = text.find("${") {
            let end = text[at..].find('}').map_or(text.len(), |length| at + length + 1);
            let message = "a value cannot become part of the SQL text";
            let help = "write a placeholder ($1) and list the value in `bind`";
            return Err(SqlFault::at(at..end, message).helped(help));
        }
        let mut reader = Reader {
            text,
            at: 0,
            literal: 0,
            pieces: Vec::new(),
            has_question_mark: false,
        };
        let end = reader.statement()?;
        reader.close(end);
        let verb = verb(text)?;
        Ok(Self {
            pieces: reader.pieces,
            verb,
            has_question_mark: reader.has_question_mark,
        })
    }

    /// The placeholders that are used.
    #[must_use]
    pub fn placeholders(&self) -> BTreeSet<usize> {
        let number = |piece: &Piece| match piece {
            Piece::Bind(number) => Some(*number),
            Piece::Literal(_) => None,
        };
        self.pieces.iter().filter_map(number).collect()
    }

    /// Whether it begins like a statement that changes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        READING_VERBS.contains(&&*self.verb)
    }

    /// Whether there is nothing to count but its rows.
    #[must_use]
    pub fn gives_rows_only(&self) -> bool {
        matches!(&*self.verb, "SELECT" | "VALUES")
    }

    #[must_use]
    pub const fn has_question_mark(&self) -> bool {
        self.has_question_mark
    }

    /// The text with what `placeholder` says for each placeholder, given its number.
    #[must_use]
    pub fn written(&self, mut placeholder: impl FnMut(usize) -> String) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Bind(number) => text.push_str(&placeholder(*number)),
            }
        }
        text
    }

    /// The text with `mark` and its number for each placeholder.
    #[must_use]
    pub fn numbered(&self, mark: char) -> String {
        self.written(|number| format!("{mark}{number}"))
    }

    /// The text with `?` for each placeholder, and their numbers in the order of the text.
    #[must_use]
    pub fn positional(&self) -> (String, Vec<usize>) {
        let mut text = String::new();
        let mut numbers = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Bind(number) => {
                    text.push('?');
                    numbers.push(*number);
                }
            }
        }
        (text, numbers)
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// Where the literal began that is being read.
    literal: usize,
    pieces: Vec<Piece>,
    has_question_mark: bool,
}

impl Reader<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// Reads up to the end of the statement, and returns where that is.
    fn statement(&mut self) -> Result<usize, SqlFault> {
        while let Some(byte) = self.byte(self.at) {
            match byte {
                b'\'' | b'"' | b'`' => self.at = self.quoted(byte)?,
                b'-' if self.byte(self.at + 1) == Some(b'-') => self.at = self.line(),
                b'/' if self.byte(self.at + 1) == Some(b'*') => self.at = self.comment()?,
                b'$' => self.dollar()?,
                b';' => return self.last(),
                b'?' => {
                    self.has_question_mark = true;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        Ok(self.text.len())
    }

    fn close(&mut self, end: usize) {
        let literal = self.text[self.literal..end].to_owned();
        if !literal.is_empty() {
            self.pieces.push(Piece::Literal(literal));
        }
    }

    /// The end of what is quoted from here.
    fn quoted(&self, quote: u8) -> Result<usize, SqlFault> {
        let mut at = self.at + 1;
        let mut backslashes = 0;
        while let Some(byte) = self.byte(at) {
            if byte == quote {
                if backslashes % 2 == 1 {
                    let message = "databases do not agree what a backslash before a quote means";
                    return Err(SqlFault::at(at - 1..at + 1, message).helped("write the quote twice"));
                }
                if self.byte(at + 1) != Some(quote) {
                    return Ok(at + 1);
                }
                at += 1;
            }
            backslashes = if byte == b'\\' { backslashes + 1 } else { 0 };
            at += 1;
        }
        let message = format!("{} is not closed", char::from(quote));
        Err(SqlFault::at(self.at..self.at + 1, message))
    }

    fn line(&self) -> usize {
        let rest = &self.text[self.at..];
        rest.find('\n').map_or(self.text.len(), |end| self.at + end)
    }

    fn comment(&self) -> Result<usize, SqlFault> {
        let mut depth = 1_u32;
        let mut at = self.at + 2;
        while depth > 0 {
            match (self.byte(at), self.byte(at + 1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    at += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    at += 2;
                }
                (Some(_), _) => at += 1,
                (None, _) => return Err(SqlFault::at(self.at..self.at + 2, "the comment is not closed")),
            }
        }
        Ok(at)
    }

    /// A placeholder, a text in dollars, or part of a name.
    fn dollar(&mut self) -> Result<(), SqlFault> {
        let start = self.at;
        let before = start.checked_sub(1).and_then(|at| self.byte(at));
        if before.is_some_and(is_word) {
            self.at += 1;
            return Ok(());
        }
        let length = |of: fn(u8) -> bool| {
            let rest = &self.text.as_bytes()[start + 1..];
            rest.iter().take_while(|byte| of(**byte)).count()
        };
        let digits = length(|byte| byte.is_ascii_digit());
        if digits > 0 {
            return self.placeholder(start, digits);
        }
        let tag = length(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80);
        if self.byte(start + 1 + tag) != Some(b'$') {
            self.at += 1;
            return Ok(());
        }
        let delimiter = &self.text[start..start + tag + 2];
        let inside = start + delimiter.len();
        match self.text[inside..].find(delimiter) {
            Some(end) => {
                self.at = inside + end + delimiter.len();
                Ok(())
            }
            None => Err(SqlFault::at(start..inside, format!("{delimiter} is not closed"))),
        }
    }

    fn placeholder(&mut self, start: usize, digits: usize) -> Result<(), SqlFault> {
        let end = start + 1 + digits;
        let place = start..end;
        let number: usize = self.text[start + 1..end].parse().unwrap_or(usize::MAX);
        if number == 0 || number > BINDS_MAX || self.byte(start + 1) == Some(b'0') {
            let message = format!("placeholders are $1 to ${BINDS_MAX}");
            return Err(SqlFault::at(place, message));
        }
        if self.byte(end).is_some_and(is_word) {
            return Err(SqlFault::at(place, "a placeholder ends where its number ends"));
        }
        self.close(start);
        self.pieces.push(Piece::Bind(number));
        self.literal = end;
        self.at = end;
        Ok(())
    }

    /// The end of the statement, behind which there may be comments only.
    fn last(&mut self) -> Result<usize, SqlFault> {
        let end = self.at;
        self.at += 1;
        while let Some(byte) = self.byte(self.at) {
            match byte {
                b'-' if self.byte(self.at + 1) == Some(b'-') => self.at = self.line(),
                b'/' if self.byte(self.at + 1) == Some(b'*') => self.at = self.comment()?,
                byte if byte.is_ascii_whitespace() || byte == b';' => self.at += 1,
                _ => {
                    let help = "list each statement with a `query` or `execute` of its own";
                    return Err(SqlFault::at(end..end + 1, "a text holds one statement").helped(help));
                }
            }
        }
        Ok(end)
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// The word that the statement begins with.
fn verb(text: &str) -> Result<String, SqlFault> {
    let begin = beginning(text);
    let rest = &text[begin..];
    let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let verb = rest[..length].to_ascii_uppercase();
    if VERBS.contains(&&*verb) {
        return Ok(verb);
    }
    let message = match &*verb {
        "" => "the text holds no statement".to_owned(),
        verb => format!("{verb} cannot be part of the transaction that the runner makes"),
    };
    let help = format!("a statement begins with {}", VERBS.join(", "));
    Err(SqlFault::at(begin..begin + length, message).helped(&help))
}

/// Where the first word begins, behind spaces, comments and brackets.
fn beginning(text: &str) -> usize {
    let mut reader = Reader {
        text,
        at: 0,
        literal: 0,
        pieces: Vec::new(),
        has_question_mark: false,
    };
    while let Some(byte) = reader.byte(reader.at) {
        let next = reader.byte(reader.at + 1);
        reader.at = match byte {
            b'-' if next == Some(b'-') => reader.line(),
            b'/' if next == Some(b'*') => match reader.comment() {
                Ok(end) => end,
                Err(_) => break,
            },
            byte if byte.is_ascii_whitespace() || byte == b'(' => reader.at + 1,
            _ => break,
        };
    }
    reader.at.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SqlText {
        SqlText::read(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
    }

    fn fault(text: &str) -> String {
        SqlText::read(text).expect_err(text).message
    }

    #[test]
    fn placeholders_are_found_where_a_database_finds_them() {
        for (text, placeholders) in [
            ("SELECT $1, $2, $1", vec![1, 2]),
            ("SELECT '$1', \"$2\", `$3`, $4", vec![4]),
            ("SELECT 'it''s $1' || $1", vec![1]),
            ("SELECT a$1 FROM t WHERE b = $2", vec![2]),
            ("SELECT $$ $1 $$, $tag$ $2 $$ $3 $tag$, $1", vec![1]),
            ("SELECT 1 -- $1\n, $2 /* $3 /* $4 */ $5 */", vec![2]),
            ("SELECT array[$1], x::text, '\\\\' = $2;  -- done", vec![1, 2]),
            ("VALUES (1)", vec![]),
            ("SELECT 'ä$1', ä$1, $1", vec![1]),
        ] {
            let found: Vec<usize> = read(text).placeholders().into_iter().collect();
            assert_eq!(found, placeholders, "{text}");
        }
    }

    #[test]
    fn placeholders_are_written_as_each_database_reads_them() {
        let text = read("UPDATE a SET b = b - $1 WHERE c = $2 AND b >= $1;");
        assert_eq!(
            text.numbered('?'),
            "UPDATE a SET b = b - ?1 WHERE c = ?2 AND b >= ?1"
        );
        let positional = "UPDATE a SET b = b - ? WHERE c = ? AND b >= ?";
        assert_eq!(text.positional(), (positional.to_owned(), vec![1, 2, 1]));
    }

    #[test]
    fn sql_that_databases_read_differently_or_cannot_roll_back_is_refused() {
        for (text, message) in [
            ("SELECT ${input.a}", "a value cannot become part"),
            ("SELECT 'a\\' OR $1 = '", "backslash"),
            ("SELECT 'a", "' is not closed"),
            ("SELECT /* a", "the comment is not closed"),
            ("SELECT $a$ b", "$a$ is not closed"),
            ("SELECT $0", "placeholders are"),
            ("SELECT $65", "placeholders are"),
            ("SELECT $1a", "a placeholder ends"),
            ("SELECT 1; DELETE FROM a", "one statement"),
            ("COMMIT", "COMMIT cannot"),
            ("begin", "BEGIN cannot"),
            ("CREATE TABLE a (b int)", "CREATE cannot"),
            ("CALL f()", "CALL cannot"),
            (" -- nothing\n", "no statement"),
            ("", "no statement"),
        ] {
            assert!(fault(text).contains(message), "{text}: {}", fault(text));
        }
        assert!(read("/* why */ (select 1)").only_reads());
        assert!(!read("DELETE FROM a").only_reads());
        assert!(read("SELECT a ? 'b'").has_question_mark() && !read("SELECT '?'").has_question_mark());
    }
}
