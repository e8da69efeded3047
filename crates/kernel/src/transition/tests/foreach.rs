//! Loops over a list: the window, results in order, items that fail, what is undone, a thousand items.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::input::{Control, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::record::{Phase, StepStatus};
use crate::view::InstanceView;
use crate::work::WorkItem;

fn placed(steps: &str, items: &Value) -> World {
    let mut world = World::of(Arc::new(loaded(&saga(steps))));
    world.event("Order.Placed", &json!({"items": items}));
    world
}

fn saga(steps: &str) -> String {
    format!(
        "state: {{init: {{items: [], done: 0}}}}\nhandlers:\n  Order.Placed: {{set: {{items: \"${{event.data.items}}\"}}}}\n{steps}"
    )
}

const LINES: &str = r#"
steps:
  lines:
    foreach: {over: state.items, as: line, parallel: 2}
    effect: reserve
    with: {sku: "${line.sku}", at: "${index}"}
    set: {reserved: "${result}"}
    compensate: {effect: release, on_unknown: ignore, with: {id: "${result.id}", sku: "${input.sku}"}}
  ship: {needs: [lines], effect: ship}
"#;
const LINE: &str = "steps.lines.item";
const UNDO: &str = "steps.lines.item.compensate";

fn skus(count: usize) -> Value {
    (0..count).map(|n| json!({"sku": format!("s{n}")})).collect()
}

fn payload(item: &WorkItem) -> Value {
    let payload = item.kind.payload();
    serde_json::from_slice(payload).expect("JSON")
}

/// Gives the outcome of the outstanding work whose payload has `name` = `value`.
fn resolve(world: &mut World, name: &str, value: &Value, outcome: WorkOutcome) {
    let command = world
        .outbox
        .values()
        .find(|item| payload(item)[name] == *value)
        .unwrap_or_else(|| panic!("{name} = {value} is not outstanding"))
        .command_id;
    world.result(command, outcome);
}

fn ok(result: &Value) -> WorkOutcome {
    let payload = result.to_string().into();
    WorkOutcome::Succeeded { payload }
}

fn no(class: &str) -> WorkOutcome {
    WorkOutcome::failed(class.to_owned(), "no".to_owned())
}

#[test]
fn a_window_of_items_runs_and_results_come_in_the_order_of_the_items() {
    let mut world = placed(LINES, &skus(4));
    assert_eq!(world.outstanding(), [LINE, LINE]);
    resolve(&mut world, "at", &json!(1), ok(&json!({"id": 11})));
    resolve(&mut world, "at", &json!(2), ok(&json!({"id": 12})));
    assert_eq!(world.outstanding().len(), 2, "one begins as another ends");
    resolve(&mut world, "at", &json!(3), ok(&json!({"id": 13})));
    assert_eq!(world.outstanding(), [LINE]);
    resolve(&mut world, "at", &json!(0), ok(&json!({"id": 10})));
    assert_eq!(
        world.data()["reserved"],
        json!([{"id": 10}, {"id": 11}, {"id": 12}, {"id": 13}])
    );
    assert_eq!(world.outstanding(), ["steps.ship"]);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn no_items_are_done_at_once() {
    let world = placed(LINES, &json!([]));
    assert_eq!(world.data()["reserved"], json!([]));
    assert_eq!(world.outstanding(), ["steps.ship"]);
}

#[test]
fn every_item_is_undone_with_its_own_input_and_result() {
    let mut world = placed(LINES, &skus(3));
    for at in 0..3 {
        resolve(&mut world, "at", &json!(at), ok(&json!({"id": at})));
    }
    world.fail("steps.ship", "no");
    let mut undone = Vec::new();
    let mut keys = BTreeSet::new();
    while world.outstanding() == [UNDO] {
        let item = world.newest(UNDO).clone();
        undone.push(payload(&item));
        keys.insert(item.idempotency_key);
        world.succeed(UNDO, &json!({}));
    }
    assert_eq!(
        undone,
        [
            json!({"id": 2, "sku": "s2"}),
            json!({"id": 1, "sku": "s1"}),
            json!({"id": 0, "sku": "s0"})
        ]
    );
    assert_eq!(keys.len(), 3);
    let items: Vec<Option<u32>> = world.last().ledger.iter().map(|entry| entry.item).collect();
    assert_eq!(items, [Some(0), Some(1), Some(2)]);
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn an_item_that_fails_fails_the_loop_and_a_late_success_of_another_is_undone() {
    let mut world = placed(LINES, &skus(3));
    let late = world
        .outbox
        .values()
        .find(|item| payload(item)["at"] == json!(1))
        .expect("it runs")
        .command_id;
    resolve(&mut world, "at", &json!(0), no("declined"));
    assert_eq!(
        world.phase(),
        Phase::Compensating,
        "the other item is outstanding"
    );
    let failure = world.last().failure.clone().expect("it failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("declined", Some("lines"))
    );
    let view = InstanceView::new(&world.instance, world.last(), Some(&world.definition));
    let strays: Vec<_> = view
        .strays
        .iter()
        .map(|stray| (stray.step.as_str(), stray.item))
        .collect();
    assert_eq!(strays, [("lines.item", Some(1))]);
    world.result(late, ok(&json!({"id": 7})));
    assert_eq!(world.payload(UNDO), json!({"id": 7, "sku": "s1"}));
    world.succeed(UNDO, &json!({}));
    assert!(world.ended.is_some());
}

#[test]
fn items_that_fail_may_be_left_out_or_collected() {
    for (policy, expected) in [
        ("continue", json!([{"id": 0}, null])),
        (
            "collect",
            json!([{"ok": {"id": 0}}, {"error": {"class": "declined", "message": "no"}}]),
        ),
    ] {
        let text = LINES.replace("parallel: 2", &format!("parallel: 2, on_item_error: {policy}"));
        let mut world = placed(&text, &skus(2));
        resolve(&mut world, "at", &json!(1), no("declined"));
        resolve(&mut world, "at", &json!(0), ok(&json!({"id": 0})));
        assert_eq!(world.data()["reserved"], expected, "{policy}");
        assert_eq!(world.outstanding(), ["steps.ship"], "{policy}");
    }
}

#[test]
fn enough_items_end_the_loop_and_too_few_fail_it() {
    let text = LINES.replace("parallel: 2", "parallel: 3, join: {at_least: 2}");
    let mut world = placed(&text, &skus(3));
    resolve(&mut world, "at", &json!(2), ok(&json!({"id": 2})));
    resolve(&mut world, "at", &json!(0), ok(&json!({"id": 0})));
    assert_eq!(world.data()["reserved"], json!([{"id": 0}, null, {"id": 2}]));
    assert_eq!(world.statuses()[0], StepStatus::Done);
    assert_eq!(world.last().strays.len(), 1, "the third goes on unheeded");

    let mut world = placed(&text, &skus(3));
    resolve(&mut world, "at", &json!(2), no("declined"));
    assert_eq!(world.phase(), Phase::Running);
    resolve(&mut world, "at", &json!(0), no("declined"));
    let failure = world.last().failure.clone().expect("one item is not enough");
    assert_eq!(failure.code, "join_unreachable");
}

#[test]
fn more_items_than_allowed_fail_the_loop() {
    let text = LINES.replace("parallel: 2", "parallel: 2, max: 3");
    let world = placed(&text, &skus(4));
    let failure = world.last().failure.clone().expect("too many");
    assert_eq!(failure.code, "too_many_items");
    assert_eq!(failure.message, "4 items, at most 3 are allowed");
}

#[test]
fn items_may_come_in_chunks() {
    let world = placed(
        "steps: {all: {foreach: {over: state.items, as: part, chunk: 2}, effect: send, with: {part: \"${part}\"}}}\n",
        &json!([1, 2, 3]),
    );
    let parts: Vec<Value> = world.sent.iter().map(payload).collect();
    assert_eq!(parts, [json!({"part": [1, 2]}), json!({"part": [3]})]);
}

#[test]
fn a_foreach_over_something_else_than_a_list_is_a_dead_letter_with_its_place() {
    let mut world = World::of(Arc::new(loaded(&saga(LINES))));
    let input = world.event_input("Order.Placed", &json!({"items": 3}));
    let rejection = world.give(&input).expect_err("no list");
    assert!(
        rejection.message.starts_with("steps.lines.foreach.over"),
        "{rejection}"
    );
}

const GROUP: &str = r#"
steps:
  orders:
    foreach: {over: state.items, as: order, parallel: 2}
    set: {all: "${result}"}
    steps:
      pay: {effect: pay, with: {id: "${order.id}"}, compensate: {effect: refund, with: {id: "${input.id}"}}}
      check:
        needs: [pay]
        choice:
          - {when: order.big, steps: {review: {effect: review, with: {id: "${order.id}"}}}}
      poll:
        needs: [check]
        repeat: {until: result.sent, max: 3, delay: 1s}
        effect: poll
        with: {id: "${order.id}", paid: "${steps.pay.status}"}
"#;

#[test]
fn every_item_runs_a_group_of_steps_of_its_own() {
    let items = json!([{"id": "a", "big": false}, {"id": "b", "big": true}, {"id": "c", "big": false}]);
    let mut world = placed(GROUP, &items);
    let paths = |world: &World| -> Vec<String> {
        let rows = world.outbox.values();
        rows.map(|item| format!("{}:{}", item.path, payload(item)["id"]))
            .collect()
    };
    assert_eq!(paths(&world), ["steps.pay:\"a\"", "steps.pay:\"b\""]);
    resolve(&mut world, "id", &json!("b"), ok(&json!("paid b")));
    assert_eq!(paths(&world), ["steps.pay:\"a\"", "steps.review:\"b\""]);
    resolve(&mut world, "id", &json!("a"), ok(&json!("paid a")));
    assert_eq!(paths(&world), ["steps.review:\"b\"", "steps.poll.turn:\"a\""]);
    assert_eq!(world.payload("steps.poll.turn")["paid"], json!("done"));
    resolve(&mut world, "id", &json!("a"), ok(&json!({"sent": false})));
    resolve(&mut world, "id", &json!("b"), ok(&json!("seen")));
    resolve(&mut world, "id", &json!("b"), ok(&json!({"sent": true})));
    assert_eq!(paths(&world), ["steps.pay:\"c\""], "b is over, a waits");
    world.advance(1_000);
    assert_eq!(paths(&world), ["steps.pay:\"c\"", "steps.poll.turn:\"a\""]);
    resolve(&mut world, "id", &json!("a"), ok(&json!({"sent": true})));
    resolve(&mut world, "id", &json!("c"), ok(&json!("paid c")));
    resolve(&mut world, "id", &json!("c"), ok(&json!({"sent": true})));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(
        world.data()["all"],
        json!([
            {"pay": "paid a", "poll": {"sent": true}},
            {"pay": "paid b", "poll": {"sent": true}, "review": "seen"},
            {"pay": "paid c", "poll": {"sent": true}},
        ])
    );
}

#[test]
fn an_item_whose_step_fails_takes_its_timers_and_work_with_it() {
    let text = GROUP.replace("parallel: 2", "parallel: 2, on_item_error: continue");
    let items = json!([{"id": "a", "big": false}, {"id": "b", "big": false}]);
    let mut world = placed(&text, &items);
    resolve(&mut world, "id", &json!("a"), ok(&json!(1)));
    resolve(&mut world, "id", &json!("a"), ok(&json!({"sent": false})));
    assert_eq!(world.timers.len(), 1);
    resolve(&mut world, "id", &json!("b"), no("declined"));
    world.advance(1_000);
    resolve(&mut world, "id", &json!("a"), no("gone"));
    assert_eq!(world.data()["all"], json!([null, null]));
    assert_eq!(world.outstanding(), ["steps.pay.compensate"]);
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

/// Otherwise an instance that completes would keep it.
#[test]
fn the_work_of_an_item_that_the_loop_tolerates_is_undone() {
    for policy in ["on_item_error: continue", "on_item_error: collect", "tolerate: 1"] {
        for on_late in ["compensate", "accept"] {
            let body = format!(
                r"
steps:
  loop:
    repeat: {{until: steps.each.iteration > 0, max: 3}}
    steps:
      each:
        foreach: {{over: state.items, parallel: 1, {policy}}}
        steps:
          a: {{effect: a, compensate: {{effect: undo_a, on_late: {on_late}}}}}
          b: {{needs: [a], effect: b, compensate: {{effect: undo_b, on_late: {on_late}}}}}
"
            );
            let mut world = placed(&body, &json!([1]));
            world.succeed("steps.a", &json!({}));
            world.succeed("steps.b", &json!({}));
            world.succeed("steps.a", &json!({}));
            world.time_out("steps.b");
            let mut undone = Vec::new();
            while let Some(path) = world.outstanding().first().map(|path| (*path).to_owned()) {
                world.succeed(&path, &json!({}));
                undone.push(path);
            }
            assert_eq!(world.phase(), Phase::Completed);
            let expected: &[&str] = match on_late {
                "compensate" => &["steps.b.compensate", "steps.a.compensate"],
                _ => &[],
            };
            assert_eq!(undone, expected, "{policy}: what the first turn did stays");
        }
    }
}

#[test]
fn a_thousand_items_pass_with_bounded_work_and_a_bounded_record() {
    let text = LINES.replace("parallel: 2", "parallel: 64");
    let mut world = placed(&text, &skus(1_000));
    let mut largest = 0;
    while world.outstanding().first() == Some(&LINE) {
        let command = world.outbox.values().next().expect("one").command_id;
        let before = world.sent.len();
        world.result(command, ok(&json!({"id": "r-0123456789"})));
        assert!(world.sent.len() - before <= 2);
        if let Some(record) = &world.record {
            largest = largest.max(record.encode().len());
        }
    }
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(world.data()["reserved"].as_array().map(Vec::len), Some(1_000));
    assert!(largest < 200 * 1024, "{largest} bytes");
}

#[test]
fn items_beyond_the_record_are_refused_with_the_sizes() {
    let mut world = World::of(Arc::new(loaded(&saga(LINES))));
    let items: Value = (0..900).map(|n| json!({"sku": format!("{n:0>300}")})).collect();
    let input = world.event_input("Order.Placed", &json!({"items": items}));
    let rejection = world.give(&input).expect_err("twice 270 KiB");
    assert_eq!(rejection.reason, "state.size");
    assert!(world.record.is_none());
}

#[test]
fn a_loop_over_a_list_in_a_loop_repeats_no_key() {
    let mut world = placed(
        r#"
steps:
  rounds:
    repeat: {until: state.done == 2, max: 3}
    steps:
      all: {foreach: {over: state.items}, effect: send, with: {item: "${item}"}}
      count: {needs: [all], effect: count, set: {done: "${state.done + 1}"}}
"#,
        &json!([1, 2]),
    );
    for _ in 0..2 {
        resolve(&mut world, "item", &json!(1), ok(&json!({})));
        resolve(&mut world, "item", &json!(2), ok(&json!({})));
        world.succeed("steps.count", &json!({}));
    }
    assert_eq!(world.phase(), Phase::Completed);
    let keys: BTreeSet<&str> = world
        .sent
        .iter()
        .map(|item| item.idempotency_key.as_str())
        .collect();
    assert_eq!((keys.len(), world.sent.len()), (6, 6));
}

const MIXED: &str = r#"
steps:
  first: {effect: first, compensate: {effect: undo_first}}
  loop:
    needs: [first]
    repeat: {until: state.done > 1, max: 3, delay: 1s}
    steps:
      each:
        foreach: {over: state.items, parallel: 2, on_item_error: POLICY}
        set: {last: "${result}"}
        steps:
          a: {effect: a, with: {item: "${item}"}, compensate: {effect: undo_a, on_unknown: compensate}}
          b: {needs: [a], effect: b, retry: {attempts: 2, errors: ["*"]}, compensate: {effect: undo_b}}
      count: {needs: [each], effect: count, set: {done: "${state.done + 1}"}}
"#;

fn live(world: &mut World, turns: &[(usize, u8)]) {
    for (number, (which, kind)) in turns.iter().enumerate() {
        if world.ended.is_some() {
            return;
        }
        let commands: Vec<_> = world.outbox.values().map(|item| item.command_id).collect();
        let command = commands.get(which % commands.len().max(1)).copied();
        match (kind, command) {
            (0..=4, Some(command)) => world.result(command, ok(&json!({"n": number}))),
            (5, Some(command)) => world.result(command, no("declined")),
            (6, Some(command)) => {
                let message = String::new();
                world.result(command, WorkOutcome::timed_out(message))
            }
            (7, _) if number > 6 => {
                let reason = String::new();
                world.control(&format!("c-{number}"), Control::cancel(reason))
            }
            _ => {
                world.advance(5_000);
                continue;
            }
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn items_end_and_the_same_history_gives_the_same_bytes_under_random_inputs(
        policy in prop_oneof![Just("fail"), Just("continue"), Just("collect")],
        count in 0..6_usize,
        turns in proptest::collection::vec((0..6_usize, 0..9_u8), 0..50),
    ) {
        let text = MIXED.replace("POLICY", policy);
        let run = || {
            let items: Value = (0..count).collect();
            let mut world = placed(&text, &items);
            live(&mut world, &turns);
            for round in 0..500 {
                let Some(command) = world.outbox.values().next_back().map(|item| item.command_id) else {
                    if world.ended.is_some() {
                        break;
                    }
                    world.advance(3_600_000);
                    world.control(&format!("heal-{round}"), Control::Retry);
                    continue;
                };
                world.result(command, ok(&json!({"n": round})));
            }
            world
        };
        let (world, again) = (run(), run());
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        prop_assert_eq!(world.last().encode(), again.last().encode());
        prop_assert_eq!(&world.sent, &again.sent);
        if world.phase() != Phase::Completed {
            prop_assert!(world.ledger().iter().all(|status| *status == LedgerStatus::Undone));
        }
        let mut ids: Vec<_> = world.sent.iter().map(|item| item.command_id).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), world.sent.len());
    }
}

/// Nobody asks another site once it is certain that two cannot be had.
#[test]
fn a_loop_that_cannot_have_enough_begins_no_other_item() {
    let steps = r"
steps:
  ask:
    foreach: {over: state.items, parallel: 1, join: {at_least: 2}}
    effect: book
    compensate: {effect: unbook, on_late: accept}
";
    let mut world = placed(steps, &json!(["a", "b"]));
    assert_eq!(world.sent.len(), 1);
    world.fail("steps.ask.item", "full");
    assert_eq!((world.phase(), world.sent.len()), (Phase::Failed, 1));

    let world = placed(steps, &json!(["a"]));
    assert_eq!((world.phase(), world.sent.len()), (Phase::Failed, 0));
}

#[test]
fn most_items_are_counted_as_items_where_a_chunk_makes_one() {
    let steps = "\nsteps:\n  pack: {foreach: {over: state.items, chunk: 2, max: 2}, effect: pack}\n";
    assert_eq!(placed(steps, &skus(4)).sent.len(), 2);
    assert_eq!(placed(steps, &skus(5)).phase(), Phase::Failed);
}
