//! A test file: the saga, its cases, their steps, and what they expect.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use saga_runner_partition::machine::message::LetterDecision;
use serde_json::Value;

use super::answer::Answer;
use super::keys;
use super::tree::{Shape, Tree};
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::yaml::{self, Entry, Node};
use crate::kernel::definition::{Diagnostic, SourceFile, codes};
use crate::kernel::duration::Millis;
use crate::kernel::ids::{Key, TimeMs};
use crate::kernel::input::{CancelMode, Found, Verdict};
use crate::kernel::patch::IgnoreReason;
use crate::kernel::record::Phase;

/// When a case begins that does not say when: 2026-01-01T00:00:00Z.
const START: TimeMs = TimeMs(1_767_225_600_000);
/// Longest `advance`, in milliseconds: ten years.
const ADVANCE_MS_MAX: u64 = 10 * 365 * 24 * 3_600_000;
/// Most cases of one file, and most steps of one case.
const LIST_MAX: usize = 1_000;

/// What a step does: exactly one of these.
const ACTIONS: &[&str] = &[
    "event",
    "start",
    "schedule",
    "result",
    "succeed",
    "signal",
    "callback",
    "heartbeat",
    "advance",
    "cancel",
    "retry",
    "skip",
    "resolve",
    "dead_letter",
];
/// What only an event may have besides; a signal has data as well.
const OF_EVENT: &[&str] = &[
    "data",
    "data_file",
    "version",
    "id",
    "correlation_id",
    "aggregate_id",
];
/// What only a resolve may have besides.
const OF_RESOLVE: &[&str] = &["as", "ok"];
/// What `retry`, `skip` and `resolve` say for all that is stuck.
pub const ALL_STUCK: &str = "all";
/// What `succeed` says for all work.
const ALL_WORK: &str = "all";
/// Outcome of an event that the key rules give to another instance than that of the case.
pub const OTHER_INSTANCE: &str = "other_instance";

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
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub struct Step {
    /// Of the key that says what it does.
    pub span: Range<usize>,
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
    Heartbeat(String, Range<usize>),
    /// Time passes, in milliseconds; timers fire.
    Advance(i64),
    Cancel(String, CancelMode),
    Retry,
    /// A request starts the instance with this input, a JSON object.
    Start(Bytes),
    /// The instance starts by the clock, for this planned time.
    Schedule(TimeMs),
    /// An operator decides about what is stuck: of a step, or all; or has found out what became of a step.
    Settle(Verdict, Option<String>, Option<Found>),
    /// An operator decides about the dead letter behind which the instance waits.
    DeadLetter(LetterDecision, Range<usize>),
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
    /// `charge`, `charge.compensate`, or any path of a work item.
    pub of: String,
    pub of_span: Range<usize>,
    pub outcome: Answer,
}

/// All work that is awaited succeeds, and what it begins, until none is left.
#[derive(Debug, Clone)]
pub struct SucceedSpec {
    /// Only work of this name; `None` is all.
    pub of: Option<String>,
    pub span: Range<usize>,
}

/// What is expected after a step; what is not named may be anything.
#[derive(Debug, Default)]
pub struct Expect {
    pub span: Range<usize>,
    /// There is nothing in it: `--update` fills it.
    pub is_empty: bool,
    pub phase: Option<Tree>,
    pub state: Option<Tree>,
    pub failure: Option<Tree>,
    pub outcome: Option<Tree>,
    pub steps: Option<Tree>,
    pub machine: Option<Tree>,
    pub timers: Option<Tree>,
    pub ledger: Option<Tree>,
    pub aliases: Option<Tree>,
    pub work: Option<Tree>,
    pub no_other_work: bool,
    pub ignored: Option<Tree>,
    pub rejected: Option<Tree>,
    pub deferred: Option<Tree>,
    pub blocked: Option<Tree>,
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
    folder: &'r Path,
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
        for case in self.list(cases, "cases")? {
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
            Some(entry) => {
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
        };
        let chaos = fields.get("chaos");
        let chaos = chaos.is_none_or(|entry| fields::boolean(entry, self.findings) != Some(false));
        let listed = fields.require("steps", self.findings)?;
        let mut steps = Vec::new();
        for step in self.list(listed, "steps")? {
            steps.push(self.step(step, &listed.key_span));
        }
        Some(Case {
            span: name?.value.span.clone(),
            name: text?,
            start: start?,
            key,
            chaos,
            steps: steps.into_iter().collect::<Option<_>>()?,
        })
    }

    fn step(&mut self, node: &Node<'_>, at: &Range<usize>) -> Option<Step> {
        let fields = Fields::item(node, at, &keys::STEP, self.findings)?;
        let entry = fields.one_of(ACTIONS, self.findings)?;
        if let (Some(by), true) = (fields.get("by"), entry.key != "signal") {
            let message = "only a signal has \"by\"";
            self.findings
                .error(codes::CONTRADICTION, by.key_span.clone(), message);
        }
        if let (Some(mode), true) = (fields.get("mode"), entry.key != "cancel") {
            let message = "only a cancel has \"mode\"";
            self.findings
                .error(codes::CONTRADICTION, mode.key_span.clone(), message);
        }
        for key in OF_RESOLVE {
            if let (Some(found), true) = (fields.get(key), entry.key != "resolve") {
                let message = format!("only a resolve has \"{key}\"");
                self.findings
                    .error(codes::CONTRADICTION, found.key_span.clone(), message);
            }
        }
        if entry.key != "event" {
            for key in OF_EVENT {
                if *key == "data" && entry.key == "signal" {
                    continue;
                }
                if let Some(entry) = fields.get(key) {
                    let message = format!("only an event has \"{key}\"");
                    self.findings
                        .error(codes::CONTRADICTION, entry.key_span.clone(), message);
                }
            }
        }
        let expect = fields.get("expect");
        let expect = match expect {
            None => Some(None),
            Some(entry) => self.expect(entry).map(Some),
        };
        let action = match &*entry.key {
            "event" => self.event(&fields, entry).map(Action::Event),
            "result" => self.result(entry, &keys::RESULT).map(Action::Result),
            "callback" => self.result(entry, &keys::CALLBACK).map(Action::Callback),
            "heartbeat" => self
                .text(entry, "the name of work")
                .map(|of| Action::Heartbeat(of, entry.value.span.clone())),
            "succeed" => self.text(entry, "all, or the name of work").map(|of| {
                let of = (of != ALL_WORK).then_some(of);
                let span = entry.value.span.clone();
                Action::Succeed(SucceedSpec { of, span })
            }),
            "start" => self
                .object(entry, "the input of the instance as a map")
                .map(Action::Start),
            "schedule" => self.instant(entry).map(Action::Schedule),
            "signal" => self.signal(&fields, entry),
            "advance" => fields::duration(entry, 0..=ADVANCE_MS_MAX, codes::WRONG_VALUE, self.findings)
                .map(|ms| Action::Advance(Millis(ms).as_i64())),
            "cancel" => {
                let reason = self.tree(entry)?;
                let mode = match fields.get("mode") {
                    None => CancelMode::Compensate,
                    Some(mode) => self.cancel_mode(mode)?,
                };
                Some(Action::Cancel(reason.text().unwrap_or_default().to_owned(), mode))
            }
            "skip" => self.settle(entry, Verdict::Skip),
            "resolve" => self.resolve(&fields, entry),
            "dead_letter" => self.dead_letter(entry),
            _ => match self.tree(entry)?.text() {
                Some(_) => self.settle(entry, Verdict::Retry),
                None => Some(Action::Retry),
            },
        };
        Some(Step {
            span: entry.key_span.start..entry.value.span.end.max(entry.key_span.end),
            action: action?,
            expect: expect?,
        })
    }

    fn cancel_mode(&mut self, entry: &Entry<'_>) -> Option<CancelMode> {
        let text = self.text(entry, "compensate, drain or abandon")?;
        let mode = serde_json::from_value(Value::from(text.as_str())).ok();
        if mode.is_none() {
            let message = format!(
                "mode is \"{}\", expected compensate, drain or abandon",
                text.escape_debug()
            );
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
        }
        mode
    }

    fn dead_letter(&mut self, entry: &Entry<'_>) -> Option<Action> {
        let text = self.text(entry, "retry or discard")?;
        let decision = match text.as_str() {
            "retry" => LetterDecision::Retry,
            "discard" => LetterDecision::Discard,
            other => {
                let message = format!(
                    "dead_letter is \"{}\", expected retry or discard",
                    other.escape_debug()
                );
                self.findings
                    .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
                return None;
            }
        };
        Some(Action::DeadLetter(decision, entry.value.span.clone()))
    }

    fn settle(&mut self, entry: &Entry<'_>, verdict: Verdict) -> Option<Action> {
        let step = self.text(entry, "all, or the name of a step")?;
        Some(Action::Settle(verdict, (step != ALL_STUCK).then_some(step), None))
    }

    /// Something has been undone by other means, or an operator has found out what became of a step.
    fn resolve(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) -> Option<Action> {
        let step = self.text(entry, "all, or the name of a step")?;
        let step = (step != ALL_STUCK).then_some(step);
        let (said, ok) = (fields.get("as"), fields.get("ok"));
        let text = match said {
            None => None,
            Some(said) => Some(self.text(said, "done or not_done")?),
        };
        let found = match (text.as_deref(), ok) {
            (Some("done"), ok) => {
                let result = match ok {
                    None => "{}".to_owned(),
                    Some(ok) => self.tree(ok)?.value().to_string(),
                };
                Some(Found::Done { result })
            }
            (_, Some(ok)) => {
                let message = "\"ok\" is the result of a step that is resolved as done";
                self.findings
                    .error(codes::CONTRADICTION, ok.key_span.clone(), message);
                return None;
            }
            (Some("not_done"), None) => Some(Found::NotDone),
            (Some(other), None) => {
                let message = format!("as is \"{}\", expected done or not_done", other.escape_debug());
                self.findings
                    .error(codes::WRONG_VALUE, said?.value.span.clone(), message);
                return None;
            }
            (None, None) => None,
        };
        if let (Some(said), None) = (said, &step) {
            let message = "\"as\" is about one step: say which";
            self.findings
                .error(codes::CONTRADICTION, said.key_span.clone(), message);
        }
        Some(Action::Settle(Verdict::Resolve, step, found))
    }

    fn event(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) -> Option<EventSpec> {
        let event_type = self.text(entry, "an event type")?;
        fields::is_event_type(&event_type, &entry.value.span, self.findings).then_some(())?;
        let data = match (fields.get("data"), fields.get("data_file")) {
            (Some(_), Some(second)) => {
                let message = "an event has either data or data_file, not both";
                self.findings
                    .error(codes::CONTRADICTION, second.key_span.clone(), message);
                return None;
            }
            (Some(data), None) => Bytes::from(self.tree(data)?.value().to_string()),
            (None, Some(file)) => self.data_file(file)?,
            (None, None) => Bytes::from_static(b"{}"),
        };
        let version = match fields.get("version") {
            None => Some(1),
            Some(entry) => fields::integer(entry, 0..=u32::MAX, codes::WRONG_VALUE, self.findings),
        };
        let mut optional = |key: &str| match fields.get(key) {
            None => Some(None),
            Some(entry) => self.text(entry, "text").map(Some),
        };
        let (id, correlation_id) = (optional("id")?, optional("correlation_id")?);
        let (aggregate_id, from) = (optional("aggregate_id")?, optional("from")?);
        Some(EventSpec {
            event_type,
            data,
            version: version?,
            id,
            correlation_id,
            aggregate_id,
            from,
        })
    }

    fn signal(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) -> Option<Action> {
        let data = match fields.get("data") {
            None => Bytes::from_static(b"{}"),
            Some(entry) => self.object(entry, "the data of a signal as a map")?,
        };
        Some(Action::Signal {
            name: self.text(entry, "the name of a signal")?,
            data,
            by: match fields.get("by") {
                None => String::new(),
                Some(entry) => self.text(entry, "who sends it")?,
            },
        })
    }

    fn object(&mut self, entry: &Entry<'_>, what: &str) -> Option<Bytes> {
        let value = self.tree(entry)?.value();
        if !value.is_object() {
            fields::expected(&entry.value, &entry.key_span, what, self.findings);
            return None;
        }
        Some(Bytes::from(value.to_string()))
    }

    fn data_file(&mut self, entry: &Entry<'_>) -> Option<Bytes> {
        let name = self.text(entry, "the name of a file")?;
        let path = self.folder.join(&name);
        let read = std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                serde_json::from_slice::<Value>(&bytes)
                    .map(|_| Bytes::from(bytes))
                    .map_err(|error| format!("is not JSON: {error}"))
            });
        read.map_err(|error| {
            let message = format!("{}: {error}", path.display());
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
        })
        .ok()
    }

    fn expect(&mut self, entry: &Entry<'_>) -> Option<Expect> {
        let whole = self.tree(entry)?;
        if let Shape::Scalar(Value::Null) = whole.shape {
            return Some(Expect {
                span: entry.key_span.clone(),
                is_empty: true,
                ..Expect::default()
            });
        }
        let fields = Fields::read(&entry.value, &entry.key_span, &keys::EXPECT, self.findings)?;
        let mut expect = Expect {
            span: whole.span.clone(),
            is_empty: whole.members().is_some_and(<[_]>::is_empty),
            ..Expect::default()
        };
        expect.no_other_work = fields
            .get("no_other_work")
            .is_some_and(|entry| fields::boolean(entry, self.findings) == Some(true));
        let part = |key: &str| whole.get(key).cloned();
        expect.phase = part("phase");
        expect.state = part("state");
        expect.failure = part("failure");
        expect.outcome = part("outcome");
        expect.steps = part("steps");
        expect.machine = part("machine");
        expect.timers = part("timers");
        expect.ledger = part("ledger");
        expect.aliases = part("aliases");
        expect.ignored = part("ignored");
        expect.rejected = part("rejected");
        expect.deferred = part("deferred");
        expect.blocked = part("blocked");
        expect.work = part("work");
        self.check_words(&expect);
        if let Some(work) = fields.get("work") {
            for item in self.list(work, "work")? {
                let fields = Fields::item(item, &work.key_span, &keys::WORK, self.findings)?;
                let kinds = ["effect", "command", "fact", "signal", "saga", "of"];
                if kinds.iter().all(|kind| fields.get(kind).is_none()) {
                    fields.one_of(&kinds, self.findings)?;
                }
            }
        }
        Some(expect)
    }

    /// A word outside of its closed set can never come out, so it is a mistake of the file.
    fn check_words(&mut self, expect: &Expect) {
        let phases: Vec<&str> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
        // What comes under an id that was used, with other content, is a dead letter.
        let ignored = IgnoreReason::ALL
            .iter()
            .filter(|reason| **reason != IgnoreReason::Conflict);
        let mut reasons: Vec<&str> = ignored.map(|reason| reason.as_str()).collect();
        reasons.push(OTHER_INSTANCE);
        for (tree, what, words) in [
            (&expect.phase, "phase", phases),
            (&expect.ignored, "reason", reasons),
        ] {
            if let Some(tree) = tree
                && let Some(text) = tree.text()
                && !words.contains(&text)
            {
                let message = format!("\"{}\" is no {what}", text.escape_debug());
                self.findings
                    .error(codes::WRONG_VALUE, tree.span.clone(), message)
                    .help(Some(format!("it is one of {}", words.join(", "))));
            }
        }
    }

    fn instant(&mut self, entry: &Entry<'_>) -> Option<TimeMs> {
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

    fn list<'n, 't>(&mut self, entry: &'n Entry<'t>, what: &str) -> Option<&'n [Node<'t>]> {
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
