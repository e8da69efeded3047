//! What the parts of a definition do, in a few words.

use super::super::model::{Action, Count, Decision, Delay, Group, Join, RepeatCondition, Step, Telling};
use crate::duration::Millis;

/// Longest text of a name, a line or a label, in characters; more is cut.
pub(super) const TEXT_CHARS_MAX: usize = 160;
/// Most lines about one part.
const LINES_MAX: usize = 16;

/// Text that is not longer than it may be.
pub(super) fn cut(text: &str) -> String {
    if text.chars().nth(TEXT_CHARS_MAX).is_none() {
        return text.to_owned();
    }
    let kept = text.chars().take(TEXT_CHARS_MAX - 1);
    kept.chain(std::iter::once('\u{2026}')).collect()
}

/// The first of `lines`, and how many more there are.
pub(super) fn few(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > LINES_MAX {
        let more = lines.len() - (LINES_MAX - 1);
        lines.truncate(LINES_MAX - 1);
        lines.push(format!("{more} more"));
    }
    lines
}

/// What a step does, what it waits for, and how many of its needs must be done.
pub(super) fn does(step: &Step) -> Vec<String> {
    let what = match &step.action {
        Action::Group(Group::Choice(_)) => "choice".to_owned(),
        Action::Group(Group::Repeat(repeat)) => match &repeat.condition {
            RepeatCondition::Until(condition) => format!("until {}", condition.text()),
            RepeatCondition::While(condition) => format!("while {}", condition.text()),
        },
        Action::Group(Group::Foreach(foreach)) => format!("for each of {}", foreach.over.text()),
        other => action(other),
    };
    let delay = step.delay.as_ref();
    let delay = delay.map(|delay| format!("after {}", span(delay)));
    let awaited: Vec<String> = step.waits_for().map(|awaiting| awaiting.on.to_string()).collect();
    let waits = (!awaited.is_empty()).then(|| format!("waits for {}", awaited.join(" or ")));
    let join = match &step.join {
        Join::All => None,
        Join::AtLeast { count, .. } => {
            let count = match count {
                Count::Fixed(number) => number.to_string(),
                Count::Computed(expr) => expr.text().to_owned(),
            };
            Some(format!("needs {count} of {}", step.needs.len()))
        }
    };
    [what].into_iter().chain(delay).chain(waits).chain(join).collect()
}

pub(super) fn span(delay: &Delay) -> String {
    match delay {
        Delay::Fixed(ms) => Millis(u64::try_from(*ms).unwrap_or(0)).to_string(),
        Delay::Rendered(_) => "as an expression says".to_owned(),
    }
}

pub(super) fn action(action: &Action) -> String {
    match action {
        Action::Effect { effect, .. } => effect.to_string(),
        Action::Command(command) => command.command_type.clone(),
        Action::Publish(Telling::Fact(publish)) => publish.fact_type.clone(),
        Action::Publish(Telling::Signal(signal)) => format!("signal {}", signal.name),
        Action::Saga(child) => format!("saga {}", child.saga),
        Action::UndoSaga(saga) => format!("undo saga {saga}"),
        Action::Decide(decision) => decided(decision),
        Action::Nothing | Action::Group(_) => String::new(),
    }
}

fn decided(decision: &Decision) -> String {
    let complete = decision
        .complete
        .iter()
        .map(|end| format!("complete {}", end.outcome));
    let fail = decision.fail.iter().map(|fail| format!("fail {}", fail.code));
    let cancel = decision.cancel.iter().map(|_| "cancel".to_owned());
    let ends: Vec<String> = complete.chain(cancel).chain(fail).collect();
    if ends.is_empty() {
        "set".to_owned()
    } else {
        ends.join(" or ")
    }
}
