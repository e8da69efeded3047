//! One instance and what a shard keeps around it: outbox, due index, inbox, tombstone, and a clock that moves
//! only when a case says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::coverage::{Covered, Listener};
use super::file::EventSpec;
use super::work;
use crate::kernel::alias::{Alias, Via};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::NoInstance;
use crate::kernel::ids::{ClusterId, CommandId, EventId, IdError, InstanceId, TimeMs};
use crate::kernel::input::{
    Control, DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use crate::kernel::limits::Limits;
use crate::kernel::patch::{IgnoreReason, Note, Outcome, TimerRow};
use crate::kernel::record::{Record, Summary};
use crate::kernel::transition::{
    Context, Last, NO_INSTANCE, Rejection, Trace, apply_ended, apply_traced, reaches_ended,
};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};

/// Most inputs that one input may set free, directly or through what it sets free.
const READMITTED_MAX: usize = 10_000;

/// How inputs are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// Each once.
    #[default]
    Plain,
    /// Each is delivered a second time right after the first.
    Twice,
    /// The record is written and read back between inputs.
    Stored,
}

/// What one input came to, with what it set free.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Of the input itself; `None` for time that passed without a timer.
    pub outcome: Option<Outcome>,
    /// The first one among the input and what it set free.
    pub rejection: Option<Rejection>,
    pub work: Vec<WorkItem>,
    pub notes: Vec<Note>,
    /// A repetition or a reading back did not leave things as they were.
    pub unsteady: Option<String>,
}

impl Given {
    /// What another input brought besides.
    pub fn add(&mut self, other: Self) {
        self.outcome = self.outcome.or(other.outcome);
        self.rejection = self.rejection.take().or(other.rejection);
        self.unsteady = self.unsteady.take().or(other.unsteady);
        self.work.extend(other.work);
        self.notes.extend(other.notes);
    }
}

#[derive(Debug, Clone)]
pub struct World {
    pub definition: Arc<Definition>,
    /// Where the instance lives: its ids and keys name it.
    pub cluster: ClusterId,
    pub instance: InstanceId,
    pub manner: Manner,
    pub now: TimeMs,
    /// Of the instance; 1 unless its key was used before.
    pub generation: u32,
    pub record: Option<Record>,
    pub ended: Option<Summary>,
    /// Rows whose result is awaited.
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    pub timers: BTreeSet<TimerRow>,
    /// All work ever.
    pub sent: Vec<WorkItem>,
    /// What tests call each piece of work.
    pub names: BTreeMap<CommandId, String>,
    /// Branches of the definition that were run.
    pub covered: Covered,
    inbox: VecDeque<Input>,
    /// Events that wait for the instance to begin, each with the name of the timer at which it waits no longer.
    early: VecDeque<(String, Input)>,
    /// Events that wait for the instance to register the alias that matches them, each with its timer.
    unmatched: VecDeque<(String, Alias, Input)>,
    /// Deferred inputs that are to be given again now.
    readmitted: VecDeque<Input>,
    limits: Limits,
    log_sequence: u64,
    /// Numbers the messages of the streams, and the ids of inputs that have none.
    messages: u64,
}

impl World {
    #[must_use]
    pub fn new(definition: Arc<Definition>, instance: InstanceId, start: TimeMs, manner: Manner) -> Self {
        Self {
            definition,
            cluster: ClusterId::OFFLINE,
            instance,
            manner,
            now: start,
            generation: 1,
            record: None,
            ended: None,
            outbox: BTreeMap::new(),
            timers: BTreeSet::new(),
            sent: Vec::new(),
            names: BTreeMap::new(),
            covered: Covered::new(),
            inbox: VecDeque::new(),
            early: VecDeque::new(),
            unmatched: VecDeque::new(),
            readmitted: VecDeque::new(),
            limits: Limits::default(),
            log_sequence: 0,
            messages: 0,
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

    /// Everything that an instance leaves behind, as bytes: its record and all its work.
    #[must_use]
    pub fn digest(&self) -> Vec<u8> {
        let mut bytes = self.last().map(Record::encode).unwrap_or_default();
        for item in &self.sent {
            let item = postcard::to_stdvec(item).expect("work items are plain data");
            bytes.extend(item);
        }
        bytes
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
        let aggregate_type = spec.event_type.split('.').next().unwrap_or_default();
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
            payload: spec.data.clone(),
            via: None,
        })
    }

    /// Gives an event.
    pub fn give_event(&mut self, event: DomainEvent) -> Given {
        let id = event.event_id.as_str().to_owned();
        self.give_message(SourceStream::AggregateEvents, id, InputBody::Event(event))
    }

    /// Gives an event that is matched by an alias: at once if the instance has it, else as soon as it does.
    pub fn give_matched(&mut self, event: DomainEvent, alias: Alias) -> Given {
        let via = self.via(&alias);
        if via.is_some() {
            return self.give_event(DomainEvent { via, ..event });
        }
        let wait_ms = match self.definition.lifecycle.no_instance {
            NoInstance::Park(ms) => ms,
            NoInstance::Ignore | NoInstance::DeadLetter => self.limits.alias_wait_ms,
        };
        self.log_sequence += 1;
        let row = early_timer(self.log_sequence, self.now.plus_ms(wait_ms));
        let id = event.event_id.as_str().to_owned();
        let input = self.message(SourceStream::AggregateEvents, id, InputBody::Event(event));
        self.unmatched.push_back((row.name.clone(), alias, input));
        self.timers.insert(row);
        Given {
            outcome: Some(Outcome::Deferred),
            ..Given::default()
        }
    }

    /// How an event comes by an alias, where the instance has that.
    fn via(&self, alias: &Alias) -> Option<Box<Via>> {
        let record = self.record.as_ref()?;
        record.aliases.contains(alias).then(|| {
            Box::new(Via {
                alias: alias.clone(),
                generation: record.generation,
            })
        })
    }

    /// Lets in what waits for an alias that the instance has now.
    fn admit_matched(&mut self) {
        for (timer, alias, mut input) in std::mem::take(&mut self.unmatched) {
            match (self.via(&alias), &mut input.body) {
                (via @ Some(_), InputBody::Event(event)) => {
                    event.via = via;
                    self.timers.retain(|row| row.name != timer);
                    self.readmitted.push_back(input);
                }
                _ => self.unmatched.push_back((timer, alias, input)),
            }
        }
    }

    /// Nothing has registered the alias for which an event has waited.
    fn give_up(&self, alias: &Alias, input: &Input) -> Given {
        match self.definition.lifecycle.no_instance {
            NoInstance::DeadLetter => Given {
                rejection: Some(Rejection {
                    reason: NO_INSTANCE,
                    message: format!(
                        "event {}: no instance has the alias {} {:?}",
                        input.id, alias.name, alias.value
                    ),
                }),
                ..Given::default()
            },
            NoInstance::Ignore | NoInstance::Park(_) => Given {
                outcome: Some(Outcome::Ignored(IgnoreReason::NoInstance)),
                ..Given::default()
            },
        }
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
        let input = self.message(stream, id, body);
        self.give(&input)
    }

    fn message(&self, stream: SourceStream, id: String, body: InputBody) -> Input {
        Input {
            instance: self.instance.clone(),
            id,
            time: self.now,
            origin: Origin::Stream {
                stream,
                sequence: self.messages,
            },
            body,
        }
    }

    /// The timer that is due next.
    #[must_use]
    pub fn next_timer(&self) -> Option<&TimerRow> {
        self.timers.first()
    }

    /// Lets time pass; timers fire in the order of their due times.
    pub fn advance(&mut self, ms: i64) -> Given {
        let until = self.now.plus_ms(ms);
        let mut given = Given::default();
        while let Some(row) = self.timers.first().filter(|row| row.due <= until).cloned() {
            given.add(self.fire(row));
        }
        self.now = until;
        given
    }

    /// Fires a timer that is set, at the time when it is due.
    pub fn fire(&mut self, row: TimerRow) -> Given {
        self.timers.remove(&row);
        self.now = self.now.max(row.due);
        if let Some(at) = self.early.iter().position(|(timer, _)| *timer == row.name) {
            self.early.remove(at);
            return Given {
                outcome: Some(Outcome::Ignored(IgnoreReason::NoInstance)),
                ..Given::default()
            };
        }
        if let Some(at) = self.unmatched.iter().position(|(timer, ..)| *timer == row.name)
            && let Some((_, alias, input)) = self.unmatched.remove(at)
        {
            return self.give_up(&alias, &input);
        }
        self.give(&Input {
            instance: self.instance.clone(),
            id: format!("{}@{}", row.name, row.due.0),
            time: row.due,
            origin: Origin::Timer,
            body: InputBody::Timer { name: row.name },
        })
    }

    /// Gives an input, and what it sets free.
    pub fn give(&mut self, input: &Input) -> Given {
        let mut given = Given::default();
        let mut waiting = VecDeque::from([input.clone()]);
        for _ in 0..READMITTED_MAX {
            let Some(input) = waiting.pop_front() else {
                return given;
            };
            given.add(self.take(&input));
            // What was deferred comes again before anything new, oldest first.
            while let Some(readmitted) = self.readmitted.pop_back() {
                waiting.push_front(readmitted);
            }
        }
        given.unsteady = Some(format!("one input sets free more than {READMITTED_MAX} others"));
        given
    }

    /// Gives one input and nothing else.
    fn take(&mut self, input: &Input) -> Given {
        let mut given = self.execute(input);
        let deferred = given.outcome == Some(Outcome::Deferred);
        if self.manner == Manner::Twice && !deferred && given.rejection.is_none() {
            let before = self.digest();
            let again = self.execute(input);
            if let Some(Outcome::Applied | Outcome::Deferred) = again.outcome {
                given.unsteady = Some("the same message is applied a second time".to_owned());
            } else if before != self.digest() {
                given.unsteady = Some("a message that is ignored changes the instance".to_owned());
            }
        }
        given
    }

    fn execute(&mut self, input: &Input) -> Given {
        let context = Context {
            limits: &self.limits,
            cluster: self.cluster,
            log_sequence: self.log_sequence + 1,
            generation: self.generation,
        };
        let record = self.record.as_ref();
        let listener = Listener::default();
        let applied = match (record, &self.ended) {
            (None, Some(summary)) if reaches_ended(input) => {
                let (definition, last) = (Some(&*self.definition), Last::of(summary));
                let (id, trace) = (&self.instance, Some(&listener as &dyn Trace));
                apply_ended(definition, definition, id, last, input, &context, trace)
            }
            _ => apply_traced(
                &self.definition,
                &self.instance,
                record,
                input,
                &context,
                Some(&listener),
            ),
        };
        let patch = match applied {
            Ok(patch) => patch,
            Err(rejection) => {
                return Given {
                    rejection: Some(rejection),
                    ..Given::default()
                };
            }
        };
        self.covered.append(&mut listener.heard(&patch.notes));
        if let Outcome::Ignored(_) = patch.outcome {
            return Given {
                outcome: Some(patch.outcome),
                notes: patch.notes,
                ..Given::default()
            };
        }
        self.log_sequence += 1;
        let after = patch.ended.as_ref().map(|summary| &summary.record);
        let after = patch.record.as_ref().or(after);
        for (index, item) in (0..=u16::MAX).zip(&patch.work) {
            self.names.insert(item.command_id, work::name(item, after));
            self.sent.push(item.clone());
            if item.kind.awaits_result() {
                let row = WorkRef {
                    log_sequence: self.log_sequence,
                    index,
                };
                self.outbox.insert(row, item.clone());
            }
        }
        for row in &patch.settled {
            self.outbox.remove(row);
        }
        if let Some(until) = patch.early {
            self.keep_early(input, until);
        }
        self.timers.retain(|row| !patch.timers_cleared.contains(row));
        self.timers.extend(patch.timers_set);
        if patch.deferred {
            self.inbox.push_back(input.clone());
        }
        if patch.readmit {
            self.readmitted = std::mem::take(&mut self.inbox);
        }
        let begins = self.record.is_none() && after.is_some_and(|after| after.version == 1);
        if begins {
            for (timer, input) in std::mem::take(&mut self.early) {
                self.timers.retain(|row| row.name != timer);
                self.readmitted.push_back(input);
            }
        }
        let mut unsteady = None;
        if let Some(summary) = patch.ended {
            self.record = None;
            self.ended = Some(summary);
        } else if let Some(record) = patch.record {
            self.ended = None;
            self.record = Some(record);
        }
        self.admit_matched();
        if self.manner == Manner::Stored
            && let Some(record) = &self.record
        {
            match Record::decode(&record.encode()) {
                Ok(read) if read == *record => self.record = Some(read),
                Ok(_) => unsteady = Some("the record that is read back is another one".to_owned()),
                Err(error) => unsteady = Some(error.to_string()),
            }
        }
        Given {
            outcome: Some(patch.outcome),
            rejection: None,
            work: patch.work,
            notes: patch.notes,
            unsteady,
        }
    }

    /// Keeps an event for the instance that may begin.
    fn keep_early(&mut self, input: &Input, until: TimeMs) {
        let row = early_timer(self.log_sequence, until);
        self.early.push_back((row.name.clone(), input.clone()));
        self.timers.insert(row);
    }
}

/// The timer at which an input waits no longer.
fn early_timer(number: u64, due: TimeMs) -> TimerRow {
    TimerRow {
        due,
        set_by: WorkRef {
            log_sequence: number,
            index: 0,
        },
        name: format!("early/{number}"),
    }
}
