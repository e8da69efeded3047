//! One instance and its surroundings: an outbox, a due index and a clock. It decides nothing: what has to wait is listed, and
//! a test gives it again with [`World::give_what_waits`].
//!
//! Every input is applied twice to the same record, which must give the same patch, and once more to the
//! record after it, which must change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use saga_runner_language::definition::Definition;
use saga_runner_language::ids::{ClusterId, CommandId, EventId, InstanceId, Key, TenantId, TimeMs};
use saga_runner_language::limits::Limits;
use serde_json::Value;

use super::super::{Context, Last, Rejection, apply, apply_ended, migrate, reaches_ended};
use crate::children::SagaMessage;
use crate::input::{Control, DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult};
use crate::ledger::LedgerStatus;
use crate::patch::{Note, Outcome, Patch, TimerRow};
use crate::record::{Phase, Record, StepStatus, Summary};
use crate::work::{WorkItem, WorkKind, WorkRef};

pub(super) struct World {
    pub definition: Arc<Definition>,
    pub instance: InstanceId,
    pub limits: Limits,
    pub cluster: ClusterId,
    /// Which an instance gets whose tombstone does not count any more.
    pub generation: u32,
    pub record: Option<Record>,
    pub ended: Option<Summary>,
    /// Rows whose result is awaited.
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    pub timers: BTreeSet<TimerRow>,
    /// Inputs that have to wait, for their instance to begin or for it to leave a state.
    pub waiting: Vec<Input>,
    /// Whether what waits is to be given again.
    pub readmits: bool,
    pub now: TimeMs,
    /// All work items ever, and all notes.
    pub sent: Vec<WorkItem>,
    pub notes: Vec<Note>,
    /// Commands that were refused.
    pub refused: BTreeSet<CommandId>,
    /// Every input and what it changed, in words.
    pub story: String,
    /// What comes has waited.
    pub again: bool,
    log_sequence: u64,
    events: u64,
}

impl World {
    pub(super) fn new(definition: Definition) -> Self {
        Self::of(Arc::new(definition))
    }

    pub(super) fn of(definition: Arc<Definition>) -> Self {
        Self {
            instance: InstanceId {
                tenant: TenantId::parse("acme").expect("legal"),
                saga: definition.name.clone(),
                key: Key::parse("o-1").expect("legal"),
            },
            definition,
            limits: Limits::default(),
            cluster: ClusterId::OFFLINE,
            generation: 1,
            record: None,
            ended: None,
            outbox: BTreeMap::new(),
            timers: BTreeSet::new(),
            waiting: Vec::new(),
            readmits: false,
            now: TimeMs(1_767_261_600_000),
            sent: Vec::new(),
            notes: Vec::new(),
            refused: BTreeSet::new(),
            story: String::new(),
            again: false,
            log_sequence: 100,
            events: 0,
        }
    }

    pub(super) fn domain_event(&mut self, event_type: &str, payload: &Value) -> DomainEvent {
        self.events += 1;
        let (aggregate_type, _) = event_type.split_once('.').expect("Aggregate.Event");
        DomainEvent {
            event_id: EventId::parse(&format!("e-{}", self.events)).expect("legal"),
            event_type: event_type.to_owned(),
            aggregate_type: aggregate_type.to_owned(),
            aggregate_id: "a-1".to_owned(),
            sequence: self.events,
            schema_version: 1,
            correlation_id: Some("root-1".to_owned()),
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: false,
            payload: Bytes::from(payload.to_string()),
            via: None,
        }
    }

    pub(super) fn input(&self, id: &str, origin: Origin, body: InputBody) -> Input {
        Input {
            instance: self.instance.clone(),
            id: id.to_owned(),
            time: self.now,
            origin,
            body,
        }
    }

    pub(super) fn event_input(&mut self, event_type: &str, payload: &Value) -> Input {
        let event = self.domain_event(event_type, payload);
        let origin = Origin::Stream {
            stream: SourceStream::AggregateEvents,
            sequence: self.events,
        };
        self.input(&event.event_id.to_string(), origin, InputBody::Event(event))
    }

    pub(super) fn event(&mut self, event_type: &str, payload: &Value) -> Outcome {
        let input = self.event_input(event_type, payload);
        self.must(&input)
    }

    pub(super) fn control(&mut self, id: &str, control: Control) -> Outcome {
        let input = self.input(id, Origin::Local, InputBody::Control(control));
        self.must(&input)
    }

    pub(super) fn succeed(&mut self, path: &str, payload: &Value) -> Outcome {
        let payload = Bytes::from(payload.to_string());
        self.resolve(path, WorkOutcome::Succeeded { payload })
    }

    pub(super) fn fail(&mut self, path: &str, class: &str) -> Outcome {
        let (class, message) = (class.to_owned(), "no".to_owned());
        self.resolve(path, WorkOutcome::failed(class, message))
    }

    /// It fails, and its upstream has refused it.
    pub(super) fn refuse(&mut self, path: &str, class: &str) -> Outcome {
        let outcome = WorkOutcome::Failed {
            class: class.to_owned(),
            message: "no".to_owned(),
            refused: true,
        };
        self.resolve(path, outcome)
    }

    pub(super) fn time_out(&mut self, path: &str) -> Outcome {
        let message = "deadline".to_owned();
        self.resolve(path, WorkOutcome::timed_out(message))
    }

    pub(super) fn resolve(&mut self, path: &str, outcome: WorkOutcome) -> Outcome {
        let item = self.outbox.values().find(|item| item.path == path);
        let command = item
            .unwrap_or_else(|| panic!("{path} is not outstanding"))
            .command_id;
        self.result(command, outcome)
    }

    pub(super) fn result(&mut self, command_id: CommandId, outcome: WorkOutcome) -> Outcome {
        if let WorkOutcome::Failed { refused: true, .. } = outcome {
            self.refused.insert(command_id);
        }
        let input = self.result_input(command_id, outcome);
        self.must(&input)
    }

    pub(super) fn result_input(&self, command_id: CommandId, outcome: WorkOutcome) -> Input {
        let item = self.sent.iter().find(|item| item.command_id == command_id);
        let effect = item.and_then(|item| match &item.kind {
            WorkKind::Effect { effect, .. } => Some(effect.clone()),
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => None,
        });
        let result = WorkResult {
            command_id,
            effect,
            outcome,
        };
        self.input(&command_id.to_string(), Origin::Local, InputBody::Result(result))
    }

    pub(super) fn timer_input(&self, row: &TimerRow) -> Input {
        let name = row.name.clone();
        Input {
            time: row.due,
            ..self.input(
                &format!("{}@{}", row.name, row.due.0),
                Origin::Timer,
                InputBody::Timer { name },
            )
        }
    }

    /// Lets time pass; timers fire in the order of their due times.
    pub(super) fn advance(&mut self, ms: i64) {
        let until = self.now.plus_ms(ms);
        while let Some(row) = self.timers.first().filter(|row| row.due <= until).cloned() {
            self.now = self.now.max(row.due);
            let input = self.timer_input(&row);
            self.timers.remove(&row);
            self.must(&input);
        }
        self.now = until;
    }

    pub(super) fn must(&mut self, input: &Input) -> Outcome {
        self.give(input)
            .unwrap_or_else(|rejection| panic!("{input:?} is rejected: {rejection}"))
    }

    pub(super) fn give(&mut self, input: &Input) -> Result<Outcome, Rejection> {
        let patch = self.apply(input)?;
        assert_eq!(
            self.apply(input).as_ref(),
            Ok(&patch),
            "the same history, another patch"
        );
        let outcome = patch.outcome;
        self.commit(patch, input);
        if outcome != Outcome::Deferred && self.ended.is_none() {
            self.repeat(input);
        }
        Ok(outcome)
    }

    /// Gives once more what has waited, in its order. The kernel must have asked for it.
    pub(super) fn give_what_waits(&mut self) {
        assert!(self.readmits, "nothing that waits is to be given");
        while std::mem::take(&mut self.readmits) {
            for _ in 0..self.waiting.len() {
                let input = self.waiting.remove(0);
                self.must(&input);
            }
        }
    }

    fn apply(&mut self, input: &Input) -> Result<Patch, Rejection> {
        let context = Context {
            limits: &self.limits,
            cluster: self.cluster,
            log_sequence: self.log_sequence,
            generation: self.generation,
            again: self.again,
        };
        if let (None, Some(summary)) = (&self.record, &self.ended)
            && reaches_ended(input)
        {
            let (definition, last) = (Some(&*self.definition), Last::of(summary));
            return apply_ended(
                definition,
                definition,
                &self.instance,
                last,
                input,
                &context,
                None,
            );
        }
        apply(
            &self.definition,
            &self.instance,
            self.record.as_ref(),
            input,
            &context,
        )
    }

    /// Goes over to another version, and works under it from then on.
    pub(super) fn migrate(&mut self, to: &Arc<Definition>) -> Result<Outcome, Rejection> {
        self.change_version(to, false)
    }

    /// Goes back to the version that it came from.
    pub(super) fn go_back(&mut self, to: &Arc<Definition>) -> Result<Outcome, Rejection> {
        self.change_version(to, true)
    }

    fn change_version(&mut self, to: &Arc<Definition>, back: bool) -> Result<Outcome, Rejection> {
        let id = format!("migrate-{}", self.log_sequence);
        let control = Control::Migrate { to: to.hash, back };
        let input = self.input(&id, Origin::Local, InputBody::Control(control));
        let record = self.record.as_ref().expect("a live instance");
        let context = Context {
            limits: &self.limits,
            cluster: self.cluster,
            log_sequence: self.log_sequence,
            generation: self.generation,
            again: self.again,
        };
        let attempt = || migrate(&self.definition, to, &self.instance, record, &input, &context);
        let patch = attempt()?;
        assert_eq!(attempt().as_ref(), Ok(&patch), "the same record, another patch");
        let outcome = patch.outcome;
        self.commit(patch, &input);
        self.definition = Arc::clone(to);
        Ok(outcome)
    }

    fn repeat(&mut self, input: &Input) {
        let again = self
            .apply(input)
            .expect("what was applied is not rejected when it is repeated");
        let is_answer = |item: &WorkItem| {
            matches!(
                &item.kind,
                WorkKind::Saga {
                    message: SagaMessage::Outcome { .. },
                    ..
                }
            )
        };
        if again.record.is_none() && again.ended.is_none() && again.work.iter().any(is_answer) {
            // Whoever asks again is told again.
            return;
        }
        assert!(
            matches!(again.outcome, Outcome::Ignored(_)),
            "{input:?} was applied twice: {again:?}"
        );
        assert_eq!(
            (again.record, again.work, again.completed),
            (None, Vec::new(), Vec::new())
        );
    }

    fn commit(&mut self, patch: Patch, input: &Input) {
        self.tell(&patch, input);
        for (index, item) in (0..=u16::MAX).zip(patch.work) {
            assert_eq!(item.instance, self.instance);
            let row = WorkRef {
                log_sequence: self.log_sequence,
                index,
            };
            self.sent.push(item.clone());
            if item.kind.awaits_result() {
                self.outbox.insert(row, item);
            }
        }
        for row in patch.completed {
            assert!(
                self.outbox.remove(&row).is_some(),
                "{row:?} is completed and not in the outbox"
            );
        }
        if let InputBody::Timer { .. } = input.body {
            // A shard takes the row of a timer that it fires.
            self.timers.retain(|row| !patch.timers_cleared.contains(row));
        } else {
            for row in &patch.timers_cleared {
                let is_known = self.timers.remove(row) || self.has_fired(row);
                assert!(is_known, "{row:?} is cleared and was not set");
            }
        }
        for row in patch.timers_set {
            assert!(self.timers.insert(row.clone()), "{row:?} is set twice");
        }
        if patch.early.is_some() || patch.deferred {
            self.waiting.push(input.clone());
        }
        let begins = self.record.is_none() && (patch.record.is_some() || patch.ended.is_some());
        self.readmits |= patch.readmit || begins;
        self.notes.extend(patch.notes);
        if let Some(record) = patch.record {
            assert!(record.encode().len() <= record.encoded_bytes_at_most());
            assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
            let of_record = record.timers.values().filter(|row| !self.has_fired(row));
            let of_record: BTreeSet<TimerRow> = of_record.cloned().collect();
            assert_eq!(self.timers, of_record, "record and due index differ");
            if self
                .ended
                .as_ref()
                .is_some_and(|ended| ended.record.generation < record.generation)
            {
                self.ended = None;
            }
            self.record = Some(record);
        }
        if let Some(summary) = patch.ended {
            assert!(self.timers.is_empty(), "an ended instance has timers");
            assert!(self.outbox.is_empty(), "an ended instance awaits results");
            self.record = None;
            self.ended = Some(summary);
        }
        self.log_sequence += 1;
    }

    /// Whether a timer has fired and waits, because its instance is paused.
    fn has_fired(&self, row: &TimerRow) -> bool {
        self.waiting.iter().any(|input| {
            matches!(&input.body, InputBody::Timer { name } if *name == row.name && input.time == row.due)
        })
    }

    fn tell(&mut self, patch: &Patch, input: &Input) {
        let mut lines = Vec::new();
        let what = match &input.body {
            InputBody::Event(event) => event.event_type.clone(),
            InputBody::Result(result) => match &result.outcome {
                WorkOutcome::Succeeded { .. } => format!("{} succeeded", result.command_id),
                WorkOutcome::Unusable { class, .. } => format!("{} unusable: {class}", result.command_id),
                WorkOutcome::Failed { class, .. } => format!("{} failed: {class}", result.command_id),
                WorkOutcome::TimedOut { .. } => format!("{} timed out", result.command_id),
            },
            InputBody::Timer { name } => format!("timer {name}"),
            InputBody::Control(control) => format!("{control:?}"),
        };
        lines.push(format!("{} {what}: {:?}", input.time, patch.outcome));
        lines.extend(patch.notes.iter().map(|note| format!("  {note:?}")));
        for item in &patch.work {
            let payload = item.kind.payload();
            lines.push(format!("  > {} #{} {}", item.path, item.attempt, item.command_id));
            lines.push(format!(
                "    {} {}",
                item.idempotency_key,
                String::from_utf8_lossy(payload)
            ));
        }
        let ended = patch.ended.as_ref().map(|summary| &summary.record);
        if let Some(record) = patch.record.as_ref().or(ended) {
            let end = if ended.is_some() { ", ended" } else { "" };
            let data = String::from_utf8_lossy(&record.data);
            lines.push(format!("  = {}{end} {data}", record.phase.as_str()));
        }
        self.story.push_str(&lines.join("\n"));
        self.story.push('\n');
    }

    /// How many inputs were given so far.
    pub(super) fn log_length(&self) -> u64 {
        self.log_sequence
    }

    /// The record, live or final.
    pub(super) fn last(&self) -> &Record {
        self.record
            .as_ref()
            .or(self.ended.as_ref().map(|summary| &summary.record))
            .expect("the instance exists")
    }

    pub(super) fn phase(&self) -> Phase {
        self.last().phase
    }

    pub(super) fn data(&self) -> Value {
        serde_json::from_slice(&self.last().data).expect("the state is JSON")
    }

    pub(super) fn statuses(&self) -> Vec<StepStatus> {
        self.last().steps.iter().map(|step| step.status).collect()
    }

    pub(super) fn ledger(&self) -> Vec<LedgerStatus> {
        self.last().ledger.iter().map(|entry| entry.status).collect()
    }

    /// Paths of all work whose result is awaited, in the order of the outbox.
    pub(super) fn outstanding(&self) -> Vec<&str> {
        self.outbox.values().map(|item| item.path.as_str()).collect()
    }

    /// Commands of steps of unknown outcome about which an operator is asked.
    pub(super) fn questions(&self) -> Vec<CommandId> {
        let Some(record) = &self.record else {
            return Vec::new();
        };
        let of_items = record.steps.iter().filter_map(|step| step.items.as_ref());
        let of_items = of_items.flat_map(|items| items.running.iter().flat_map(|item| &item.steps));
        let steps = record.steps.iter().chain(of_items);
        let questions = steps.filter_map(|step| step.question.as_ref());
        questions.map(|question| question.command).collect()
    }

    /// The same of compensations.
    pub(super) fn undo_questions(&self) -> Vec<CommandId> {
        let ledger = self.record.iter().flat_map(|record| record.ledger.iter());
        let questions = ledger.filter_map(|entry| entry.question.as_ref().map(|question| question.command));
        questions.collect()
    }

    pub(super) fn path_of(&self, command: CommandId) -> String {
        let item = self.sent.iter().find(|item| item.command_id == command);
        item.expect("it was sent").path.clone()
    }

    /// Paths of all work ever.
    pub(super) fn paths(&self) -> Vec<&str> {
        self.sent.iter().map(|item| item.path.as_str()).collect()
    }

    /// The newest work item at `path`.
    pub(super) fn newest(&self, path: &str) -> &WorkItem {
        let item = self.sent.iter().rev().find(|item| item.path == path);
        item.unwrap_or_else(|| panic!("nothing was sent for {path}"))
    }

    pub(super) fn payload(&self, path: &str) -> Value {
        serde_json::from_slice(self.newest(path).kind.payload()).expect("payloads are JSON")
    }
}
