//! Expectations against what came out.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use super::codes;
use super::expect::Expect;
use super::observe::Seen;
use super::tree::{Shape, Tree};
use super::update;
use super::work;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;

/// Longest value that is shown within a sentence, in bytes; a longer one is shown as a difference of lines.
const INLINE_BYTES_MAX: usize = 60;
/// What is expected of an idempotency key: work before had it, or none had.
const SAME_KEY: &str = "same";
const NEW_KEY: &str = "new";

/// Something wrong with a step of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub code: &'static str,
    pub span: Range<usize>,
    pub message: String,
    pub help: Option<String>,
    /// What `--update` writes, and where.
    pub cure: Option<(Range<usize>, String)>,
}

/// Compares; `step` is the place of what was done, `now` the time after it, `text` the file.
#[must_use]
pub fn compare(expect: &Expect, step: &Range<usize>, seen: &Seen, now: TimeMs, text: &str) -> Vec<Fault> {
    let mut found = Vec::new();
    if expect.is_empty {
        found.push(fill(expect, seen, text));
        return found;
    }
    let state = seen.part("state");
    if let Some(tree) = &expect.phase {
        within(tree, Some(&seen.part("phase")), "phase", &mut found);
    }
    if let Some(tree) = &expect.state {
        within(tree, Some(&state), "state", &mut found);
    }
    if let Some(tree) = &expect.machine {
        within(tree, Some(&seen.part("machine")), "machine", &mut found);
    }
    if let Some(tree) = &expect.failure {
        brief(tree, Some(&seen.part("failure")), "code", "failure", &mut found);
    }
    if let Some(tree) = &expect.outcome {
        within(tree, Some(&seen.part("outcome")), "outcome", &mut found);
    }
    if let Some(tree) = &expect.steps {
        steps(tree, &seen.part("steps"), &mut found);
    }
    if let Some(tree) = &expect.timers {
        timers(tree, &seen.part("timers"), now, &mut found);
    }
    if let Some(tree) = &expect.ledger {
        ledger(tree, &seen.part("ledger"), &mut found);
    }
    if let Some(tree) = &expect.aliases {
        let none = Value::Object(serde_json::Map::new());
        let actual = seen.instance.get("aliases").unwrap_or(&none);
        within(tree, Some(actual), "aliases", &mut found);
    }
    if let Some(tree) = &expect.work {
        works(tree, expect, seen, &mut found);
    } else if expect.no_other_work && !seen.work.is_empty() {
        let span = expect.span.clone();
        found.push(Fault::unmet(
            span,
            "work that is not expected",
            Some(listed(&seen.work)),
        ));
    }
    if let Some(tree) = &expect.deferred {
        within(tree, Some(&Value::Bool(seen.deferred)), "deferred", &mut found);
    }
    if let Some(tree) = &expect.blocked {
        within(tree, Some(&Value::Bool(seen.blocked)), "blocked", &mut found);
    }
    fate(expect, step, seen, &mut found);
    found
}

/// What happens to an input is never passed over: ignored and rejected ones, and those that wait behind a dead letter, must be
/// expected.
pub fn fate(expect: &Expect, step: &Range<usize>, seen: &Seen, found: &mut Vec<Fault>) {
    let rejected = seen.rejected.as_ref();
    match (&expect.rejected, rejected) {
        (None, Some((reason, message))) => found.push(Fault::unmet(
            step.clone(),
            format!("the input is rejected ({reason}) and would be a dead letter"),
            Some(message.clone()),
        )),
        (Some(tree), rejected) => {
            let reason = rejected.map(|(reason, _)| Value::from(reason.as_str()));
            within(tree, Some(&reason.unwrap_or(Value::Null)), "rejected", found);
        }
        (None, None) => {}
    }
    if seen.waits && expect.blocked.is_none() {
        found.push(Fault::unmet(
            step.clone(),
            "the input waits behind a dead letter of its instance".to_owned(),
            Some("if that is meant, expect {blocked: true}".to_owned()),
        ));
    }
    match (&expect.ignored, seen.ignored) {
        (None, Some(reason)) => found.push(Fault::unmet(
            step.clone(),
            format!("the input is ignored ({reason})"),
            Some(format!("if that is meant, expect {{ignored: {reason}}}")),
        )),
        (Some(tree), ignored) => {
            let reason = ignored.map_or(Value::Null, Value::from);
            within(tree, Some(&reason), "ignored", found);
        }
        (None, None) => {}
    }
}

/// Everything in `tree` must be in `actual`; maps may hold more, lists may not.
fn within(tree: &Tree, actual: Option<&Value>, path: &str, found: &mut Vec<Fault>) {
    match (&tree.shape, actual) {
        (Shape::Scalar(expected), Some(actual)) if expected == actual => {}
        (Shape::Scalar(Value::Null), None) => {}
        (Shape::List(items), Some(Value::Array(actual))) if items.len() == actual.len() => {
            for (index, (item, actual)) in items.iter().zip(actual).enumerate() {
                within(item, Some(actual), &format!("{path}[{index}]"), found);
            }
        }
        (Shape::Map(members), Some(Value::Object(actual))) => {
            for member in members {
                let path = format!("{path}.{}", member.key);
                within(&member.value, actual.get(&member.key), &path, found);
            }
        }
        (Shape::Scalar(_) | Shape::List(_) | Shape::Map(_), actual) => {
            found.push(Fault::differs(tree, actual, path));
        }
    }
}

fn matches(tree: &Tree, actual: &Value) -> bool {
    let mut found = Vec::new();
    within(tree, Some(actual), "", &mut found);
    found.is_empty()
}

/// A scalar stands for the member `member` of the whole.
fn brief(tree: &Tree, actual: Option<&Value>, member: &str, path: &str, found: &mut Vec<Fault>) {
    match (&tree.shape, actual) {
        (Shape::Scalar(expected), Some(actual)) if !expected.is_null() && actual.is_object() => {
            within(tree, actual.get(member), path, found);
        }
        _ => within(tree, actual, path, found),
    }
}

fn steps(tree: &Tree, actual: &Value, found: &mut Vec<Fault>) {
    let Some(members) = tree.members() else {
        return within(tree, Some(actual), "steps", found);
    };
    for member in members {
        let path = format!("steps.{}", member.key);
        brief(&member.value, actual.get(&member.key), "status", &path, found);
    }
}

fn ledger(tree: &Tree, actual: &Value, found: &mut Vec<Fault>) {
    let none = Vec::new();
    let actual = actual.as_array().unwrap_or(&none);
    match &tree.shape {
        Shape::List(items) if items.len() == actual.len() => {
            for (index, (item, actual)) in items.iter().zip(actual).enumerate() {
                brief(item, Some(actual), "step", &format!("ledger[{index}]"), found);
            }
        }
        Shape::List(_) | Shape::Map(_) | Shape::Scalar(_) => {
            let keys = |entry: &Value| serde_json::json!({"step": entry["step"], "status": entry["status"]});
            let actual = Value::Array(actual.iter().map(keys).collect());
            found.push(Fault::differs(tree, Some(&actual), "ledger"));
        }
    }
}

/// A map names some timers with the time that is left, an instant, `set`, or nothing; a list names all that are
/// set.
fn timers(tree: &Tree, actual: &Value, now: TimeMs, found: &mut Vec<Fault>) {
    let none = serde_json::Map::new();
    let actual = actual.as_object().unwrap_or(&none);
    let due = |name: &str| actual.get(name).and_then(|timer| timer["due"].as_str());
    let Some(members) = tree.members() else {
        let names = Value::Array(actual.keys().map(|name| Value::from(name.as_str())).collect());
        let expected = match tree.value() {
            Value::Array(mut names) => {
                names.sort_by_key(ToString::to_string);
                Value::Array(names)
            }
            other => other,
        };
        if expected != names {
            found.push(Fault::differs(tree, Some(&names), "timers"));
        }
        return;
    };
    for member in members {
        let path = format!("timers.{}", member.key);
        let due = due(&member.key);
        let instant = due.and_then(TimeMs::read);
        let left = instant.map(|due| due.0.saturating_sub(now.0));
        let met = match (&member.value.shape, due) {
            (Shape::Scalar(Value::Null), None) => true,
            (Shape::Scalar(Value::String(text)), Some(_)) => {
                let span = Millis::parse(text).ok().map(Millis::as_i64);
                let meant = TimeMs::read(text);
                text == "set" || (meant.is_some() && meant == instant) || (span.is_some() && span == left)
            }
            _ => false,
        };
        if !met {
            let left = left.and_then(|left| u64::try_from(left).ok());
            let actual = left.map(|left| Value::from(Millis(left).to_string()));
            found.push(Fault::differs(&member.value, actual.as_ref(), &path));
        }
    }
}

/// The piece of work `at` as `item` may expect it: with a word in the place of its idempotency key, where it says one.
fn worded<'s>(item: &Tree, seen: &'s Seen, at: usize) -> Cow<'s, Value> {
    let work = &seen.work[at];
    let said = item.get(work::KEY).and_then(Tree::text);
    if said.is_none_or(|said| ![SAME_KEY, NEW_KEY].contains(&said)) {
        return Cow::Borrowed(work);
    }
    let mut work = work.clone();
    work[work::KEY] = Value::from(if seen.repeated[at] { SAME_KEY } else { NEW_KEY });
    Cow::Owned(work)
}

/// Finds for every expected piece of work one of its own, in whatever order if that is not expected, too.
fn works(tree: &Tree, expect: &Expect, seen: &Seen, found: &mut Vec<Fault>) {
    let Shape::List(items) = &tree.shape else {
        return;
    };
    let fits: Vec<Vec<usize>> = items
        .iter()
        .map(|item| {
            let all = 0..seen.work.len();
            all.filter(|at| matches(item, &worded(item, seen, *at))).collect()
        })
        .collect();
    // Which expected item holds an actual one.
    let mut holder: Vec<Option<usize>> = vec![None; seen.work.len()];
    let mut unmet = Vec::new();
    for item in 0..items.len() {
        let mut tried = vec![false; seen.work.len()];
        if !assign(item, &fits, &mut holder, &mut tried) {
            unmet.push(item);
        }
    }
    if expect.in_order && unmet.is_empty() && !are_in_order(&fits) {
        let message = "the work is sent in another order";
        let mut fault = Fault::unmet(tree.span.clone(), message, Some(listed(&seen.work)));
        fault.cure = Some(works_cure(tree, seen));
        found.push(fault);
    }
    let all = holder.iter().enumerate();
    let mut free: Vec<usize> = all
        .filter_map(|(at, holder)| holder.is_none().then_some(at))
        .collect();
    for item in unmet {
        let item = &items[item];
        // The one that is meant, most likely, is shown in detail.
        let meant = |at: &usize| {
            let work = &seen.work[*at];
            ["of", "effect", "command", "fact", "signal"].iter().any(|key| {
                item.get(key)
                    .is_some_and(|name| work.get(key) == Some(&name.value()))
            })
        };
        if let Some(at) = free.iter().copied().find(meant) {
            free.retain(|other| *other != at);
            let work = worded(item, seen, at);
            let name = work["of"].as_str().unwrap_or_default();
            within(item, Some(&work), &format!("work of {name}"), found);
            continue;
        }
        let mut fault = Fault::unmet(
            item.span.clone(),
            format!("no such work: {}", item.value()),
            Some(listed(&seen.work)),
        );
        fault.cure = Some(works_cure(tree, seen));
        found.push(fault);
    }
    if (expect.no_other_work || items.is_empty()) && !free.is_empty() {
        let free: Vec<Value> = free.into_iter().map(|at| seen.work[at].clone()).collect();
        let mut fault = Fault::unmet(
            tree.span.clone(),
            "work that is not expected",
            Some(listed(&free)),
        );
        fault.cure = Some(works_cure(tree, seen));
        found.push(fault);
    }
}

fn works_cure(tree: &Tree, seen: &Seen) -> (Range<usize>, String) {
    let work = Value::Array(seen.work.iter().map(work::brief).collect());
    (tree.span.clone(), update::flow(&work))
}

/// Whether each item finds a piece of work behind that of the item before it.
fn are_in_order(fits: &[Vec<usize>]) -> bool {
    let mut next = 0;
    fits.iter().all(|fits| {
        let found = fits.iter().find(|at| **at >= next);
        next = found.map_or(next, |at| at + 1);
        found.is_some()
    })
}

/// One round of bipartite matching.
fn assign(item: usize, fits: &[Vec<usize>], holder: &mut [Option<usize>], tried: &mut [bool]) -> bool {
    for &work in &fits[item] {
        if tried[work] {
            continue;
        }
        tried[work] = true;
        if holder[work].is_none_or(|other| assign(other, fits, holder, tried)) {
            holder[work] = Some(item);
            return true;
        }
    }
    false
}

fn listed(work: &[Value]) -> String {
    if work.is_empty() {
        return "there is no work at all".to_owned();
    }
    let lines: Vec<String> = work.iter().map(|item| format!("  {item}")).collect();
    format!("there is\n{}", lines.join("\n"))
}

/// All that a case can expect of a step in short: its phase, state, failure and work, or why it changed nothing.
#[must_use]
pub fn expectation(seen: &Seen) -> Value {
    let mut all = serde_json::Map::new();
    if let Some((reason, _)) = &seen.rejected {
        all.insert("rejected".to_owned(), Value::from(reason.as_str()));
    } else if let Some(reason) = seen.ignored {
        all.insert("ignored".to_owned(), Value::from(reason));
    } else {
        let mut take = |name: &str, value: Value| {
            if !value.is_null() {
                all.insert(name.to_owned(), value);
            }
        };
        take("phase", seen.part("phase"));
        take("state", seen.part("state"));
        take("machine", seen.part("machine"));
        take("failure", seen.part("failure")["code"].take());
        take("outcome", seen.part("outcome"));
        take("work", Value::Array(seen.work.iter().map(work::brief).collect()));
    }
    Value::Object(all)
}

/// An expectation that was left empty asks for everything that there is.
fn fill(expect: &Expect, seen: &Seen, text: &str) -> Fault {
    let filled = update::flow(&expectation(seen));
    Fault {
        cure: Some(update::into_empty(&expect.span, text, &filled)),
        ..Fault::unmet(
            expect.span.clone(),
            "nothing is expected here",
            Some("--update writes down what comes out".to_owned()),
        )
    }
}

impl Fault {
    pub fn new(
        code: &'static str,
        span: Range<usize>,
        message: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        Self {
            code,
            span,
            message: message.into(),
            help,
            cure: None,
        }
    }

    fn unmet(span: Range<usize>, message: impl Into<String>, help: Option<String>) -> Self {
        Self::new(codes::UNMET, span, message, help)
    }

    fn differs(tree: &Tree, actual: Option<&Value>, path: &str) -> Self {
        let expected = tree.value();
        let inline = |value: &Value| {
            let text = value.to_string();
            (text.len() <= INLINE_BYTES_MAX).then_some(text)
        };
        let found = match actual {
            None | Some(Value::Null) => Some("nothing".to_owned()),
            Some(actual) => inline(actual),
        };
        let (message, help) = if let (Some(expected), Some(found)) = (inline(&expected), found) {
            (format!("{path}: expected {expected}, found {found}"), None)
        } else {
            let lines = difference(&pretty(&expected), &pretty(actual.unwrap_or(&Value::Null)));
            (format!("{path} is another one: - expected, + found"), Some(lines))
        };
        Self {
            cure: actual.map(|actual| (tree.span.clone(), update::flow(actual))),
            ..Self::unmet(tree.span.clone(), message, help)
        }
    }
}

fn pretty(value: &Value) -> Vec<String> {
    let text = serde_json::to_string_pretty(value).expect("a value is plain data");
    text.lines().map(str::to_owned).collect()
}

/// Lines of both, marked `-` where only `left` has them and `+` where only `right` does.
#[must_use]
pub fn difference(left: &[String], right: &[String]) -> String {
    // Length of the longest common subsequence of the rests.
    let mut common = vec![vec![0_usize; right.len() + 1]; left.len() + 1];
    for (at, line) in left.iter().enumerate().rev() {
        for (other_at, other) in right.iter().enumerate().rev() {
            common[at][other_at] = if line == other {
                common[at + 1][other_at + 1] + 1
            } else {
                common[at + 1][other_at].max(common[at][other_at + 1])
            };
        }
    }
    let (mut at, mut other_at) = (0, 0);
    let mut out = Vec::new();
    while at < left.len() || other_at < right.len() {
        let both = at < left.len() && other_at < right.len();
        if both && left[at] == right[other_at] {
            out.push(format!("  {}", left[at]));
            (at, other_at) = (at + 1, other_at + 1);
        } else if at < left.len()
            && (other_at == right.len() || common[at + 1][other_at] >= common[at][other_at + 1])
        {
            out.push(format!("- {}", left[at]));
            at += 1;
        } else {
            out.push(format!("+ {}", right[other_at]));
            other_at += 1;
        }
    }
    out.join("\n")
}
