//! Reading what begins an instance, and what happens to events that would begin it again.

use std::collections::BTreeMap;

use super::actions::{Reading, Site};
use super::certain;
use super::codes;
use super::compensations::one_of;
use super::fields::{self, Fields};
use super::grammar;
use super::lifecycle::{KeepEnded, Lifecycle, NoInstance, OnRunning, Reuse, StartRule};
use super::model::Handler;
use super::saga::member;
use super::texts::{self, EventParts, Readable};
use super::yaml::{Entry, Node, Value};
use crate::duration::Millis;
use crate::expr::Root;

/// Longest time for which an event waits for its instance: 30 days.
const PARK_MAX_MS: u64 = 30 * 24 * 3_600_000;
/// Shortest time for which an ended instance is kept: one minute. Its history could not be read before.
const KEEP_ENDED_MIN_MS: u64 = 60_000;
/// Longest time for which an ended instance is kept: 3,660 days, ten years and a little.
const KEEP_ENDED_MAX_MS: u64 = 3_660 * 24 * 3_600_000;
/// Roots of the condition of a start.
const WHEN_ROOTS: &[Root] = &[Root::Event, Root::Key];
/// Roots of what a start sets.
const SET_ROOTS: &[Root] = &[Root::Event, Root::State, Root::Key, Root::Record];

/// The event types of `start`, as the file has them.
pub fn written<'n>(start: &'n Node<'_>) -> Vec<&'n str> {
    let items = fields::one_or_many(start).iter();
    let events = items.filter_map(|item| match &item.value {
        Value::Scalar(scalar) => Some(&*scalar.text),
        Value::Map(_) => match &member(item, "event")?.value.value {
            Value::Scalar(scalar) => Some(&*scalar.text),
            Value::List(_) | Value::Map(_) => None,
        },
        Value::List(_) => None,
    });
    events.collect()
}

impl<'r> Reading<'r, '_> {
    /// The event types of `start`: one, or a list of them, each perhaps as `{event, when, set}`.
    pub fn start(&mut self, fields: &Fields<'r, '_>) -> Vec<String> {
        let entry = if self.takes_input {
            fields.get("start")
        } else {
            fields.require("start", self.findings)
        };
        let Some(entry) = entry else {
            return Vec::new();
        };
        let mut types = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let node = match &item.value {
                Value::Map(_) => {
                    let Some(fields) =
                        Fields::item(item, &entry.key_span, &grammar::saga::START, self.findings)
                    else {
                        continue;
                    };
                    let Some(event) = fields.require("event", self.findings) else {
                        continue;
                    };
                    &event.value
                }
                Value::Scalar(_) | Value::List(_) => item,
            };
            let Some(text) = fields::text(node, &entry.key_span, "an event type", self.findings) else {
                continue;
            };
            if fields::is_event_type(text, &node.span, self.findings) {
                types.push(text.to_owned());
            }
        }
        if matches!(&entry.value.value, Value::List(items) if items.is_empty()) {
            self.findings.error(
                codes::WRONG_VALUE,
                entry.value.span.clone(),
                "start is empty: no event would begin the saga",
            );
        }
        types.sort();
        types.dedup();
        types
    }

    /// What is said about the life of instances, when types are known.
    pub fn lifecycle(&mut self, fields: &Fields<'r, '_>) -> Lifecycle {
        let rules = fields.get("start").map(|entry| self.start_rules(entry));
        let on_running = fields.get("on_running").and_then(|entry| {
            let words = [
                ("handle", OnRunning::Handle),
                ("ignore", OnRunning::Ignore),
                ("fail", OnRunning::Fail),
            ];
            one_of(entry, &words, self.findings)
        });
        let reuse = fields.get("reuse").and_then(|entry| self.reuse(entry));
        let no_instance = fields
            .get("no_instance")
            .and_then(|entry| self.no_instance(entry));
        let keep_ended = fields.get("keep_ended").and_then(|entry| self.keep_ended(entry));
        let after_end = fields.get("after_end").map(|entry| self.after_end(entry));
        Lifecycle {
            no_instance: no_instance.unwrap_or_default(),
            keep_ended: keep_ended.unwrap_or_default(),
            after_end: after_end.unwrap_or_default(),
            rules: rules.unwrap_or_default(),
            on_running: on_running.unwrap_or_default(),
            reuse: reuse.unwrap_or_default(),
        }
    }

    fn start_rules(&mut self, entry: &'r Entry<'_>) -> Vec<StartRule> {
        let items = fields::one_or_many(&entry.value);
        if !items.iter().any(|item| matches!(item.value, Value::Map(_))) {
            return Vec::new();
        }
        let mut rules: Vec<StartRule> = Vec::new();
        // Types of which every event starts an instance, so that what comes behind is never taken.
        let mut certain: Vec<String> = Vec::new();
        for item in items {
            let Some(rule) = self.start_rule(item) else {
                continue;
            };
            if certain.contains(&rule.event) {
                let span = fields::visible(item, &entry.key_span, self.findings.text());
                let message = format!(
                    "this start is never taken: one for {} before it has no \"when\"",
                    rule.event
                );
                self.findings.warning(codes::UNREACHABLE_HANDLER, span, message);
            }
            if member(item, "when").is_none() {
                certain.push(rule.event.clone());
            }
            rules.push(rule);
        }
        rules
    }

    fn start_rule(&mut self, item: &'r Node<'_>) -> Option<StartRule> {
        let text = |node: &Node<'_>| match &node.value {
            Value::Scalar(scalar) => Some(scalar.text.clone().into_owned()),
            Value::Map(_) | Value::List(_) => None,
        };
        let Some(event) = member(item, "event") else {
            return text(item).map(|event| StartRule {
                event,
                when: None,
                set: Vec::new(),
            });
        };
        let event = text(&event.value)?;
        let known = self.types.clone();
        if let Some(types) = &mut self.types {
            types.enter_start(&event);
        }
        let when = member(item, "when").map(|when| {
            let readable = Readable {
                roots: WHEN_ROOTS,
                event: EventParts::Whole,
                steps: &[],
                item: None,
                input: false,
                types: self.types.as_ref().map(|types| &types.env),
            };
            let condition = texts::expr(when, readable, self.findings);
            self.certain(when, &condition, certain::START);
            condition
        });
        self.assume(when.as_ref(), true);
        let set = member(item, "set").map(|set| self.set(set, SET_ROOTS, EventParts::Whole));
        self.types = known;
        Some(StartRule {
            event,
            when,
            set: set.unwrap_or_default(),
        })
    }

    /// `ignore`, `dead_letter`, or `{park: 24h}`
    fn no_instance(&mut self, entry: &Entry<'_>) -> Option<NoInstance> {
        let Value::Map(_) = &entry.value.value else {
            let words = [
                ("ignore", NoInstance::Ignore),
                ("dead_letter", NoInstance::DeadLetter),
            ];
            return one_of(entry, &words, self.findings);
        };
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::NO_INSTANCE,
            self.findings,
        )?;
        let park = fields.require("park", self.findings)?;
        let ms = fields::duration(park, 1..=PARK_MAX_MS, codes::WRONG_VALUE, self.findings)?;
        Some(NoInstance::Park(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// `30d`, or `{completed: 1d, failed: 90d}`
    fn keep_ended(&mut self, entry: &Entry<'_>) -> Option<KeepEnded> {
        let range = KEEP_ENDED_MIN_MS..=KEEP_ENDED_MAX_MS;
        let Value::Map(ends) = &entry.value.value else {
            let kept = fields::duration(entry, range, codes::WRONG_VALUE, self.findings)?;
            return Some(KeepEnded::always(Millis(kept)));
        };
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::KEEP_ENDED,
            self.findings,
        )?;
        if ends.is_empty() {
            let message = "keep_ended needs at least one of the keys completed, failed and cancelled";
            self.findings
                .error(codes::MISSING_KEY, entry.key_span.clone(), message);
        }
        let mut kept = |end| {
            let entry = fields.get(end)?;
            let kept = fields::duration(entry, range.clone(), codes::WRONG_VALUE, self.findings)?;
            Some(Millis(kept))
        };
        Some(KeepEnded {
            completed: kept("completed"),
            failed: kept("failed"),
            cancelled: kept("cancelled"),
        })
    }

    /// Handlers by event type.
    fn after_end(&mut self, entry: &'r Entry<'_>) -> BTreeMap<String, Vec<Handler>> {
        let mut by_type = BTreeMap::new();
        let entries = fields::entries(&entry.value, &entry.key_span, "after_end", self.findings);
        for entry in entries.unwrap_or_default() {
            let (site, is_legal) = self.heard(entry, Site::AfterEnd, Site::SignalAfterEnd);
            let handlers = self.handlers(entry, site);
            if is_legal {
                by_type.insert(entry.key.clone().into_owned(), handlers);
            }
        }
        by_type
    }

    /// `never`, `always`, or `{after: [failed, cancelled]}`
    fn reuse(&mut self, entry: &Entry<'_>) -> Option<Reuse> {
        let Value::Map(_) = &entry.value.value else {
            let words = [("never", Reuse::default()), ("always", Reuse::ALWAYS)];
            return one_of(entry, &words, self.findings);
        };
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::REUSE,
            self.findings,
        )?;
        let after = fields.require("after", self.findings)?;
        let mut reuse = Reuse::default();
        for item in fields::one_or_many(&after.value) {
            match fields::text(item, &after.key_span, "an end", self.findings)? {
                "completed" => reuse.completed = true,
                "failed" => reuse.failed = true,
                "cancelled" => reuse.cancelled = true,
                other => {
                    let message = format!(
                        "an end is \"{}\", expected one of completed, failed, cancelled",
                        other.escape_debug()
                    );
                    self.findings
                        .error(codes::WRONG_VALUE, item.span.clone(), message);
                }
            }
        }
        Some(reuse)
    }
}
