//! Recorded histories: read, replayed against a definition, turned into a case.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answer::is_refusal;
use super::compare::{difference, expectation};
use super::file::{ACCEPT_ALIAS, ALL_STUCK, ALL_WORK, REFUSE_ALIAS};
use super::observe::Seen;
use super::of::Of;
use super::update::flow;
use super::work;
use super::world::time::Hold;
use super::world::{Given, Manner, World};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::DEADLINE;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{CancelMode, Found, Input, InputBody};
use crate::kernel::patch::Note;
use crate::kernel::recorded::{LetterDecision, Recorded, RecordedBody, RecordedEvent, RecordedOutcome};

const DEAD: &str = "dead";
const DEFERRED: &str = "deferred";

/// Inputs of one instance, oldest first.
pub type History = Vec<Recorded>;

/// What the API answers.
#[derive(Debug, Deserialize)]
struct Answer {
    inputs: Vec<Recorded>,
    #[serde(default)]
    next: Option<String>,
}

/// Where a replay went another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// 1-based number of the input.
    pub input: usize,
    /// What the input was.
    pub what: String,
    /// Lines that only the recorded run has (`-`) and that only the replay has (`+`).
    pub difference: String,
}

/// Reads one answer of the API, or one recorded input on each line, and sorts them by instance.
///
/// # Errors
/// A sentence with the line that cannot be read.
pub fn read(text: &str) -> Result<Vec<History>, String> {
    let inputs = match serde_json::from_str::<Answer>(text) {
        Ok(Answer { next: Some(_), .. }) => {
            return Err(
                "it is one page of a longer history: take all pages, as `replay --from URL` does".to_owned(),
            );
        }
        Ok(answer) => answer.inputs,
        Err(_) => text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(at, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1)))
            .collect::<Result<Vec<Recorded>, String>>()?,
    };
    let mut histories: Vec<History> = Vec::new();
    let name = |input: &Recorded| {
        (
            input.tenant.clone(),
            input.saga.clone(),
            input.key.clone(),
            input.generation,
        )
    };
    for input in inputs {
        match histories
            .iter_mut()
            .find(|history| name(&history[0]) == name(&input))
        {
            Some(history) => history.push(input),
            None => histories.push(vec![input]),
        }
    }
    Ok(histories)
}

/// Runs a history through `new`. With `old`, the definition that it was recorded under, both are run side by side
/// and compared by their work; without it the notes of the recording are compared, which only the same definition
/// repeats.
///
/// # Errors
/// A sentence, where the history cannot be replayed.
pub fn replay(
    history: &History,
    old: Option<&Arc<Definition>>,
    new: &Arc<Definition>,
) -> Result<Option<Divergence>, String> {
    let recorded_under = history.first().map(|input| input.definition.clone());
    if let (Some(old), Some(hash)) = (old, &recorded_under)
        && old.hash.to_string() != *hash
    {
        return Err(format!("it was recorded under {hash}, not under {}", old.hash));
    }
    if old.is_none() && recorded_under.is_some_and(|hash| hash != new.hash.to_string()) {
        return Err(
            "it was recorded under another version; give that one with --recorded to compare the two"
                .to_owned(),
        );
    }
    let mut shadow = old.map(|old| world(history, old)).transpose()?;
    let mut world = world(history, new)?;
    // Rows of the history of the one that does what was recorded.
    let mut known = 0;
    for (at, recorded) in history.iter().enumerate() {
        let (left, right) = match &mut shadow {
            None => {
                // What an input brings about besides comes by itself.
                let mut given = Given::default();
                if world.taken().len() <= known {
                    match give(&mut world, &Step::of(history, at)?) {
                        Some(came) => given = came,
                        None => continue,
                    }
                }
                let was = as_lines(&recorded.id, &recorded.outcome, &recorded.notes);
                let ran = if let Some((_, row)) = world.taken().get(known) {
                    known += 1;
                    as_lines(&row.input_id, row.outcome.as_str(), &row.notes)
                } else {
                    as_lines(&recorded.id, &outcome(&given), &given.notes)
                };
                (was, ran)
            }
            Some(shadow) => {
                if shadow.taken().len() > known {
                    known += 1;
                    continue;
                }
                let step = Step::of(history, at)?;
                let theirs = step.translated(shadow, &world);
                let Some(before) = give(shadow, &step) else {
                    continue;
                };
                known += usize::from(shadow.taken().len() > known);
                let after = give(&mut world, &theirs).unwrap_or_default();
                (summary(shadow, &before), summary(&world, &after))
            }
        };
        if left != right {
            return Ok(Some(Divergence {
                input: at + 1,
                what: describe(recorded),
                difference: difference(&left, &right),
            }));
        }
    }
    Ok(None)
}

fn as_lines(id: &str, outcome: &str, notes: &[Note]) -> Vec<String> {
    let mut lines = vec![format!("input {id}"), format!("outcome {outcome}")];
    lines.extend(notes.iter().map(as_line));
    lines
}

fn world(history: &History, definition: &Arc<Definition>) -> Result<World, String> {
    let first = history.first().ok_or("it is empty")?;
    let instance = first.instance().map_err(|error| error.to_string())?;
    if instance.saga != definition.name {
        return Err(format!(
            "it is of saga {}, not of {}",
            instance.saga, definition.name
        ));
    }
    let start = TimeMs(first.time_ms);
    let world = World::new(Arc::clone(definition), instance, start, Manner::Plain);
    world.as_recorded(first.cluster, first.generation)
}

fn input(recorded: &Recorded, at: usize) -> Result<Input, String> {
    let input = recorded.input().map_err(|error| error.to_string())?;
    input.ok_or_else(|| {
        format!(
            "the message of input {} ({}) is no longer in its stream",
            at + 1,
            describe(recorded)
        )
    })
}

/// What is given to a world.
enum Step<'h> {
    Input(Input),
    /// An input that was a dead letter, for this reason; nor was an unknown outcome applied in its place.
    Dead(Input, &'h str, bool),
    /// An operator's decision about the dead letter that the input of this id was.
    Decision(&'h str, LetterDecision),
}

impl<'h> Step<'h> {
    fn of(history: &'h History, at: usize) -> Result<Self, String> {
        let recorded = &history[at];
        if let RecordedBody::DeadLetter(decision) = &recorded.input {
            return Ok(Self::Decision(&recorded.id, *decision));
        }
        let input = input(recorded, at)?;
        Ok(
            match recorded.reason.as_deref().filter(|_| recorded.outcome == DEAD) {
                Some(reason) => Self::Dead(input, reason, stands_in_the_way(history, at)),
                None => Self::Input(input),
            },
        )
    }

    /// A result names a command by its id, in which the definition is hashed: the other version's command for the same
    /// piece of work has another one.
    fn translated(&self, from: &World, to: &World) -> Self {
        let translated = |input: &Input| {
            let mut input = input.clone();
            if let InputBody::Result(result) = &mut input.body
                && let Some(item) = from.sent.iter().find(|item| item.command_id == result.command_id)
                && let Some(theirs) = work::find(to, &Of::named(from.name(item)))
            {
                result.command_id = theirs.command_id;
                input.id = theirs.command_id.to_string();
            }
            input
        };
        match self {
            Self::Input(input) => Self::Input(translated(input)),
            Self::Dead(input, reason, in_place_too) => Self::Dead(translated(input), reason, *in_place_too),
            Self::Decision(id, decision) => Self::Decision(id, *decision),
        }
    }
}

/// Whether the instance waited for a decision about this dead letter: none of what it took before it had an order to keep.
fn stands_in_the_way(history: &History, at: usize) -> bool {
    let has_order = |later: &&Recorded| match &later.input {
        RecordedBody::Event(_) | RecordedBody::Result { .. } | RecordedBody::DeadLetter(_) => true,
        RecordedBody::Timer { name } => name != DEADLINE,
        RecordedBody::Cancel { .. }
        | RecordedBody::Retry {}
        | RecordedBody::DecideStuck(_)
        | RecordedBody::Signal { .. }
        | RecordedBody::Start { .. }
        | RecordedBody::CancelChild { .. }
        | RecordedBody::Callback { .. }
        | RecordedBody::Heartbeat { .. }
        | RecordedBody::AliasAnswered { .. }
        | RecordedBody::Missing { .. } => false,
    };
    let next = history[at + 1..].iter().find(has_order);
    next.is_none_or(|next| next.id == history[at].id && matches!(next.input, RecordedBody::DeadLetter(_)))
}

/// `None`: a decision about what is not a dead letter here.
fn give(world: &mut World, step: &Step<'_>) -> Option<Given> {
    match step {
        Step::Input(input) => {
            world.now = world.now.max(input.time);
            Some(world.give_recorded(input))
        }
        Step::Dead(input, reason, in_place_too) => {
            world.now = world.now.max(input.time);
            Some(world.give_dead(input, reason, *in_place_too))
        }
        Step::Decision(id, decision) => world.decide_as_recorded(id, *decision),
    }
}

/// What the world outside sees of a step: the outcome, the phase and the work.
fn summary(world: &World, given: &Given) -> Vec<String> {
    let phase = world.last().map_or("none", |record| record.phase.as_str());
    let mut lines = vec![format!("outcome {}", outcome(given)), format!("phase {phase}")];
    for item in &given.work {
        let shown = serde_json::to_string_pretty(&work::shown(world, item)).expect("plain data");
        lines.extend(shown.lines().map(|line| format!("work {line}")));
    }
    lines
}

fn outcome(given: &Given) -> String {
    use crate::kernel::patch::Outcome;
    match (&given.rejection, given.outcome) {
        (Some(_), _) => DEAD.to_owned(),
        (None, None) if given.waits => "waiting".to_owned(),
        (None, Some(Outcome::Applied) | None) => "applied".to_owned(),
        (None, Some(Outcome::Deferred)) => DEFERRED.to_owned(),
        (None, Some(Outcome::Ignored(reason))) => reason.as_str().to_owned(),
    }
}

fn as_line(note: &Note) -> String {
    serde_json::to_string(note).expect("notes are plain data")
}

fn describe(recorded: &Recorded) -> String {
    match &recorded.input {
        RecordedBody::Event(event) => format!("event {}", event.event_type),
        RecordedBody::Result { command_id, .. } => format!("result of {command_id}"),
        RecordedBody::Timer { name } => format!("timer {name}"),
        RecordedBody::Cancel { .. } => "cancel".to_owned(),
        RecordedBody::Retry {} => "retry".to_owned(),
        RecordedBody::Start { .. } => "start".to_owned(),
        RecordedBody::DecideStuck(decision) => decision.verdict.as_str().to_owned(),
        RecordedBody::CancelChild { .. } => "cancel_child".to_owned(),
        RecordedBody::Signal { name, .. } => format!("signal {name}"),
        RecordedBody::Callback { work, .. } => format!("callback of {work}"),
        RecordedBody::Heartbeat { work } => format!("heartbeat of {work}"),
        RecordedBody::AliasAnswered { via, refused } => {
            let what = if *refused { "refusal" } else { "acceptance" };
            format!("{what} by {} {}", via.alias.name, via.alias.value)
        }
        RecordedBody::DeadLetter(decision) => format!("{} of a dead letter", decision.as_str()),
        RecordedBody::Missing { kind } => kind.clone(),
    }
}

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
            // What came of deadlines is among the inputs.
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
        let given = match decision {
            // A case decides about what stands in the way, and nothing else.
            Some(_) if !world.is_blocked() => {
                comes_again.remove(&recorded.id);
                continue;
            }
            Some(decision) => world.decide(decision)?,
            None => world.give(&input(recorded, at)?),
        };
        step(&mut out, key, &value, more, &world, &given);
    }
    Ok(out)
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
        RecordedBody::Heartbeat { work } => {
            let item = world.sent.iter().rfind(|item| item.idempotency_key == *work);
            let of = item.map_or_else(|| work.clone(), |item| world.name(item).to_owned());
            ("heartbeat", Value::from(of), more)
        }
        RecordedBody::Callback { work, outcome } => {
            let item = world.sent.iter().rfind(|item| item.idempotency_key == *work);
            let of = item.map_or_else(|| work.clone(), |item| world.name(item).to_owned());
            let said = said_of(of, outcome);
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
            if let Some(Found::Done { result }) = &decision.found {
                let result = serde_json::from_str(result).unwrap_or(Value::Null);
                more.insert("ok".to_owned(), result);
            }
            (decision.verdict.as_str(), Value::from(step), more)
        }
        RecordedBody::AliasAnswered { via, refused } => {
            let key = if *refused { REFUSE_ALIAS } else { ACCEPT_ALIAS };
            let alias = Map::from_iter([(via.alias.name.clone(), Value::from(via.alias.value.as_str()))]);
            (key, Value::Object(alias), more)
        }
        RecordedBody::DeadLetter(decision) => ("dead_letter", Value::from(decision.as_str()), more),
        RecordedBody::Retry {} | RecordedBody::Timer { .. } | RecordedBody::Missing { .. } => {
            ("retry", Value::Bool(true), more)
        }
    }
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
