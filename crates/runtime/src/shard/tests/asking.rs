//! Timers of instances with aliases, whose events other shards read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::aliases::{Post, parcel, tracking, world};
use super::faults::die_with;
use super::world::{EVENTS, RESULTS, START, World, event, opened, result};
use crate::kernel::children::SagaMessage;
use crate::kernel::record::Phase;
use crate::kernel::work::WorkKind;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::LetterDecision;

/// A parcel that nobody scans for a minute is lost.
const LOST: &str = r"
timers:
  lost: {after: 1m, cancel_when: 'size(state.places) > 0', fail: {code: lost}}
";

/// A parcel with the number T-1, as its alias knows.
async fn labelled(world: &World) -> Post {
    let mut post = Post::of(world);
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    post
}

/// Two minutes later the own streams of the shard are read.
async fn due(world: &World, post: &Post) {
    world.clock.advance(Duration::from_mins(2));
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
}

/// The parcel is closed half a minute after its timer was due.
async fn close_later(post: &mut Post) {
    post.events += 1;
    let mut closed = event(
        parcel("t1", "a"),
        "Parcel.Closed",
        post.events,
        &json!({"id": "a"}),
    );
    closed.time = START.plus_ms(90_000);
    post.shard.deliver(EVENTS, post.events, vec![closed]).await;
}

async fn questions(post: &Post) -> usize {
    let messages = post.messages().await;
    let asks = |kind: &WorkKind| {
        matches!(
            kind,
            WorkKind::Saga {
                message: SagaMessage::AskAlias(_),
                ..
            }
        )
    };
    messages.iter().filter(|(_, item)| asks(&item.kind)).count()
}

/// After an outage the parcel was given up although its scan stood in the stream: another shard had read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_timer_fires_behind_the_events_that_an_alias_has_still_to_forward() {
    let world = world(LOST);
    let mut post = labelled(&world).await;
    post.scan("t1", "T-1", 7).await;
    post.shard.until_idle().await;
    assert_eq!(post.messages().await.len(), 1, "it is read, and on its way");
    due(&world, &post).await;
    assert_eq!(questions(&post).await, 1);
    assert_eq!(
        post.shard.record(&parcel("t1", "a")).expect("not given up").phase,
        Phase::Running
    );
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([7]));
    let record = post.shard.record(&parcel("t1", "a")).expect("it goes on");
    assert!(!record.timers.contains_key("lost"), "{:?}", record.timers);
    let (_, waiting) = post
        .shard
        .handle
        .reader
        .inbox(&parcel("t1", "a"), 10)
        .expect("readable");
    assert!(waiting.is_empty(), "{waiting:?}");
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_such_an_event_the_timer_fires_before_what_was_stored_later_also_over_a_restart() {
    let world = world(LOST);
    let mut post = labelled(&world).await;
    due(&world, &post).await;
    close_later(&mut post).await;
    post.shard.until_idle().await;
    assert!(
        post.shard.record(&parcel("t1", "a")).is_some(),
        "it waits behind the timer"
    );
    post.shard.stop().await;
    let mut post = Post::of(&world);
    assert_eq!(questions(&post).await, 1);
    post.shard.barrier(world.clock.now()).await;
    post.carry().await;
    let record = post.shard.ended(&parcel("t1", "a")).expect("given up");
    assert_eq!(record.phase, Phase::Failed);
    let history = post.shard.history(&parcel("t1", "a"));
    assert!(
        history
            .iter()
            .any(|row| row.kind.starts_with("timer") && !row.late_source)
    );
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_an_answer_the_timer_fires_in_the_end_and_says_so() {
    let world = world(LOST);
    let post = labelled(&world).await;
    due(&world, &post).await;
    assert_eq!(questions(&post).await, 1);
    world.clock.advance(Duration::from_mins(11));
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
    let record = post.shard.ended(&parcel("t1", "a")).expect("given up");
    assert_eq!(record.phase, Phase::Failed);
    let history = post.shard.history(&parcel("t1", "a"));
    assert!(history.iter().any(|row| row.late_source), "{history:?}");
    assert_eq!(world.metrics.timers_fired_late_source.get(), 1);
    post.shard.stop().await;
}

/// It fired, and nothing told that an event from before it might come behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_room_to_wait_the_timer_fires_and_says_so() {
    let mut world = world(LOST);
    world.limits.inbox_inputs = 0;
    let post = labelled(&world).await;
    due(&world, &post).await;
    assert_eq!(questions(&post).await, 0);
    let record = post.shard.ended(&parcel("t1", "a")).expect("given up");
    assert_eq!(record.phase, Phase::Failed);
    let history = post.shard.history(&parcel("t1", "a"));
    assert!(history.iter().any(|row| row.late_source), "{history:?}");
    assert_eq!(world.metrics.timers_fired_late_source.get(), 1);
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_parcel_without_a_number_asks_nobody() {
    let world = world(LOST);
    let mut post = Post::of(&world);
    post.event(parcel("t1", "b"), "Parcel.Packed", json!({"id": "b"}))
        .await;
    due(&world, &post).await;
    assert_eq!(questions(&post).await, 0);
    assert_eq!(
        post.shard.ended(&parcel("t1", "b")).expect("given up").phase,
        Phase::Failed
    );
    post.shard.stop().await;
}

/// What is given again behind a dead letter keeps its order, and its timer asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_forwarded_event_that_is_poison_holds_up_the_timer_and_what_waits_behind_it() {
    let world = world(LOST);
    let mut post = labelled(&world).await;
    let nowhere = json!({"no": "T-1"});
    post.event(tracking("t1", "T-1"), "Carrier.Scanned", nowhere)
        .await;
    due(&world, &post).await;
    close_later(&mut post).await;
    post.carry().await;
    let (behind, waiting) = post
        .shard
        .handle
        .reader
        .inbox(&parcel("t1", "a"), 10)
        .expect("readable");
    let number = behind.expect("the scan says no place");
    assert_eq!(waiting.len(), 2, "the timer, and what came later: {waiting:?}");
    let discard = LetterDecision::Discard;
    assert_eq!(post.shard.decide(number, discard).await, Ok(()));
    assert_eq!(questions(&post).await, 1);
    post.carry().await;
    let record = post.shard.ended(&parcel("t1", "a")).expect("given up");
    assert_eq!(record.phase, Phase::Failed, "before it was closed");
    post.shard.stop().await;
}

/// A parcel is weighed, and the result comes when it is lost already.
const WEIGHED: &str = r"
  weigh: {effect: scale-weigh, with: {id: '${key}'}}
";

/// The result waits behind the timer, and stays in the outbox until it is applied. Events from before the timer were held back
/// because of that, and the timer waited for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_behind_such_a_timer_holds_back_no_events_and_is_not_asked_for_again() {
    let mut world = world(&format!("{WEIGHED}{LOST}"));
    let mut post = labelled(&world).await;
    let (row, weigh) = post.shard.outbox().await.remove(0);
    due(&world, &post).await;
    assert_eq!(questions(&post).await, 1);
    let mut weighed = result(&weigh, 1, &json!({"kg": 7}));
    weighed.time = START.plus_ms(90_000);
    post.shard.deliver(RESULTS, 1, vec![weighed]).await;
    post.shard.until_idle().await;
    let floor = row.log_sequence << 16 | u64::from(row.index);
    post.shard.handle.relayed.floor.store(floor, Ordering::Release);
    for _ in 0..12 {
        world.clock.advance(Duration::from_secs(6));
        post.shard.until_idle().await;
    }
    let released = post.shard.drain_released();
    assert!(released.iter().all(|released| released.overdue.is_empty()));
    post.shard.stop().await;

    world.settings.outbox_soft = 0;
    let mut post = Post::of(&world);
    post.scan("t1", "T-1", 7).await;
    post.shard.barrier(world.clock.now()).await;
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([7]));
    let rows = post.shard.outbox().await;
    assert!(rows.is_empty(), "the result is applied: {rows:?}");
    post.shard.stop().await;
}

/// A parcel that is lost later than somebody was reminded of it.
const REMINDED: &str = r"
timers:
  reminded: {after: 1m, set: {places: '${state.places}'}}
  lost: {after: 3m, fail: {code: lost}}
";

/// After a crash the inputs that a timer has let in are applied in turns of their own, and the next timer fired in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_a_crash_a_timer_fires_behind_what_has_waited_for_the_timer_before_it() {
    let world = world(REMINDED);
    let post = labelled(&world).await;
    post.shard.stop().await;
    die_with(&world, &opened("other", 1), 1);
    let mut post = Post::of(&world);
    world.clock.advance(Duration::from_mins(4));
    let now = world.clock.now();
    post.shard.barrier(START.plus_ms(120_000)).await;
    post.shard.until_idle().await;
    assert_eq!(questions(&post).await, 1, "the first timer waits for its alias");
    close_later(&mut post).await;
    let question = post.messages().await;
    post.bring(question).await;
    post.shard.until_idle().await;
    let answer = post.messages().await;
    assert_eq!(answer.len(), 1, "the alias has read its stream: {answer:?}");
    // The answer, and that the second timer may fire, come in one turn.
    let hang = world.clock.hang();
    hang.reached().await;
    post.bring(answer).await;
    post.shard.barrier(now).await;
    drop(hang);
    post.shard.until_idle().await;
    post.carry().await;
    let record = post.shard.ended(&parcel("t1", "a")).expect("it has ended");
    assert_eq!(record.phase, Phase::Completed, "it was closed before it was lost");
    post.shard.stop().await;
}
