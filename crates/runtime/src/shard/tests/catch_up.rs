//! After an outage inputs are taken in the order in which they were stored, and timers at the time they were due.

use std::time::Duration;

use serde_json::json;

use super::faults::die_with;
use super::world::{CONTROLS, EVENTS, RESULTS, START, Shard, World, cancel, event, pay, pay_opened, result};
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{Input, SourceStream};
use crate::kernel::record::Phase;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{Mail, Notice};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn world() -> World {
    let mut world = World::new();
    world.settings.catch_up_wait = Millis::seconds(10);
    world
}

/// The event that is stored `ms` after the start.
fn settled(key: &str, ms: u64) -> Input {
    event(pay(key), "Pay.Settled", ms, &json!({"id": key}))
}

/// Messages of one stream, all in one delivery; each is named by its time.
async fn backlog(shard: &Shard, stream: SourceStream, inputs: Vec<Input>) {
    let last = inputs.last().map_or(0, |input| input.time.0 - START.0);
    let after = shard.position(stream);
    shard
        .deliver_after(stream, after, u64::try_from(last).unwrap(), inputs)
        .await;
}

/// Kinds of what an instance has taken, oldest first.
fn taken(shard: &Shard, key: &str) -> Vec<String> {
    let mut rows = shard.history(&pay(key));
    rows.reverse();
    rows.into_iter().map(|row| row.kind).collect()
}

async fn caught_up(world: &World, shard: &Shard) {
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let reached = async {
        while shard.handle.status.is_catching_up() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .expect("the ends are reached");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_wins_against_a_timer_if_it_was_stored_before_the_timer_was_due() {
    let world = world();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![pay_opened("early", 1), pay_opened("late", 1)])
        .await;
    caught_up(&world, &shard).await;
    shard.stop().await;
    world.clock.advance_wall(HOUR);
    let mut shard = world.start();
    let notice = shard.noticed.recv().await;
    assert_eq!(notice, Some(Notice::BarrierWanted { shard: 3 }));
    let events = vec![settled("early", 60_001), settled("late", 60_002)];
    backlog(&shard, EVENTS, events).await;
    caught_up(&world, &shard).await;
    assert_eq!(taken(&shard, "early"), ["event Pay.Opened", "event Pay.Settled"]);
    let late = ["event Pay.Opened", "timer unpaid"];
    assert_eq!(taken(&shard, "late"), late);
    assert!(!shard.history(&pay("late"))[0].late_source);
    assert_eq!(shard.record(&pay("early")).unwrap().phase, Phase::Running);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_timer_that_is_set_within_the_backlog_fires_in_it() {
    let world = world();
    world.clock.advance_wall(HOUR);
    let shard = world.start();
    let events = vec![
        pay_opened("a", 1),
        pay_opened("b", 2),
        settled("a", 60_001),
        settled("b", 60_003),
    ];
    backlog(&shard, EVENTS, events).await;
    caught_up(&world, &shard).await;
    assert_eq!(taken(&shard, "a"), ["event Pay.Opened", "event Pay.Settled"]);
    let late = ["event Pay.Opened", "timer unpaid"];
    assert_eq!(taken(&shard, "b"), late);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn more_timers_than_one_commit_may_fire_still_come_before_what_was_stored_later() {
    let mut world = world();
    // Four timers between the inputs of a commit.
    world.settings.batch_inputs = 8;
    world.clock.advance_wall(HOUR);
    let shard = world.start();
    let keys: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    let mut events: Vec<Input> = keys.iter().map(|key| pay_opened(key, 1)).collect();
    let late = (0..)
        .zip(&keys)
        .map(|(number, key)| settled(key, 70_000 + number));
    events.extend(late);
    backlog(&shard, EVENTS, events).await;
    caught_up(&world, &shard).await;
    for key in &keys {
        let expected = ["event Pay.Opened", "timer unpaid"];
        assert_eq!(taken(&shard, key), expected, "{key}");
    }
    assert_eq!(world.metrics.timers_fired.get(), 20);
    assert_eq!(shard.position(EVENTS), 70_019);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn inputs_of_different_streams_are_taken_as_they_were_stored() {
    let world = world();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    caught_up(&world, &shard).await;
    let (_, charge) = shard.outbox().await.remove(0);
    shard.stop().await;
    world.clock.advance_wall(HOUR);
    let shard = world.start();
    backlog(&shard, CONTROLS, vec![cancel(pay("p"), 300)]).await;
    backlog(&shard, EVENTS, vec![settled("p", 200), settled("p", 300)]).await;
    let receipt = result(&charge, 300, &json!({"receipt": "r"}));
    backlog(&shard, RESULTS, vec![receipt]).await;
    caught_up(&world, &shard).await;
    let expected = [
        "event Pay.Opened",
        "event Pay.Settled",
        "result of card-charge",
        "cancel",
        "event Pay.Settled",
    ];
    let found = taken(&shard, "p");
    // An instance that has ended takes no more.
    assert_eq!(found, expected[..found.len()]);
    assert!(found.len() >= 3, "{found:?}");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_an_unclean_stop_timers_and_inputs_are_begun_alone_and_in_their_order() {
    let world = world();
    let shard = world.start();
    let opened = vec![pay_opened("a", 1), pay_opened("b", 1)];
    shard.deliver(EVENTS, 1, opened).await;
    caught_up(&world, &shard).await;
    shard.stop().await;
    die_with(&world, &pay_opened("other", 1), 1);
    world.clock.advance_wall(HOUR);
    let shard = world.start();
    let events = vec![
        pay_opened("c", 10),
        settled("a", 60_001),
        settled("b", 60_002),
        settled("c", 60_011),
    ];
    backlog(&shard, EVENTS, events).await;
    caught_up(&world, &shard).await;
    assert_eq!(taken(&shard, "a"), ["event Pay.Opened", "event Pay.Settled"]);
    let late = ["event Pay.Opened", "timer unpaid"];
    assert_eq!(taken(&shard, "b"), late);
    assert_eq!(taken(&shard, "c"), late);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_cannot_be_read_is_left_out_and_the_history_says_so() {
    let world = world();
    let shard = world.start();
    // The ends are noted by now.
    shard.until_idle().await;
    let (other, events) = (world.clock.now(), vec![pay_opened("p", 1), settled("p", 70_000)]);
    backlog(&shard, EVENTS, events).await;
    for stream in [EVENTS, CONTROLS] {
        let as_of = other;
        shard.mail(Mail::Barrier { stream, as_of }).await;
    }
    world.clock.advance(9 * Duration::from_secs(1));
    shard.until_idle().await;
    assert_eq!(shard.position(EVENTS), 0);
    world.clock.advance(2 * Duration::from_secs(1));
    let reached = async {
        while shard.handle.status.is_catching_up() {
            shard.until_idle().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .expect("it is left out");
    assert_eq!(taken(&shard, "p"), ["event Pay.Opened", "event Pay.Settled"]);
    assert!(shard.history(&pay("p")).iter().all(|row| row.late_source));
    assert_eq!(world.metrics.timers_fired.get(), 0, "timers wait for its barrier");

    // It is read at last.
    shard
        .mail(Mail::Opened {
            stream: RESULTS,
            again: false,
        })
        .await;
    shard.until_idle().await;
    assert!(shard.handle.status.is_catching_up());
    caught_up(&world, &shard).await;
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_a_break_the_ends_are_noted_again() {
    let world = world();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    caught_up(&world, &shard).await;
    while shard.noticed.try_recv().is_ok() {}
    world.clock.advance(HOUR);
    for stream in SourceStream::ALL {
        shard.mail(Mail::Opened { stream, again: true }).await;
    }
    shard.until_idle().await;
    assert_eq!(
        shard.noticed.recv().await,
        Some(Notice::BarrierWanted { shard: 3 })
    );
    shard.barrier(TimeMs(world.clock.now().0 - 1)).await;
    backlog(&shard, EVENTS, vec![settled("p", 70_000)]).await;
    backlog(&shard, CONTROLS, vec![cancel(pay("p"), 60_000)]).await;
    shard.until_idle().await;
    assert_eq!(
        shard.position(EVENTS),
        1,
        "the results may hold what comes before"
    );
    caught_up(&world, &shard).await;
    let found = taken(&shard, "p");
    assert_eq!(found[..2], ["event Pay.Opened", "cancel"], "{found:?}");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_is_far_ahead_of_the_others_is_told_to_wait() {
    let mut world = world();
    world.settings.held_deliveries = 4;
    let shard = world.start();
    let gates = &shard.handle.status.gates;
    for number in 1..=5 {
        shard
            .deliver(EVENTS, number, vec![pay_opened(&format!("p{number}"), number)])
            .await;
    }
    shard.until_idle().await;
    assert!(gates.is_closed(EVENTS) && !gates.is_closed(RESULTS));
    caught_up(&world, &shard).await;
    assert!(!gates.is_closed(EVENTS));
    assert_eq!(shard.position(EVENTS), 5);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn while_catching_up_timers_wait_for_readable_streams_as_long_as_it_takes() {
    let world = world();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    caught_up(&world, &shard).await;
    shard.stop().await;
    world.clock.advance_wall(HOUR);
    let shard = world.start();
    for number in 0..5 {
        // Each watermark is a heartbeat.
        let watermark = 10 * number + 10;
        shard
            .deliver_after(RESULTS, 10 * number, watermark, Vec::new())
            .await;
        shard.until_idle().await;
        world.clock.advance(9 * Duration::from_secs(1));
        shard.until_idle().await;
    }
    world.clock.advance(MINUTE / 60);
    shard.until_idle().await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    shard.stop().await;
}
