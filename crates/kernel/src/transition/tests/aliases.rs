//! Values by which events find an instance: registered by what it does, told to nobody else, given up at its end.

use saga_runner_language::alias::{Alias, Via};
use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded_as;
use super::world::World;
use crate::children::SagaMessage;
use crate::input::{CancelMode, Control, Input, InputBody};
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, Registered, Summary};
use crate::work::WorkKind;

const PARCEL: &str = r#"
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Delivered: {by: {tracking: event.data.no}}, Carrier.Scanned: {by: {tracking: event.data.no}}}
state: {init: {no: "", scans: 0}}
handlers:
  Carrier.Scanned: {set: {scans: "${state.scans + 1}"}}
  Parcel.Renamed: {set: {no: "${event.data.no}"}, alias: {tracking: "${event.data.no}", order: "${event.data.order}"}}
steps:
  label:
    effect: label
    with: {id: "${key}"}
    set: {no: "${result.no}"}
    fail_if: result.void
    alias: {tracking: "${state.no}"}
    compensate: {effect: void, with: {id: "${key}"}}
  deliver: {needs: [label], wait: {event: Carrier.Delivered, timeout: 1h}, alias: {receipt: "${event.data.receipt}"}}
  thank: {needs: [deliver], wait: {signal: thanked, timeout: 1h}}
"#;

/// A saga that registers, in several ways, what its events and effects bring.
pub(super) fn labelling() -> Definition {
    let text = PARCEL
        .replace("result.no", "result.id")
        .replace("result.void", "result.suspicious");
    loaded_as(&format!("{text}compensation: parallel\n"))
}

/// Holds what aliases were told against what the instance has.
pub(super) fn check_told(world: &World) {
    let mut had = Vec::new();
    for (what, key) in told(world) {
        let at = had.iter().position(|known| *known == key);
        if what == "+1" {
            assert_eq!(at, None, "{key} is registered twice");
            had.push(key);
        } else {
            had.remove(at.unwrap_or_else(|| panic!("{key} was not registered")));
        }
    }
    let has: Vec<String> = world
        .last()
        .aliases
        .iter()
        .map(|registered| registered.alias.key().to_string())
        .collect();
    assert_eq!(had, has);
    assert!(
        has.is_empty() || !world.last().phase.is_terminal(),
        "an end gives all up"
    );
}

fn packed(more: &str) -> World {
    let mut world = World::new(loaded_as(&format!("{PARCEL}{more}")));
    world.event("Parcel.Packed", &json!({"id": "o-1"}));
    world
}

fn labelled(more: &str) -> World {
    let mut world = packed(more);
    world.succeed("steps.label", &json!({"no": "T-1", "void": false}));
    world
}

fn alias(name: &str, value: &str) -> Alias {
    Alias {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

/// What the instance has registered, oldest first, each with whether it was refused.
fn registered(world: &World) -> Vec<(String, bool)> {
    let aliases = world.last().aliases.iter();
    let shown =
        aliases.map(|Registered { alias, refused }| (format!("{} {}", alias.name, alias.value), *refused));
    shown.collect()
}

fn has(aliases: &[&str]) -> Vec<(String, bool)> {
    aliases.iter().map(|alias| ((*alias).to_owned(), false)).collect()
}

/// The alias answers a generation.
fn answered(value: &str, generation: u32, refused: bool) -> Control {
    let alias = alias("tracking", value);
    let via = Via { alias, generation };
    Control::AliasAnswered { via, refused }
}

/// An event as the alias forwards it to a generation.
fn forwarded(world: &mut World, event_type: &str, value: &str, generation: u32) -> Input {
    let mut input = world.event_input(event_type, &json!({"no": value, "receipt": 7}));
    let InputBody::Event(event) = &mut input.body else {
        panic!("an event")
    };
    event.via = Some(Box::new(Via {
        alias: alias("tracking", value),
        generation,
    }));
    input
}

fn forward(world: &mut World, event_type: &str, value: &str) -> Outcome {
    let input = forwarded(world, event_type, value, 1);
    world.must(&input)
}

/// What aliases were told, in order.
fn told(world: &World) -> Vec<(String, String)> {
    let messages = world.sent.iter().filter_map(|item| match &item.kind {
        WorkKind::Saga { key, message, .. } => match message {
            SagaMessage::RegisterAlias { generation } => Some((format!("+{generation}"), key.to_string())),
            SagaMessage::ReleaseAlias { generation, hears } => {
                let sign = if *hears { "~" } else { "-" };
                Some((format!("{sign}{generation}"), key.to_string()))
            }
            other => panic!("{other:?} is not for an alias"),
        },
        _ => None,
    });
    messages.collect()
}

fn pairs(told: &[(&str, &str)]) -> Vec<(String, String)> {
    told.iter()
        .map(|(what, key)| ((*what).to_owned(), (*key).to_owned()))
        .collect()
}

#[test]
fn a_step_registers_its_alias_when_it_has_succeeded_and_the_end_gives_all_up() {
    let mut world = packed("");
    assert_eq!(told(&world), []);
    world.succeed("steps.label", &json!({"no": "T-1", "void": false}));
    assert_eq!(told(&world), pairs(&[("+1", "@alias/tracking/T-1")]));
    assert_eq!(registered(&world), has(&["tracking T-1"]));
    let item = world.newest("steps.label.alias.tracking");
    assert!(!item.kind.awaits_result());
    let WorkKind::Saga { saga, .. } = &item.kind else {
        panic!("{item:?}")
    };
    assert_eq!(saga.as_str(), "probe");

    assert_eq!(forward(&mut world, "Carrier.Delivered", "T-1"), Outcome::Applied);
    assert_eq!(registered(&world), has(&["tracking T-1", "receipt 7"]));
    let thanked = Control::Signal {
        name: "thanked".to_owned(),
        data: "{}".into(),
        by: "me".to_owned(),
        hops: 0,
    };
    world.control("s-1", thanked);
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(registered(&world), []);
    assert_eq!(
        told(&world)[2..],
        pairs(&[("-1", "@alias/tracking/T-1"), ("-1", "@alias/receipt/7")])
    );
    let released = |note: &&Note| matches!(note, Note::AliasReleased { .. });
    assert_eq!(world.notes.iter().filter(released).count(), 2);
}

#[test]
fn a_step_that_fails_registers_nothing() {
    let mut world = packed("");
    world.succeed("steps.label", &json!({"no": "T-1", "void": true}));
    assert_eq!((told(&world), world.phase()), (Vec::new(), Phase::Compensating));
    assert!(world.last().aliases.is_empty());
}

#[test]
fn a_failed_or_cancelled_instance_releases_its_aliases_once() {
    let mut world = labelled("");
    let cancel = Control::Cancel {
        reason: String::new(),
        mode: CancelMode::Compensate,
    };
    world.control("c-1", cancel);
    // Until all is undone it has the alias, and takes no events.
    assert_eq!(world.last().aliases.len(), 1);
    let ignored = forward(&mut world, "Carrier.Scanned", "T-1");
    assert_eq!(ignored, Outcome::Ignored(IgnoreReason::NoHandler));
    world.succeed("steps.label.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled);
    let expected = [("+1", "@alias/tracking/T-1"), ("-1", "@alias/tracking/T-1")];
    assert_eq!(told(&world), pairs(&expected));
}

#[test]
fn a_forwarded_event_is_an_event_like_any_other() {
    let mut world = labelled("");
    let scan = forwarded(&mut world, "Carrier.Scanned", "T-1", 1);
    assert_eq!(world.must(&scan), Outcome::Applied);
    assert_eq!(world.data()["scans"], 1);
    // A second alias brings the same event once more.
    let again = world.give(&scan);
    assert_eq!(again, Ok(Outcome::Ignored(IgnoreReason::Duplicate)));
    assert_eq!(world.data()["scans"], 1);
}

#[test]
fn an_event_that_comes_early_is_buffered_for_the_step_that_will_wait() {
    let mut world = packed("");
    world.event("Parcel.Renamed", &json!({"no": "T-0", "order": null}));
    assert_eq!(told(&world), pairs(&[("+1", "@alias/tracking/T-0")]));
    assert_eq!(forward(&mut world, "Carrier.Delivered", "T-0"), Outcome::Applied);
    assert_eq!(world.last().buffer.len(), 1);
    world.succeed("steps.label", &json!({"no": "T-0", "void": false}));
    assert!(world.last().buffer.is_empty());
    // What is registered already is not told again.
    let expected = [("+1", "@alias/tracking/T-0"), ("+1", "@alias/receipt/7")];
    assert_eq!(told(&world), pairs(&expected));
}

#[test]
fn an_event_for_an_alias_that_the_instance_does_not_have_changes_nothing() {
    let mut world = labelled("");
    let nobody = Outcome::Ignored(IgnoreReason::NoInstance);
    assert_eq!(forward(&mut world, "Carrier.Scanned", "T-2"), nobody);
    for generation in [0, 2] {
        let input = forwarded(&mut world, "Carrier.Scanned", "T-1", generation);
        assert_eq!(world.must(&input), nobody);
    }
    assert_eq!(world.data()["scans"], 0);
}

#[test]
fn a_forwarded_event_begins_nothing() {
    let mut world = World::new(loaded_as(PARCEL));
    let nobody = Outcome::Ignored(IgnoreReason::NoInstance);
    assert_eq!(forward(&mut world, "Carrier.Scanned", "T-1"), nobody);
    assert_eq!(forward(&mut world, "Parcel.Packed", "T-1"), nobody);
    assert!(world.record.is_none());
    // Nor after the end, where an event could begin the next generation.
    let mut world = labelled("reuse: always\nno_instance: dead_letter\n");
    forward(&mut world, "Carrier.Delivered", "T-1");
    world.advance(3_600_001);
    assert_eq!(world.phase(), Phase::Compensating);
    world.succeed("steps.label.compensate", &json!({}));
    let Some(Summary { record, .. }) = &world.ended else {
        panic!("it has ended")
    };
    assert!(record.aliases.is_empty());
    let ended = Outcome::Ignored(IgnoreReason::Ended);
    assert_eq!(forward(&mut world, "Carrier.Scanned", "T-1"), ended);
    assert_eq!(forward(&mut world, "Parcel.Packed", "T-1"), ended);
}

#[test]
fn a_value_is_null_or_fits() {
    let rename = |world: &mut World, no: serde_json::Value| {
        let input = world.event_input("Parcel.Renamed", &json!({"no": no, "order": null}));
        world.give(&input).map_err(|rejection| rejection.reason)
    };
    let mut world = labelled("");
    assert_eq!(rename(&mut world, json!(null)), Ok(Outcome::Applied));
    assert_eq!(rename(&mut world, json!(12)), Ok(Outcome::Applied));
    assert_eq!(registered(&world)[1], ("tracking 12".to_owned(), false));
    for bad in [
        json!(""),
        json!("x".repeat(121)),
        json!(true),
        json!([]),
        json!(0.5),
    ] {
        let refused = rename(&mut world, bad.clone());
        assert_eq!(refused, Err("alias.value"), "{bad}");
    }
}

#[test]
fn an_instance_has_a_bounded_number_of_aliases() {
    let mut world = labelled("");
    world.limits.aliases = 3;
    for no in ["T-2", "T-3", "T-2"] {
        world.event("Parcel.Renamed", &json!({"no": no, "order": null}));
    }
    let fourth = world.event_input("Parcel.Renamed", &json!({"no": "T-4", "order": null}));
    let rejection = world.give(&fourth).expect_err("too many");
    assert_eq!(rejection.reason, "alias.count");
    assert!(
        rejection
            .message
            .contains("handlers.Parcel.Renamed[0].alias.tracking"),
        "{rejection}"
    );
    assert_eq!(world.last().aliases.len(), 3);
}

/// It says so to the alias, which forgets it with the instance.
#[test]
fn an_instance_that_hears_of_its_alias_after_the_end_keeps_it() {
    let late = "after_end: {Carrier.Scanned: {when: event.data.receipt == 7, set: {scans: \"${state.scans + 100}\"}}}\n";
    let mut world = labelled(late);
    let cancel = Control::cancel(String::new());
    world.control("c-1", cancel);
    assert_eq!(forward(&mut world, "Carrier.Scanned", "T-1"), Outcome::Applied);
    assert_eq!(
        (world.phase(), world.data()["scans"].clone()),
        (Phase::Compensating, json!(100))
    );
    world.succeed("steps.label.compensate", &json!({}));
    assert!(world.ended.is_some());
    let expected = [("+1", "@alias/tracking/T-1"), ("~1", "@alias/tracking/T-1")];
    assert_eq!(told(&world), pairs(&expected));
    assert_eq!(registered(&world), has(&["tracking T-1"]));

    assert_eq!(forward(&mut world, "Carrier.Scanned", "T-1"), Outcome::Applied);
    assert_eq!(world.data()["scans"], 200);
    let ended = Outcome::Ignored(IgnoreReason::Ended);
    assert_eq!(forward(&mut world, "Carrier.Delivered", "T-1"), ended);
    assert_eq!(
        forward(&mut world, "Carrier.Scanned", "T-2"),
        ended,
        "it never had that one"
    );
    let other = forwarded(&mut world, "Carrier.Scanned", "T-1", 2);
    assert_eq!(world.must(&other), ended, "that is for another generation");
    assert_eq!(told(&world).len(), 2, "nothing is told twice");
}

#[test]
fn an_alias_that_refuses_the_instance_is_known_as_refused_until_it_takes_it() {
    let mut world = labelled("");
    let refused = |world: &World| registered(world)[0].1;
    assert_eq!(world.control("r-1", answered("T-1", 1, true)), Outcome::Applied);
    assert!(refused(&world));
    let said = |value: &str| ("tracking".to_owned(), value.to_owned());
    let (alias, value) = said("T-1");
    assert_eq!(world.notes.last(), Some(&Note::AliasRefused { alias, value }));
    let version = world.last().version;
    for id in ["r-1", "r-2"] {
        let again = world.control(id, answered("T-1", 1, true));
        assert_eq!(again, Outcome::Ignored(IgnoreReason::Duplicate));
    }
    assert_eq!(world.last().version, version, "a repetition changes nothing");
    // It is not registered once more by what would register it.
    let before = told(&world).len();
    world.event("Parcel.Renamed", &json!({"no": "T-1", "order": null}));
    assert_eq!((told(&world).len(), refused(&world)), (before, true));

    assert_eq!(world.control("r-3", answered("T-1", 1, false)), Outcome::Applied);
    assert!(!refused(&world));
    let (alias, value) = said("T-1");
    assert_eq!(world.notes.last(), Some(&Note::AliasAccepted { alias, value }));
    assert_eq!(
        told(&world).len(),
        before,
        "the instance has nothing to say about it"
    );
    // The last word counts, whatever was said before.
    assert_eq!(world.control("r-1", answered("T-1", 1, true)), Outcome::Applied);
    assert!(refused(&world));
}

#[test]
fn an_alias_answer_for_another_generation_or_value_changes_nothing() {
    let nobody = Outcome::Ignored(IgnoreReason::NoInstance);
    let mut world = World::new(loaded_as(PARCEL));
    assert_eq!(world.control("r-0", answered("T-1", 1, true)), nobody);
    let mut world = labelled("");
    for (value, generation) in [("T-1", 0), ("T-1", 2), ("T-2", 1)] {
        for refused in [true, false] {
            let ignored = world.control("r-1", answered(value, generation, refused));
            assert_eq!(ignored, nobody, "{value} {generation}");
        }
    }
    assert_eq!(registered(&world), has(&["tracking T-1"]));
}

/// Its end is told to the alias whether that has it or not: the registration may be tried again.
#[test]
fn an_instance_that_was_refused_releases_the_alias_and_hears_no_answer_after_its_end() {
    let late = "after_end: {Carrier.Scanned: {set: {scans: \"${state.scans + 100}\"}}}\n";
    for (more, sign) in [("", "-1"), (late, "~1")] {
        let mut world = labelled(more);
        world.control("r-1", answered("T-1", 1, true));
        world.control("c-1", Control::cancel(String::new()));
        // It still undoes what it did.
        assert_eq!(world.control("r-2", answered("T-1", 1, false)), Outcome::Applied);
        assert_eq!(world.control("r-3", answered("T-1", 1, true)), Outcome::Applied);
        world.succeed("steps.label.compensate", &json!({}));
        assert!(world.ended.is_some());
        let expected = [("+1", "@alias/tracking/T-1"), (sign, "@alias/tracking/T-1")];
        assert_eq!(told(&world), pairs(&expected));
        let before = world.last().clone();
        for refused in [true, false] {
            let late = world.control("r-4", answered("T-1", 1, refused));
            assert_eq!(late, Outcome::Ignored(IgnoreReason::Ended));
        }
        assert_eq!(*world.last(), before);
    }
}
