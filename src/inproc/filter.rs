//! Subjects and the patterns that select them: `*` stands for one token, a last `>` for one or more.

/// Longest subject, in bytes: a subject is a key of the store, and keys end at 2,022 bytes.
pub(super) const SUBJECT_BYTES_MAX: usize = 2_000;

/// A pattern, ready to be compared with many subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    pattern: Box<str>,
    /// Bytes before the first wildcard. Most subjects that do not match differ here.
    literal: usize,
}

impl Filter {
    /// # Errors
    /// A sentence that names what is wrong with the pattern.
    pub fn parse(pattern: &str) -> Result<Self, String> {
        let tokens = pattern.split('.').count();
        let mut literal = 0;
        let mut wild = false;
        for (n, token) in pattern.split('.').enumerate() {
            if !is_token(token) || (token == ">" && n + 1 < tokens) {
                return Err(format!("subject pattern {pattern:?} is not legal"));
            }
            wild |= matches!(token, "*" | ">");
            if !wild {
                literal += token.len() + 1;
            }
        }
        Ok(Self {
            pattern: pattern.into(),
            // Without a wildcard there is no dot behind the last token.
            literal: literal.min(pattern.len()),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    pub fn matches(&self, subject: &[u8]) -> bool {
        let pattern = self.pattern.as_bytes();
        if self.literal == pattern.len() {
            return subject == pattern;
        }
        if subject.len() <= self.literal || subject[..self.literal] != pattern[..self.literal] {
            return false;
        }
        let mut wanted = pattern[self.literal..].split(|byte| *byte == b'.');
        let mut found = subject[self.literal..].split(|byte| *byte == b'.');
        loop {
            match (wanted.next(), found.next()) {
                (None, None) | (Some(b">"), Some(_)) => return true,
                (Some(b"*"), Some(_)) => {}
                (Some(wanted), Some(found)) if wanted == found => {}
                _ => return false,
            }
        }
    }

    /// Whether some subject matches both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.pattern.split('.'), other.pattern.split('.'));
        loop {
            match (left.next(), right.next()) {
                (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
                _ => return false,
            }
        }
    }
}

/// Whether a message may be published on `subject`.
pub(super) fn is_literal(subject: &str) -> bool {
    subject
        .split('.')
        .all(|token| is_token(token) && token != "*" && token != ">")
}

fn is_token(token: &str) -> bool {
    !token.is_empty()
        && !token
            .bytes()
            .any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(pattern: &str) -> Filter {
        Filter::parse(pattern).unwrap()
    }

    #[test]
    fn wildcards_stand_for_whole_tokens() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.b", "a.b.c", false),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.d", false),
            ("a.*.c", "a.b", false),
            ("*.b", "a.b", true),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c.d", true),
            ("a.>", "a", false),
            ("a.>", "ab.c", false),
            (">", "a", true),
            (">", "a.b.c", true),
            ("a.*.>", "a.b.c", true),
            ("a.*.>", "a.b", false),
            ("a.*b", "a.*b", true),
            ("a.*b", "a.xb", false),
        ] {
            assert_eq!(
                filter(pattern).matches(subject.as_bytes()),
                expected,
                "{pattern} {subject}"
            );
        }
    }

    #[test]
    fn broken_patterns_are_refused() {
        for bad in [
            "", ".", "a.", ".a", "a..b", "a.>.b", ">.a", "a b", "a\r\n", "a.\0",
        ] {
            assert!(Filter::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a.", "a.*", "a.>", "*", "a b", "a\tb", "a..b"] {
            assert!(!is_literal(bad), "{bad:?}");
        }
        assert!(is_literal("tenant.t.x%20y.*b"));
    }

    #[test]
    fn patterns_overlap_where_one_subject_matches_both() {
        for (left, right, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a", false),
            ("a.*.c", "a.b.*", true),
            ("a.b", "a.b.c", false),
            (">", "x", true),
            ("a.b", "b.b", false),
        ] {
            assert_eq!(filter(left).overlaps(&filter(right)), expected, "{left} {right}");
            assert_eq!(filter(right).overlaps(&filter(left)), expected, "{right} {left}");
        }
    }
}
