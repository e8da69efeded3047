//! CEL text as bytes of code: what stands outside of strings and comments.
//!
//! Knows where brackets and braces count, nothing else of the grammar.

/// Walks the bytes of code with their offsets. A string that is not closed ends with its line, as for the parser.
pub(super) struct Code<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl<'t> Code<'t> {
    pub fn of(text: &'t str) -> Self {
        Self {
            bytes: text.as_bytes(),
            at: 0,
        }
    }

    /// Whether the quote at hand belongs to a string in which `\` is an ordinary byte: `r'…'`, `br'…'`.
    fn is_raw(&self) -> bool {
        let before = &self.bytes[..self.at];
        let Some((b'r' | b'R', before)) = before.split_last() else {
            return false;
        };
        let before = match before.split_last() {
            Some((b'b' | b'B', rest)) => rest,
            _ => before,
        };
        !before
            .last()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    }

    fn skip_string(&mut self, quote: u8) {
        let raw = self.is_raw();
        let triple = self.bytes[self.at..].starts_with(&[quote; 3]);
        self.at += if triple { 3 } else { 1 };
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte == b'\\' && !raw {
                self.at += 2;
            } else if triple && self.bytes[self.at..].starts_with(&[quote; 3]) {
                self.at += 3;
                return;
            } else if !triple && (byte == quote || byte == b'\n' || byte == b'\r') {
                self.at += 1;
                return;
            } else {
                self.at += 1;
            }
        }
    }

    fn skip_line(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| *byte != b'\n') {
            self.at += 1;
        }
    }
}

impl Iterator for Code<'_> {
    type Item = (usize, u8);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            match *self.bytes.get(at)? {
                quote @ (b'"' | b'\'') => self.skip_string(quote),
                b'/' if self.bytes.get(at + 1) == Some(&b'/') => self.skip_line(),
                byte => {
                    self.at += 1;
                    return Some((at, byte));
                }
            }
        }
    }
}

/// Offset of the `}` that ends an expression whose `${` stands right before `text`.
pub(super) fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in Code::of(text) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Offset of the first bracket that stands deeper than `max` others.
pub(super) fn too_deep(text: &str, max: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in Code::of(text) {
        match byte {
            b'(' | b'[' | b'{' if depth == max => return Some(at),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_and_comments_do_not_end_an_expression() {
        for (text, rest) in [
            ("a}", ""),
            ("{'a': {'b': 1}}} tail", " tail"),
            ("'}'}", ""),
            (r"'\'}'}", ""),
            (r"r'\'}'}", "'}"),
            (r#""}" + '"' + '}'}x"#, "x"),
            ("'''it's }'''}x", "x"),
            ("a // } not this one\n}x", "x"),
            ("or'}'}x", "x"),
        ] {
            let end = closing_brace(text).expect(text);
            assert_eq!(&text[end + 1..], rest, "{text}");
        }
        for open in ["a", "'}", "{}", "\"\\\"}", "// }"] {
            assert_eq!(closing_brace(open), None, "{open}");
        }
    }

    #[test]
    fn depth_counts_brackets_of_code_only() {
        assert_eq!(too_deep("((()))", 3), None);
        assert_eq!(too_deep("((()))", 2), Some(2));
        assert_eq!(too_deep("'(((' + \"[[[\" + (1)", 1), None);
    }
}
