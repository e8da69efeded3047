//! Joins: how many needs suffice, what fails without harm, what happens to stragglers.

use std::sync::Arc;

use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded;
use super::properties::good;
use super::waits::signal;
use super::world::World;
use crate::ledger::LedgerStatus;
use crate::record::{Phase, StepStatus};

/// Three parallel steps, of which some suffice.
pub(super) fn joining(rest: &str) -> Definition {
    loaded(&format!(
        r#"
state: {{init: {{wanted: true}}}}
handlers:
  Order.Placed: {{set: {{wanted: "${{event.data.wanted}}"}}}}
steps:
  one: {{effect: one, compensate: {{effect: undo-one}}}}
  two: {{effect: two, compensate: {{effect: undo-two}}, on_error: {{unavailable: {{continue: true}}}}}}
  three: {{if: state.wanted, effect: three, compensate: {{effect: undo-three}}}}
  joined: {{needs: [one, two, three], effect: joined, compensate: {{effect: undo-joined}}, {rest}}}
  last: {{needs: [joined], effect: last}}
"#
    ))
}

fn placed(rest: &str, wanted: bool) -> World {
    world(joining(rest), wanted)
}

fn world(definition: Definition, wanted: bool) -> World {
    let mut world = World::of(Arc::new(definition));
    world.event("Order.Placed", &json!({"wanted": wanted}));
    world
}

fn status(world: &World, name: &str) -> StepStatus {
    let steps = &world.definition.steps;
    let at = steps.iter().position(|step| step.name == name).expect("a step");
    world.statuses()[at]
}

fn ok(world: &mut World, steps: &[&str]) {
    for step in steps {
        world.succeed(&format!("steps.{step}"), &json!({}));
    }
}

#[test]
fn one_of_them_suffices_and_the_others_are_waited_for_at_the_end() {
    let mut world = placed("join: any", true);
    ok(&mut world, &["two"]);
    assert_eq!(status(&world, "joined"), StepStatus::Running);
    ok(&mut world, &["joined", "last"]);
    assert_eq!(world.phase(), Phase::Running, "one and three still run");
    ok(&mut world, &["one", "three"]);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_need_may_fail_where_some_of_them_suffice() {
    let mut world = placed("join: {at_least: 2}", true);
    world.fail("steps.one", "declined");
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(status(&world, "one"), StepStatus::Failed);
    ok(&mut world, &["two"]);
    assert_eq!(status(&world, "joined"), StepStatus::Pending);
    ok(&mut world, &["three", "joined", "last"]);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_need_that_says_what_its_failure_means_still_fails_the_instance() {
    let text = "join: any";
    let mut definition = joining(text);
    definition.steps[0].on_error.insert(
        "*".to_owned(),
        vec![super::errors::then(
            saga_runner_language::definition::model::Then::Fail(Some(
                saga_runner_language::definition::model::Fail {
                    code: "no".to_owned(),
                    message: None,
                    keep: Vec::new(),
                    drain: false,
                },
            )),
        )],
    );
    let mut world = world(definition, true);
    world.fail("steps.one", "declined");
    assert_eq!(
        world.last().failure.as_ref().map(|failure| failure.code.as_str()),
        Some("no")
    );
}

#[test]
fn a_failed_need_of_a_join_of_all_fails_the_instance() {
    let mut world = placed("join: all", true);
    world.fail("steps.one", "declined");
    assert_ne!(world.phase(), Phase::Running);
}

#[test]
fn a_need_that_was_continued_counts_and_one_that_was_skipped_does_not() {
    let mut world = placed("join: {at_least: 2}", false);
    assert_eq!(status(&world, "three"), StepStatus::Skipped);
    world.fail("steps.two", "unavailable");
    assert_eq!(status(&world, "two"), StepStatus::Done);
    assert_eq!(status(&world, "joined"), StepStatus::Pending);
    ok(&mut world, &["one"]);
    assert_eq!(status(&world, "joined"), StepStatus::Running);
}

#[test]
fn out_of_reach_the_step_fails_with_a_class_of_its_own() {
    let world = placed("join: {at_least: 3}", false);
    let failure = world.last().failure.clone().expect("a failure");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("join_unreachable", Some("joined"))
    );
    // What it would have run with is given up before it is sent.
    assert_eq!((world.phase(), world.sent.len()), (Phase::Failed, 0));
}

#[test]
fn out_of_reach_may_be_answered() {
    let mut world = placed(
        "join: {at_least: 2}, on_error: {join_unreachable: {continue: true}}",
        true,
    );
    world.fail("steps.one", "declined");
    world.fail("steps.two", "declined");
    assert_eq!(status(&world, "joined"), StepStatus::Done);
    ok(&mut world, &["three", "last"]);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn stragglers_that_are_cancelled_are_undone_when_they_succeed_late() {
    let mut world = placed("join: any, stragglers: cancel", true);
    ok(&mut world, &["one"]);
    assert_eq!(status(&world, "two"), StepStatus::Abandoned);
    assert_eq!(status(&world, "three"), StepStatus::Abandoned);
    ok(&mut world, &["two"]);
    assert!(world.outstanding().contains(&"steps.two.compensate"));
    ok(&mut world, &["two.compensate", "joined", "last"]);
    assert_eq!(world.phase(), Phase::Completed);
    // The record stays until nothing can come any more.
    assert!(world.ended.is_none());
    world.fail("steps.three", "declined");
    assert!(world.ended.is_some());
}

#[test]
fn a_step_that_needs_a_cancelled_straggler_is_unreachable() {
    let mut world = world(
        loaded(
            r"
steps:
  one: {effect: one}
  two: {effect: two}
  joined: {needs: [one, two], join: any, stragglers: cancel, effect: joined}
  other: {needs: [two], effect: other, on_error: {join_unreachable: {continue: true}}}
",
        ),
        true,
    );
    ok(&mut world, &["one"]);
    assert_eq!(status(&world, "other"), StepStatus::Done);
    assert_eq!(world.outstanding(), ["steps.two", "steps.joined"]);
}

const GROUPS: &str = r#"
steps:
  one:
    choice:
      - when: "true"
        steps:
          first: {effect: first, compensate: {effect: undo-first}}
          second: {needs: [first], effect: second}
          side: {effect: side}
  two: {repeat: {until: result.over, max: 3}, effect: two}
  joined: {needs: [one, two], join: any, stragglers: cancel, effect: joined}
"#;

#[test]
fn a_choice_fails_with_its_step_and_the_join_goes_on_without_it() {
    let mut world = world(loaded(GROUPS), true);
    world.fail("steps.first", "declined");
    assert_eq!(status(&world, "one"), StepStatus::Failed);
    assert_eq!(status(&world, "second"), StepStatus::Abandoned);
    assert_eq!(status(&world, "side"), StepStatus::Abandoned);
    assert_eq!(world.phase(), Phase::Running);
    world.succeed("steps.two.turn", &json!({"over": true}));
    assert_eq!(world.outstanding(), ["steps.side", "steps.joined"]);
    ok(&mut world, &["joined", "side"]);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_group_that_is_a_straggler_is_given_up_with_all_that_is_in_it() {
    let mut world = world(loaded(GROUPS), true);
    world.succeed("steps.two.turn", &json!({"over": true}));
    for step in ["one", "first", "second", "side"] {
        assert_eq!(status(&world, step), StepStatus::Abandoned, "{step}");
    }
    ok(&mut world, &["joined", "first", "first.compensate", "side"]);
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
}

#[test]
fn steps_of_an_item_are_joined_for_themselves() {
    let mut world = world(
        loaded(
            r"
state: {init: {items: [1, 2]}}
steps:
  lines:
    foreach: {over: state.items}
    steps:
      one: {effect: one}
      two: {effect: two}
      joined: {needs: [one, two], join: any, stragglers: cancel, effect: joined}
",
        ),
        true,
    );
    assert_eq!(world.outstanding().len(), 4);
    world.fail("steps.one", "declined");
    world.succeed("steps.two", &json!({}));
    assert_eq!(world.outstanding(), ["steps.one", "steps.two", "steps.joined"]);
    world.succeed("steps.one", &json!({}));
    assert_eq!(world.outstanding(), ["steps.two", "steps.joined", "steps.joined"]);
    for _ in 0..2 {
        world.succeed("steps.joined", &json!({}));
    }
    assert_eq!(world.phase(), Phase::Completed);
}

/// The input that makes one step ready makes the join of another one unreachable: what is given up in the same transition
/// is never sent.
#[test]
fn work_of_a_step_that_its_own_transition_gives_up_is_not_sent() {
    let mut world = World::new(loaded(
        r"
handlers:
  Order.Placed: {set: {done: 0}}
steps:
  first: {effect: score}
  ready: {needs: [first], effect: charge, compensate: {effect: refund, on_unknown: compensate}}
  spare: {needs: [first], if: state.done > 0, effect: score}
  enough: {needs: [first, spare], join: {at_least: 2}, effect: ship}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.first", &json!({}));
    assert_eq!(world.phase(), Phase::Failed, "{}", world.story);
    assert_eq!(world.sent.len(), 1, "{}", world.story);
    assert_eq!(world.ledger(), []);
}

/// What stands behind it in the outbox is still found by whoever waits for it.
#[test]
fn work_behind_what_is_not_sent_keeps_its_step() {
    let mut world = World::new(loaded(
        r"
steps:
  first: {effect: score}
  given_up: {needs: [first], effect: score}
  told: {needs: [first], publish: {type: order.told, payload: {}}}
  charge: {needs: [first], effect: charge}
  any: {needs: [told, given_up], join: any, stragglers: cancel, effect: ship}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.first", &json!({}));
    assert_eq!(
        world.outstanding(),
        ["steps.charge", "steps.any"],
        "{}",
        world.story
    );
    world.succeed("steps.charge", &json!({}));
    world.succeed("steps.any", &json!({}));
    assert_eq!(world.phase(), Phase::Completed, "{}", world.story);
}

/// What they may have done is wanted no more, whether it is known or not.
#[test]
fn work_of_stragglers_is_undone_although_the_instance_completes() {
    let raced = |more: &str| {
        let mut world = World::new(loaded(&format!(
            r"
steps:
  first: {{wait: {{signal: first}}}}
  other:
    effect: book
    retry: {{errors: [timeout], attempts: 3, backoff: {{initial: 1m}}}}
    wait: {{callback: true, timeout: 1h}}
    compensate: {{effect: unbook{more}}}
  go: {{needs: [first, other], join: any, stragglers: cancel, effect: go}}
"
        )));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world
    };
    let first = |world: &mut World| world.control("first", signal("first", &json!({})));
    let stands: [fn(&mut World); 2] = [
        |world| _ = world.succeed("steps.other", &json!({})),
        |world| _ = world.time_out("steps.other"),
    ];
    for stand in stands {
        let mut world = raced("");
        stand(&mut world);
        first(&mut world);
        assert_eq!(
            world.outstanding(),
            ["steps.other.compensate", "steps.go"],
            "{}",
            world.story
        );
        world.succeed("steps.go", &json!({}));
        world.succeed("steps.other.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Completed);
        assert!(world.ended.is_some());
        let mut world = raced(", on_late: accept");
        stand(&mut world);
        first(&mut world);
        assert_eq!(world.outstanding(), ["steps.go"], "it is to count");
    }
}

/// Its members never begin, and nobody is to wait for them.
#[test]
fn a_loop_that_fails_before_it_begins_is_over_with_all_that_is_in_it() {
    let loops = [
        "repeat: {while: state.n > 0, max: 3}\n    steps: {in: {effect: in}}",
        "repeat: {until: state.n > 0, max: 3}\n    effect: in",
        "foreach: {over: state.items}\n    steps: {in: {effect: in}}",
    ];
    for of_loop in loops {
        for count in ["2", "\"${state.n}\""] {
            let mut world = world(
                loaded(&format!(
                    r"
state: {{init: {{n: 7, items: [1, 2]}}}}
steps:
  one: {{effect: one}}
  two: {{effect: two}}
  then:
    needs: [one, two]
    join: {{at_least: {count}}}
    {of_loop}
    on_error: {{join_unreachable: {{continue: true}}, value.range: {{continue: true}}}}
"
                )),
                true,
            );
            world.fail("steps.one", "gone");
            world.succeed("steps.two", &json!({}));
            assert_eq!(world.phase(), Phase::Completed, "{of_loop} {count}");
        }
    }
}

#[test]
fn a_group_that_joins_do_without_is_over_with_all_that_is_in_it() {
    let inside = "{in: {effect: in}}";
    let groups = [
        format!(
            "choice: [{{when: state.n > 0, steps: {inside}}}, {{else: {{steps: {{other: {{effect: other}}}}}}}}]"
        ),
        format!("repeat: {{while: state.n > 0, max: 3}}\n    steps: {inside}"),
        format!("foreach: {{over: state.items}}\n    steps: {inside}"),
    ];
    for group in groups {
        let mut world = world(
            loaded(&format!(
                r"
state: {{init: {{n: 7, items: [1, 2]}}}}
steps:
  one: {{effect: one}}
  two: {{effect: two}}
  then:
    needs: [one, two]
    join: {{at_least: 2}}
    {group}
  last: {{needs: [then, two], join: any, effect: last}}
"
            )),
            true,
        );
        world.fail("steps.one", "gone");
        ok(&mut world, &["two", "last"]);
        assert_eq!(world.phase(), Phase::Completed, "{group}");
    }
}

#[test]
fn a_loop_over_a_list_that_fails_and_that_joins_do_without_holds_nothing_up() {
    for foreach in [
        "over: state.items",
        "over: state.items, max: 1",
        "over: state.items, max: \"${state.n}\"",
    ] {
        let mut world = world(
            loaded(&format!(
                r"
state: {{init: {{n: -7, items: [1, 2]}}}}
steps:
  two: {{effect: two}}
  then:
    foreach: {{{foreach}}}
    steps: {{in: {{effect: in}}}}
  last: {{needs: [then, two], join: any, effect: last}}
"
            )),
            true,
        );
        if world.outstanding().contains(&"steps.in") {
            world.fail("steps.in", "gone");
        }
        assert_eq!(status(&world, "then"), StepStatus::Failed, "{foreach}");
        ok(&mut world, &["two", "last"]);
        assert_eq!(world.phase(), Phase::Completed, "{foreach}");
    }
}

/// Who was first in one turn of a loop may be too late in the next one: what it did in the first stays.
#[test]
fn work_of_an_earlier_turn_stays_when_the_step_is_a_straggler_in_a_later_one() {
    for is_late in [true, false] {
        let mut world = world(
            loaded(
                r"
state: {init: {n: 0}}
steps:
  rounds:
    repeat: {until: state.n > 1, max: 3}
    steps:
      one: {effect: one, compensate: {effect: undo-one}}
      two: {effect: two, compensate: {effect: undo-two}}
      first: {needs: [one, two], join: any, stragglers: cancel, set: {n: '${state.n + 1}'}}
",
            ),
            true,
        );
        world.succeed("steps.one", &json!({}));
        assert_eq!(world.data()["n"], json!(1));
        let two = world.newest("steps.two").command_id;
        let rows = world.outbox.values();
        let second = rows.filter(|item| item.path == "steps.two" && item.command_id == two);
        assert_eq!(second.count(), 1);
        if is_late {
            world.result(two, good());
        } else {
            world.fail("steps.one", "gone");
            world.result(two, good());
        }
        assert_eq!(world.phase(), Phase::Completed);
        assert!(
            !world.paths().contains(&"steps.one.compensate"),
            "late: {is_late}"
        );
    }
}
