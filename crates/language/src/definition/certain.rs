//! Conditions whose outcome is certain before any input has come.

use super::actions::Reading;
use super::codes;
use super::fields;
use super::yaml::Entry;
use crate::expr::Expr;

/// What happens to a condition that is always the same.
#[derive(Debug, Clone, Copy)]
pub struct Certainty {
    /// What never happens where it never holds: an error.
    pub never: Option<&'static str>,
    /// What follows where it never holds and nothing is lost by that: a warning.
    pub false_means: &'static str,
    /// The same where it always holds.
    pub true_means: &'static str,
}

/// Of what happens only if it holds.
const fn only_if(never: &'static str) -> Certainty {
    Certainty {
        never: Some(never),
        false_means: "",
        true_means: "leave it out",
    }
}

pub const STEP: Certainty = only_if("the step never runs");
pub const ALTERNATIVE: Certainty = Certainty {
    true_means: "write \"else\"",
    ..only_if("the alternative is never taken")
};
pub const HANDLER: Certainty = only_if("nothing is ever done here");
pub const START: Certainty = only_if("this start begins nothing");
pub const EMIT: Certainty = only_if("this is never emitted");
pub const ANSWER: Certainty = only_if("this answer is never taken");
pub const WAIT: Certainty = only_if("the wait never ends by what it waits for");
pub const WHILE: Certainty = Certainty {
    true_means: "the loop runs as often as \"max\" says, and fails then",
    ..only_if("the steps of the loop never run")
};
pub const UNTIL: Certainty = Certainty {
    never: None,
    false_means: "the loop runs as often as \"max\" says, and fails then",
    true_means: "the loop ends with its first turn",
};
pub const COMPLETE: Certainty = Certainty {
    never: None,
    false_means: "leave out the \"complete\"",
    true_means: "leave it out",
};
pub const COMPENSATE: Certainty = Certainty {
    never: None,
    false_means: "write \"compensate: none\" where nothing is to be undone",
    true_means: "leave it out",
};
/// One that always holds says that the step fails whenever it has succeeded, which may be meant.
pub const FAIL_IF: Certainty = Certainty {
    never: None,
    false_means: "leave it out",
    true_means: "",
};
pub const CANCEL: Certainty = Certainty {
    never: None,
    false_means: "leave it out",
    true_means: "it is cancelled before anything has happened",
};

impl Reading<'_, '_> {
    /// Tells of a condition that is always the same, and whether it always holds.
    pub fn certain(&mut self, entry: &Entry<'_>, condition: &Expr, certainty: Certainty) -> bool {
        let Some(holds) = condition.certain() else {
            return false;
        };
        // What was archived has been checked.
        if self.types.is_none() {
            return holds;
        }
        let span = fields::visible(&entry.value, &entry.key_span, self.findings.text());
        let means = if holds {
            certainty.true_means
        } else {
            certainty.false_means
        };
        match certainty.never {
            Some(never) if !holds => {
                let message = format!("this never holds: {never}");
                self.findings.error(codes::CERTAIN, span, message);
            }
            _ if means.is_empty() => {}
            _ => {
                let word = if holds { "always" } else { "never" };
                self.findings
                    .warning(codes::CERTAIN, span, format!("this {word} holds"))
                    .help(Some(means.to_owned()));
            }
        }
        holds
    }
}
