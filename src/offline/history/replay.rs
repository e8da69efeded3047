//! Replays a recorded history against a definition, and finds where it goes another way.

use std::sync::Arc;

use saga_runner_partition::machine::is_of_process;

use super::{DEAD, DEFERRED, History};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::DEADLINE;
use crate::kernel::envelope::{Principal, Role};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{Input, InputBody, Operation, OperationVerb, Origin};
use crate::kernel::letters::LetterOrder;
use crate::kernel::patch::Note;
use crate::kernel::recorded::{LetterDecision, Recorded, RecordedBody};
use crate::offline::compare::difference;
use crate::offline::of::Of;
use crate::offline::work;
use crate::offline::world::{Given, Manner, World};

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
    let deaths = Deaths::of(history);
    // Rows of the history of the one that does what was recorded.
    let mut known = 0;
    for (at, recorded) in history.iter().enumerate() {
        let (left, right) = match &mut shadow {
            None => {
                // What an input brings about besides comes by itself.
                let mut given = Given::default();
                if world.taken().len() <= known {
                    deaths.expect(&mut world, at, recorded, |_, input| input.clone());
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
                deaths.expect(shadow, at, recorded, |_, input| input.clone());
                deaths.expect(&mut world, at, recorded, |world, input| {
                    translated(input, shadow, world)
                });
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

pub(super) fn world(history: &History, definition: &Arc<Definition>) -> Result<World, String> {
    let first = history.first().ok_or("it is empty")?;
    let instance = first.instance().map_err(|error| error.to_string())?;
    if instance.saga != definition.name {
        return Err(format!(
            "it is of saga {}, not of {}",
            instance.saga, definition.name
        ));
    }
    if let RecordedBody::Operate(Operation {
        verb: OperationVerb::Rerun { .. } | OperationVerb::Restart | OperationVerb::RestartWith { .. },
        ..
    }) = &first.input
    {
        return Err(
            "an operator began it with what an earlier generation had kept, which is not among its inputs"
                .to_owned(),
        );
    }
    let start = TimeMs(first.time_ms);
    let world = World::new(Arc::clone(definition), instance, start, Manner::Plain);
    world.as_recorded(first.cluster, first.generation)
}

pub(super) fn input(recorded: &Recorded, at: usize) -> Result<Input, String> {
    let input = recorded.input().map_err(|error| error.to_string())?;
    input.ok_or_else(|| {
        format!(
            "the message of input {} ({}) is no longer in its stream, and was not kept",
            at + 1,
            describe(recorded)
        )
    })
}

/// The inputs that killed the process that they were recorded in.
struct Deaths {
    /// Place in the history, the input, and whether nothing was applied in its place either.
    inputs: Vec<(usize, Input, bool)>,
}

impl Deaths {
    fn of(history: &History) -> Self {
        let is_death = |recorded: &Recorded| {
            recorded.outcome == DEAD && recorded.reason.as_deref().is_some_and(is_of_process)
        };
        let places = (0..history.len()).filter(|at| is_death(&history[*at]));
        // One that is no longer in its stream ends the replay when its turn comes.
        let inputs = places.filter_map(|at| {
            let input = input(&history[at], at).ok()?;
            Some((at, input, stands_in_the_way(history, at)))
        });
        Self {
            inputs: inputs.collect(),
        }
    }

    /// Lets a world know of those that come later, before it is given the input at `at`: the ones among them that wait may be let
    /// in by that.
    fn expect(
        &self,
        world: &mut World,
        at: usize,
        given: &Recorded,
        named: impl Fn(&World, &Input) -> Input,
    ) {
        if self.inputs.is_empty() {
            return;
        }
        // One that is given now waits first, or is given as a dead letter.
        let later = self
            .inputs
            .iter()
            .filter(|(place, input, _)| *place > at && input.id != given.id);
        let later: Vec<(Input, bool)> = later
            .map(|(_, input, in_place_too)| (named(world, input), *in_place_too))
            .collect();
        world.expect_deaths(later.iter().map(|(input, in_place_too)| (input, *in_place_too)));
    }
}

/// What is given to a world.
enum Step<'h> {
    Input(Input),
    /// An input that was a dead letter, for this reason; nor was an unknown outcome applied in its place.
    Dead(Input, &'h str, bool),
    /// An operator's decision about the dead letter that the input of this id was.
    Decision(&'h str, LetterOrder),
}

impl<'h> Step<'h> {
    fn of(history: &'h History, at: usize) -> Result<Self, String> {
        let recorded = &history[at];
        if let Some(order) = order(recorded) {
            return Ok(Self::Decision(&recorded.id, order));
        }
        let mut input = input(recorded, at)?;
        if recorded.notes.contains(&Note::Edited) {
            // What had come is not compared with what comes.
            input.origin = Origin::Edited { content: 0 };
        }
        Ok(
            match recorded.reason.as_deref().filter(|_| recorded.outcome == DEAD) {
                Some(reason) => Self::Dead(input, reason, stands_in_the_way(history, at)),
                None => Self::Input(input),
            },
        )
    }

    fn translated(&self, from: &World, to: &World) -> Self {
        let translated = |input: &Input| translated(input, from, to);
        match self {
            Self::Input(input) => Self::Input(translated(input)),
            Self::Dead(input, reason, in_place_too) => Self::Dead(translated(input), reason, *in_place_too),
            Self::Decision(id, order) => Self::Decision(id, order.clone()),
        }
    }
}

/// A result names a command by its id, in which the definition is hashed: the other version's command for the same piece of work
/// has another one.
fn translated(input: &Input, from: &World, to: &World) -> Input {
    let mut input = input.clone();
    if let InputBody::Result(result) = &mut input.body
        && let Some(item) = from.sent.iter().find(|item| item.command_id == result.command_id)
        && let Some(theirs) = work::find(to, &Of::named(from.name(item)))
    {
        result.command_id = theirs.command_id;
        input.id = theirs.command_id.to_string();
    }
    input
}

/// Whether the instance waited for a decision about this dead letter: none of what it took before it had an order to keep.
fn stands_in_the_way(history: &History, at: usize) -> bool {
    let has_order = |later: &&Recorded| match &later.input {
        RecordedBody::Event(_)
        | RecordedBody::Result { .. }
        | RecordedBody::DeadLetter(_)
        | RecordedBody::EditedLetter { .. } => true,
        RecordedBody::Timer { name } => name != DEADLINE,
        RecordedBody::Cancel { .. }
        | RecordedBody::Retry {}
        | RecordedBody::DecideStuck(_)
        | RecordedBody::Operate(_)
        | RecordedBody::Signal { .. }
        | RecordedBody::Start { .. }
        | RecordedBody::CancelChild { .. }
        | RecordedBody::Callback { .. }
        | RecordedBody::Heartbeat { .. }
        | RecordedBody::AliasAnswered { .. }
        | RecordedBody::Missing { .. } => false,
    };
    let next = history[at + 1..].iter().find(has_order);
    next.is_none_or(|next| next.id == history[at].id && order(next).is_some())
}

/// What an operator has decided, if it is that.
fn order(recorded: &Recorded) -> Option<LetterOrder> {
    let (decision, edited) = match &recorded.input {
        RecordedBody::DeadLetter(decision) => (*decision, None),
        RecordedBody::EditedLetter { edited, .. } => (LetterDecision::Retry, Some(edited.to_string().into())),
        _ => return None,
    };
    let said = recorded.notes.iter().find_map(|note| match note {
        Note::LetterDecided { by, reason, job } => Some((by.clone(), reason.clone(), job.clone())),
        _ => None,
    });
    let (who, reason, job) = said.unwrap_or_default();
    Some(LetterOrder {
        decision,
        edited,
        principal: Principal {
            who,
            // It was allowed.
            role: Role::Admin,
            reason,
        },
        job,
    })
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
        Step::Decision(id, order) => world.decide_as_recorded(id, order),
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
        RecordedBody::Operate(operation) => operation.verb.as_str().to_owned(),
        RecordedBody::CancelChild { .. } => "cancel_child".to_owned(),
        RecordedBody::Signal { name, .. } => format!("signal {name}"),
        RecordedBody::Callback { work, .. } => format!("callback of {work}"),
        RecordedBody::Heartbeat { work } => format!("heartbeat of {work}"),
        RecordedBody::AliasAnswered { via, refused } => {
            let what = if *refused { "refusal" } else { "acceptance" };
            format!("{what} by {} {}", via.alias.name, via.alias.value)
        }
        RecordedBody::DeadLetter(decision) => format!("{} of a dead letter", decision.as_str()),
        RecordedBody::EditedLetter { .. } => "edit of a dead letter".to_owned(),
        RecordedBody::Missing { kind } => kind.clone(),
    }
}
