//! One instance in a partition of its own, in memory, with a clock that moves only when a case says so. The partition
//! decides as that of a shard does: it is the same machine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use saga_runner_partition::machine::opening::Terms;
use saga_runner_partition::machine::source::StreamState;
use saga_runner_partition::machine::{Keep, Partition};
use saga_runner_partition::storage::rows::{HistoryRow, Waiting};
use saga_runner_partition::storage::{Memory, StorageError};

use super::coverage::Covered;
use super::file::EventSpec;
use super::of::{Address, Of};
use crate::kernel::alias::Alias;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::duration::Millis;
use crate::kernel::envelope::callback_request;
use crate::kernel::ids::{ClusterId, CommandId, EventId, IdError, InstanceId, SagaName, TimeMs};
use crate::kernel::input::{
    Control, DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use crate::kernel::limits::Limits;
use crate::kernel::record::{Record, Summary};
use crate::kernel::view::{BlockedView, InstanceView};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use again::Taken;
use wire::Wire;

pub mod again;
mod ear;
mod given;
mod messages;
pub mod planned;
mod recorded;
pub mod time;
mod transactions;
mod wire;

pub use given::Given;

/// How inputs are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// Each once.
    #[default]
    Plain,
    /// Each is published a second time right after the first.
    Twice,
}

#[derive(Debug)]
pub struct World {
    /// That of the instance that is looked at.
    pub definition: Arc<Definition>,
    /// The instance that is looked at: inputs are for it, and what there is to see is its.
    pub instance: InstanceId,
    /// The sagas whose instances hear each other; none where a case is about one instance.
    cast: BTreeMap<SagaName, Arc<Definition>>,
    /// The instances that there have been.
    lives: BTreeSet<InstanceId>,
    /// Messages that instances of the cast have taken.
    delivered: BTreeSet<CommandId>,
    pub manner: Manner,
    pub now: TimeMs,
    pub record: Option<Record>,
    pub ended: Option<Summary>,
    /// Rows whose result is awaited.
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    /// All work ever.
    pub sent: Vec<WorkItem>,
    /// What tells each piece of work apart from others.
    pub addresses: BTreeMap<CommandId, Address>,
    /// Work whose result has been given: its deadline does not come any more.
    answered: BTreeSet<CommandId>,
    /// Idempotency keys of all work ever.
    keys: BTreeSet<String>,
    /// Branches of the definition that were run.
    pub covered: BTreeMap<SagaName, Covered>,
    wire: Arc<Wire>,
    store: Memory,
    partition: Partition,
    /// Numbers the messages from outside, and the ids of those that have none.
    messages: u64,
    /// Numbers the messages that instances send.
    carried: u64,
    /// Events that were applied.
    events: Vec<Taken>,
    /// What was read of the history of the instance, oldest first, with the log sequences.
    history: Vec<(u64, HistoryRow)>,
}

impl Clone for World {
    /// A world with rows of its own.
    fn clone(&self) -> Self {
        Self {
            definition: Arc::clone(&self.definition),
            instance: self.instance.clone(),
            cast: self.cast.clone(),
            lives: self.lives.clone(),
            delivered: self.delivered.clone(),
            manner: self.manner,
            now: self.now,
            record: self.record.clone(),
            ended: self.ended.clone(),
            outbox: self.outbox.clone(),
            sent: self.sent.clone(),
            addresses: self.addresses.clone(),
            answered: self.answered.clone(),
            keys: self.keys.clone(),
            covered: self.covered.clone(),
            wire: Arc::clone(&self.wire),
            store: self.store.copy(),
            partition: self.partition.clone(),
            messages: self.messages,
            carried: self.carried,
            events: self.events.clone(),
            history: self.history.clone(),
        }
    }
}

impl World {
    #[must_use]
    pub fn new(definition: Arc<Definition>, instance: InstanceId, start: TimeMs, manner: Manner) -> Self {
        Self::together(definition, &[], instance, start, manner)
    }

    /// A world in which instances of this saga and of `others`, if there are any, hear each other.
    #[must_use]
    pub fn together(
        definition: Arc<Definition>,
        others: &[Arc<Definition>],
        instance: InstanceId,
        start: TimeMs,
        manner: Manner,
    ) -> Self {
        let named = |definition: &Arc<Definition>| (definition.name.clone(), Arc::clone(definition));
        let mut cast: BTreeMap<_, _> = others.iter().map(named).collect();
        if !cast.is_empty() {
            cast.extend([named(&definition)]);
        }
        let mut active: Vec<_> = cast.values().cloned().collect();
        if active.is_empty() {
            active.push(Arc::clone(&definition));
        }
        let definitions = Arc::new(DefinitionSet::new(active, Vec::new()));
        let wire = Wire::new(Arc::clone(&definitions), &instance.tenant);
        let terms = Terms {
            cluster: ClusterId::OFFLINE,
            definitions,
            revision: 1,
            scheduled_tenants: Vec::new(),
            limits: Limits::default(),
            keep: Keep::default(),
            timer_hold: Millis::seconds(600),
            streams: SourceStream::ALL.map(|stream| StreamState::empty(format!("{stream:?}"))),
            standing: [None; 3],
            initial_positions: [0; 3],
            commit_inputs: 1,
            applying: None,
        };
        let store = Memory::default();
        let opened = store
            .write::<_, StorageError>(|batch| Partition::open(batch, HashMap::new(), terms))
            .expect("a store in memory without a bound takes all rows");
        Self {
            definition,
            instance,
            cast,
            lives: BTreeSet::new(),
            delivered: BTreeSet::new(),
            manner,
            now: start,
            record: None,
            ended: None,
            outbox: BTreeMap::new(),
            sent: Vec::new(),
            addresses: BTreeMap::new(),
            answered: BTreeSet::new(),
            keys: BTreeSet::new(),
            covered: BTreeMap::new(),
            wire: Arc::new(wire),
            store,
            partition: opened.partition,
            messages: 0,
            carried: 0,
            events: Vec::new(),
            history: Vec::new(),
        }
    }

    /// What tests call a piece of work that this instance has sent.
    #[must_use]
    pub fn name<'w>(&'w self, item: &'w WorkItem) -> &'w str {
        let address = self.addresses.get(&item.command_id);
        address.map_or(&item.path, |address| &address.name)
    }

    /// Whether work before had the idempotency key of this piece.
    #[must_use]
    pub fn repeats(&self, item: &WorkItem) -> bool {
        let address = self.addresses.get(&item.command_id);
        address.is_some_and(|address| address.repeats)
    }

    /// Whether `of` means this piece of work.
    #[must_use]
    pub fn is(&self, item: &WorkItem, of: &Of) -> bool {
        item.instance == self.instance && self.is_anywhere(item, of)
    }

    /// Whether `of` means this piece of work, if it is looked for at its instance.
    #[must_use]
    pub fn is_anywhere(&self, item: &WorkItem, of: &Of) -> bool {
        let address = self.addresses.get(&item.command_id);
        address.is_some_and(|address| of.means(item, address))
    }

    /// The work whose result is awaited of a case, oldest first; what another instance answers is not.
    pub fn awaited(&self) -> impl Iterator<Item = &WorkItem> {
        let awaited = self.outbox.values();
        awaited.filter(|item| !self.delivered.contains(&item.command_id))
    }

    /// Whether the answer is another instance's.
    #[must_use]
    pub fn is_delivered(&self, item: &WorkItem) -> bool {
        self.delivered.contains(&item.command_id)
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
        for (id, record) in self.others() {
            let view = InstanceView::new(id, &record, Some(self.definition_of(id)));
            bytes.extend(serde_json::to_vec(&view).expect("views are plain data"));
        }
        // A question to an alias has the place of its timer in the log, which counts what was ignored, too.
        let told = self
            .sent
            .iter()
            .filter(|item| !item.path.starts_with("aliases.ask."));
        for item in told {
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

    /// Gives a control message. All callbacks for one piece of work have one id, so the first counts, and another answer is told from a repetition.
    pub fn give_control(&mut self, control: Control) -> Given {
        self.messages += 1;
        let id = match &control {
            Control::Callback { work, .. } => callback_request(work),
            _ => format!("request-{}", self.messages),
        };
        let instance = self.instance.clone();
        let body = InputBody::Control(control);
        let input = self.message(instance, SourceStream::WorkflowCommands, id, body);
        self.give(&input)
    }

    /// Gives the result of a piece of work.
    pub fn give_result(&mut self, item: &WorkItem, outcome: WorkOutcome) -> Given {
        self.messages += 1;
        self.answered.insert(item.command_id);
        let effect = match &item.kind {
            WorkKind::Effect { effect, .. } => Some(effect.clone()),
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => None,
        };
        let result = WorkResult {
            command_id: item.command_id,
            effect,
            outcome,
        };
        let id = item.command_id.to_string();
        let body = InputBody::Result(result);
        let input = self.message(item.instance.clone(), SourceStream::WorkflowEvents, id, body);
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
}
