//! Types as messages name them.

use std::fmt;

use super::{Kinds, Type};

/// Most words of a string that a message lists.
const WORDS_SHOWN: usize = 10;

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dynamic {
            return f.write_str("anything");
        }
        if self.kinds.is_empty() {
            return f.write_str("nothing");
        }
        let number = Kinds::INT.with(Kinds::DOUBLE);
        let mut names: Vec<String> = Vec::new();
        for kind in self.kinds.each() {
            let name = match kind {
                Kinds::NULL => "null",
                Kinds::BOOL => "a boolean",
                Kinds::INT if self.kinds.has(number) => "a number",
                Kinds::INT => "an integer",
                Kinds::DOUBLE if self.kinds.has(number) => continue,
                Kinds::DOUBLE => "a double",
                Kinds::STRING => {
                    names.push(self.string_name());
                    continue;
                }
                Kinds::TIMESTAMP => "a timestamp",
                Kinds::DURATION => "a duration",
                Kinds::LIST => "a list",
                Kinds::OPTIONAL => "an optional",
                _ => "a map",
            };
            names.push(name.to_owned());
        }
        f.write_str(&names.join(" or "))
    }
}

impl Type {
    fn string_name(&self) -> String {
        match &self.words {
            Some(words) if words.len() <= WORDS_SHOWN => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                words.join(" or ")
            }
            _ => "a string".to_owned(),
        }
    }
}
