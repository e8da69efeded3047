//! One instance in a partition of its own, in memory, with a clock that moves only when a case says so. The partition
//! decides as that of a shard does: it is the same machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use saga_runner_partition::machine::apply::Turn;
use saga_runner_partition::machine::message::{Answer, LetterDecision, Order};
use saga_runner_partition::machine::opening::Terms;
use saga_runner_partition::machine::source::StreamState;
use saga_runner_partition::machine::staging::{Run, Staged};
use saga_runner_partition::machine::watch::{Told, Watch};
use saga_runner_partition::machine::{Keep, Partition};
use saga_runner_partition::storage::read::Found;
use saga_runner_partition::storage::rows::{HistoryRow, TimerTarget, Waiting};
use saga_runner_partition::storage::{Batch, Memory, StorageError};

use super::coverage::{Covered, Listener};
use super::file::EventSpec;
use super::work;
use crate::kernel::alias::Alias;
use crate::kernel::children::SagaMessage;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::duration::Millis;
use crate::kernel::ids::{ClusterId, CommandId, EventId, IdError, InstanceId, SagaName, TimeMs};
use crate::kernel::input::{
    Control, DomainEvent, Input, InputBody, Origin, Owner, SourceStream, WorkOutcome, WorkResult,
};
use crate::kernel::limits::Limits;
use crate::kernel::patch::{Note, Outcome};
use crate::kernel::record::{Record, Summary};
use crate::kernel::transition::Trace;
use crate::kernel::view::{BlockedView, InstanceView};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};

mod recorded;

/// Most messages that one input may send to aliases and from there, directly or through what it sets free.
const MESSAGES_MAX: usize = 10_000;

/// How inputs are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// Each once.
    #[default]
    Plain,
    /// Each is published a second time right after the first.
    Twice,
}

/// What one input came to, with what it set free.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Of the input itself; `None` for time that passed without a timer.
    pub outcome: Option<Outcome>,
    /// Of the input at an alias, where it was addressed to one.
    pub at_alias: Option<Outcome>,
    /// Reason and message of the first dead letter among the input and what it set free.
    pub rejection: Option<(String, String)>,
    /// The input waits behind a dead letter.
    pub waits: bool,
    pub work: Vec<WorkItem>,
    pub notes: Vec<Note>,
    /// A repetition did not leave things as they were, or the store has failed.
    pub unsteady: Option<String>,
}

impl Given {
    /// What a case sees: what came of the input at the instance, or else at the alias that it was addressed to.
    #[must_use]
    pub fn shown(&self) -> Option<Outcome> {
        self.outcome.or(self.at_alias)
    }

    /// What another input brought besides.
    pub fn add(&mut self, other: Self) {
        self.outcome = self.outcome.or(other.outcome);
        self.at_alias = self.at_alias.or(other.at_alias);
        self.rejection = self.rejection.take().or(other.rejection);
        self.waits |= other.waits;
        self.unsteady = self.unsteady.take().or(other.unsteady);
        self.work.extend(other.work);
        self.notes.extend(other.notes);
    }
}

/// A timer that is set.
pub type Timer = (TimeMs, WorkRef, TimerTarget);

#[derive(Debug)]
pub struct World {
    pub definition: Arc<Definition>,
    pub instance: InstanceId,
    pub manner: Manner,
    pub now: TimeMs,
    pub record: Option<Record>,
    pub ended: Option<Summary>,
    /// Rows whose result is awaited.
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    /// All work ever.
    pub sent: Vec<WorkItem>,
    /// What tests call each piece of work.
    pub names: BTreeMap<CommandId, String>,
    /// Branches of the definition that were run.
    pub covered: Covered,
    store: Memory,
    partition: Partition,
    /// Numbers the messages of the streams, and the ids of inputs that have none.
    messages: u64,
    /// What was read of the history of the instance, oldest first, with the log sequences.
    history: Vec<(u64, HistoryRow)>,
}

impl Clone for World {
    /// A world with rows of its own.
    fn clone(&self) -> Self {
        Self {
            definition: Arc::clone(&self.definition),
            instance: self.instance.clone(),
            manner: self.manner,
            now: self.now,
            record: self.record.clone(),
            ended: self.ended.clone(),
            outbox: self.outbox.clone(),
            sent: self.sent.clone(),
            names: self.names.clone(),
            covered: self.covered.clone(),
            store: self.store.copy(),
            partition: self.partition.clone(),
            messages: self.messages,
            history: self.history.clone(),
        }
    }
}

/// Hears what the machine says of each input.
struct Ear<'w> {
    instance: &'w InstanceId,
    listener: Listener,
    given: RefCell<Given>,
}

impl Watch for Ear<'_> {
    fn told(&self, input: &Input, what: Told<'_>) {
        let mut given = self.given.borrow_mut();
        match what {
            Told::Outcome(outcome, notes) => {
                if input.instance == *self.instance {
                    given.outcome = given.outcome.or(Some(outcome));
                    given.notes.extend(notes.iter().cloned());
                } else {
                    given.at_alias = given.at_alias.or(Some(outcome));
                }
            }
            Told::Dead { reason, message } => {
                let dead = || (reason.to_owned(), message.to_owned());
                given.rejection.get_or_insert_with(dead);
            }
            Told::Waits => given.waits = true,
        }
    }

    fn trace(&self) -> &dyn Trace {
        &self.listener
    }
}

impl World {
    #[must_use]
    pub fn new(definition: Arc<Definition>, instance: InstanceId, start: TimeMs, manner: Manner) -> Self {
        let definitions = DefinitionSet::new(vec![Arc::clone(&definition)], Vec::new());
        let terms = Terms {
            cluster: ClusterId::OFFLINE,
            definitions: Arc::new(definitions),
            revision: 1,
            scheduled_tenants: Vec::new(),
            limits: Limits::default(),
            keep: Keep::default(),
            timer_hold: Millis::seconds(600),
            streams: SourceStream::ALL.map(|stream| StreamState::empty(format!("{stream:?}"))),
            standing: [None; 3],
            initial_positions: [0; 3],
            commit_inputs: 1,
        };
        let store = Memory::default();
        let opened = store
            .write::<_, StorageError>(|batch| Partition::open(batch, HashMap::new(), terms))
            .expect("a store in memory without a bound takes all rows");
        Self {
            definition,
            instance,
            manner,
            now: start,
            record: None,
            ended: None,
            outbox: BTreeMap::new(),
            sent: Vec::new(),
            names: BTreeMap::new(),
            covered: Covered::new(),
            store,
            partition: opened.partition,
            messages: 0,
            history: Vec::new(),
        }
    }

    /// What tests call a piece of work that this instance has sent.
    #[must_use]
    pub fn name<'w>(&'w self, item: &'w WorkItem) -> &'w str {
        self.names.get(&item.command_id).unwrap_or(&item.path)
    }

    /// The record, live or final.
    #[must_use]
    pub fn last(&self) -> Option<&Record> {
        self.record
            .as_ref()
            .or(self.ended.as_ref().map(|summary| &summary.record))
    }

    /// Whether inputs of the instance wait behind a dead letter.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let waiting = self.partition.waiting.get(&self.instance);
        waiting.is_some_and(Waiting::is_blocked)
    }

    /// Everything that an instance leaves behind, as bytes: what there is to see of it, and all its work. Rows are numbered
    /// by all inputs, those without effect included, so their numbers are left out.
    #[must_use]
    pub fn digest(&self) -> Vec<u8> {
        let mut bytes = self.view().map_or_else(Vec::new, |view| {
            serde_json::to_vec(&view).expect("views are plain data")
        });
        for item in &self.sent {
            let item = postcard::to_stdvec(item).expect("work items are plain data");
            bytes.extend(item);
        }
        bytes
    }

    /// What there is to see of the instance.
    #[must_use]
    pub fn view(&self) -> Option<InstanceView> {
        let definition = Some(&*self.definition);
        match (&self.record, &self.ended) {
            (Some(record), _) => Some(InstanceView {
                blocked_by: self.blocked_by(record),
                ..InstanceView::new(&self.instance, record, definition)
            }),
            (None, Some(summary)) => Some(InstanceView::ended(&self.instance, summary, definition)),
            (None, None) => None,
        }
    }

    /// By the rule of everyone who shows an instance. Nobody decides here on a dead letter, so it has no id.
    fn blocked_by(&self, record: &Record) -> Option<BlockedView> {
        let mut kept = self.store.reader().kept(&self.instance).unwrap_or_default();
        if let Some((letter, _)) = &mut kept.behind {
            letter.id = None;
        }
        BlockedView::of(record, kept, self.now)
    }

    /// The event that `spec` describes, with the next message's number.
    ///
    /// # Errors
    /// [`IdError`] where its id is none.
    pub fn event(&mut self, spec: &EventSpec) -> Result<DomainEvent, IdError> {
        self.messages += 1;
        let id = match &spec.id {
            Some(id) => EventId::parse(id)?,
            None => EventId::parse(&format!("event-{}", self.messages))?,
        };
        let publishers = self.definition.publishers(&spec.event_type);
        let publisher = spec.from.as_deref().or(publishers.first().map(SagaName::as_str));
        let aggregate_type =
            publisher.unwrap_or_else(|| spec.event_type.split('.').next().unwrap_or_default());
        Ok(DomainEvent {
            event_id: id,
            event_type: spec.event_type.clone(),
            aggregate_type: aggregate_type.to_owned(),
            aggregate_id: spec
                .aggregate_id
                .clone()
                .unwrap_or_else(|| format!("{}-1", aggregate_type.to_lowercase())),
            sequence: self.messages,
            schema_version: spec.version,
            correlation_id: spec.correlation_id.clone(),
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: publisher.is_some(),
            payload: spec.data.clone(),
            via: None,
        })
    }

    /// Gives an event.
    pub fn give_event(&mut self, event: DomainEvent) -> Given {
        let instance = self.instance.clone();
        self.give_to(instance, event)
    }

    /// Gives an event that is matched by an alias: at once if the instance has it, else as soon as it does.
    pub fn give_matched(&mut self, event: DomainEvent, alias: &Alias) -> Given {
        let address = alias.address(&self.instance.tenant, &self.instance.saga);
        self.give_to(address, event)
    }

    fn give_to(&mut self, instance: InstanceId, event: DomainEvent) -> Given {
        let id = event.event_id.as_str().to_owned();
        let input = self.message(
            instance,
            SourceStream::AggregateEvents,
            id,
            InputBody::Event(event),
        );
        self.give(&input)
    }

    /// Gives a control message.
    pub fn give_control(&mut self, control: Control) -> Given {
        self.messages += 1;
        let id = format!("request-{}", self.messages);
        self.give_message(SourceStream::WorkflowCommands, id, InputBody::Control(control))
    }

    /// Gives the result of a piece of work.
    pub fn give_result(&mut self, item: &WorkItem, outcome: WorkOutcome) -> Given {
        self.messages += 1;
        let effect = match &item.kind {
            WorkKind::Effect { effect, .. } => Some(effect.clone()),
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Recall { .. } => None,
        };
        let result = WorkResult {
            command_id: item.command_id,
            effect,
            outcome,
        };
        let id = item.command_id.to_string();
        self.give_message(SourceStream::WorkflowEvents, id, InputBody::Result(result))
    }

    fn give_message(&mut self, stream: SourceStream, id: String, body: InputBody) -> Given {
        let input = self.message(self.instance.clone(), stream, id, body);
        self.give(&input)
    }

    fn message(&self, instance: InstanceId, stream: SourceStream, id: String, body: InputBody) -> Input {
        Input {
            instance,
            id,
            time: self.now,
            origin: Origin::Stream {
                stream,
                sequence: self.messages,
            },
            body,
        }
    }

    /// An operator decides about the dead letter behind which inputs of the instance wait.
    ///
    /// # Errors
    /// A sentence, where there is none.
    pub fn decide(&mut self, decision: LetterDecision) -> Result<Given, String> {
        let waiting = self.partition.waiting.get(&self.instance);
        let number = waiting
            .and_then(|waiting| waiting.behind)
            .ok_or("no dead letter stands before the instance")?;
        let tenant = self.instance.tenant.clone();
        let mut answer: Option<Answer> = None;
        let given = self.transact(|run| {
            answer = run.carry_out(Order::Decision {
                tenant: &tenant,
                number,
                decision,
            })?;
            Ok(())
        });
        match answer {
            Some(Err(refused)) => Err(refused.to_string()),
            Some(Ok(())) | None => Ok(given),
        }
    }

    /// The timer that is due next.
    #[must_use]
    pub fn next_timer(&self) -> Option<Timer> {
        self.store.reader().timers(None, 1).ok()?.into_iter().next()
    }

    /// Lets time pass; timers fire in the order of their due times.
    pub fn advance(&mut self, ms: i64) -> Given {
        let until = self.now.plus_ms(ms);
        let mut given = Given::default();
        while let Some(timer) = self.next_timer().filter(|(due, ..)| *due <= until) {
            given.add(self.fire(timer));
        }
        self.now = until;
        given
    }

    /// Fires a timer that is set, at the time when it is due.
    pub fn fire(&mut self, (due, set_by, target): Timer) -> Given {
        self.now = self.now.max(due);
        self.transact(|run| run.fire_one(due, set_by, target, false))
    }

    /// Gives an input, and what it sets free.
    pub fn give(&mut self, input: &Input) -> Given {
        let mut given = self.take(input);
        let is_kept = given.shown() == Some(Outcome::Deferred) || given.waits;
        if self.manner == Manner::Twice && given.rejection.is_none() && !is_kept {
            let (before, sent) = (self.last().map(plain), self.sent.len());
            let again = self.take(input);
            if let Some(Outcome::Applied | Outcome::Deferred) = again.outcome {
                given.unsteady = Some("the same message is applied a second time".to_owned());
            } else if before != self.last().map(plain) || sent != self.sent.len() {
                given.unsteady = Some("a message that is ignored changes the instance".to_owned());
            }
        }
        given
    }

    fn take(&mut self, input: &Input) -> Given {
        self.transact(|run| run.take(input, Turn::FIRST))
    }

    /// Runs one transaction of the machine, and then those of the messages that it sends to aliases and from there.
    fn transact(&mut self, work: impl FnOnce(&mut Run<'_>) -> Result<(), StorageError>) -> Given {
        let mut inputs = VecDeque::new();
        let mut given = self.commit(work, &mut inputs);
        let mut rest = MESSAGES_MAX;
        loop {
            let Some((row, input)) = inputs.pop_front() else {
                // An alias that was asked answers at a timer of its own, which is due.
                let Some((due, set_by, target)) = self.question() else {
                    break;
                };
                let more = self.commit(|run| run.fire_one(due, set_by, target, false), &mut inputs);
                given.add(more);
                continue;
            };
            if rest == 0 {
                let message = format!("one input sends more than {MESSAGES_MAX} messages to aliases");
                given.unsteady.get_or_insert(message);
                break;
            }
            rest -= 1;
            let more = self.commit(
                |run| {
                    run.carry_out(Order::Delivered(&[row]))?;
                    run.take(&input, Turn::FIRST)
                },
                &mut inputs,
            );
            given.add(more);
        }
        given
    }

    /// A timer of an alias that is due.
    fn question(&self) -> Option<Timer> {
        let has_aliases = self
            .record
            .as_ref()
            .is_some_and(|record| !record.aliases.is_empty());
        let timers = has_aliases.then(|| self.store.reader().timers(None, usize::MAX).ok())??;
        let is_it = |(due, _, target): &Timer| *due <= self.now && Alias::of(&target.instance.key).is_some();
        timers.into_iter().find(is_it)
    }

    /// One transaction; `inputs` gets what it sends to aliases, and from aliases to the instance.
    fn commit(
        &mut self,
        work: impl FnOnce(&mut Run<'_>) -> Result<(), StorageError>,
        inputs: &mut VecDeque<(WorkRef, Input)>,
    ) -> Given {
        let ear = Ear {
            instance: &self.instance,
            listener: Listener::default(),
            given: RefCell::default(),
        };
        let mut staged = self.partition.stage();
        let (partition, now) = (&self.partition, self.now);
        let committed = self.store.write::<_, StorageError>(|batch: &Batch<'_>| {
            let mut run = partition.run_in(batch, &mut staged, now);
            run.ground.watch = Some(&ear);
            work(&mut run)?;
            partition.finish(batch, &mut staged, now, false)
        });
        let Ear { listener, given, .. } = ear;
        let mut given = given.into_inner();
        let found = match committed {
            Ok(found) => found,
            Err(error) => {
                given.unsteady = Some(error.to_string());
                return given;
            }
        };
        self.partition.adopt(&mut staged, found);
        if given.rejection.is_none() {
            self.covered.append(&mut listener.heard(&given.notes));
        }
        self.look();
        self.release(staged, &mut given, inputs);
        given
    }

    /// Reads the instance back.
    fn look(&mut self) {
        let found = self.store.reader().instance(&self.instance).ok().flatten();
        (self.record, self.ended) = match found {
            Some(Found::Live(record)) => (Some(record), None),
            Some(Found::Ended(summary)) => (None, Some(summary)),
            None => (None, None),
        };
    }

    /// Takes over the work that a commit has made true.
    fn release(&mut self, staged: Staged, given: &mut Given, inputs: &mut VecDeque<(WorkRef, Input)>) {
        let is_own = |item: &WorkItem| item.instance == self.instance;
        for (row, item) in staged.work {
            if let Some(input) = self.to_alias(&item) {
                inputs.push_back((row, input));
            }
            if !is_own(&item) {
                continue;
            }
            let record = self
                .record
                .as_ref()
                .or(self.ended.as_ref().map(|ended| &ended.record));
            self.names.insert(item.command_id, work::name(&item, record));
            self.sent.push(item.clone());
            if item.kind.awaits_result() {
                self.outbox.insert(row, item.clone());
            }
            given.work.push(item);
        }
        for row in &staged.settled {
            self.outbox.remove(row);
        }
    }

    /// A message to an alias, or from one to the instance, as the input that it becomes.
    fn to_alias(&self, item: &WorkItem) -> Option<Input> {
        let WorkKind::Saga {
            saga, key, message, ..
        } = &item.kind
        else {
            return None;
        };
        let owner = |generation: u32| Owner {
            key: item.instance.key.clone(),
            generation,
        };
        let (id, body) = match message {
            SagaMessage::RegisterAlias { generation } => {
                let owner = owner(*generation);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::RegisterAlias { owner }))
            }
            SagaMessage::ReleaseAlias { generation, hears } => {
                let (owner, hears) = (owner(*generation), *hears);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::ReleaseAlias { owner, hears }))
            }
            SagaMessage::AskAlias(question) => {
                let (key, question) = (item.instance.key.clone(), *question);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::AskAlias { key, question }))
            }
            SagaMessage::AliasRead { question, late } => {
                let (question, late) = (*question, *late);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::AliasRead { question, late }))
            }
            SagaMessage::Forward(forwarded) => {
                let id = forwarded.event.event_id.as_str().to_owned();
                (id, InputBody::Event(forwarded.event.clone()))
            }
            SagaMessage::Start { .. }
            | SagaMessage::Recall { .. }
            | SagaMessage::Signal { .. }
            | SagaMessage::Outcome { .. } => {
                return None;
            }
        };
        Some(Input {
            instance: InstanceId {
                tenant: item.instance.tenant.clone(),
                saga: saga.clone(),
                key: key.clone(),
            },
            id,
            time: self.now,
            origin: Origin::Stream {
                stream: SourceStream::WorkflowCommands,
                sequence: self.messages,
            },
            body,
        })
    }
}

/// A record without where its history stands, which counts ignored inputs, too.
fn plain(record: &Record) -> Record {
    Record {
        last_history: None,
        ..record.clone()
    }
}
