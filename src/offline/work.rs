//! Work items as tests name and show them.

use serde_json::{Value, json};

use super::answer::Answer;
use super::file::{Action, Suite};
use super::of::Of;
use super::world::World;
use crate::kernel::children::SagaMessage;
use crate::kernel::definition::model::{BODY_OF_FOREACH, BODY_OF_REPEAT, OF_HANDLERS, OF_MACHINE, OF_TIMERS};
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::record::{Outstanding, Record};
use crate::kernel::work::{WorkItem, WorkKind};

/// Key of the idempotency key among those of a shown piece of work.
pub const KEY: &str = "idempotency_key";

/// What a test writes as `of` for a work item: `charge`, `charge.compensate`, `lines[2]` for an item of a loop over
/// a list, its own name for work of a program, the path for what belongs to no step. `record` is that of after the input that made the item.
#[must_use]
pub fn name(item: &WorkItem, record: Option<&Record>) -> String {
    if let Some(name) = item
        .path
        .strip_prefix("program.")
        .filter(|name| !name.contains('['))
    {
        return name.to_owned();
    }
    let Some(rest) = item.path.strip_prefix("steps.") else {
        return item.path.clone();
    };
    let (step, rest) = rest.split_once('.').unwrap_or((rest, ""));
    // A loop around one step has a body that no file names.
    let hidden = [BODY_OF_FOREACH, BODY_OF_REPEAT].map(|body| &body[1..]);
    let rest = match rest.split_once('.').unwrap_or((rest, "")) {
        (body, rest) if hidden.contains(&body) => rest,
        _ => rest,
    };
    let index = record
        .and_then(|record| index(item, record))
        .map_or_else(String::new, |index| format!("[{index}]"));
    let dot = if rest.is_empty() { "" } else { "." };
    format!("{step}{index}{dot}{rest}")
}

/// What the file calls an effect that a state, a timer or a handler emits, with the index of its piece and what follows:
/// `remind`, `tell[1].compensate`.
#[must_use]
pub fn own_name(path: &str, item: Option<u32>) -> Option<String> {
    let emitted = [OF_MACHINE, OF_TIMERS, OF_HANDLERS];
    if !emitted.iter().any(|of| path.starts_with(of)) {
        return None;
    }
    let at = path.find(".compensate").unwrap_or(path.len());
    let (step, rest) = path.split_at(at);
    let step = step.strip_suffix(BODY_OF_FOREACH).unwrap_or(step);
    let (_, name) = step.rsplit_once('.')?;
    let index = item.map_or_else(String::new, |item| format!("[{item}]"));
    Some(format!("{name}{index}{rest}"))
}

/// Which item of a list the work is for.
fn index(item: &WorkItem, record: &Record) -> Option<u32> {
    let is = |outstanding: Option<Outstanding>| {
        outstanding.is_some_and(|outstanding| outstanding.command == item.command_id)
    };
    let loops = record.steps.iter().filter_map(|step| step.items.as_ref());
    let mut running = loops.flat_map(|items| &items.running);
    let found = running.find(|running| running.steps.iter().any(|step| is(step.outstanding)));
    found.map(|running| running.index).or_else(|| {
        let mut undoing = record.ledger.having(|status| status == LedgerStatus::Undoing);
        undoing.find(|(_, entry)| is(entry.outstanding))?.1.item
    })
}

/// Whether work of this name, or path, undoes a step.
#[must_use]
pub fn undoes(name: &str) -> bool {
    name.contains(".compensate")
}

/// A name without the index of its item.
#[must_use]
pub fn without_index(name: &str) -> String {
    match (name.find('['), name.find(']')) {
        (Some(open), Some(close)) if open < close && !name.starts_with("handlers") => {
            format!("{}{}", &name[..open], &name[close + 1..])
        }
        _ => name.to_owned(),
    }
}

/// The piece of work that `of` names: the oldest one whose result is awaited, else the newest one that was sent.
#[must_use]
pub fn find<'w>(world: &'w World, of: &Of) -> Option<&'w WorkItem> {
    let mut sent = world.sent.iter().rev();
    let is = |item: &&WorkItem| item.kind.awaits_result() && !world.is_delivered(item) && world.is(item, of);
    awaited_as(world, of).or_else(|| sent.find(is))
}

/// The oldest piece of work of this name whose result is awaited.
#[must_use]
pub fn awaited_as<'w>(world: &'w World, of: &Of) -> Option<&'w WorkItem> {
    world.awaited().find(|item| world.is(item, of))
}

/// The oldest piece of work whose result is awaited: of this name, or at all.
#[must_use]
pub fn awaited_of<'w>(world: &'w World, of: Option<&Of>) -> Option<&'w WorkItem> {
    match of {
        Some(of) => awaited_as(world, of),
        None => world.awaited().next(),
    }
}

/// What may be written as `of` at present.
#[must_use]
pub fn awaited(world: &World) -> Vec<&str> {
    let mut names: Vec<&str> = world.awaited().map(|item| world.name(item)).collect();
    names.dedup();
    names
}

/// A work item with the keys that expectations have.
#[must_use]
pub fn shown(world: &World, item: &WorkItem) -> Value {
    let payload =
        |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).expect("payloads of the kernel are JSON") };
    let mut shown = match &item.kind {
        WorkKind::Effect {
            effect,
            payload: with,
        } => {
            json!({"effect": effect.as_str(), "with": payload(with)})
        }
        WorkKind::Command {
            aggregate_type,
            aggregate_id,
            command_type,
            payload: body,
            token,
            ..
        } => {
            let mut body = payload(body);
            if let Some(mark) = token {
                name_token(&mut body, mark);
            }
            json!({"command": command_type, "aggregate": aggregate_type, "id": aggregate_id, "payload": body})
        }
        WorkKind::Fact {
            fact_type,
            payload: body,
        } => json!({"fact": fact_type, "payload": payload(body)}),
        WorkKind::Result { effect, body } => json!({"result_of": effect.as_str(), "payload": payload(body)}),
        WorkKind::Cancel { effect, .. } => json!({"cancel": effect.as_str()}),
        WorkKind::Saga {
            saga,
            key,
            message: SagaMessage::Signal { name, data },
            ..
        } => json!({"signal": name, "saga": saga.as_str(), "key": key.as_str(), "data": payload(data)}),
        WorkKind::Saga {
            saga, key, message, ..
        } => {
            let request = match message {
                SagaMessage::Start { .. } => "start",
                SagaMessage::CancelChild { undo: false, .. } => "cancel",
                SagaMessage::CancelChild { undo: true, .. } => "undo",
                SagaMessage::Signal { .. } => "signal",
                SagaMessage::Outcome { .. } => "outcome",
                SagaMessage::RegisterAlias { .. } => "register_alias",
                SagaMessage::ReleaseAlias { .. } => "release_alias",
                SagaMessage::Forward(_) => "forward",
                SagaMessage::AskAlias(_) => "ask_alias",
                SagaMessage::AliasRead { .. } => "alias_read",
                SagaMessage::AliasAnswered { .. } => "alias_answered",
            };
            let mut shown = json!({"saga": saga.as_str(), "key": key.as_str(), "request": request});
            if let SagaMessage::Start { input, .. } = message {
                shown["input"] = payload(input);
            }
            shown
        }
    };
    shown["of"] = Value::from(world.name(item));
    if world.is_together() {
        shown["from"] = Value::from(format!("{}/{}", item.instance.saga, item.instance.key));
    }
    shown["attempt"] = Value::from(item.attempt);
    shown[KEY] = Value::from(item.idempotency_key.as_str());
    shown
}

/// Puts the words of the definition in the place of what stands for a token.
fn name_token(value: &mut Value, mark: &str) {
    match value {
        Value::String(text) => *text = text.replace(mark, "${command.token}"),
        Value::Array(items) => items.iter_mut().for_each(|item| name_token(item, mark)),
        Value::Object(members) => members.values_mut().for_each(|member| name_token(member, mark)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The keys that say which piece of work is meant, without the others.
#[must_use]
pub fn brief(shown: &Value) -> Value {
    let mut brief = shown.clone();
    if let Some(members) = brief.as_object_mut() {
        members.retain(|key, _| !["of", "attempt", KEY].contains(&key.as_str()));
    }
    brief
}

/// What work succeeds with: what the file says for its step or effect, what a case of the file gives to its step,
/// or nothing.
#[must_use]
pub fn default_result(suite: &Suite, world: &World, item: &WorkItem) -> Value {
    let shown = shown(world, item);
    let name = without_index(world.name(item));
    let said = |wanted: &str| {
        let mut results = suite.results.iter();
        results
            .find(|(of, _)| of == wanted)
            .map(|(_, result)| result.clone())
    };
    let given = || {
        let mut steps = suite.cases.iter().flat_map(|case| &case.steps);
        steps.find_map(|placed| match &placed.step.action {
            Action::Result(spec) if without_index(&spec.of.step) == name => match &spec.outcome {
                Answer::Ok(result) => Some(result.clone()),
                Answer::Unusable { .. } | Answer::Error { .. } | Answer::Timeout(_) => None,
            },
            _ => None,
        })
    };
    said(&name)
        .or_else(|| said(shown["effect"].as_str()?))
        .or_else(given)
        .unwrap_or_else(|| json!({}))
}
