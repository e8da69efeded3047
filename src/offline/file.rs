//! A test file: the saga, its cases, their steps, and what they expect.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use saga_runner_partition::machine::message::LetterDecision;
use serde_json::Value;

use super::answer::Answer;
use super::before::Before;
use super::expect::Expect;
use super::keys;
use super::of::Of;
use super::tree::Tree;
use super::world::time::Hold;
use crate::kernel::alias::Alias;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::yaml::{self, Entry, Node};
use crate::kernel::definition::{Diagnostic, SourceFile, codes};
use crate::kernel::ids::{Key, TimeMs};
use crate::kernel::input::{CancelMode, Found, OperationVerb, Verdict};

/// When a case begins that does not say when: 2026-01-01T00:00:00Z.
const START: TimeMs = TimeMs(1_767_225_600_000);
/// Most cases of one file, and most steps of one case.
const LIST_MAX: usize = 1_000;
/// What `retry`, `skip` and `resolve` say for all that is stuck.
pub const ALL_STUCK: &str = "all";
/// What `succeed` and `hold` say for all work.
pub const ALL_WORK: &str = "all";
/// What an alias answers an instance that has registered it.
pub const REFUSE_ALIAS: &str = "refuse_alias";
pub const ACCEPT_ALIAS: &str = "accept_alias";

/// One test file.
#[derive(Debug)]
pub struct Suite {
    pub path: String,
    pub text: Arc<str>,
    pub saga: String,
    pub saga_span: Range<usize>,
    /// What work succeeds with where a case does not say, by step or effect.
    pub results: Vec<(String, Value)>,
    pub cases: Vec<Case>,
}

#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub span: Range<usize>,
    pub start: TimeMs,
    /// Key of the instance, where the first event does not say it.
    pub key: Option<Key>,
    /// Whether `--chaos` takes this case.
    pub chaos: bool,
    /// Sagas whose instances are there as well; empty where the case is about one instance.
    pub sagas: Vec<(String, Range<usize>)>,
    /// The case that is played first.
    pub given: Option<Given>,
    /// With those of the cases that are played first, and each as often as it is repeated.
    pub steps: Vec<Placed>,
}

/// A case that stands before another one.
#[derive(Debug, Clone)]
pub struct Given {
    pub name: String,
    pub span: Range<usize>,
    /// How many of the steps are its.
    pub steps: usize,
}

/// A step in its place.
#[derive(Debug, Clone)]
pub struct Placed {
    pub step: Arc<Step>,
    /// Which time it is done, and how often it is, where it is repeated.
    pub round: Option<(u32, u32)>,
}

/// Work that is held back, and where that is said.
pub type Held = (Hold, Range<usize>);

#[derive(Debug)]
pub struct Step {
    /// Of the key that says what it does.
    pub span: Range<usize>,
    /// Which instance it is about, where that is not the case's: `SAGA`, or `SAGA/KEY`.
    pub at: Option<(String, Range<usize>)>,
    /// The timer at whose very instant, and before which, it comes.
    pub before: Option<Before>,
    /// Work whose deadline does not come while time passes, and where that is said.
    pub hold: Held,
    pub action: Action,
    pub expect: Option<Expect>,
}

#[derive(Debug)]
pub enum Action {
    Event(EventSpec),
    Result(ResultSpec),
    Succeed(SucceedSpec),
    /// Whoever has the token of the latest command of this name says how it went; never [`Answer::Timeout`].
    Callback(ResultSpec),
    /// Whoever has the token of the latest command of this name is still at it.
    Heartbeat(Of, Range<usize>),
    /// Time passes, in milliseconds: timers fire, and work ends whose deadline comes.
    Advance(i64),
    Cancel(String, CancelMode),
    Retry,
    /// A request starts the instance with this input, a JSON object.
    Start(Bytes),
    /// This planned time of the schedule comes, and time passes until then.
    Schedule(TimeMs),
    /// An operator decides about what is stuck: of a step, or all; or has found out the outcome of a step. Last the result of a
    /// step that is skipped.
    DecideStuck(Verdict, Option<String>, Option<Found>, Option<String>),
    /// An operator does something to the instance, or to a timer of it.
    Operate(OperationVerb, String),
    /// An operator decides about the dead letter behind which the instance waits.
    DeadLetter(LetterDecision, Range<usize>),
    /// An alias refuses the instance, as if it had too many already.
    RefuseAlias(Alias),
    /// It accepts the instance: an operator retries the registration.
    AcceptAlias(Alias),
    /// A person or a system tells a step what it waits for.
    Signal {
        name: String,
        /// A JSON object.
        data: Bytes,
        by: String,
    },
}

#[derive(Debug, Clone)]
pub struct EventSpec {
    pub event_type: String,
    pub data: Bytes,
    pub version: u32,
    pub id: Option<String>,
    pub correlation_id: Option<String>,
    pub aggregate_id: Option<String>,
    /// The saga whose fact it is, where several publish it.
    pub from: Option<String>,
}

#[derive(Debug, Clone)]
pub struct ResultSpec {
    pub of: Of,
    pub of_span: Range<usize>,
    pub outcome: Answer,
}

/// All work that is awaited succeeds, and what it begins, until none is left.
#[derive(Debug, Clone)]
pub struct SucceedSpec {
    /// Only work of this name; `None` is all.
    pub of: Option<Of>,
    pub span: Range<usize>,
}

/// Reads a test file, and with it the data files that it names, which stand relative to it.
///
/// # Errors
/// All findings of the file.
pub fn read(file: &SourceFile) -> Result<Suite, Vec<Diagnostic>> {
    let mut findings = Findings::new(&file.path, &file.text);
    let suite = yaml::parse(&file.text, &mut findings).and_then(|root| {
        let mut reader = Reader {
            folder: Path::new(&file.path).parent().unwrap_or(Path::new("")),
            findings: &mut findings,
        };
        reader.suite(&root, file)
    });
    match suite {
        Some(suite) if !findings.has_errors() => Ok(suite),
        Some(_) | None => Err(findings.into_sorted()),
    }
}

pub(super) struct Reader<'r, 'c> {
    pub(super) folder: &'r Path,
    pub(super) findings: &'r mut Findings<'c>,
}

impl Reader<'_, '_> {
    fn suite(&mut self, root: &Node<'_>, file: &SourceFile) -> Option<Suite> {
        let fields = Fields::read(root, &(0..0), &keys::SUITE, self.findings)?;
        let saga = fields.require("saga", self.findings);
        let name = saga.and_then(|entry| self.text(entry, "the name of a saga"));
        let results = fields.get("results").and_then(|entry| self.tree(entry));
        let cases = fields.require("cases", self.findings)?;
        let mut found: Vec<Case> = Vec::new();
        let listed = self.list(cases, "cases")?;
        for case in listed {
            let Some(case) = self.case(case, &cases.key_span) else {
                continue;
            };
            if let Some(first) = found.iter().find(|other| other.name == case.name) {
                let line = self.findings.line(first.span.start);
                let message = format!(
                    "a case \"{}\" is there already, in line {line}",
                    case.name.escape_debug()
                );
                self.findings
                    .error(codes::DUPLICATE_NAME, case.span.clone(), message);
            }
            found.push(case);
        }
        // A case that cannot be read would be missed.
        if found.len() == listed.len() {
            self.join(&mut found);
        }
        Some(Suite {
            path: file.path.clone(),
            text: Arc::clone(&file.text),
            saga: name?,
            saga_span: saga?.value.span.clone(),
            results: results
                .as_ref()
                .and_then(Tree::members)
                .unwrap_or_default()
                .iter()
                .map(|member| (member.key.clone(), member.value.value()))
                .collect(),
            cases: found,
        })
    }

    fn case(&mut self, node: &Node<'_>, at: &Range<usize>) -> Option<Case> {
        let fields = Fields::item(node, at, &keys::CASE, self.findings)?;
        let name = fields.require("name", self.findings);
        let text = name.and_then(|entry| self.text(entry, "a name"));
        let start = match fields.get("start") {
            None => Some(START),
            Some(entry) => self.instant(entry),
        };
        let key = match fields.get("key") {
            None => None,
            Some(entry) => Some(self.key(entry)?),
        };
        let chaos = fields.get("chaos");
        let chaos = chaos.is_none_or(|entry| fields::boolean(entry, self.findings) != Some(false));
        let given = match fields.get("given") {
            None => Some(None),
            Some(entry) => self.given(&fields, entry).map(Some),
        };
        let sagas = self.sagas(&fields)?;
        let listed = fields.require("steps", self.findings)?;
        let mut steps = Vec::new();
        self.steps(listed, None, &mut steps)?;
        Some(Case {
            span: name?.value.span.clone(),
            name: text?,
            start: start?,
            key,
            chaos,
            given: given?,
            sagas,
            steps,
        })
    }

    fn key(&mut self, entry: &Entry<'_>) -> Option<Key> {
        let text = self.text(entry, "a key")?;
        match Key::parse(&text) {
            Ok(key) => Some(key),
            Err(error) => {
                let span = entry.value.span.clone();
                self.findings.error(codes::WRONG_VALUE, span, error.to_string());
                None
            }
        }
    }

    pub(super) fn instant(&mut self, entry: &Entry<'_>) -> Option<TimeMs> {
        let text = self.text(entry, "an instant such as 2026-01-01T10:00:00Z")?;
        match text.parse::<jiff::Timestamp>() {
            Ok(instant) => Some(TimeMs(instant.as_millisecond())),
            Err(error) => {
                let span = entry.value.span.clone();
                self.findings.error(codes::WRONG_VALUE, span, error.to_string());
                None
            }
        }
    }

    pub(super) fn list<'n, 't>(&mut self, entry: &'n Entry<'t>, what: &str) -> Option<&'n [Node<'t>]> {
        let items = fields::one_or_many(&entry.value);
        if !matches!(entry.value.value, yaml::Value::List(_)) {
            fields::expected(
                &entry.value,
                &entry.key_span,
                &format!("{what} as a list"),
                self.findings,
            );
            return None;
        }
        if items.len() > LIST_MAX {
            let message = format!("{} {what}, at most {LIST_MAX} are allowed", items.len());
            self.findings.error(codes::LIMIT, entry.key_span.clone(), message);
            return None;
        }
        Some(items)
    }

    pub(super) fn text(&mut self, entry: &Entry<'_>, what: &str) -> Option<String> {
        fields::text(&entry.value, &entry.key_span, what, self.findings).map(str::to_owned)
    }

    pub(super) fn tree(&mut self, entry: &Entry<'_>) -> Option<Tree> {
        Tree::read(&entry.value, &entry.key_span, self.findings)
    }
}
