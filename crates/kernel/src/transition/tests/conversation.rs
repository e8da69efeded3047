//! What sagas tell each other: facts that others hear, and signals to one instance.

use serde_json::{Value, json};

use super::build::{loaded, loaded_as};
use super::children::control;
use super::world::World;
use crate::input::{DomainEvent, Input, InputBody, Origin, SourceStream};
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;
use crate::work::{WorkItem, WorkKind};

/// A fact as the stream brings it to a saga that hears it.
fn heard(world: &World, item: &WorkItem) -> Input {
    let WorkKind::Fact { fact_type, payload } = &item.kind else {
        panic!("{item:?} is not a fact");
    };
    let event = DomainEvent {
        event_id: saga_runner_language::ids::EventId::parse(&item.command_id.to_string()).expect("legal"),
        event_type: fact_type.clone(),
        aggregate_type: item.instance.saga.to_string(),
        aggregate_id: item.instance.key.to_string(),
        sequence: 0,
        fact: true,
        schema_version: 1,
        correlation_id: Some(item.instance.key.to_string()),
        causation_id: None,
        traceparent: None,
        hops: item.hops,
        payload: payload.clone(),
        via: None,
    };
    let origin = Origin::Stream {
        stream: SourceStream::WorkflowEvents,
        sequence: 1,
    };
    world.input(&item.command_id.to_string(), origin, InputBody::Event(event))
}

fn facts(world: &World) -> Vec<&WorkItem> {
    let facts = world.sent.iter();
    facts
        .filter(|item| matches!(item.kind, WorkKind::Fact { .. }))
        .collect()
}

#[test]
fn a_circle_of_sagas_ends_as_a_dead_letter_though_timers_and_effects_stand_between() {
    let asking = loaded_as(
        r#"
start: Order.Placed
key: {"*": event.data.id}
events: {quote.given: {from: quotes}}
handlers:
  quote.given: {timer: {again: {after: 1m}}}
steps: {hold: {wait: {signal: stop}}}
timers:
  again: {after: 1m, emit: {publish: {type: quote.asked, payload: {id: "${key}"}}}}
"#,
    );
    let answering = loaded_as(
        r#"
start: quote.asked
reuse: always
key: {"*": event.data.id}
events: {quote.asked: {from: asking}}
steps:
  look: {effect: look}
  tell: {needs: [look], publish: {type: quote.given, payload: {id: "${key}"}}}
"#,
    );
    let (mut asking, mut answering) = (World::new(asking), World::new(answering));
    asking.event("Order.Placed", &json!({"id": "o-1"}));
    for turn in 0..16 {
        asking.advance(60_000);
        let asked = heard(&answering, facts(&asking).last().expect("asked"));
        assert_eq!(answering.must(&asked), Outcome::Applied, "turn {turn}");
        answering.succeed("steps.look", &json!({}));
        let given = heard(&asking, facts(&answering).last().expect("given"));
        let InputBody::Event(event) = &given.body else {
            unreachable!("a fact is an event")
        };
        assert_eq!(event.hops, 2 * (turn + 1));
        if turn == 15 {
            assert_eq!(asking.give(&given).expect_err("a circle").reason, "loop");
        } else {
            assert_eq!(asking.must(&given), Outcome::Applied);
        }
    }
}

const TELLING: &str = r#"
state: {init: {other: s-1}}
handlers:
  Order.Asked: {emit: {signal: {saga: seat, key: "${state.other}", name: ask, data: {for: "${key}"}}}}
steps:
  pay: {effect: pay}
  tell: {needs: [pay], signal: {saga: seat, key: "seat-${key}", name: paid}}
finally: {completed: {signal: {saga: seat, key: "seat-${key}", name: done, data: {how: "${outcome}"}}}}
"#;

fn signals(world: &World) -> Vec<(String, String, Value)> {
    let signals = world.sent.iter().filter_map(|item| match &item.kind {
        WorkKind::Saga {
            saga,
            key,
            message: crate::children::SagaMessage::Signal { name, data },
            awaited: false,
        } => {
            let data = serde_json::from_slice(data).expect("JSON");
            Some((format!("{saga}/{key}"), name.clone(), data))
        }
        _ => None,
    });
    signals.collect()
}

#[test]
fn a_signal_goes_to_one_instance_and_nothing_waits_for_it() {
    let mut world = World::new(loaded(TELLING));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.event("Order.Asked", &json!({"id": "o-1"}));
    world.succeed("steps.pay", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    let to = |to: &str, name: &str, data| (to.to_owned(), name.to_owned(), data);
    assert_eq!(
        signals(&world),
        [
            to("seat/s-1", "ask", json!({"for": "o-1"})),
            to("seat/seat-o-1", "paid", json!({})),
            to("seat/seat-o-1", "done", json!({"how": "completed"})),
        ]
    );
    assert_eq!(world.ledger(), []);
}

#[test]
fn a_signal_of_a_saga_is_heard_as_any_other_and_once() {
    let mut world = World::new(loaded(TELLING));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.event("Order.Asked", &json!({"id": "o-1"}));
    let asked = world.newest("handlers.Order.Asked[0].emit[0]").clone();
    let mut seat = World::new(loaded(
        r#"
state: {init: {for: ""}}
handlers: {signal.ask: {set: {for: "${signal.for}"}, emit: {publish: {type: seat.asked}}}}
steps: {hold: {wait: {signal: stop}}}
"#,
    ));
    seat.event("Order.Placed", &json!({"id": "s-1"}));
    let id = asked.command_id.to_string();
    assert_eq!(seat.control(&id, control(&asked)), Outcome::Applied);
    assert_eq!(
        seat.control(&id, control(&asked)),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    assert_eq!(seat.data()["for"], "o-1");
    assert_eq!(facts(&seat)[0].hops, 2, "what it causes is a hop further");
}

#[test]
fn a_chain_of_signals_is_cut_where_they_are_heard() {
    let mut seat = World::new(loaded(
        "handlers: {signal.ask: {emit: {publish: {type: seat.asked}}}}\nsteps: {hold: {wait: {signal: stop}}}\n",
    ));
    seat.event("Order.Placed", &json!({"id": "s-1"}));
    let signal = |name: &str, hops| crate::input::Control::Signal {
        name: name.to_owned(),
        data: "{}".into(),
        by: String::new(),
        hops,
    };
    let give = |seat: &mut World, control| {
        let input = seat.input("c-1", Origin::Local, InputBody::Control(control));
        seat.give(&input)
    };
    assert_eq!(
        give(&mut seat, signal("ask", 32)).expect_err("a circle").reason,
        "loop"
    );
    let unheard = give(&mut seat, signal("other", 32));
    assert_eq!(
        unheard.expect("ignored"),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    assert_eq!(
        give(&mut seat, signal("ask", 31)).expect("heard"),
        Outcome::Applied
    );
}

#[test]
fn a_signal_whose_key_is_none_is_an_error_of_its_expression() {
    let mut world = World::new(loaded(TELLING.replace("s-1", "\"\"").as_str()));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let input = world.event_input("Order.Asked", &json!({"id": "o-1"}));
    let rejection = world.give(&input).expect_err("no key");
    assert_eq!(rejection.reason, "expression");
    assert!(
        rejection
            .message
            .contains("handlers.Order.Asked[0].emit[0].signal.key"),
        "{rejection}"
    );
}
