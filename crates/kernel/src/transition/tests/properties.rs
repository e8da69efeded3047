//! Promises that hold for every history, tried on random ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use saga_runner_language::definition::{Definition, compile_archived};
use saga_runner_language::ids::CommandId;
use serde_json::{Value, json};

use super::aliases::{check_told, labelling};
use super::build::{consolidate, order};
use super::compensation::trip;
use super::deadlines::pressed;
use super::early::settling;
use super::errors::answering;
use super::finally::closing;
use super::generations::renting;
use super::heartbeats::{beat, rendering};
use super::joins::joining;
use super::reminders::nudging;
use super::retry::charging;
use super::waits::{approving, signal};
use super::world::World;
use crate::input::{CancelMode, Control, Found, StuckDecision, Verdict, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{Note, Outcome};
use crate::record::Phase;
use crate::work::WorkItem;

/// One thing that happens to an instance.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Event(usize),
    /// The outcome of one of the commands that are outstanding.
    Result {
        which: usize,
        outcome: u8,
    },
    /// A result of a command that was never sent, or long ago.
    Stray {
        which: usize,
    },
    /// An event that came before comes again.
    Again(usize),
    Advance(i64),
    Cancel,
    Retry,
    Signal,
    CancelAs(CancelMode),
    Decide(Verdict),
    /// The outcome of the steps that are stuck: whether they have happened.
    Found(bool),
}

pub(super) fn happenings(events: usize, most: usize) -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        4 => (0..events).prop_map(Happening::Event),
        8 => (0..8_usize, 0..8_u8).prop_map(|(which, outcome)| Happening::Result { which, outcome }),
        1 => (0..40_usize).prop_map(|which| Happening::Stray { which }),
        1 => (0..10_usize).prop_map(Happening::Again),
        3 => prop_oneof![0..5_000_i64, 0..3_000_000_i64].prop_map(Happening::Advance),
        1 => Just(Happening::Cancel),
        1 => Just(Happening::Retry),
        2 => Just(Happening::Signal),
    ];
    proptest::collection::vec(happening, 0..most)
}

/// The same with what an operator may decide.
pub(super) fn decisions(events: usize, most: usize) -> impl Strategy<Value = Vec<Happening>> {
    let modes = [CancelMode::Compensate, CancelMode::Drain, CancelMode::Abandon];
    let verdicts = [Verdict::Retry, Verdict::Skip, Verdict::Resolve];
    let decision = prop_oneof![
        1 => proptest::sample::select(modes.to_vec()).prop_map(Happening::CancelAs),
        2 => proptest::sample::select(verdicts.to_vec()).prop_map(Happening::Decide),
        2 => any::<bool>().prop_map(Happening::Found),
    ];
    (
        happenings(events, most),
        proptest::collection::vec((0..most, decision), 0..4),
    )
        .prop_map(|(mut happenings, decisions)| {
            for (at, decision) in decisions {
                let at = at.min(happenings.len());
                happenings.insert(at, decision);
            }
            happenings
        })
}

/// Anything that a result's `set` in these sagas reads.
pub(super) fn good() -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: json!({"id": "r-1", "score": 7, "charge_id": "c-1", "suspicious": false, "sequence": 3})
            .to_string()
            .into(),
    }
}

/// The same as an operator tells it.
fn told() -> Found {
    match good() {
        WorkOutcome::Succeeded { payload } => Found::Done {
            result: String::from_utf8(payload.to_vec()).expect("JSON"),
        },
        other => panic!("{other:?}"),
    }
}

fn outcome(kind: u8) -> WorkOutcome {
    match kind {
        0..=2 => good(),
        3..=6 => {
            let class = ["declined", "transient", "out_of_stock", "unavailable"][usize::from(kind - 3)];
            WorkOutcome::Failed {
                class: class.to_owned(),
                message: String::new(),
                refused: kind == 3 || kind == 5,
            }
        }
        _ => WorkOutcome::timed_out(String::new()),
    }
}

/// Lets everything happen. `done` counts the successes applied, by path.
pub(super) fn live(
    world: &mut World,
    events: &[(&str, Value)],
    happenings: &[Happening],
) -> BTreeMap<String, u32> {
    let mut done = BTreeMap::new();
    let mut inputs = Vec::new();
    let mut controls = 0;
    for happening in happenings {
        if world.ended.is_some() {
            break;
        }
        match happening {
            Happening::Event(which) => {
                let (event_type, payload) = &events[*which];
                let input = world.event_input(event_type, payload);
                world.must(&input);
                inputs.push(input);
            }
            Happening::Result { which, outcome: kind } => {
                let rows: Vec<_> = world.outbox.values().cloned().collect();
                if let Some(item) = rows.get(which % rows.len().max(1)) {
                    assert_eq!(world.result(item.command_id, outcome(*kind)), Outcome::Applied);
                    if *kind <= 2 {
                        *done.entry(item.path.clone()).or_default() += 1;
                    }
                }
            }
            Happening::Stray { which } => {
                let awaited: Vec<_> = world.outbox.values().map(|item| item.command_id).collect();
                let past = world.sent.get(*which).map(|item| item.command_id);
                let command = past.unwrap_or(CommandId(uuid::Uuid::from_u128(9)));
                let asked = [world.questions(), world.undo_questions()].concat();
                // Late successes of unknown outcomes have their own property, in `doubts`.
                let record = world.record.as_ref();
                let is_doubted =
                    record.is_some_and(|record| record.doubts.iter().any(|doubt| doubt.command == command));
                if !awaited.contains(&command) && (!is_doubted || asked.contains(&command)) {
                    let applied = world.result(command, good());
                    let is_asked = asked.contains(&command);
                    assert_eq!(!matches!(applied, Outcome::Ignored(_)), is_asked, "{applied:?}");
                    if is_asked {
                        *done.entry(world.path_of(command)).or_default() += 1;
                    }
                }
            }
            Happening::Again(which) => {
                if let Some(input) = inputs.get(*which).cloned() {
                    world.must(&input);
                }
            }
            Happening::Advance(ms) => world.advance(*ms),
            Happening::Cancel
            | Happening::Retry
            | Happening::Signal
            | Happening::CancelAs(_)
            | Happening::Decide(_)
            | Happening::Found(_) => {
                controls += 1;
                let asked = world.questions();
                let control = match happening {
                    Happening::Cancel => Control::cancel(String::new()),
                    Happening::CancelAs(mode) => Control::Cancel {
                        reason: String::new(),
                        mode: *mode,
                    },
                    Happening::Decide(verdict) => Control::DecideStuck(StuckDecision {
                        verdict: *verdict,
                        step: None,
                        item: None,
                        by: String::new(),
                        reason: String::new(),
                        found: None,
                        result: None,
                    }),
                    Happening::Found(happened) => Control::DecideStuck(StuckDecision {
                        verdict: Verdict::Resolve,
                        step: None,
                        item: None,
                        by: String::new(),
                        reason: String::new(),
                        found: Some(if *happened { told() } else { Found::NotDone }),
                        result: None,
                    }),
                    Happening::Signal => {
                        signal("review", &json!({"approved": controls % 4 != 0, "note": ""}))
                    }
                    _ => Control::Retry,
                };
                world.control(&format!("req-{controls}"), control);
                if let Happening::Found(true) = happening {
                    for command in asked {
                        *done.entry(world.path_of(command)).or_default() += 1;
                    }
                }
            }
        }
        if world.readmits {
            world.give_what_waits();
        }
    }
    done
}

/// Every upstream answers from now on, and an operator retries what is stuck.
pub(super) fn heal(world: &mut World, done: &mut BTreeMap<String, u32>) {
    for round in 0..100 {
        if world.readmits {
            world.give_what_waits();
        }
        let Some(item) = world.outbox.values().next_back().cloned() else {
            if world.ended.is_some() || world.record.is_none() {
                return;
            }
            let before = world.log_length();
            world.advance(3_600_000);
            world.control(&format!("heal-{round}"), Control::Retry);
            if world.outbox.is_empty() && world.log_length() == before {
                return;
            }
            continue;
        };
        world.result(item.command_id, good());
        *done.entry(item.path.clone()).or_default() += 1;
    }
}

fn order_events() -> Vec<(&'static str, Value)> {
    let placed = json!({"customer": {"id": "c-1"}, "total_cents": 5, "items": []});
    vec![
        ("Order.Placed", placed),
        ("Payment.Captured", json!({})),
        ("Order.CancelRequested", json!({})),
        ("Other.Thing", json!({})),
    ]
}

fn line_events() -> Vec<(&'static str, Value)> {
    vec![
        ("Line.Ready", json!({"line_id": "l-1", "grams": 9_000})),
        ("Line.Ready", json!({"line_id": "l-2", "grams": 100})),
        ("Dock.Accepted", json!({})),
        ("Dock.Closed", json!({})),
    ]
}

pub(super) fn check_ids(world: &World) {
    let mut ids: Vec<_> = world.sent.iter().map(|item| item.command_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), world.sent.len(), "two attempts share a command id");
    for (at, item) in world.sent.iter().enumerate() {
        for other in &world.sent[..at] {
            // Work is tried again with the same key unless it was refused.
            let repeats = item.idempotency_key == other.idempotency_key;
            let may_come_again = |earlier: &&WorkItem| {
                earlier.idempotency_key == item.idempotency_key
                    && !world.refused.contains(&earlier.command_id)
            };
            // A migration may have given the step another name.
            let same = item.path == other.path
                || item.path.replace("stay", "hotel") == other.path.replace("stay", "hotel");
            let may_repeat = same && world.sent[..at].iter().any(|item| may_come_again(&item));
            assert!(
                !repeats || may_repeat,
                "{} repeats the key of {}",
                item.path,
                other.path
            );
        }
    }
}

fn check_undone(world: &World, definition: &Definition, done: &BTreeMap<String, u32>) {
    if !matches!(world.phase(), Phase::Failed | Phase::Cancelled) {
        return;
    }
    let record = world.last();
    for (index, step) in definition.steps.iter().enumerate() {
        let succeeded = done.contains_key(&format!("steps.{}", step.name));
        let entry = record
            .ledger
            .iter()
            .find(|entry| usize::from(entry.step) == index);
        match entry {
            Some(entry) => assert_eq!(entry.status, LedgerStatus::Undone, "{}", step.name),
            None => assert!(
                !succeeded || step.compensate.is_none(),
                "{} was not undone",
                step.name
            ),
        }
        let undone = done.get(&format!("steps.{}.compensate", step.name));
        assert!(
            undone.is_none_or(|times| *times == 1),
            "{} was undone twice",
            step.name
        );
    }
    assert!(
        world.ended.is_some(),
        "all results are in, and yet the record stays"
    );
}

/// Every success is on the ledger of an instance that failed, and every entry was undone by one success.
fn check_ledger(world: &World, definition: &Definition, done: &BTreeMap<String, u32>) {
    assert!(
        world.ended.is_some(),
        "all results are in, and yet the record stays"
    );
    let times = |path: String| done.get(&path).copied().unwrap_or(0) as usize;
    for (index, step) in definition.steps.iter().enumerate() {
        let entries = world.last().ledger.iter();
        let statuses: Vec<LedgerStatus> = entries
            .filter(|entry| usize::from(entry.step) == index)
            .map(|entry| entry.status)
            .collect();
        if world.phase() == Phase::Completed {
            assert_eq!(statuses, []);
            continue;
        }
        let is_undone = |status: &&LedgerStatus| **status == LedgerStatus::Undone;
        let undone = statuses.iter().filter(is_undone).count();
        assert_eq!(statuses.len(), undone, "{}", step.name);
        let name = &step.name;
        assert!(
            step.compensate.is_none() || undone >= times(format!("steps.{name}")),
            "{name} was not undone as often as it was done"
        );
        assert_eq!(undone, times(format!("steps.{name}.compensate")), "{name}");
    }
}

/// An order that was placed, when all of this has happened and the world is well again.
pub(super) fn lived(
    definition: &Arc<Definition>,
    happenings: &[Happening],
) -> (World, BTreeMap<String, u32>) {
    let mut world = World::of(Arc::clone(definition));
    let events = [("Order.Placed", json!({})), ("Other.Thing", json!({}))];
    world.event(events[0].0, &events[0].1);
    let mut done = live(&mut world, &events, happenings);
    heal(&mut world, &mut done);
    check_ids(&world);
    (world, done)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_failed_order_is_undone_as_a_whole_under_random_inputs(happenings in happenings(4, 40)) {
        let definition = Arc::new(order());
        let mut world = World::of(Arc::clone(&definition));
        let events = order_events();
        world.event(events[0].0, &events[0].1);
        let mut done = live(&mut world, &events, &happenings);
        heal(&mut world, &mut done);
        check_ids(&world);
        check_undone(&world, &definition, &done);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
    }

    #[test]
    fn no_generation_does_the_work_of_another_under_random_inputs(happenings in happenings(4, 60)) {
        let mut world = renting(
            "reuse: always\nno_instance: {park: 1h}\nafter_end: {Order.Told: {emit: {publish: {type: order.told}}}}\n",
        );
        let events = [
            ("Order.Placed", json!({"id": "o-1", "total": 1})),
            ("Order.Imported", json!({"id": "o-1"})),
            ("Order.Dropped", json!({"id": "o-1"})),
            ("Order.Told", json!({"id": "o-1"})),
        ];
        let mut done = BTreeMap::new();
        // An end is no end here.
        for part in happenings.chunks(6) {
            let more = live(&mut world, &events, part);
            for (path, count) in more {
                *done.entry(path).or_default() += count;
            }
            let ended = world.ended.as_ref().map(|ended| ended.record.generation);
            if let Some(generation) = ended {
                world.event(events[0].0, &events[0].1);
                prop_assert_eq!(world.last().generation, generation + 1);
            }
        }
        if world.record.is_none() && world.ended.is_none() {
            return Ok(());
        }
        heal(&mut world, &mut done);
        check_ids(&world);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
        // What was refunded was charged.
        let times = |path: &str| done.get(path).copied().unwrap_or(0);
        prop_assert!(times("steps.charge.compensate") <= times("steps.charge"));
        prop_assert_eq!(world.waiting.len(), 0, "what waited was given");
    }

    #[test]
    fn an_early_end_undoes_only_late_successes_under_random_inputs(happenings in happenings(3, 30)) {
        let mut world = settling();
        let events = [
            ("Order.Settled", json!({"paid": true})),
            ("Order.Settled", json!({"paid": false})),
            ("Order.Dropped", json!({})),
        ];
        let mut done = live(&mut world, &events, &happenings);
        heal(&mut world, &mut done);
        check_ids(&world);
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        let ends = world.paths().iter().filter(|path| path.starts_with("finally.completed")).count();
        let completed = world.phase() == Phase::Completed;
        prop_assert_eq!(ends, usize::from(completed));
        let late = |name: &str| world.notes.iter().any(|note| {
            matches!(note, Note::LateResult { step, .. } if step == name)
        });
        let asked = world.last().outcome() == "unshipped";
        for name in ["reserve", "pack", "ship"] {
            let undone = done.contains_key(&format!("steps.{name}.compensate"));
            let wanted = late(name) || (asked && name == "reserve");
            prop_assert!(!completed || !undone || wanted, "{} was undone", name);
        }
        let keeps = world.last().failure.as_ref().is_some_and(|failure| failure.keep.contains(&"pack".to_owned()));
        prop_assert!(!keeps || !done.contains_key("steps.pack.compensate"), "pack was to be kept");
    }

    #[test]
    fn a_retried_step_is_undone_or_done_once_under_random_inputs(happenings in happenings(2, 40)) {
        let definition = Arc::new(charging(true));
        let (world, done) = lived(&definition, &happenings);
        check_undone(&world, &definition, &done);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
    }

    #[test]
    fn all_completed_work_is_undone_once_under_random_error_answers(happenings in happenings(2, 60)) {
        let definition = Arc::new(answering());
        let (world, done) = lived(&definition, &happenings);
        check_ledger(&world, &definition, &done);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
    }

    #[test]
    fn a_passed_deadline_undoes_all_completed_work_and_ends_under_random_inputs(happenings in happenings(2, 60)) {
        let definition = Arc::new(pressed());
        let (world, done) = lived(&definition, &happenings);
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        prop_assert!(world.timers.is_empty());
        if world.phase() != Phase::Completed {
            check_ledger(&world, &definition, &done);
        }
    }

    #[test]
    fn reminders_keep_their_distance_and_end_with_their_step_under_random_inputs(
        happenings in happenings(2, 40),
    ) {
        let mut world = World::of(Arc::new(nudging()));
        let events = [("Order.Placed", json!({})), ("Order.Hushed", json!({}))];
        world.event(events[0].0, &events[0].1);
        let short: Vec<Happening> = happenings
            .into_iter()
            .map(|happening| match happening {
                Happening::Advance(ms) => Happening::Advance(ms / 20),
                other => other,
            })
            .collect();
        live(&mut world, &events, &short);
        check_ids(&world);
        let mut times: Vec<_> = world
            .sent
            .iter()
            .filter(|item| item.path.starts_with("timers.nudge"))
            .map(|item| item.created)
            .collect();
        times.dedup();
        prop_assert!(times.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 10_000));
        if world.ended.is_some() {
            prop_assert!(world.timers.is_empty());
        }
    }

    #[test]
    fn silent_work_is_undone_as_often_as_it_was_done(
        happenings in happenings(2, 40),
        beats in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let definition = Arc::new(rendering());
        let mut world = World::of(Arc::clone(&definition));
        let events = [("Order.Placed", json!({})), ("Other.Thing", json!({}))];
        world.event(events[0].0, &events[0].1);
        let mut done = BTreeMap::new();
        for (at, (happening, alive)) in happenings.iter().zip(beats).enumerate() {
            let happening = match happening {
                Happening::Advance(ms) => Happening::Advance(ms / 100),
                other => other.clone(),
            };
            for (path, times) in live(&mut world, &events, &[happening]) {
                *done.entry(path).or_default() += times;
            }
            if alive && world.ended.is_none() {
                let control = beat(&world);
                world.control(&format!("beat-{at}"), control);
            }
        }
        heal(&mut world, &mut done);
        check_ids(&world);
        check_ledger(&world, &definition, &done);
        prop_assert!(world.timers.is_empty());
    }

    #[test]
    fn an_alias_is_registered_and_released_once_under_random_inputs(happenings in decisions(5, 40)) {
        let definition = Arc::new(labelling());
        let mut world = World::of(Arc::clone(&definition));
        let events = [
            ("Parcel.Packed", json!({"id": "o-1"})),
            ("Parcel.Renamed", json!({"no": "r-1", "order": null})),
            ("Parcel.Renamed", json!({"no": "r-2", "order": 7})),
            ("Carrier.Delivered", json!({"receipt": "r-9"})),
            ("Carrier.Scanned", json!({})),
        ];
        world.event(events[0].0, &events[0].1);
        let mut done = live(&mut world, &events, &happenings);
        check_told(&world);
        heal(&mut world, &mut done);
        check_told(&world);
        check_ids(&world);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
    }

    #[test]
    fn a_saga_that_waits_ends_with_early_and_late_inputs(happenings in happenings(3, 40)) {
        let definition = Arc::new(approving());
        let mut world = World::of(Arc::clone(&definition));
        world.limits.record_bytes = 8_000;
        let events = [
            ("Order.Placed", json!({})),
            ("Shipment.Created", json!({"parcel": "p-1"})),
            ("Other.Thing", json!({})),
        ];
        world.event(events[0].0, &events[0].1);
        let mut done = live(&mut world, &events, &happenings);
        heal(&mut world, &mut done);
        check_ids(&world);
        check_ledger(&world, &definition, &done);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
    }

    #[test]
    fn operators_decisions_undo_nothing_twice_and_leave_nothing_undecided(
        happenings in decisions(2, 60),
        parallel in any::<bool>(),
        options in (0..3_usize, 0..3_usize, 0..2_usize),
    ) {
        let on_unknown = ["compensate", "ask", "ignore"][options.0];
        let on_late = ["compensate", "accept", "ignore"][options.1];
        let on_exhausted = ["stop", "continue"][options.2];
        let of_flight = format!(", on_unknown: {on_unknown}, on_late: {on_late}, on_exhausted: {on_exhausted}");
        let mut world = trip(&of_flight, if parallel { "compensation: parallel" } else { "" });
        let events = [("Trip.Booked", json!({"id": "o-1"})), ("Trip.Other", json!({}))];
        let mut done = live(&mut world, &events, &happenings);
        heal(&mut world, &mut done);
        check_ids(&world);
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        let record = world.last();
        if record.phase != Phase::Completed {
            prop_assert!(record.ledger.iter().all(|entry| entry.status.is_over()));
        }
        for (index, step) in world.definition.steps.iter().enumerate() {
            let undone = done.get(&format!("steps.{}.compensate", step.name)).copied().unwrap_or(0);
            let entries = record.ledger.iter().filter(|entry| usize::from(entry.step) == index);
            prop_assert!(undone as usize <= entries.count(), "{} was undone {undone} times", step.name);
        }
    }

    #[test]
    fn an_outcome_is_final_and_the_end_comes_under_random_inputs(happenings in decisions(3, 40)) {
        let mut world = closing();
        let events = [("Order.Placed", json!({"id": "o-1"})), ("Order.Told", json!({})), ("Order.Other", json!({}))];
        let mut done = live(&mut world, &events, &happenings);
        let decided = (world.record.is_some() && world.phase() == Phase::Finishing).then(|| world.last().failure.clone());
        heal(&mut world, &mut done);
        check_ids(&world);
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        if let Some(failure) = decided {
            prop_assert_eq!(&world.last().failure, &failure);
        }
        let of = |outcome: &str| world.sent.iter().any(|item| item.path.starts_with(&format!("finally.{outcome}")));
        prop_assert_eq!(of("completed"), world.phase() == Phase::Completed);
        prop_assert_eq!(of("failed"), world.phase() == Phase::Failed);
    }

    #[test]
    fn every_outcome_of_needs_meets_a_join_or_makes_it_unreachable(happenings in happenings(2, 40), which in 0..4_usize) {
        let rest = [
            "join: any",
            "join: {at_least: 2}",
            "join: any, stragglers: cancel",
            "join: {at_least: 2}, stragglers: cancel, on_error: {join_unreachable: {continue: true}}",
        ];
        let definition = Arc::new(joining(rest[which]));
        let mut world = World::of(Arc::clone(&definition));
        let events = [
            ("Order.Placed", json!({"wanted": happenings.len() % 2 == 0})),
            ("Other.Thing", json!({})),
        ];
        world.event(events[0].0, &events[0].1);
        let mut done = live(&mut world, &events, &happenings);
        heal(&mut world, &mut done);
        check_ids(&world);
        prop_assert!(world.last().phase.is_terminal(), "it rests in {:?}", world.phase());
        if world.phase() != Phase::Completed {
            check_ledger(&world, &definition, &done);
        }
    }

    #[test]
    fn migrating_forth_and_back_loses_and_repeats_nothing_under_random_inputs(
        before in happenings(2, 30),
        between in happenings(2, 20),
        after in happenings(2, 30),
        returns in any::<bool>(),
    ) {
        let mut world = trip("", "");
        let first = Arc::clone(&world.definition);
        let text = first.source.replace("hotel:", "stay:").replace("[hotel]", "[stay]");
        let text = format!("{text}migrate: {{rename_steps: {{hotel: stay}}}}\n");
        let second = Arc::new(compile_archived(&text).expect("compiles"));
        let events = [("Trip.Booked", json!({"id": "o-1"})), ("Trip.Other", json!({}))];
        let mut done = BTreeMap::new();
        let mut lives = |world: &mut World, happenings: &[Happening]| {
            for (path, times) in live(world, &events, happenings) {
                *done.entry(path.replace("stay", "hotel")).or_default() += times;
            }
            world.record.is_some() && !world.phase().is_terminal()
        };
        if lives(&mut world, &before) {
            world.migrate(&second).expect("everything has a place");
            if lives(&mut world, &between) && returns {
                world.go_back(&first).expect("everything has a place");
            }
            lives(&mut world, &after);
        }
        let mut rest = BTreeMap::new();
        heal(&mut world, &mut rest);
        for (path, times) in rest {
            *done.entry(path.replace("stay", "hotel")).or_default() += times;
        }
        check_ids(&world);
        check_ledger(&world, &first, &done);
    }

    #[test]
    fn the_same_history_gives_the_same_bytes(happenings in happenings(4, 25)) {
        let histories = [(order(), order_events()), (consolidate(), line_events())];
        for (definition, events) in histories {
            let definition = Arc::new(definition);
            let run = || {
                let mut world = World::of(Arc::clone(&definition));
                live(&mut world, &events, &happenings);
                let record = world.record.as_ref().map(crate::record::Record::encode);
                let ended = world.ended.map(|summary| summary.record.encode());
                (record, ended, world.sent)
            };
            prop_assert_eq!(run(), run());
        }
    }

    #[test]
    fn no_line_is_lost_or_planned_twice(happenings in happenings(4, 60)) {
        let mut world = World::new(consolidate());
        live(&mut world, &line_events(), &happenings);
        check_ids(&world);
        if world.record.is_some() && world.phase() == Phase::Running {
            let record = world.last();
            prop_assert_eq!(record.deferred as usize, world.waiting.len());
        } else {
            prop_assert!(world.waiting.is_empty());
        }
    }
}
