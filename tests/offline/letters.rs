//! A history with dead letters and decisions about them, replayed: the decisions are part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use saga_runner::kernel::definition::{Definition, compile_archived};
use saga_runner::kernel::envelope::{Principal, Role};
use saga_runner::kernel::ids::{ClusterId, EventId, InstanceId, Key, TenantId, TimeMs};
use saga_runner::kernel::input::{
    Control, DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use saga_runner::kernel::letters::LetterOrder;
use saga_runner::kernel::recorded::{LetterDecision, Recorded, RecordedBody};
use saga_runner::kernel::work::WorkKind;
use saga_runner::offline::history::{History, replay};
use saga_runner::offline::world::time::Hold;
use saga_runner::offline::world::{Manner, World};
use saga_runner::storage::rows::HistoryOutcome;
use serde_json::{Value, json};

const START: TimeMs = TimeMs(1_767_225_600_000);

/// `List.Divided` fails where it divides by zero, as the timer does.
const LIST: &str = r"
apiVersion: sagas/v1
kind: Saga
name: list
start: List.Opened
key: {'List.*': event.data.list}
state:
  init: {items: [], by: 0}
handlers:
  List.Added: {set: {items: '${state.items + [event.data.n]}'}}
  List.Divided: {set: {items: '${state.items + [100 / event.data.by]}'}}
steps:
  charge:
    effect: card-charge
    with: {id: '${key}'}
    set: {receipt: '${result.receipt}'}
    on_error: {result.refused: {continue: true}}
  stay:
    wait: {event: List.Closed}
timers:
  share:
    after: 1m
    emit:
      publish: {type: list.shared, payload: {share: '${100 / state.by}'}}
";

/// `List.Held` makes later events wait for `List.Released`.
const HELD: &str = r"
apiVersion: sagas/v1
kind: Saga
name: list
start: List.Opened
key: {'List.*': event.data.list}
state:
  init: {items: []}
machine:
  initial: open
  states:
    open:
      handlers:
        List.Added:
          set: {items: '${state.items + [event.data.n]}'}
        List.Divided:
          set: {items: '${state.items + [100 / event.data.by]}'}
        List.Held: {to: held}
        List.Closed: {to: closed}
    held:
      handlers:
        List.Added: {defer: true}
        List.Divided: {defer: true}
        List.Released: {to: open}
    closed:
      final: true
";

/// A world that notes what its instance takes, as a runner records it.
struct Recording {
    world: World,
    bodies: BTreeMap<String, InputBody>,
    lines: History,
}

impl Recording {
    fn of(saga: &str) -> Self {
        let definition = compile_archived(saga).unwrap_or_else(|findings| panic!("{findings:#?}"));
        let instance = InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: definition.name.clone(),
            key: Key::parse("l-1").expect("legal"),
        };
        let mut recording = Self {
            world: World::new(Arc::new(definition), instance, START, Manner::Plain),
            bodies: BTreeMap::new(),
            lines: Vec::new(),
        };
        recording.event("open", "List.Opened", json!({}));
        recording
    }

    fn input(&mut self, id: &str, body: InputBody) -> Input {
        self.world.now = self.world.now.plus_ms(1_000);
        self.bodies.insert(id.to_owned(), body.clone());
        Input {
            instance: self.world.instance.clone(),
            id: id.to_owned(),
            time: self.world.now,
            origin: Origin::Stream {
                stream: SourceStream::AggregateEvents,
                sequence: 1,
            },
            body,
        }
    }

    fn of_event(&mut self, id: &str, event_type: &str, data: &Value) -> Input {
        let event = DomainEvent {
            event_id: EventId::parse(id).expect("legal"),
            event_type: event_type.to_owned(),
            aggregate_type: "List".to_owned(),
            aggregate_id: "l-1".to_owned(),
            sequence: self.bodies.len() as u64 + 1,
            schema_version: 1,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: false,
            payload: data.to_string().into(),
            via: None,
        };
        self.input(id, InputBody::Event(event))
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers write json! in place")]
    fn event(&mut self, id: &str, event_type: &str, data: Value) {
        let input = self.of_event(id, event_type, &data);
        self.world.give(&input);
        self.note();
    }

    fn decide(&mut self, decision: impl Into<LetterOrder>) {
        self.world.now = self.world.now.plus_ms(60_000);
        self.world.decide(decision).expect("there is a letter");
        self.note();
    }

    /// Takes over what is new in the history.
    fn note(&mut self) {
        let (definition, known) = (self.world.definition.hash.to_string(), self.lines.len());
        for (_, row) in &self.world.taken()[known..] {
            let input = match &row.outcome {
                HistoryOutcome::Retried { .. } => RecordedBody::DeadLetter(LetterDecision::Retry),
                HistoryOutcome::Discarded { .. } => RecordedBody::DeadLetter(LetterDecision::Discard),
                HistoryOutcome::Edited { original, edited, .. } => RecordedBody::EditedLetter {
                    original: serde_json::from_slice(original).expect("JSON"),
                    edited: serde_json::from_slice(edited).expect("JSON"),
                },
                _ => match row.kind.strip_prefix("timer ") {
                    Some(name) => RecordedBody::Timer {
                        name: name.to_owned(),
                    },
                    None => RecordedBody::of(&self.bodies[&row.input_id]),
                },
            };
            self.lines.push(Recorded {
                cluster: ClusterId::OFFLINE,
                tenant: "acme".to_owned(),
                saga: "list".to_owned(),
                key: "l-1".to_owned(),
                generation: 1,
                definition: definition.clone(),
                id: row.input_id.clone(),
                time_ms: row.time.0,
                input,
                outcome: row.outcome.as_str().to_owned(),
                reason: match &row.outcome {
                    HistoryOutcome::Dead { reason, .. } => Some(reason.clone()),
                    _ => None,
                },
                notes: row.notes.clone(),
                work: Vec::new(),
            });
        }
    }

    fn charge(&mut self) -> Input {
        let items = self.world.outbox.values();
        let mut effects = items.filter(|item| matches!(item.kind, WorkKind::Effect { .. }));
        let item = effects.next().expect("awaited").clone();
        let WorkKind::Effect { effect, .. } = item.kind else {
            unreachable!("looked for");
        };
        let result = WorkResult {
            command_id: item.command_id,
            effect: Some(effect),
            outcome: WorkOutcome::Succeeded {
                payload: r#"{"receipt":"r"}"#.into(),
            },
        };
        self.input(&item.command_id.to_string(), InputBody::Result(result))
    }

    fn outcomes(&self) -> Vec<(&str, &str)> {
        let lines = self.lines.iter();
        lines
            .map(|line| (line.id.as_str(), line.outcome.as_str()))
            .collect()
    }

    fn definition(&self) -> Arc<Definition> {
        Arc::clone(&self.world.definition)
    }

    /// The world does again what is recorded, also beside itself.
    fn replays(&self) {
        let definition = self.definition();
        assert_eq!(
            replay(&self.lines, None, &definition),
            Ok(None),
            "{:#?}",
            self.lines
        );
        assert_eq!(replay(&self.lines, Some(&definition), &definition), Ok(None));
    }
}

/// `List.Divided` by zero in the way of two events that came later.
fn blocked() -> Recording {
    let mut recording = Recording::of(LIST);
    recording.event("bad", "List.Divided", json!({"by": 0}));
    recording.event("one", "List.Added", json!({"n": 1}));
    recording.event("two", "List.Added", json!({"n": 2}));
    assert_eq!(recording.outcomes(), [("open", "applied"), ("bad", "dead")]);
    recording
}

#[test]
fn an_edited_event_is_replayed_with_the_data_of_the_edit() {
    let mut recording = blocked();
    recording.decide(LetterOrder {
        edited: Some(json!({"list": "l-1", "by": 4}).to_string().into()),
        principal: Principal {
            who: "ada".to_owned(),
            role: Role::Operator,
            reason: "a comma".to_owned(),
        },
        ..LetterOrder::from(LetterDecision::Retry)
    });
    let told = [
        ("open", "applied"),
        ("bad", "dead"),
        ("bad", "edited"),
        ("bad", "applied"),
        ("one", "applied"),
        ("two", "applied"),
    ];
    assert_eq!(recording.outcomes(), told);
    recording.replays();
}

#[test]
fn an_event_that_is_tried_in_vain_and_discarded_is_replayed_with_what_waited_behind_it() {
    let mut recording = blocked();
    recording.decide(LetterDecision::Retry);
    recording.decide(LetterDecision::Discard);
    recording.event("three", "List.Added", json!({"n": 3}));
    let told = [
        ("open", "applied"),
        ("bad", "dead"),
        ("bad", "retried"),
        ("bad", "dead"),
        ("bad", "discarded"),
        ("one", "applied"),
        ("two", "applied"),
        ("three", "applied"),
    ];
    assert_eq!(recording.outcomes(), told);
    recording.replays();
    // Without the last decision the instance would still wait.
    recording.lines.remove(4);
    let found = replay(&recording.lines, None, &recording.definition()).unwrap();
    assert_eq!(found.map(|found| found.input), Some(5));
}

#[test]
fn a_version_that_mends_what_was_a_dead_letter_goes_another_way_there() {
    let mut recording = blocked();
    recording.decide(LetterDecision::Discard);
    let mended = LIST.replace("[100 / event.data.by]", "[0]");
    let mended = Arc::new(compile_archived(&mended).unwrap());
    let found = replay(&recording.lines, Some(&recording.definition()), &mended).unwrap();
    assert_eq!(found.map(|found| found.input), Some(2));
}

#[test]
fn an_input_that_passes_a_dead_letter_is_replayed_in_its_place() {
    let mut recording = blocked();
    let cancel = Control::cancel("enough".to_owned());
    let input = recording.input("cancel", InputBody::Control(cancel));
    recording.world.give(&input);
    recording.note();
    recording.decide(LetterDecision::Discard);
    assert_eq!(recording.outcomes()[2], ("cancel", "applied"));
    recording.replays();
}

#[test]
fn a_deferred_event_that_becomes_a_dead_letter_is_replayed() {
    let mut recording = Recording::of(HELD);
    recording.event("hold", "List.Held", json!({}));
    recording.event("one", "List.Added", json!({"n": 1}));
    recording.event("bad", "List.Divided", json!({"by": 0}));
    recording.event("two", "List.Added", json!({"n": 2}));
    recording.event("release", "List.Released", json!({}));
    recording.decide(LetterDecision::Discard);
    let told = [
        ("release", "applied"),
        ("one", "applied"),
        ("bad", "dead"),
        ("bad", "discarded"),
        ("two", "applied"),
    ];
    assert_eq!(recording.outcomes()[5..], told);
    recording.replays();
}

#[test]
fn a_deferred_event_that_killed_the_process_when_it_was_let_in_is_replayed_as_the_dead_letter_that_it_was() {
    let mut recording = Recording::of(HELD);
    recording.event("hold", "List.Held", json!({}));
    recording.event("one", "List.Added", json!({"n": 1}));
    let bad = recording.of_event("bad", "List.Added", &json!({"n": 13}));
    recording.world.give(&bad);
    recording.note();
    recording.event("two", "List.Added", json!({"n": 2}));
    recording.world.expect_deaths([(&bad, true)]);
    recording.event("release", "List.Released", json!({}));
    recording.world.expect_deaths([]);
    recording.decide(LetterDecision::Retry);
    let told = [
        ("release", "applied"),
        ("one", "applied"),
        ("bad", "dead"),
        ("bad", "retried"),
        ("bad", "applied"),
        ("two", "applied"),
    ];
    assert_eq!(recording.outcomes()[5..], told);
    recording.replays();
}

#[test]
fn a_timer_that_is_discarded_is_replayed_as_that() {
    let mut recording = Recording::of(LIST);
    recording.world.advance(61_000, &Hold::All);
    recording.note();
    recording.event("one", "List.Added", json!({"n": 1}));
    recording.decide(LetterDecision::Discard);
    let outcomes: Vec<_> = recording.lines.iter().map(|line| line.outcome.as_str()).collect();
    assert_eq!(outcomes, ["applied", "dead", "discarded", "applied", "applied"]);
    recording.replays();
}

#[test]
fn a_result_that_killed_the_process_is_replayed_as_the_unknown_outcome_in_its_place() {
    let mut recording = Recording::of(LIST);
    let result = recording.charge();
    recording.world.give_dead(&result, "poison.crash", false);
    recording.note();
    recording.event("one", "List.Added", json!({"n": 1}));
    let outcomes: Vec<_> = recording.lines.iter().map(|line| line.outcome.as_str()).collect();
    assert_eq!(outcomes, ["applied", "dead", "applied", "applied"]);
    recording.replays();
}

#[test]
fn a_result_in_whose_place_nothing_could_be_applied_is_replayed_with_the_retry_that_applied_it() {
    let mut recording = Recording::of(LIST);
    let result = recording.charge();
    recording.world.give_dead(&result, "poison.crash", true);
    recording.note();
    recording.event("one", "List.Added", json!({"n": 1}));
    assert_eq!(recording.lines.len(), 2, "it waits");
    recording.decide(LetterDecision::Retry);
    let outcomes: Vec<_> = recording.lines.iter().map(|line| line.outcome.as_str()).collect();
    assert_eq!(outcomes, ["applied", "dead", "retried", "applied", "applied"]);
    recording.replays();
}

#[test]
fn an_event_for_which_there_was_no_room_is_replayed_where_it_was_tried_again() {
    let mut recording = blocked();
    let late = recording.of_event("late", "List.Added", &json!({"n": 9}));
    recording.world.give_dead(&late, "inbox.overflow", false);
    recording.note();
    // It is to come behind what waits already.
    let given = recording
        .world
        .decide_as_recorded("late", &LetterDecision::Retry.into());
    assert!(given.is_some());
    recording.note();
    recording.decide(LetterDecision::Discard);
    recording.world.give(&late);
    recording.note();
    let told = [
        ("late", "dead"),
        ("late", "retried"),
        ("bad", "discarded"),
        ("one", "applied"),
        ("two", "applied"),
        ("late", "applied"),
    ];
    assert_eq!(recording.outcomes()[2..], told);
    recording.replays();
}
