//! Random histories of one instance: whatever comes, a transition gives the same patch each time, and records
//! survive being stored.

use std::collections::BTreeSet;

use proptest::test_runner::TestRng;
use saga_runner::kernel::definition::Definition;
use saga_runner::kernel::ids::{ClusterId, CommandId, EventId, InstanceId, Key, TenantId, TimeMs};
use saga_runner::kernel::input::{
    Control, DomainEvent, Input, InputBody, OnConflict, Origin, WorkOutcome, WorkResult,
};
use saga_runner::kernel::limits::Limits;
use saga_runner::kernel::patch::TimerRow;
use saga_runner::kernel::record::Record;
use saga_runner::kernel::transition::{Context, apply};

use crate::hostile::mutants::{below, pick};

/// Inputs of one history.
const INPUTS: u64 = 30;
const PAYLOADS: &[&str] = &[
    "{}",
    "null",
    "[]",
    "1",
    r#"{"id":"x","status":"ok","amount":1,"items":[{"sku":"a","qty":2}],"customer":{"id":"c"}}"#,
    r#"{"order_id":"o-1","total_cents":12999,"currency":"EUR","customer":{"id":"c"},"items":[]}"#,
    r#"{"line_id":"l","grams":20000,"warehouse":"w","score":-9223372036854775808}"#,
];

/// What a request may start an instance with.
const INPUT_OBJECTS: &[&str] = &[
    "{}",
    r#"{"time":"2026-03-30T04:00:00Z"}"#,
    r#"{"customer":"c-7","total":1200,"items":["a"]}"#,
];

struct World<'d> {
    definition: &'d Definition,
    instance: InstanceId,
    limits: Limits,
    record: Option<Record>,
    sent: Vec<CommandId>,
    timers: BTreeSet<TimerRow>,
    now: TimeMs,
    log_sequence: u64,
}

pub fn run(definition: &Definition, seed: u64) {
    let mut rng = crate::hostile::rng(seed);
    let mut world = World {
        definition,
        instance: InstanceId {
            tenant: TenantId::parse("acme").unwrap(),
            saga: definition.name.clone(),
            key: Key::parse("o-1").unwrap(),
        },
        limits: Limits::default(),
        record: None,
        sent: Vec::new(),
        timers: BTreeSet::new(),
        now: TimeMs(1_767_261_600_000),
        log_sequence: 0,
    };
    for number in 0..INPUTS {
        if !world.step(&mut rng, number) {
            return;
        }
    }
}

impl World<'_> {
    /// Gives one input; false once the instance has ended.
    fn step(&mut self, rng: &mut TestRng, number: u64) -> bool {
        self.now = self.now.plus_ms(below(rng, 10_000).try_into().unwrap());
        let (id, body, time) = self.body(rng, number);
        let input = Input {
            instance: self.instance.clone(),
            id,
            time,
            origin: Origin::Local,
            body,
        };
        self.log_sequence += 1;
        let context = Context {
            limits: &self.limits,
            cluster: ClusterId::OFFLINE,
            log_sequence: self.log_sequence,
            generation: 1,
            again: false,
        };
        let given =
            |record: Option<&Record>| apply(self.definition, &self.instance, record, &input, &context);
        let patch = given(self.record.as_ref());
        assert_eq!(
            patch,
            given(self.record.as_ref()),
            "the same input gives another patch"
        );
        let stored = self
            .record
            .as_ref()
            .map(|record| Record::decode(&record.encode()).unwrap());
        assert_eq!(patch, given(stored.as_ref()), "a stored record behaves otherwise");
        // A rejection is an answer, too: nothing has changed.
        let Ok(patch) = patch else { return true };
        for timer in &patch.timers_cleared {
            assert!(self.timers.remove(timer), "{timer:?} was not set");
        }
        self.timers.extend(patch.timers_set);
        self.sent.extend(patch.work.iter().map(|item| item.command_id));
        if patch.ended.is_some() {
            return false;
        }
        if let Some(record) = patch.record {
            let bytes = record.encode().len();
            assert!(bytes <= self.limits.record_bytes, "{bytes} bytes");
            assert!(bytes <= record.encoded_bytes_at_most());
            let set: BTreeSet<TimerRow> = record.timers.values().cloned().collect();
            assert_eq!(set, self.timers, "the due index and the record differ");
            self.record = Some(record);
        }
        true
    }

    /// An input: its id, what it says, and when.
    fn body(&self, rng: &mut TestRng, number: u64) -> (String, InputBody, TimeMs) {
        let payload = *pick(rng, PAYLOADS);
        match below(rng, 10) {
            0..=3 => {
                let types = self.definition.event_types();
                let id = format!("e-{number}");
                if types.is_empty() {
                    // Started by a request or by the clock.
                    let input = (*pick(rng, INPUT_OBJECTS)).into();
                    let start = Control::Start {
                        input,
                        parent: None,
                        on_conflict: OnConflict::Fail,
                        traceparent: None,
                    };
                    return (id, InputBody::Control(start), self.now);
                }
                let event_type = (*pick(rng, &types)).to_owned();
                let event = DomainEvent {
                    event_id: EventId::parse(&id).unwrap(),
                    aggregate_type: event_type.split('.').next().unwrap_or_default().to_owned(),
                    event_type,
                    aggregate_id: "o-1".to_owned(),
                    sequence: number,
                    schema_version: 1,
                    correlation_id: None,
                    causation_id: None,
                    traceparent: None,
                    hops: 0,
                    fact: false,
                    payload: payload.into(),
                    via: None,
                };
                (id, InputBody::Event(event), self.now)
            }
            4..=6 if !self.sent.is_empty() => {
                // The latest are those that are waited for.
                let back = below(rng, self.sent.len().min(3));
                let command_id = self.sent[self.sent.len() - 1 - back];
                let outcome = match below(rng, 4) {
                    0 => WorkOutcome::failed("declined".to_owned(), "no".to_owned()),
                    1 => WorkOutcome::timed_out("who knows".to_owned()),
                    _ => WorkOutcome::Succeeded {
                        payload: payload.into(),
                    },
                };
                let result = WorkResult {
                    command_id,
                    effect: None,
                    outcome,
                };
                (command_id.to_string(), InputBody::Result(result), self.now)
            }
            7 | 8 if !self.timers.is_empty() => {
                let row = self.timers.first().cloned().unwrap();
                let id = format!("{}@{}", row.name, row.due.0);
                (id, InputBody::Timer { name: row.name }, row.due)
            }
            9 if number > 10 => {
                let control = if below(rng, 2) == 0 {
                    Control::Retry
                } else {
                    Control::cancel("enough".to_owned())
                };
                (format!("c-{number}"), InputBody::Control(control), self.now)
            }
            _ => {
                let name = "none".to_owned();
                (format!("t-{number}"), InputBody::Timer { name }, self.now)
            }
        }
    }
}
