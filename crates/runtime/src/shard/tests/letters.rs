//! Results that cannot be applied, and those that an operator discards: their work is settled as an unknown outcome,
//! and nothing waits for them any more.

use std::time::Duration;

use serde_json::{Value, json};

use saga_runner_partition::machine::timers::timer_input;

use super::faults::die_with;
use super::world::{EVENTS, LIST, RESULTS, Shard, World, compile, event, pay, pay_opened, result, set_of};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::{EffectContract, Then};
use crate::kernel::ids::EffectName;
use crate::kernel::input::{Input, InputBody, WorkOutcome};
use crate::kernel::record::{Phase, StepStatus};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::LetterDecision::{Discard, Retry};
use crate::storage::rows::HistoryOutcome;

/// One charge that can be undone. An event `Pay.Divided` may be poison.
pub(super) const UNDONE: &str = r"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {'Pay.*': event.data.id}
state:
  init: {paid: false, share: 0}
handlers:
  Pay.Settled:
    set: {paid: true}
  Pay.Divided:
    set: {share: '${100 / event.data.by}'}
steps:
  charge:
    effect: card-charge
    with: {id: '${key}'}
    set: {receipt: '${result.receipt}'}
    on_error: {declined: {goto: charge}, result.refused: {set: {paid: false}}}
    compensate: {effect: card-refund, with: {id: '${key}'}, on_unknown: compensate}
";

pub(super) fn world_of(definition: Definition) -> World {
    let mut world = World::new();
    world.definitions = set_of(vec![definition]);
    world
}

/// The same saga whose charge asks an operator where its outcome is unknown.
fn asking() -> Definition {
    let mut definition = compile(UNDONE);
    let contract = EffectContract {
        asks: true,
        ..EffectContract::default()
    };
    let name = EffectName::parse("card-charge").unwrap();
    definition.effects.insert(name, contract);
    definition
}

/// The same saga, broken so that the kernel panics where the charge fails with one of these classes.
fn broken(classes: &[&str]) -> Definition {
    let mut definition = compile(UNDONE);
    for (class, answers) in &mut definition.steps[0].on_error {
        if classes.contains(&class.as_str()) {
            answers[0].then = Then::GoTo(u16::MAX);
        }
    }
    definition
}

/// Opens `p` and returns its charge.
async fn charged(shard: &Shard) -> WorkItem {
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.outbox().await.remove(0).1
}

fn receipt(charge: &WorkItem) -> Input {
    result(charge, 1, &json!({"receipt": "r"}))
}

fn declined(charge: &WorkItem) -> Input {
    let mut input = receipt(charge);
    if let InputBody::Result(result) = &mut input.body {
        result.outcome = WorkOutcome::failed("declined", "no money");
    }
    input
}

fn of_pay(event_type: &str, sequence: u64, data: &Value) -> Input {
    event(pay("p"), event_type, sequence, data)
}

fn effects(items: &[WorkItem]) -> Vec<&str> {
    let names = items.iter().filter_map(|item| match &item.kind {
        WorkKind::Effect { effect, .. } => Some(effect.as_str()),
        _ => None,
    });
    names.collect()
}

async fn work(shard: &Shard) -> Vec<WorkItem> {
    let rows = shard.outbox().await;
    rows.into_iter().map(|(_, item)| item).collect()
}

/// The instance with its charge given up as an unknown outcome: it is refunded, and then the instance has failed.
async fn is_refunded(shard: &Shard, results: u64) {
    let items = work(shard).await;
    assert_eq!(effects(&items), ["card-refund"]);
    assert_eq!(shard.record(&pay("p")).unwrap().phase, Phase::Compensating);
    let mut undone = result(&items[0], results, &json!({}));
    if let InputBody::Result(result) = &mut undone.body {
        result.effect = Some(EffectName::parse("card-refund").unwrap());
    }
    shard.deliver(RESULTS, results, vec![undone]).await;
    shard.until_idle().await;
    let ended = shard.ended(&pay("p")).expect("it has ended");
    assert_eq!(ended.phase, Phase::Failed);
    assert_eq!(ended.failure.unwrap().code, "result.refused");
}

/// A shard whose process has died so many times of the receipt of its charge.
async fn after_deaths(world: &World, attempts: u32) -> (Shard, WorkItem) {
    let shard = world.start();
    let charge = charged(&shard).await;
    shard.stop().await;
    die_with(world, &receipt(&charge), attempts);
    (world.start(), charge)
}

fn is_blocked(shard: &Shard) -> bool {
    shard.handle.reader.inbox(&pay("p"), 9).unwrap().0.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_that_killed_the_process_three_times_is_an_unknown_outcome_of_its_step() {
    let world = world_of(compile(UNDONE));
    let (shard, charge) = after_deaths(&world, 3).await;
    shard.deliver(RESULTS, 1, vec![receipt(&charge)]).await;
    shard
        .deliver(EVENTS, 2, vec![of_pay("Pay.Settled", 2, &json!({"id": "p"}))])
        .await;
    shard.until_idle().await;
    assert_eq!(shard.state(&pay("p"), "receipt"), Value::Null, "it was not run");
    let letters = shard.dead_letters();
    let [(number, letter)] = letters.as_slice() else {
        panic!("one dead letter, not {letters:?}");
    };
    assert_eq!((letter.reason.as_str(), letter.attempts), ("poison.crash", 3));
    assert_eq!(letter.input, Some(receipt(&charge)), "it is kept as evidence");
    assert!(!is_blocked(&shard));
    let history = shard.history(&pay("p"));
    assert!(
        history
            .iter()
            .any(|row| matches!(&row.outcome, HistoryOutcome::Dead { number: dead, .. } if dead == number)),
        "{history:?}"
    );
    is_refunded(&shard, 2).await;

    // Nothing waits for it any more, so it cannot come again, and to discard it changes nothing.
    assert!(shard.decide(*number, Retry).await.is_err());
    assert_eq!(shard.dead_letters().len(), 1);
    shard.decide(*number, Discard).await.unwrap();
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_that_killed_the_process_is_a_question_where_its_effect_asks_and_a_retry_answers_it() {
    let world = world_of(asking());
    let (shard, charge) = after_deaths(&world, 3).await;
    shard.deliver(RESULTS, 1, vec![receipt(&charge)]).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).unwrap();
    assert_eq!(record.steps[0].status, StepStatus::Stuck);
    let question = record.steps[0].question.as_ref().unwrap();
    assert!(question.message.contains("died 3 times"), "{}", question.message);
    let number = shard.dead_letters()[0].0;
    shard.decide(number, Retry).await.unwrap();
    let ended = shard.ended(&pay("p")).expect("what it says settles the question");
    assert_eq!(ended.phase, Phase::Completed);
    assert_eq!(shard.state(&pay("p"), "receipt"), "r");
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn where_the_unknown_outcome_kills_the_process_too_the_instance_waits_and_loses_nothing() {
    let world = world_of(compile(UNDONE));
    let (shard, charge) = after_deaths(&world, 6).await;
    let others = [pay_opened("q", 2)].to_vec();
    shard.deliver(RESULTS, 1, vec![receipt(&charge)]).await;
    shard.deliver(EVENTS, 2, others).await;
    shard.until_idle().await;
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!((letter.reason.as_str(), letter.attempts), ("poison.crash", 6));
    assert!(is_blocked(&shard));
    assert!(shard.record(&pay("q")).is_some(), "others go on");
    assert_eq!(effects(&work(&shard).await), ["card-charge", "card-charge"]);
    shard.stop().await;

    // It is still so in another life, and the result can be applied when the fault is mended.
    let shard = world.start();
    assert!(is_blocked(&shard));
    shard.decide(number, Retry).await.unwrap();
    assert_eq!(shard.ended(&pay("p")).unwrap().phase, Phase::Completed);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_unknown_outcome_in_the_place_of_a_result_is_begun_as_often_as_the_result() {
    for attempts in 4..=5 {
        let world = world_of(compile(UNDONE));
        let shard = world.start();
        let charge = charged(&shard).await;
        shard.stop().await;
        die_with(&world, &receipt(&charge), attempts);
        let shard = world.start();
        shard.deliver(RESULTS, 1, vec![receipt(&charge)]).await;
        shard.until_idle().await;
        assert_eq!(shard.dead_letters()[0].1.attempts, attempts);
        is_refunded(&shard, 2).await;
        shard.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_at_which_the_kernel_panics_is_an_unknown_outcome_of_its_step() {
    let world = world_of(broken(&["declined"]));
    let shard = world.start();
    let charge = charged(&shard).await;
    shard.deliver(RESULTS, 1, vec![declined(&charge)]).await;
    shard.until_idle().await;
    assert_eq!(shard.dead_letters()[0].1.reason, "poison.panic");
    assert!(!is_blocked(&shard));
    is_refunded(&shard, 2).await;
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn where_the_kernel_panics_at_the_unknown_outcome_too_the_instance_waits_and_loses_nothing() {
    let mut world = world_of(broken(&["declined", "result.refused"]));
    let shard = world.start();
    let charge = charged(&shard).await;
    shard.deliver(RESULTS, 1, vec![declined(&charge)]).await;
    shard.until_idle().await;
    let letters = shard.dead_letters();
    let [(number, letter)] = letters.as_slice() else {
        panic!("one dead letter, not {letters:?}");
    };
    assert_eq!(letter.reason, "poison.panic");
    assert!(letter.message.contains("in its place"), "{}", letter.message);
    assert!(is_blocked(&shard));
    let refused = shard.decide(*number, Discard).await.unwrap_err();
    assert!(refused.to_string().contains("it stays"), "{refused}");
    assert_eq!(shard.dead_letters(), letters);
    assert_eq!(effects(&work(&shard).await), ["card-charge"]);
    shard.stop().await;

    world.definitions = set_of(vec![compile(UNDONE)]);
    let shard = world.start();
    shard.decide(*number, Discard).await.unwrap();
    is_refunded(&shard, 2).await;
    shard.stop().await;
}

/// The instance stands behind an event, one more waits, and for the result there is no room.
pub(super) async fn overflown(world: &mut World) -> (Shard, WorkItem) {
    world.limits.inbox_inputs = 1;
    let shard = world.start();
    let charge = charged(&shard).await;
    let divided = of_pay("Pay.Divided", 2, &json!({"id": "p", "by": 0}));
    let settled = of_pay("Pay.Settled", 3, &json!({"id": "p"}));
    shard.deliver(EVENTS, 2, vec![divided]).await;
    shard.deliver(EVENTS, 3, vec![settled]).await;
    shard.deliver(RESULTS, 1, vec![receipt(&charge)]).await;
    shard.until_idle().await;
    (shard, charge)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn to_discard_a_result_completes_its_step_as_an_unknown_outcome() {
    let mut world = world_of(compile(UNDONE));
    let (shard, _) = overflown(&mut world).await;
    let letters = shard.dead_letters();
    let reasons: Vec<_> = letters.iter().map(|(_, letter)| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["expression", "inbox.overflow"]);
    let (before, dead) = (letters[0].0, letters[1].0);

    let refused = shard.decide(dead, Discard).await.unwrap_err();
    assert!(
        refused.to_string().contains(&format!("dead letter {before}")),
        "{refused}"
    );
    assert_eq!(shard.dead_letters(), letters, "it keeps its place in the order");
    shard.decide(before, Discard).await.unwrap();
    assert_eq!(shard.state(&pay("p"), "paid"), true);
    shard.decide(dead, Discard).await.unwrap();
    assert_eq!(shard.dead_letters(), []);
    assert_eq!(shard.state(&pay("p"), "receipt"), Value::Null);
    is_refunded(&shard, 2).await;
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn to_discard_a_result_asks_where_its_effect_asks() {
    let mut world = world_of(asking());
    let (shard, charge) = overflown(&mut world).await;
    for (number, _) in shard.dead_letters() {
        shard.decide(number, Discard).await.unwrap();
    }
    let record = shard.record(&pay("p")).unwrap();
    let question = record.steps[0].question.as_ref().expect("an operator is asked");
    assert_eq!(question.command, charge.command_id);
    assert!(question.message.contains("discarded"), "{}", question.message);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn to_discard_a_result_that_came_a_second_way_changes_nothing() {
    let mut world = world_of(compile(UNDONE));
    let (shard, charge) = overflown(&mut world).await;
    let letters = shard.dead_letters();
    shard.decide(letters[0].0, Discard).await.unwrap();
    // The sweeper finds it in the stream.
    let InputBody::Result(found) = receipt(&charge).body else {
        panic!("a result")
    };
    shard.verdict(pay("p"), charge.command_id, found.outcome).await;
    shard.until_idle().await;
    assert_eq!(shard.ended(&pay("p")).unwrap().phase, Phase::Completed);
    shard.decide(letters[1].0, Discard).await.unwrap();
    assert_eq!(shard.ended(&pay("p")).unwrap().phase, Phase::Completed);
    assert_eq!(work(&shard).await, []);
    shard.stop().await;
}

/// The charge waits before its first attempt, whose command cannot be made.
const DELAYED: &str = r"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {'Pay.*': event.data.id}
state:
  init: {share: 0}
steps:
  charge:
    delay: 1m
    effect: card-charge
    with: {share: '${100 / state.share}'}
    on_error: {timer.discarded: {fail: {code: given_up}}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn to_discard_the_timer_of_an_attempt_fails_its_step() {
    let world = world_of(compile(DELAYED));
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    world.clock.advance(Duration::from_mins(2));
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!(letter.reason, "expression");
    assert!(is_blocked(&shard));
    shard.decide(number, Discard).await.unwrap();
    let ended = shard.ended(&pay("p")).expect("nothing is left to wait for");
    assert_eq!(ended.failure.unwrap().code, "given_up");
    let history = shard.history(&pay("p"));
    let [settled, decided, dead, _opened] = &history[..] else {
        panic!("the letter, the decision and what came of it: {history:?}");
    };
    assert_eq!(settled.outcome, HistoryOutcome::Applied);
    assert_eq!(decided.outcome, HistoryOutcome::Discarded { number });
    assert_eq!(
        (&decided.input_id, decided.time),
        (&dead.input_id, world.clock.now())
    );
    assert_eq!(decided.source, None);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn to_discard_the_timer_of_an_undo_leaves_it_to_an_operator() {
    let world = world_of(compile(UNDONE));
    let shard = world.start();
    let charge = charged(&shard).await;
    let unknown = WorkOutcome::timed_out("no answer");
    shard.verdict(pay("p"), charge.command_id, unknown).await;
    let refund = work(&shard).await.remove(0);
    let busy = WorkOutcome::failed("busy", "later");
    shard.verdict(pay("p"), refund.command_id, busy).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).unwrap();
    let (name, row) = record.timers.first_key_value().expect("it is tried again");
    let timer = timer_input(pay("p"), name.clone(), row.due);
    shard.stop().await;
    die_with(&world, &timer, 3);

    let shard = world.start();
    world.clock.advance(Duration::from_hours(1));
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!(letter.reason, "poison.crash");
    assert!(is_blocked(&shard));
    shard.decide(number, Discard).await.unwrap();
    let record = shard.record(&pay("p")).unwrap();
    assert_eq!(record.phase, Phase::CompensationFailed);
    assert!(record.timers.is_empty());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_that_waited_for_its_definition_is_applied_alone_after_a_crash() {
    let settled = || of_pay("Pay.Settled", 2, &json!({"id": "p"}));
    let mut world = world_of(compile(UNDONE));
    let shard = world.start();
    charged(&shard).await;
    shard.stop().await;
    let with_pay = std::mem::replace(&mut world.definitions, set_of(vec![compile(LIST)]));
    let shard = world.start();
    shard.deliver(EVENTS, 2, vec![settled()]).await;
    let late = of_pay("Pay.Divided", 3, &json!({"id": "p", "by": 4}));
    shard.deliver(EVENTS, 3, vec![late]).await;
    shard.until_idle().await;
    shard.stop().await;
    die_with(&world, &settled(), 3);

    world.definitions = with_pay;
    let shard = world.start();
    shard.until_idle().await;
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!(letter.reason, "poison.crash");
    assert_eq!(letter.input.unwrap().id, settled().id);
    assert_eq!(shard.state(&pay("p"), "share"), 0, "it waits behind");
    shard.decide(number, Discard).await.unwrap();
    shard.until_idle().await;
    assert_eq!(shard.state(&pay("p"), "share"), 25);
    assert_eq!(shard.state(&pay("p"), "paid"), false);
    shard.stop().await;
}
