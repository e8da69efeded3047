//! Turns a recorded history into a case.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::replay::{input, world};
use super::{DEAD, DEFERRED, History};
use crate::kernel::children::SagaMessage;
use crate::kernel::definition::Definition;
use crate::kernel::duration::Millis;
use crate::kernel::input::{CancelMode, Finding, Found, Operation, OperationVerb, Verdict};
use crate::kernel::recorded::{Recorded, RecordedBody, RecordedEvent, RecordedOutcome};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::offline::answer::is_refusal;
use crate::offline::compare::expectation;
use crate::offline::file::{ACCEPT_ALIAS, ALL_STUCK, ALL_WORK, REFUSE_ALIAS};
use crate::offline::observe::Seen;
use crate::offline::update::flow;
use crate::offline::world::time::Hold;
use crate::offline::world::{Given, World};

/// A test file with a history as its one case, which expects what comes out now.
///
/// # Errors
/// A sentence, where the history cannot be replayed.
pub fn case(history: &History, definition: &Arc<Definition>) -> Result<String, String> {
    let mut world = world(history, definition)?;
    let mut out = format!(
        "saga: {}\ncases:\n  - name: {}\n    start: {}\n    key: {}\n    steps:\n",
        flow(&Value::from(world.instance.saga.as_str())),
        flow(&Value::from(format!("{} as it was recorded", world.instance.key))),
        flow(&Value::from(world.now.to_string())),
        flow(&Value::from(world.instance.key.as_str())),
    );
    // What comes again by itself: deferred by a state, or decided about.
    let mut comes_again = BTreeSet::new();
    for (at, recorded) in history.iter().enumerate() {
        if let RecordedBody::EditedLetter { .. } = &recorded.input {
            return Err(format!(
                "input {}: an operator has edited a dead letter, which a case does not say",
                at + 1
            ));
        }
        let decision = match &recorded.input {
            RecordedBody::DeadLetter(decision) => Some(*decision),
            _ => None,
        };
        let is_kept = [DEFERRED, DEAD].contains(&recorded.outcome.as_str());
        let came_before = comes_again.contains(&recorded.id);
        if is_kept {
            comes_again.insert(recorded.id.clone());
        }
        if came_before && decision.is_none() {
            continue;
        }
        let left = recorded.time_ms.saturating_sub(world.now.0);
        if left > 0 {
            // Results of deadlines are among the inputs.
            let given = world.advance(left, &Hold::All);
            let mut more = Map::new();
            if world.outbox.values().any(|item| item.ends() <= world.now) {
                more.insert("hold".to_owned(), Value::from(ALL_WORK));
            }
            step(
                &mut out,
                "advance",
                &Value::from(exact(left)),
                more,
                &world,
                &given,
            );
        }
        if matches!(recorded.input, RecordedBody::Timer { .. }) {
            // The time that passed has fired it.
            continue;
        }
        let (key, value, more) = spoken(recorded, &world);
        let mut given = match decision {
            // A case decides about what stands in the way, and nothing else.
            Some(_) if !world.is_blocked() => {
                comes_again.remove(&recorded.id);
                continue;
            }
            Some(decision) => world.decide(decision)?,
            None => world.give(&input(recorded, at)?),
        };
        // Nobody has started the instance of the case who waits for its end.
        given.work.retain(|item| !tells_parent(item));
        step(&mut out, key, &value, more, &world, &given);
    }
    Ok(out)
}

/// Whether it says to the instance that has started this one how it ended.
const fn tells_parent(item: &WorkItem) -> bool {
    matches!(
        item.kind,
        WorkKind::Saga {
            message: SagaMessage::Outcome { .. },
            ..
        }
    )
}

fn exact(ms: i64) -> String {
    let ms = u64::try_from(ms).unwrap_or(0);
    let text = Millis(ms).to_string();
    debug_assert_eq!(Millis::parse(&text), Ok(Millis(ms)));
    text
}

/// An input as a step of a case: its key, its value, and what stands beside.
fn spoken(recorded: &Recorded, world: &World) -> (&'static str, Value, Map<String, Value>) {
    let mut more = Map::new();
    match &recorded.input {
        RecordedBody::Event(event) => {
            beside(event, &recorded.id, &mut more);
            ("event", Value::from(event.event_type.as_str()), more)
        }
        RecordedBody::Result {
            command_id, outcome, ..
        } => {
            let item = world.sent.iter().find(|item| item.command_id == *command_id);
            let of = item.map_or_else(|| command_id.to_string(), |item| world.name(item).to_owned());
            let result = said_of(of, outcome);
            ("result", Value::Object(result), more)
        }
        RecordedBody::Start { input, .. } => ("start", input.clone(), more),
        RecordedBody::Heartbeat { work } => ("heartbeat", Value::from(named_by_key(world, work)), more),
        RecordedBody::Callback { work, outcome } => {
            let said = said_of(named_by_key(world, work), outcome);
            ("callback", Value::Object(said), more)
        }
        RecordedBody::Cancel { reason, mode } => {
            if *mode != CancelMode::Compensate {
                more.insert("mode".to_owned(), serde_json::json!(mode));
            }
            ("cancel", Value::from(reason.as_str()), more)
        }
        RecordedBody::CancelChild { .. } => ("cancel", Value::from("by its parent"), more),
        RecordedBody::Signal { name, data, by, .. } => {
            more.insert("data".to_owned(), data.clone());
            if !by.is_empty() {
                more.insert("by".to_owned(), Value::from(by.as_str()));
            }
            ("signal", Value::from(name.as_str()), more)
        }
        RecordedBody::DecideStuck(decision) => {
            let step = decision.step.as_deref().unwrap_or(ALL_STUCK);
            if let Some(found) = &decision.found {
                more.insert("as".to_owned(), Value::from(found.as_str()));
            }
            let done = match &decision.found {
                Some(Found::Done { result }) if decision.verdict != Verdict::Skip => Some(result),
                _ => decision.result.as_ref(),
            };
            if let Some(result) = done {
                let result = serde_json::from_str(result).unwrap_or(Value::Null);
                more.insert("ok".to_owned(), result);
            }
            (decision.verdict.as_str(), Value::from(step), more)
        }
        RecordedBody::Operate(operation) => {
            let (key, value) = spoken_operation(operation);
            (key, value, more)
        }
        RecordedBody::AliasAnswered { via, refused } => {
            let key = if *refused { REFUSE_ALIAS } else { ACCEPT_ALIAS };
            let alias = Map::from_iter([(via.alias.name.clone(), Value::from(via.alias.value.as_str()))]);
            (key, Value::Object(alias), more)
        }
        RecordedBody::DeadLetter(decision) => ("dead_letter", Value::from(decision.as_str()), more),
        RecordedBody::Retry {}
        | RecordedBody::Timer { .. }
        | RecordedBody::EditedLetter { .. }
        | RecordedBody::Missing { .. } => ("retry", Value::Bool(true), more),
    }
}

/// What tests call the latest work with this idempotency key.
fn named_by_key(world: &World, key: &str) -> String {
    let item = world.sent.iter().rfind(|item| item.idempotency_key == key);
    item.map_or_else(|| key.to_owned(), |item| world.name(item).to_owned())
}

/// The key and the value of a step by which an operator does something to the instance.
fn spoken_operation(operation: &Operation) -> (&'static str, Value) {
    let value = match &operation.verb {
        OperationVerb::Rerun { found } => {
            let said = found.iter().map(|Finding { step, found }| {
                let said = match found {
                    Found::NotDone => Value::from(found.as_str()),
                    Found::Done { result } => {
                        let result = serde_json::from_str(result).unwrap_or(Value::Null);
                        serde_json::json!({"ok": result})
                    }
                };
                (step.clone(), said)
            });
            return ("retry_ended", Value::Object(said.collect()));
        }
        OperationVerb::Pause
        | OperationVerb::Resume
        | OperationVerb::Kill
        | OperationVerb::Restart
        | OperationVerb::RestartWith { .. }
        // It was refused: nothing is told of one that was done.
        | OperationVerb::Delete { .. } => operation.reason.as_str(),
        OperationVerb::FireTimer { timer } | OperationVerb::CancelTimer { timer } => timer.as_str(),
        OperationVerb::TryNow { step } => step.as_deref().unwrap_or(ALL_STUCK),
    };
    (operation.verb.as_str(), Value::from(value))
}

/// How the work `of` went, as a test says it.
fn said_of(of: String, outcome: &RecordedOutcome) -> Map<String, Value> {
    let mut said = Map::from_iter([("of".to_owned(), Value::from(of))]);
    match outcome {
        RecordedOutcome::Ok(payload) => said.insert("ok".to_owned(), payload.clone()),
        RecordedOutcome::Unusable {
            result,
            class,
            message,
        } => {
            said.insert("message".to_owned(), Value::from(message.as_str()));
            said.insert("unusable".to_owned(), Value::from(class.as_str()));
            said.insert("ok".to_owned(), result.clone())
        }
        RecordedOutcome::Error {
            class,
            message,
            refused,
        } => {
            if !message.is_empty() {
                said.insert("message".to_owned(), Value::from(message.as_str()));
            }
            if *refused != is_refusal(class) {
                said.insert("refused".to_owned(), Value::Bool(*refused));
            }
            said.insert("error".to_owned(), Value::from(class.as_str()))
        }
        RecordedOutcome::Timeout { class, .. } => {
            let class = class.as_deref().map_or(Value::Bool(true), Value::from);
            said.insert("timeout".to_owned(), class)
        }
    };
    said
}

fn beside(event: &RecordedEvent, id: &str, more: &mut Map<String, Value>) {
    more.insert("id".to_owned(), Value::from(id));
    if event.schema_version != 1 {
        more.insert("version".to_owned(), Value::from(event.schema_version));
    }
    if let Some(correlation) = &event.correlation_id {
        more.insert("correlation_id".to_owned(), Value::from(correlation.as_str()));
    }
    more.insert(
        "aggregate_id".to_owned(),
        Value::from(event.aggregate_id.as_str()),
    );
    more.insert("data".to_owned(), event.payload.clone());
}

fn step(out: &mut String, key: &str, value: &Value, more: Map<String, Value>, world: &World, given: &Given) {
    let _ = writeln!(out, "      - {key}: {}", flow(value));
    for (key, value) in more {
        let _ = writeln!(out, "        {key}: {}", flow(&value));
    }
    let expected = expectation(&Seen::after(world, given));
    let _ = writeln!(out, "        expect: {}", flow(&expected));
}
