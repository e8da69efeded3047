//! One input in one batch: looked up, applied by the kernel, written as rows. What cannot be applied goes to
//! [`super::poison`], what is set free again is found by [`super::inbox`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::definition::model::DEADLINE;
use saga_runner_kernel::ids::InstanceId;
use saga_runner_kernel::input::{Control, Input, InputBody, StuckDecision};
use saga_runner_kernel::patch::{IgnoreReason, Outcome, Patch};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::schedule;
use saga_runner_kernel::transition::{
    Context, Last, Rejection, apply_ended, apply_traced, deletes, migrate, reaches_ended, refusal, replaces,
};

use super::asking::Asked;
use super::fault::Fault;
use super::staging::Run;
use super::watch::{Told, Watch};
use crate::storage::StorageError;
use crate::storage::rows::{Tombstone as Row, WaitReason, early_number};

/// One execution of an input.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// How often it was begun, this time included.
    pub attempts: u32,
    /// Number of its inbox row, where it was deferred before.
    pub deferred_as: Option<u64>,
    /// A timer that did not wait for its streams.
    pub late_source: bool,
    /// A timer behind all that the aliases of its instance had.
    pub behind_aliases: bool,
    /// Row of the history that stands before the first one of the instance that begins.
    pub opened_behind: Option<u64>,
}

impl Turn {
    pub const FIRST: Self = Self {
        attempts: 1,
        deferred_as: None,
        late_source: false,
        behind_aliases: false,
        opened_behind: None,
    };

    /// Whether the input was kept before, so that later ones may have been applied.
    pub const fn is_again(self) -> bool {
        self.deferred_as.is_some() || self.attempts > 1
    }
}

/// What the kernel has made of an input, if it has not panicked.
pub type Applied = std::thread::Result<Result<Patch, Rejection>>;

/// What an execution came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// Deferred inputs of the instance are to be given again.
    Readmits,
    /// The instance has begun, and inputs that came too early for it are to be given.
    Begins,
    /// It is a dead letter, and what comes later for its instance waits.
    Poison,
}

impl Run<'_> {
    /// Takes a new input: applies it with all that it sets free, or lets it wait behind earlier ones.
    pub fn take(&mut self, input: &Input, turn: Turn) -> Result<(), StorageError> {
        self.staged.inputs += 1;
        let last = &mut self.staged.counters.last_time;
        *last = (*last).max(input.time);
        if schedule::is_address(&input.instance.key) {
            return self.take_scheduled(input);
        }
        if let InputBody::Timer { name } = &input.body
            && let Some(number) = early_number(name)
        {
            return self.expire(&input.instance, number);
        }
        if self.waiting(&input.instance).is_blocked() && !passes(input) {
            return self.wait(input, WaitReason::Blocked);
        }
        if let InputBody::Control(Control::AliasRead { question, late }) = &input.body {
            return self.answered(input, *question, *late);
        }
        let asks = self.waiting(&input.instance).asks;
        let is_ordered = !matches!(input.body, InputBody::Control(_));
        if asks.is_some_and(|due| input.time > due) && is_ordered {
            return self.wait(input, WaitReason::Behind);
        }
        self.apply_now(input, turn).map(drop)
    }

    /// Applies an input, then what it readmits.
    pub fn apply_now(&mut self, input: &Input, turn: Turn) -> Result<Fate, StorageError> {
        if let Some(alias) = Alias::of(&input.instance.key) {
            if let Some(poison) = self.poison(input) {
                return self.dead_letter_poison(input, None, poison, turn);
            }
            return self.take_aliased(&alias, input, turn);
        }
        if let InputBody::Control(Control::AliasAnswered { via, refused: false }) = &input.body
            && self.give_up_alias(input, via)?
        {
            return Ok(Fate::Done);
        }
        let turn = match self.ask(input, turn)? {
            Asked::Waits => return Ok(Fate::Done),
            Asked::Nobody => turn,
            // What its aliases have still to forward may come behind it.
            Asked::NoRoom => {
                self.staged.counts.fired_late_source += 1;
                Turn {
                    late_source: true,
                    ..turn
                }
            }
        };
        let fate = self.execute(input, turn)?;
        self.follow(input, fate)
    }

    /// Applies what an input has readmitted. Where the input was begun alone, that is left to commits of their own: whatever
    /// kills the process there is not to be mistaken for this input.
    pub fn follow(&mut self, input: &Input, fate: Fate) -> Result<Fate, StorageError> {
        let id = &input.instance;
        if self.ground.isolation.is_needed(input.origin) {
            return self.readmit_alone(id, fate);
        }
        match fate {
            Fate::Readmits => self.readmit(id),
            Fate::Begins => self.admit_early(id),
            Fate::Done | Fate::Poison => Ok(fate),
        }
    }

    /// Applies one input and nothing else.
    pub fn execute(&mut self, input: &Input, turn: Turn) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let definitions = self.ground.definitions;
        let record = self.staged.records.take(self.batch, id)?;
        let mut generation = 1;
        if record.is_none() && reaches_ended(input) {
            match self.tombstone(input)? {
                Tombstone::None => {}
                Tombstone::Expired { generation: last } => generation = last.saturating_add(1),
                Tombstone::Counts(found) => return self.after_end(input, found, turn),
            }
        }
        let definition = match &record {
            Some(record) => definitions.by_hash(&record.definition),
            None => definitions.active(&id.saga),
        };
        let Some(definition) = definition else {
            if record.is_none() && is_of_parent(input) {
                let message = format!("there is no definition of saga {}", id.saga);
                return self.refuse(input, generation, &message);
            }
            return self.without_definition(input, record);
        };
        if let InputBody::Event(event) = &input.body
            && definitions.is_contested(&id.saga, &event.event_type)
            && !definition.addresses(&id.key, event, input.time, self.ground.limits)
        {
            return Ok(self.ignore(input, record, IgnoreReason::OtherKey));
        }
        if let Some(poison) = self.poison(input) {
            return self.dead_letter_poison(input, record, poison, turn);
        }
        let record = match record {
            Some(found) if replaces(input) => return self.replace(input, found, definition, turn),
            record => record,
        };
        let log_sequence = self.next_sequence();
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence,
            generation,
            again: turn.is_again(),
        };
        let trace = self.ground.watch.and_then(Watch::trace);
        let applied = catch_unwind(AssertUnwindSafe(|| {
            if let (InputBody::Control(Control::Migrate { to, .. }), Some(record)) = (&input.body, &record)
                && let Some(target) = definitions.by_hash(to)
            {
                return migrate(definition, target, id, record, input, &context);
            }
            apply_traced(definition, id, record.as_ref(), input, &context, trace)
        }));
        self.conclude(input, record, applied, log_sequence, turn)
    }

    /// Writes what the kernel has made of an input.
    pub fn conclude(
        &mut self,
        input: &Input,
        record: Option<Record>,
        applied: Applied,
        log_sequence: u64,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        match applied {
            Ok(Ok(patch)) if patch.outcome == Outcome::Ignored(IgnoreReason::Conflict) => {
                self.dead_letter(input, record, Fault::conflict(input), turn)
            }
            Ok(Ok(patch)) => self.write(input, record, patch, log_sequence, turn),
            Ok(Err(rejection)) if is_migration(input) => {
                tracing::warn!(instance = %input.instance, %rejection, "the instance keeps its version");
                Ok(self.ignore(input, record, IgnoreReason::Refused))
            }
            Ok(Err(rejection)) if is_answer(input) => {
                tracing::warn!(instance = %input.instance, %rejection, "what an operator says does not fit; the question stands");
                let refused = Patch::ignored(IgnoreReason::Refused);
                self.write(input, record, refused, log_sequence, turn)
            }
            Ok(Err(rejection)) => self.dead_letter(input, record, rejection.into(), turn),
            Err(_) => self.dead_letter(input, record, Fault::panic(), turn),
        }
    }

    /// Applies an input to a key whose instance has ended.
    fn after_end(&mut self, input: &Input, tombstone: Row, turn: Turn) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let definitions = self.ground.definitions;
        let deleted = self.batch.deleted(id)?;
        let record = match &deleted {
            None => self.batch.ended(id, tombstone.summary)?,
            // Also where the archive has not got it yet.
            Some(_) => None,
        };
        let active = definitions.active(&id.saga);
        let own = record
            .as_ref()
            .and_then(|record| definitions.by_hash(&record.definition));
        if let (InputBody::Event(event), Some(definition)) = (&input.body, active.or(own))
            && definitions.is_contested(&id.saga, &event.event_type)
            && !definition.addresses(&id.key, event, input.time, self.ground.limits)
        {
            return Ok(self.ignore(input, None, IgnoreReason::OtherKey));
        }
        if let Some(poison) = self.poison(input) {
            return self.dead_letter_poison(input, None, poison, turn);
        }
        if let InputBody::Control(Control::Operate(operation)) = &input.body
            && let Some(parent_over) = deletes(operation)
        {
            return self.delete(input, operation, parent_over, tombstone);
        }
        let log_sequence = self.next_sequence();
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence,
            generation: tombstone.generation,
            again: turn.is_again(),
        };
        let last = Last {
            generation: tombstone.generation,
            phase: tombstone.phase,
            ended: tombstone.ended,
            start: tombstone.start,
            record: record.as_ref(),
            deleted: deleted.as_ref().map(|deleted| &deleted.known),
        };
        let trace = self.ground.watch.and_then(Watch::trace);
        let applied = catch_unwind(AssertUnwindSafe(|| {
            let (active, own) = (active.map(Arc::as_ref), own.map(Arc::as_ref));
            apply_ended(active, own, id, last, input, &context, trace)
        }));
        let ended = match &applied {
            Ok(Ok(patch)) => patch.ended.as_ref().map(|summary| &summary.record),
            Ok(Err(_)) | Err(_) => None,
        };
        let after = match &applied {
            Ok(Ok(patch)) => patch.record.as_ref().or(ended),
            Ok(Err(_)) | Err(_) => None,
        };
        let same = after.is_some_and(|after| after.generation == tombstone.generation);
        // It has ended and stays so, unless it is the one that changes.
        let before = record.filter(|_| same);
        if let Some(before) = &before {
            self.reopen(id, tombstone.summary, before)?;
        }
        self.conclude(input, before, applied, log_sequence, turn)
    }

    /// An ended instance is live again.
    fn reopen(&mut self, id: &InstanceId, number: u64, record: &Record) -> Result<(), StorageError> {
        self.batch.reopen(id, number)?;
        if let Some(listing) = &record.listing {
            self.batch.delist(id, listing, &mut self.staged.statuses)?;
        }
        self.staged.uses.ended(record.definition, -1);
        self.staged.uses.live(record.definition, 1);
        Ok(())
    }

    /// Tells a parent that what it asks for cannot be.
    pub fn refuse(&mut self, input: &Input, generation: u32, message: &str) -> Result<Fate, StorageError> {
        let log_sequence = self.next_sequence();
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence,
            generation,
            again: false,
        };
        match refusal(&input.instance, input, &context, message) {
            Some(patch) => self.write(input, None, patch, log_sequence, Turn::FIRST),
            None => Ok(self.ignore(input, None, IgnoreReason::NoInstance)),
        }
    }

    /// An instance whose definition is not there waits for it, and its inputs with it, in order.
    fn without_definition(&mut self, input: &Input, record: Option<Record>) -> Result<Fate, StorageError> {
        let Some(found) = record else {
            if let Some(event_type) = self.would_start(input) {
                tracing::warn!(
                    instance = %input.instance, event_type,
                    "an event begins no instance: the saga is not among the definitions any more"
                );
            }
            return Ok(self.ignore(input, None, IgnoreReason::NoInstance));
        };
        tracing::warn!(
            instance = %input.instance, definition = %found.definition,
            "an input waits for the definition of its instance, which is not loaded"
        );
        self.staged.records.give_back(&input.instance, Some(found));
        self.wait(input, WaitReason::Unversioned)?;
        Ok(Fate::Done)
    }

    /// The type of an event by which a version of its saga began instances.
    fn would_start<'i>(&self, input: &'i Input) -> Option<&'i str> {
        let InputBody::Event(event) = &input.body else {
            return None;
        };
        let saga = &input.instance.saga;
        let interested = self.ground.definitions.interested(&event.event_type);
        let versions = interested.iter().filter(|interest| interest.saga == *saga);
        let mut versions = versions.flat_map(|interest| &interest.versions);
        versions
            .any(|version| version.start.contains(&event.event_type))
            .then_some(event.event_type.as_str())
    }

    pub fn ignore(&mut self, input: &Input, record: Option<Record>, reason: IgnoreReason) -> Fate {
        self.tell(input, Told::Outcome(Outcome::Ignored(reason), &[]));
        self.staged.records.give_back(&input.instance, record);
        Fate::Done
    }

    pub(super) fn tombstone(&self, input: &Input) -> Result<Tombstone, StorageError> {
        let Some(found) = self.batch.tombstone(&input.instance)? else {
            return Ok(Tombstone::None);
        };
        let kept_until = found
            .until
            .unwrap_or_else(|| found.ended.plus_ms(self.ground.keep.ended.as_i64()));
        Ok(if input.time <= kept_until {
            Tombstone::Counts(found)
        } else {
            Tombstone::Expired {
                generation: found.generation,
            }
        })
    }
}

/// Whether an input has no place in the order of its instance, so that it waits behind no dead letter: what an operator
/// says, and the deadline, by which the instance is to be over whatever has happened.
pub fn passes(input: &Input) -> bool {
    match &input.body {
        InputBody::Control(_) => true,
        InputBody::Timer { name } => name == DEADLINE,
        InputBody::Event(_) | InputBody::Result(_) => false,
    }
}

/// A migration that is refused leaves everything as it was, so there is nothing for an operator to decide.
const fn is_migration(input: &Input) -> bool {
    matches!(&input.body, InputBody::Control(Control::Migrate { .. }))
}

/// An answer that does not fit, a result that lacks what the step reads: the operator says it again, better.
const fn is_answer(input: &Input) -> bool {
    matches!(
        &input.body,
        InputBody::Control(Control::DecideStuck(
            StuckDecision { found: Some(_), .. } | StuckDecision { result: Some(_), .. }
        ))
    )
}

/// What stands of an ended instance in the way of a key.
pub(super) enum Tombstone {
    None,
    /// The key is free again.
    Expired {
        generation: u32,
    },
    /// The key is used up.
    Counts(Row),
}

/// Whether another saga asks.
const fn is_of_parent(input: &Input) -> bool {
    matches!(
        input.body,
        InputBody::Control(Control::Start { parent: Some(_), .. } | Control::CancelChild { .. })
    )
}
