//! What operators do to an instance in a case, as a test file says it.

use super::file::{ALL_STUCK, Action, Reader};
use crate::kernel::definition::codes;
use crate::kernel::definition::yaml::Entry;
use crate::kernel::input::{Finding, Found, OperationVerb};

impl Reader<'_, '_> {
    /// An operator does something to the instance, for a reason, or to the timer or step that is named.
    pub(super) fn operate(&mut self, entry: &Entry<'_>) -> Option<Action> {
        let text = self.text(entry, "a reason, or the name of a timer or step")?;
        let mut reason = String::new();
        let verb = match &*entry.key {
            "fire_timer" => OperationVerb::FireTimer { timer: text },
            "cancel_timer" => OperationVerb::CancelTimer { timer: text },
            "try_now" => OperationVerb::TryNow {
                step: (text != ALL_STUCK).then_some(text),
            },
            verb => {
                reason = text;
                match verb {
                    "pause" => OperationVerb::Pause,
                    "resume" => OperationVerb::Resume,
                    "restart" => OperationVerb::Restart,
                    _ => OperationVerb::Kill,
                }
            }
        };
        Some(Action::Operate(verb, reason))
    }

    /// An operator begins an instance that has ended again: what operators found out about steps of unknown outcome, by name: done, not_done or
    /// `{ok: ...}`.
    pub(super) fn rerun(&mut self, entry: &Entry<'_>) -> Option<Action> {
        let tree = self.tree(entry)?;
        let members = tree.members().unwrap_or_default();
        let mut found = Vec::new();
        for member in members {
            let ok = member.value.members().unwrap_or_default();
            let ok = ok.iter().find(|member| member.key == "ok");
            let said = match (member.value.text(), ok) {
                (Some("not_done"), _) => Found::NotDone,
                (Some("done"), _) => Found::Done {
                    result: "{}".to_owned(),
                },
                (_, Some(ok)) => Found::Done {
                    result: ok.value.value().to_string(),
                },
                (_, None) => {
                    let message = format!("\"{}\" is to be done, not_done or {{ok: ...}}", member.key);
                    let span = entry.value.span.clone();
                    self.findings.error(codes::WRONG_VALUE, span, message);
                    return None;
                }
            };
            found.push(Finding {
                step: member.key.clone(),
                found: said,
            });
        }
        Some(Action::Operate(OperationVerb::Rerun { found }, String::new()))
    }
}
