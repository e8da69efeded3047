//! Sagas in which much comes together, tried on random histories.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded;
use super::properties::{check_ids, decisions, heal, live};
use super::world::World;
use crate::input::CancelMode;
use crate::record::Phase;

/// What is given up from outside, joins of computed size, loops that bear failures, and reminders by effects.
fn mixed(options: &Options) -> Definition {
    let Options {
        on_failed,
        on_late,
        stragglers,
        answer,
        joined,
    } = options;
    let compensate = |name: &str| {
        format!(
            "compensate: {{effect: undo-{name}, on_failed: {on_failed}, on_late: {on_late}, retry: [{{errors: [transient], attempts: 3}}, {{attempts: 2}}]}}"
        )
    };
    let body = format!(
        r#"
state: {{init: {{want: 2, items: [1, 2, 3, 4], told: 0, tries: 0}}}}
handlers:
  Order.Withdrawn: {{interrupt: {{step: paid, class: withdrawn}}}}
  Order.Dropped: {{interrupt: {{step: all, class: withdrawn}}}}
  Order.Pushed: {{interrupt: {{step: one, class: withdrawn}}}}
  Order.Picked: {{interrupt: {{step: pick, class: withdrawn}}}}
  Order.Other: {{emit: {{effect: note, name: note, retry: {{attempts: 2, backoff: {{initial: 1m}}}}, {note}}}}}
  error.note: {{when: error.class == "transient", set: {{told: 0}}}}
  result.tell: {{set: {{told: "${{state.told + 1}}"}}}}
  error.tell: {{when: error.class == "transient", set: {{told: 0}}}}
steps:
  one: {{effect: one, retry: {{attempts: 2, backoff: {{initial: 1m}}}}, {one}}}
  two: {{effect: two, {two}}}
  three: {{effect: three, wait: {{any: [{{event: Order.Paid}}, {{signal: review}}], timeout: 30m}}, {three}}}
  joined: {{needs: [one, two, three], join: {{at_least: "${{state.want}}"}}, stragglers: {stragglers}, effect: joined, {join}, on_error: {{join_unreachable: {joined}}}}}
  paid:
    needs: [joined]
    effect: pay
    retry: {{errors: [transient, timeout], attempts: 3, backoff: {{initial: 1m}}}}
    wait: {{any: [{{event: Order.Paid, set: {{how: paid}}}}, {{signal: review, when: signal.approved, set: {{how: waived}}}}], timeout: 30m}}
    {paid}
    on_error: {{withdrawn: [{{when: state.tries < 2, set: {{tries: "${{state.tries + 1}}"}}, goto: paid}}, {answer}]}}
  all:
    needs: [two]
    foreach: {{over: state.items, parallel: "${{state.want}}", tolerate: 1, stragglers: let_run, join: {{at_least: 2}}}}
    steps:
      pick: {{effect: pick, retry: {{attempts: 2, backoff: {{initial: 1m}}}}, {pick}}}
      pack: {{needs: [pick], effect: pack, {pack}}}
    on_error: {{withdrawn: {answer}}}
  end: {{needs: [paid, all], join: any, effect: end, compensate: {{publish: {{type: order.unended}}}}}}
timers:
  nudge:
    during: paid
    every: 5m
    max: 3
    emit: {{effect: nudge, name: tell, retry: {{attempts: 2, backoff: {{initial: 1m}}}}, {tell}}}
  slow: {{during: paid, after: 50m, interrupt: {{step: paid, class: withdrawn}}}}
"#,
        one = compensate("one"),
        two = compensate("two"),
        three = compensate("three"),
        join = compensate("joined"),
        paid = compensate("paid"),
        pick = compensate("pick"),
        pack = compensate("pack"),
        tell = compensate("tell"),
        note = compensate("note"),
    );
    loaded(&body)
}

#[derive(Debug, Clone)]
struct Options {
    on_failed: &'static str,
    on_late: &'static str,
    stragglers: &'static str,
    answer: &'static str,
    joined: &'static str,
}

fn options() -> impl Strategy<Value = Options> {
    let one_of = |words: &[&'static str]| proptest::sample::select(words.to_vec());
    (
        one_of(&["ignore", "compensate"]),
        one_of(&["compensate", "accept", "ignore"]),
        one_of(&["let_run", "cancel"]),
        one_of(&[
            "{continue: true}",
            "{fail: {code: withdrawn}}",
            "{complete: {outcome: withdrawn}}",
            "{cancel: {mode: drain}}",
        ]),
        one_of(&["{continue: true}", "{fail: {code: unreachable}}"]),
    )
        .prop_map(|(on_failed, on_late, stragglers, answer, joined)| Options {
            on_failed,
            on_late,
            stragglers,
            answer,
            joined,
        })
}

/// No two undos are the same work.
fn check_undos(world: &World) {
    let mut pieces = BTreeSet::new();
    for entry in world.last().ledger.iter() {
        let piece = (entry.step, entry.item, entry.iteration, entry.tries.round);
        assert!(
            pieces.insert(piece),
            "{} is on the ledger twice: {:?}",
            world.definition.steps[usize::from(entry.step)].name,
            entry
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn mixed_sagas_end_and_undo_work_as_often_as_it_was_done(
        happenings in decisions(7, 60),
        options in options(),
    ) {
        let mut world = World::of(Arc::new(mixed(&options)));
        let events = ["Order.Placed", "Order.Withdrawn", "Order.Dropped", "Order.Pushed", "Order.Picked", "Order.Paid", "Order.Other"]
            .map(|event| (event, json!({})));
        world.event("Order.Placed", &json!({}));
        let short: Vec<_> = happenings.into_iter().map(|happening| match happening {
            super::properties::Happening::Advance(ms) => super::properties::Happening::Advance(ms / 5),
            other => other,
        }).collect();
        let mut done = live(&mut world, &events, &short);
        heal(&mut world, &mut done);
        check_ids(&world);
        check_undos(&world);
        prop_assert!(world.ended.is_some(), "it rests in {:?}: {:?}", world.phase(), world.statuses());
        prop_assert!(world.timers.is_empty());
        let record = world.last();
        let cancelled = record.failure.as_ref().and_then(|failure| failure.cancelled);
        let abandons = cancelled == Some(CancelMode::Abandon);
        for (index, step) in world.definition.steps.iter().enumerate() {
            let times = |path: String| done.get(&path).copied().unwrap_or(0) as usize;
            let prefix = if step.emitted { "" } else { "steps." };
            let undone = times(format!("{prefix}{}.compensate", step.name));
            let entries: Vec<_> = record.ledger.iter().filter(|entry| usize::from(entry.step) == index).collect();
            if record.phase == Phase::Completed {
                prop_assert!(entries.iter().all(|entry| entry.status.rests()));
                continue;
            }
            prop_assert!(entries.iter().all(|entry| entry.status.is_over()));
            prop_assert!(undone <= entries.len(), "{} was undone {undone} times", step.name);
            let acted = times(format!("{prefix}{}", step.name));
            let is_kept = options.on_late != "compensate" || abandons;
            prop_assert!(step.compensate.is_none() || is_kept || entries.len() >= acted, "{} was done {acted} times, {} are on the ledger", step.name, entries.len());
        }
    }
}
