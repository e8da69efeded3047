//! What a case says of how work went.

use serde_json::Value;

use super::file::{Reader, ResultSpec};
use crate::kernel::definition::codes;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::grammar::Shape;
use crate::kernel::definition::model::RETRY_CLASSES;
use crate::kernel::definition::yaml::{Entry, Value as Written};
use crate::kernel::input::UnknownClass;

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Ok(Value),
    /// It happened, and what came back is not a result.
    Unusable {
        result: Value,
        class: String,
        message: String,
    },
    Error {
        class: String,
        message: String,
        /// The upstream has refused it.
        refused: bool,
    },
    Timeout(UnknownClass),
}

impl Reader<'_, '_> {
    pub(super) fn result(&mut self, entry: &Entry<'_>, shape: &'static Shape) -> Option<ResultSpec> {
        let fields = Fields::read(&entry.value, &entry.key_span, shape, self.findings)?;
        let of = fields.require("of", self.findings);
        let outcome = fields.one_of(&["ok", "error", "timeout"], self.findings)?;
        let message = match fields.get("message") {
            None => String::new(),
            Some(entry) => self.text(entry, "a message")?,
        };
        for (key, beside) in [("unusable", "ok"), ("refused", "error")] {
            if let Some(entry) = fields.get(key).filter(|_| outcome.key != beside) {
                let message = format!("\"{key}\" goes with \"{beside}\"");
                self.findings
                    .error(codes::CONTRADICTION, entry.key_span.clone(), message);
            }
        }
        let answer = match &*outcome.key {
            "ok" => {
                let result = self.tree(outcome)?.value();
                match fields.get("unusable") {
                    None => Answer::Ok(result),
                    Some(entry) => Answer::Unusable {
                        result,
                        class: self.text(entry, "an error class")?,
                        message,
                    },
                }
            }
            "error" => {
                let class = self.text(outcome, "an error class")?;
                let refused = fields
                    .get("refused")
                    .and_then(|entry| fields::boolean(entry, self.findings));
                Answer::Error {
                    refused: refused.unwrap_or_else(|| is_refusal(&class)),
                    class,
                    message,
                }
            }
            _ => Answer::Timeout(self.unknown(outcome)?),
        };
        let (of, of_span) = self.of(of?)?;
        Some(ResultSpec {
            of,
            of_span,
            outcome: answer,
        })
    }

    /// `true`, or one of the classes that tell unknown outcomes apart.
    fn unknown(&mut self, entry: &Entry<'_>) -> Option<UnknownClass> {
        let text = match &entry.value.value {
            Written::Scalar(scalar) => &*scalar.text,
            Written::List(_) | Written::Map(_) => "",
        };
        if text == "true" {
            return Some(UnknownClass::Timeout);
        }
        let found = UnknownClass::ALL.into_iter().find(|class| class.as_str() == text);
        if found.is_none() {
            let names = UnknownClass::ALL.map(UnknownClass::as_str).join(", ");
            let message = format!("expected `true` or one of {names}");
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
        }
        found
    }
}

/// Whether workers say of a failure of this class that the upstream has refused: it has, where another attempt would
/// not help.
#[must_use]
pub fn is_refusal(class: &str) -> bool {
    !RETRY_CLASSES.contains(&class)
}
