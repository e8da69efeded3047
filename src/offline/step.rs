//! Reads one step of a case: what comes, when, at which instance, and what is expected of it.

use std::ops::Range;

use bytes::Bytes;
use saga_runner_partition::machine::message::LetterDecision;
use serde_json::Value;

use super::before::Before;
use super::file::{
    ACCEPT_ALIAS, ALL_STUCK, ALL_WORK, Action, EventSpec, Held, REFUSE_ALIAS, Reader, Step, SucceedSpec,
};
use super::keys;
use super::of::Of;
use super::world::time::Hold;
use crate::kernel::alias::Alias;
use crate::kernel::definition::codes;
use crate::kernel::definition::fields::{self, Fields};
use crate::kernel::definition::yaml::{Entry, Node};
use crate::kernel::duration::Millis;
use crate::kernel::input::{CancelMode, Found, Verdict};

/// Longest `advance`, in milliseconds: ten years.
const ADVANCE_MS_MAX: u64 = 10 * 365 * 24 * 3_600_000;

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
    "pause",
    "resume",
    "kill",
    "fire_timer",
    "cancel_timer",
    "try_now",
    "retry_ended",
    "restart",
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
/// What only a resolve and a skip may have besides.
const OF_RESOLVE: &[&str] = &["as", "ok"];

impl Reader<'_, '_> {
    pub(super) fn step(&mut self, node: &Node<'_>, at: &Range<usize>) -> Option<Step> {
        let fields = Fields::item(node, at, &keys::STEP, self.findings)?;
        let entry = fields.one_of(ACTIONS, self.findings)?;
        self.misplaced(&fields, entry);
        let (hold, before) = self.passing(&fields, entry)?;
        let at = self.at(&fields)?;
        let expect = match fields.get("expect") {
            None => Some(None),
            Some(entry) => self.expect(entry).map(Some),
        };
        let action = self.action(&fields, entry);
        Some(Step {
            span: entry.key_span.start..entry.value.span.end.max(entry.key_span.end),
            at,
            hold,
            before,
            action: action?,
            expect: expect?,
        })
    }

    /// Reports what stands beside an action that does not take it.
    fn misplaced(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) {
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
            if let (Some(found), false) = (fields.get(key), ["resolve", "skip"].contains(&&*entry.key)) {
                let message = format!("only a resolve and a skip have \"{key}\"");
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
    }

    fn action(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>) -> Option<Action> {
        match &*entry.key {
            "event" => self.event(fields, entry).map(Action::Event),
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
            "signal" => self.signal(fields, entry),
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
            "skip" => self.resolve(fields, entry, Verdict::Skip),
            "resolve" => self.resolve(fields, entry, Verdict::Resolve),
            "dead_letter" => self.dead_letter(entry),
            "retry_ended" => self.rerun(entry),
            "pause" | "resume" | "kill" | "restart" | "fire_timer" | "cancel_timer" | "try_now" => {
                self.operate(entry)
            }
            REFUSE_ALIAS => self.alias(entry).map(Action::RefuseAlias),
            ACCEPT_ALIAS => self.alias(entry).map(Action::AcceptAlias),
            _ => match self.tree(entry)?.text() {
                Some(_) => self.retry(entry),
                None => Some(Action::Retry),
            },
        }
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
        if !["advance", "schedule"].contains(&&*action.key) && before.is_none() {
            let message = "\"hold\" goes with \"advance\", \"schedule\" or \"before\": no time passes here";
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

    fn retry(&mut self, entry: &Entry<'_>) -> Option<Action> {
        let step = self.text(entry, "all, or the name of a step")?;
        let step = (step != ALL_STUCK).then_some(step);
        Some(Action::DecideStuck(Verdict::Retry, step, None, None))
    }

    /// Something has been undone by other means, or an operator has found out the outcome of a step; or the instance is to go on
    /// without it.
    fn resolve(&mut self, fields: &Fields<'_, '_>, entry: &Entry<'_>, verdict: Verdict) -> Option<Action> {
        let step = self.text(entry, "all, or the name of a step")?;
        let step = (step != ALL_STUCK).then_some(step);
        let (said, ok) = (fields.get("as"), fields.get("ok"));
        let text = match said {
            None => None,
            Some(said) => Some(self.text(said, "done or not_done")?),
        };
        let skips = verdict == Verdict::Skip;
        let result = match ok {
            None => None,
            Some(ok) => Some(self.tree(ok)?.value().to_string()),
        };
        let found = match (text.as_deref(), ok) {
            (Some("done"), _) => {
                let nothing = if skips { "null" } else { "{}" };
                let result = result.clone().unwrap_or_else(|| nothing.to_owned());
                Some(Found::Done { result })
            }
            (_, Some(ok)) if !skips => {
                let message = "\"ok\" is the result of a step that is resolved as done";
                self.findings
                    .error(codes::CONTRADICTION, ok.key_span.clone(), message);
                return None;
            }
            (Some("not_done"), _) => Some(Found::NotDone),
            (Some(other), _) => {
                let message = format!("as is \"{}\", expected done or not_done", other.escape_debug());
                self.findings
                    .error(codes::WRONG_VALUE, said?.value.span.clone(), message);
                return None;
            }
            (None, _) => None,
        };
        if let (Some(said), None) = (said, &step) {
            let message = "\"as\" is about one step: say which";
            self.findings
                .error(codes::CONTRADICTION, said.key_span.clone(), message);
        }
        Some(Action::DecideStuck(
            verdict,
            step,
            found,
            result.filter(|_| skips),
        ))
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
}
