//! The transition: `(definition, record, input) -> patch`.
//!
//! Order within one input: what is stale or repeated is ignored; a result, timer or control updates what it
//! is for; handlers run, those of the machine's state before those of the saga; the advance loop starts what
//! can start; timers whose `cancel_when` holds are cleared; the instance ends if its outcome is reached.
//!
//! An input is applied as a whole or rejected as a whole. This module only decides which case an input is;
//! each case has a module of its own.

mod actions;
mod advance;
mod aliases;
mod arena;
mod attempts;
mod cancellations;
mod children;
mod compensation;
mod deadlines;
mod delays;
mod deletion;
mod doubts;
mod early;
mod emission;
mod ends;
mod entries;
mod errors;
mod events;
mod failure;
mod flight;
mod generations;
mod groups;
mod heartbeats;
mod item_results;
mod items;
mod joins;
mod loop_start;
mod machine;
mod mapping;
mod members;
mod messages;
mod migrate;
mod operations;
mod parents;
mod pieces;
mod place;
mod program;
mod questions;
mod refusals;
mod rehearsal;
mod rejection;
mod replace;
mod requests;
mod rerun;
mod results;
mod run;
mod schemas;
mod scope;
mod seen;
mod signals;
mod skipping;
mod slot;
mod stuck;
mod takeover;
mod timers;
mod turns;
mod undo_attempt;
mod waits;

#[cfg(test)]
mod tests;

pub use deletion::{delete_obstacle, delete_obstacle_of_all, deletes};
pub use generations::{Last, apply_ended, reaches_ended};
pub use operations::{backing_off, may_be_cancelled};
pub use parents::refusal;
pub use questions::{Unfit, check_answer};
pub use rehearsal::{Meets, rehearse};
pub use rejection::{
    BUFFER_FULL, EVENT_SCHEMA, EVENT_VERSION, NO_INSTANCE, Rejection, START_RUNNING, TIMER_DISCARDED,
    WORK_PENDING,
};
pub use replace::{Replacement, replace, replaces};
pub use requests::{check as check_input, repeated};
pub use rerun::{rerun_obstacle, restart_obstacle};
pub(crate) use seen::content_of;
pub use seen::started_by;
pub(crate) use skipping::NOTHING;
pub use skipping::skip_obstacle;

use arena::Arena;
pub use migrate::{Obstacle, REFUSED, migrate, obstacles};
use run::{Ground, Run};
use saga_runner_language::classes::TIMEOUT_CLASS;
use saga_runner_language::definition::Definition;
use saga_runner_language::ids::{ClusterId, DefinitionHash, InstanceId};
use saga_runner_language::limits::Limits;

use waits::Offered;

use super::input::{Control, DomainEvent, Input, InputBody};
use super::patch::{IgnoreReason, Note, Outcome, Patch};
use super::record::Record;

/// What a transition may know besides definition, record and input.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub limits: &'a Limits,
    /// Where the instance lives; [`ClusterId::OFFLINE`] where nothing reaches the outside world.
    pub cluster: ClusterId,
    /// The shard's log sequence of this input: names the rows that the patch adds.
    pub log_sequence: u64,
    /// Generation that a new instance gets: 1, or one more than the tombstone's.
    pub generation: u32,
    /// The input was kept before, deferred or as a dead letter: it may rightly come behind later ones.
    pub again: bool,
}

/// Hears what a transition decides, for those who want to know which parts of a definition were run. It cannot
/// change anything.
pub trait Trace {
    /// The condition at `place` was tested.
    fn tested(&self, place: String, held: bool);
    /// What stands at `place` was chosen to be done.
    fn taken(&self, place: String);
}

/// Applies `input` to the instance.
///
/// # Errors
/// [`Rejection`] where an expression fails or a limit is passed; nothing has changed then.
pub fn apply(
    definition: &Definition,
    instance: &InstanceId,
    record: Option<&Record>,
    input: &Input,
    context: &Context<'_>,
) -> Result<Patch, Rejection> {
    apply_traced(definition, instance, record, input, context, None)
}

/// The same, telling `trace` what is decided on the way.
///
/// # Errors
/// As [`apply`].
pub fn apply_traced(
    definition: &Definition,
    instance: &InstanceId,
    record: Option<&Record>,
    input: &Input,
    context: &Context<'_>,
    trace: Option<&dyn Trace>,
) -> Result<Patch, Rejection> {
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition,
        instance,
        before: record,
        last: None,
        input,
        context,
        texts: &texts,
        values: &values,
        trace,
    };
    match record {
        None => without_instance(ground),
        Some(record) => {
            check_definition(definition, record)?;
            with_instance(ground, record)
        }
    }
}

/// Whether a part of the instance waits for this input, a result or a timer, and for no other.
#[must_use]
pub fn awaits(record: &Record, input: &Input) -> bool {
    match &input.body {
        InputBody::Result(result) => results::waiting(record, result).is_some(),
        InputBody::Timer { name } => timers::is_current(record, name, input.time),
        InputBody::Event(_) | InputBody::Control(_) => false,
    }
}

/// Does without a timer that has fired and that an operator discards.
///
/// # Errors
/// As [`apply`].
pub fn discard_timer(
    definition: &Definition,
    instance: &InstanceId,
    record: &Record,
    input: &Input,
    context: &Context<'_>,
) -> Result<Patch, Rejection> {
    let InputBody::Timer { name } = &input.body else {
        return Ok(Patch::ignored(IgnoreReason::Stale));
    };
    check_definition(definition, record)?;
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition,
        instance,
        before: Some(record),
        last: None,
        input,
        context,
        texts: &texts,
        values: &values,
        trace: None,
    };
    let mut run = Run::of(ground, record);
    timers::discard(&mut run, name)?;
    run.conclude(Outcome::Applied)
}

fn without_instance(ground: Ground<'_>) -> Result<Patch, Rejection> {
    match &ground.input.body {
        // It was forwarded to an instance that has ended since, or to another generation.
        InputBody::Event(event) if event.via.is_some() => Ok(Patch::ignored(IgnoreReason::NoInstance)),
        InputBody::Event(event) => {
            let starts = ground.definition.start.contains(&event.event_type);
            let nobody = Patch::ignored(IgnoreReason::NoInstance);
            let patch = if starts {
                events::start(ground, event)?
            } else {
                nobody
            };
            if patch.outcome == Outcome::Ignored(IgnoreReason::NoInstance) {
                return generations::nobody(ground, event);
            }
            Ok(patch)
        }
        InputBody::Control(Control::Start { input, parent, .. }) => {
            requests::start(ground, input, parent.as_ref())
        }
        InputBody::Control(control @ Control::CancelChild { parent, .. }) => {
            Ok(parents::not_there(ground, parent, parents::TakeBack::of(control)))
        }
        InputBody::Control(_) => Ok(Patch::ignored(IgnoreReason::NoInstance)),
        InputBody::Result(result) => Ok(results::orphan(result)),
        InputBody::Timer { .. } => Ok(Patch::ignored(IgnoreReason::Stale)),
    }
}

fn with_instance<'a>(ground: Ground<'a>, record: &'a Record) -> Result<Patch, Rejection> {
    if let InputBody::Event(event) = &ground.input.body
        && let Some(via) = &event.via
        && let Some(reason) = aliases::refusal(record, via)
    {
        return Ok(Patch::ignored(reason));
    }
    if operations::holds(record, ground.input) && !is_stale(record, ground.input) {
        return Ok(generations::deferred(record));
    }
    if let Some(patch) = generations::meets(ground, record)? {
        return Ok(patch);
    }
    match &ground.input.body {
        InputBody::Event(event) => {
            let patch = with_event(ground, record, event)?;
            Ok(generations::behind_a_start(record, event, patch))
        }
        InputBody::Result(result) => match results::waiting(record, result) {
            None => Ok(results::without_step(record, result)),
            Some(waiting) => results::take(ground, record, result, waiting),
        },
        InputBody::Timer { name } => {
            if !timers::is_current(record, name, ground.input.time) {
                return Ok(Patch::ignored(IgnoreReason::Stale));
            }
            let mut run = Run::of(ground, record);
            timers::fire(&mut run, name)?;
            run.conclude(Outcome::Applied)
        }
        InputBody::Control(control) => with_control(ground, record, control),
    }
}

/// Whether it is a timer that was replaced or cleared.
fn is_stale(record: &Record, input: &Input) -> bool {
    matches!(&input.body, InputBody::Timer { name } if !timers::is_current(record, name, input.time))
}

fn with_event<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    event: &'a DomainEvent,
) -> Result<Patch, Rejection> {
    if record.phase.is_terminal() {
        return generations::after_end(ground, record, event);
    }
    if let Some(reason) = events::refusal(ground.definition, record, event) {
        return Ok(Patch::ignored(reason));
    }
    match seen::find_sequence(record, event, ground.context.again) {
        Some(patch) => Ok(patch),
        None => events::handle(Run::of(ground, record), record, event),
    }
}

fn with_control<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    control: &'a Control,
) -> Result<Patch, Rejection> {
    match control {
        Control::Start { parent, .. } => return Ok(parents::start_again(ground, record, parent.as_ref())),
        Control::CancelChild { parent, .. } => {
            return parents::taken_back(ground, record, parent, parents::TakeBack::of(control));
        }
        // It may come as often as it likes, so it takes no place among the inputs that are remembered.
        Control::Heartbeat { work } => return heartbeats::beat(ground, record, work),
        Control::AliasAnswered { via, refused } => return aliases::answered(ground, record, via, *refused),
        Control::Operate(operation) if deletes(operation).is_some() => {
            return Ok(deletion::refuse(ground.definition, record));
        }
        // They are for aliases, which no instance is.
        Control::RegisterAlias { .. }
        | Control::ReleaseAlias { .. }
        | Control::AskAlias { .. }
        | Control::AliasRead { .. } => return Ok(Patch::ignored(IgnoreReason::NoHandler)),
        Control::Cancel { .. }
        | Control::Retry
        | Control::DecideStuck(_)
        | Control::Operate(_)
        | Control::Signal { .. }
        | Control::Callback { .. }
        | Control::Migrate { .. } => {}
    }
    let refusal = || refusals::refusal(ground.definition, record, control, ground.context.limits);
    if let Some(reason) = seen::find_control(record, ground.input).or_else(refusal) {
        return Ok(Patch::ignored(reason));
    }
    let mut run = Run::of(ground, record);
    seen::remember_event(&mut run.record, seen::control(ground.input));
    match control {
        Control::Start { .. }
        | Control::CancelChild { .. }
        | Control::Heartbeat { .. }
        | Control::RegisterAlias { .. }
        | Control::ReleaseAlias { .. }
        | Control::AskAlias { .. }
        | Control::AliasRead { .. }
        | Control::AliasAnswered { .. } => {}
        Control::Cancel { reason, mode } => {
            run.unpause();
            if flight::drains(record) {
                flight::hurry(&mut run)?;
            } else {
                failure::cancel(&mut run, reason, *mode)?;
            }
        }
        Control::Retry => {
            questions::retry_all(&mut run)?;
            stuck::retry_all(&mut run)?;
        }
        Control::DecideStuck(decision) => skipping::decide(&mut run, decision)?,
        Control::Operate(operation) => return operations::operate(run, operation),
        Control::Signal { .. } => match signals::told(&mut run, control)? {
            Offered::Used => {}
            Offered::TooEarly => {
                return Ok(Patch {
                    notes: run.notes,
                    ..Patch::ignored(IgnoreReason::Early)
                });
            }
            Offered::Unknown => return Ok(Patch::ignored(IgnoreReason::NoHandler)),
        },
        Control::Migrate { to, .. } => return without_target(record, to),
        Control::Callback { work, outcome } => {
            let message = messages::Message::callback(&run, work, outcome)?;
            run.note(Note::CalledBack { work: work.clone() });
            if waits::offer(&mut run, message)? != Offered::Used {
                return Ok(Patch::ignored(IgnoreReason::Stale));
            }
        }
    }
    run.conclude(Outcome::Applied)
}

/// A migration whose target is not at hand; with it, `migrate` applies the input.
fn without_target(record: &Record, to: &DefinitionHash) -> Result<Patch, Rejection> {
    if record.definition == *to {
        return Ok(Patch::ignored(IgnoreReason::Duplicate));
    }
    Err(Rejection {
        reason: REFUSED,
        message: format!("definition {to} is not loaded"),
    })
}

/// Refuses a definition that the record does not belong to, so that the indices of one hold in the other.
fn check_definition(definition: &Definition, record: &Record) -> Result<(), Rejection> {
    let steps = definition.steps.len();
    let fits = definition.hash == record.definition
        && steps == record.steps.len()
        && record
            .ledger
            .highest_step()
            .is_none_or(|step| usize::from(step) < steps)
        && record.strays.iter().all(|stray| usize::from(stray.step) < steps)
        && record.doubts.iter().all(|doubt| usize::from(doubt.step) < steps)
        && record
            .off_ledger
            .last()
            .is_none_or(|step| usize::from(*step) < steps)
        && program::fits(definition.program.as_ref(), record)
        && record.machine.is_none() == definition.machine.is_none()
        && record.machine.is_some() == machine::present(definition, record).is_some();
    if fits {
        return Ok(());
    }
    Err(Rejection {
        reason: "definition.mismatch",
        message: format!(
            "the record belongs to definition {}, not to {}",
            record.definition, definition.hash
        ),
    })
}
