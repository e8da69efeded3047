//! Steps that decide: they make no call and wait for nothing.

use super::super::actions::Reading;
use super::super::codes;
use super::super::fields::Fields;
use super::super::model::Decision;
use super::super::steps::START_ROOTS;
use super::super::texts::EventParts;

/// What ends an instance in place of work.
pub(super) const ENDS: [&str; 3] = ["complete", "cancel", "fail"];

/// What takes time, or comes behind it.
const BESIDE_NO_END: [&str; 13] = [
    "effect",
    "command",
    "publish",
    "signal",
    "saga",
    "with",
    "wait",
    "retry",
    "timeout",
    "fail_if",
    "on_timeout",
    "repeat",
    "foreach",
];

/// Whether a step without work says something that is done at once. The `set` of a loop over a list is that of the loop.
pub(super) fn only_decides(fields: &Fields<'_, '_>) -> bool {
    let decides = ["set", "fail_if", "alias"];
    fields.get("foreach").is_none() && decides.iter().any(|key| fields.get(key).is_some())
}

impl<'r> Reading<'r, '_> {
    /// A step without anything to do, unless a key that is wrong may have been that.
    pub(super) fn nothing_to_do(&mut self, fields: &Fields<'_, '_>) {
        if fields.has_strangers() {
            return;
        }
        self.findings
            .error(codes::MISSING_KEY, fields.place(), "a step needs something to do")
            .help(Some(
                "give it one of effect, command, publish, signal, saga, wait, delay, set, complete, cancel, fail, choice, repeat and foreach"
                    .to_owned(),
            ));
    }

    /// `complete`, `cancel` and `fail`, which end the instance as soon as the step starts.
    pub(super) fn decision(&mut self, fields: &Fields<'r, '_>) -> Decision {
        let first = ENDS.iter().find_map(|key| fields.get(key));
        let first = first.map_or("fail", |entry| &*entry.key);
        for key in BESIDE_NO_END {
            let Some(entry) = fields.get(key) else { continue };
            let message = format!(
                "\"{first}\" ends the instance as soon as the step starts, so there is no \"{key}\" beside it"
            );
            self.findings
                .error(codes::CONTRADICTION, entry.key_span.clone(), message)
                .help(Some(format!(
                    "move \"{first}\" to a step of its own, which needs what comes before and says under \"if\" when"
                )));
        }
        self.nothing_to_undo(fields);
        let complete = fields
            .get("complete")
            .and_then(|complete| self.complete(complete, START_ROOTS, EventParts::Moment));
        self.ends_here(fields, &["cancel", "fail"]);
        let cancel = fields
            .get("cancel")
            .and_then(|cancel| self.cancel(cancel, START_ROOTS, EventParts::Moment));
        self.cancelled_here(fields, &["fail"]);
        let fail = fields
            .get("fail")
            .and_then(|fail| self.fail(fail, START_ROOTS, EventParts::Moment));
        Decision {
            complete,
            cancel,
            fail,
        }
    }

    pub(super) fn nothing_to_undo(&mut self, fields: &Fields<'_, '_>) {
        if let Some(entry) = fields.get("compensate") {
            let message = "a step that only decides leaves nothing to undo";
            self.findings
                .error(codes::CONTRADICTION, entry.key_span.clone(), message);
        }
    }

    pub(super) fn only_with_an_outcome(&mut self, fields: &Fields<'_, '_>, keys: &[&str]) {
        for key in keys {
            if let Some(entry) = fields.get(key) {
                let message = format!("\"{key}\" belongs to an effect or a command, and the step has none");
                self.findings
                    .error(codes::CONTRADICTION, entry.key_span.clone(), message);
            }
        }
    }
}
