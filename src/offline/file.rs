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
use crate::kernel::duration::Millis;
use crate::kernel::ids::{Key, TimeMs};
use crate::kernel::input::{CancelMode, Found, Verdict};

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
    REFUSE_ALIAS,
    ACCEPT_ALIAS,
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
/// What holds work back while time passes.
const HOLD: &str = "hold";
/// What only a resolve may have besides.
const OF_RESOLVE: &[&str] = &["as", "ok"];
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
    /// The instance starts by the clock, for this planned time.
    Schedule(TimeMs),
    /// An operator decides about what is stuck: of a step, or all; or has found out what became of a step.
    DecideStuck(Verdict, Option<String>, Option<Found>),
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

    pub(super) fn step(&mut self, node: &Node<'_>, at: &Range<usize>) -> Option<Step> {
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
        let (hold, before) = self.passing(&fields, entry)?;
        let at = self.at(&fields)?;
        let expect = match fields.get("expect") {
            None => Some(None),
            Some(entry) => self.expect(entry).map(Some),
        };
        let action = match &*entry.key {
            "event" => self.event(&fields, entry).map(Action::Event),
            "result" => self.result(entry, &keys::RESULT).map(Action::Result),
            "callback" => self.result(entry, &keys::CALLBACK).map(Action::Callback),
            "heartbeat" => self.of(entry).map(|(of, span)| Action::Heartbeat(of, span)),
            "succeed" => self.of(entry).map(|(of, span)| {
                let of = (of != Of::named(ALL_WORK)).then_some(of);
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
            "skip" => self.decide_stuck(entry, Verdict::Skip),
            "resolve" => self.resolve(&fields, entry),
            "dead_letter" => self.dead_letter(entry),
            REFUSE_ALIAS => self.alias(entry).map(Action::RefuseAlias),
            ACCEPT_ALIAS => self.alias(entry).map(Action::AcceptAlias),
            _ => match self.tree(entry)?.text() {
                Some(_) => self.decide_stuck(entry, Verdict::Retry),
                None => Some(Action::Retry),
            },
        };
        Some(Step {
            span: entry.key_span.start..entry.value.span.end.max(entry.key_span.end),
            at,
            hold,
            before,
            action: action?,
            expect: expect?,
        })
    }

    /// Which instance is meant, where that is said.
    #[expect(clippy::option_option, reason = "a finding, or nothing is said")]
    pub(super) fn at(&mut self, fields: &Fields<'_, '_>) -> Option<Option<(String, Range<usize>)>> {
        match fields.get("at") {
            None => Some(None),
            Some(entry) => {
                let at = self.text(entry, "a saga, or SAGA/KEY")?;
                Some(Some((at, entry.value.span.clone())))
            }
        }
    }

    /// What is held back while time passes, and the timer before which the step comes.
    fn passing(&mut self, fields: &Fields<'_, '_>, action: &Entry<'_>) -> Option<(Held, Option<Before>)> {
        let before = match fields.get("before") {
            None => None,
            Some(before) if ["advance", "schedule"].contains(&&*action.key) => {
                let message = format!(
                    "\"before\" goes with what comes at an instant, not with \"{}\"",
                    action.key
                );
                self.findings
                    .error(codes::CONTRADICTION, before.key_span.clone(), message);
                None
            }
            Some(before) => Some(self.before(before)?),
        };
        let Some(hold) = fields.get(HOLD) else {
            return Some(((Hold::default(), 0..0), before));
        };
        if action.key != "advance" && before.is_none() {
            let message = "\"hold\" goes with \"advance\" or \"before\": no time passes here";
            self.findings
                .error(codes::CONTRADICTION, hold.key_span.clone(), message);
        }
        let mut names = Vec::new();
        for node in fields::one_or_many(&hold.value) {
            let what = "all, or names of work";
            names.push(fields::text(node, &hold.key_span, what, self.findings)?.to_owned());
        }
        let hold_of = if names.iter().any(|name| name == ALL_WORK) {
            Hold::All
        } else {
            Hold::Named(names)
        };
        Some(((hold_of, hold.value.span.clone()), before))
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

    /// An alias, as `{name: value}`.
    fn alias(&mut self, entry: &Entry<'_>) -> Option<Alias> {
        let said = self.tree(entry)?.value();
        let named = said.as_object().filter(|named| named.len() == 1);
        let alias = named
            .and_then(|named| named.iter().next())
            .map(|(name, value)| Alias {
                name: name.clone(),
                value: value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            });
        let alias = alias.filter(Alias::is_legal);
        if alias.is_none() {
            let what = "the name of an alias with its value as a map";
            fields::expected(&entry.value, &entry.key_span, what, self.findings);
        }
        alias
    }

    fn decide_stuck(&mut self, entry: &Entry<'_>, verdict: Verdict) -> Option<Action> {
        let step = self.text(entry, "all, or the name of a step")?;
        Some(Action::DecideStuck(
            verdict,
            (step != ALL_STUCK).then_some(step),
            None,
        ))
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
        Some(Action::DecideStuck(Verdict::Resolve, step, found))
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
