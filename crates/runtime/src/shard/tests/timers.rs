//! Timers never fire before the inputs that were stored until then.

use std::time::Duration;

use serde_json::json;

use super::world::{EVENTS, RESULTS, Shard, World, event, pay, pay_opened, result};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{InputBody, Origin};
use crate::kernel::record::Phase;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::Notice;

const MINUTE: Duration = Duration::from_mins(1);

async fn next_notice(shard: &mut Shard) -> Notice {
    tokio::time::timeout(Duration::from_secs(20), shard.noticed.recv())
        .await
        .expect("a notice comes")
        .expect("the shard runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_due_timer_asks_for_a_barrier_and_fires_behind_it() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    world.clock.advance(MINUTE + Duration::from_millis(500));
    shard.until_idle().await;
    assert_eq!(next_notice(&mut shard).await, Notice::BarrierWanted { shard: 3 });
    shard.until_idle().await;
    assert_eq!(shard.record(&pay("p")).unwrap().phase, Phase::Running);
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).expect("its charge is still under way");
    assert_eq!(record.failure.as_ref().unwrap().code, "unpaid");
    let row = &shard.history(&pay("p"))[0];
    let due = pay_opened("p", 1).time.plus_ms(60_000);
    assert_eq!(row.input_id, format!("unpaid@{}", due.0));
    assert_eq!((row.time, row.late_source), (due, false));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn with_a_machine_whose_clock_is_ahead_no_timer_fires_before_a_barrier_has_passed_its_due_time() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    let brokers_time = world.clock.now();
    world.clock.advance_wall(60 * MINUTE);
    shard.until_idle().await;
    assert_eq!(next_notice(&mut shard).await, Notice::BarrierWanted { shard: 3 });
    let due = pay_opened("p", 1).time.plus_ms(60_000);
    for as_of in [brokers_time, due.plus_ms(-1)] {
        shard.barrier(as_of).await;
        shard.until_idle().await;
        assert_eq!(world.metrics.timers_fired.get(), 0, "{as_of:?}");
    }
    shard.barrier(due).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).expect("its charge is still under way");
    assert_eq!(record.failure.as_ref().expect("it has failed").code, "unpaid");
    assert!(!shard.history(&pay("p"))[0].late_source);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn timers_that_are_due_and_have_not_fired_are_counted_and_the_earliest_tells_how_late_it_is() {
    let world = World::new();
    let shard = world.start();
    let opened = (0..3).map(|number| pay_opened(&format!("p{number}"), 1));
    shard.deliver(EVENTS, 1, opened.collect()).await;
    shard.until_idle().await;
    let gauge = world.metrics.timers_overdue.with_label_values(&["3"]);
    let seconds = world.metrics.timers_overdue_seconds.with_label_values(&["3"]);
    assert_eq!((gauge.get(), seconds.get()), (0, 0));
    world.clock.advance(2 * MINUTE);
    shard.until_idle().await;
    assert_eq!(gauge.get(), 3, "no barrier covers them");
    assert_eq!(
        seconds.get(),
        59,
        "due a minute and a millisecond after the start"
    );
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    world.clock.advance(world.settings.sweep_every.duration());
    shard.until_idle().await;
    assert_eq!((gauge.get(), seconds.get()), (0, 0));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_an_hour_of_outage_the_payment_in_the_backlog_comes_before_the_timer() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.stop().await;
    world.clock.advance_wall(60 * MINUTE);
    let mut shard = world.start();
    assert_eq!(next_notice(&mut shard).await, Notice::BarrierWanted { shard: 3 });
    shard.until_idle().await;
    let paid = event(pay("p"), "Pay.Settled", 2, &json!({"id": "p"}));
    shard.deliver(EVENTS, 2, vec![paid]).await;
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).unwrap();
    assert_eq!((record.phase, record.timers.len()), (Phase::Running, 0));
    assert_eq!(world.metrics.timers_fired.get(), 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_barrier_behind_a_refused_delivery_does_not_count() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    world.clock.advance(2 * MINUTE);
    let paid = || event(pay("p"), "Pay.Settled", 3, &json!({"id": "p"}));
    shard.deliver_after(EVENTS, 2, 3, vec![paid()]).await;
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    shard.deliver_after(EVENTS, 1, 3, vec![paid()]).await;
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    assert_eq!(shard.record(&pay("p")).unwrap().timers.len(), 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_timer_whose_streams_stay_unreachable_fires_at_last_and_says_so() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    world.clock.advance(2 * MINUTE);
    shard.until_idle().await;
    world.clock.advance(9 * MINUTE);
    shard.until_idle().await;
    assert_eq!(world.metrics.timers_fired.get(), 0);
    world.clock.advance(2 * MINUTE);
    shard.until_idle().await;
    assert!(shard.history(&pay("p"))[0].late_source);
    assert_eq!(world.metrics.timers_fired_late_source.get(), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_backlog_of_timers_whose_streams_stay_unreachable_is_held_once() {
    let mut world = World::new();
    world.settings.batch_inputs = 8;
    let shard = world.start();
    let opened = (0..10).map(|number| pay_opened(&format!("p{number}"), 1));
    shard.deliver(EVENTS, 1, opened.collect()).await;
    world.clock.advance(2 * MINUTE);
    shard.until_idle().await;
    // One more becomes due while they are held, and waits as long as they do.
    shard.deliver(EVENTS, 2, vec![pay_opened("late", 300_000)]).await;
    world.clock.advance(11 * MINUTE);
    for _ in 0..3 {
        shard.until_idle().await;
    }
    assert_eq!(world.metrics.timers_fired_late_source.get(), 10);
    assert_eq!(shard.record(&pay("late")).unwrap().timers.len(), 1);
    world.clock.advance(5 * MINUTE);
    shard.until_idle().await;
    assert_eq!(world.metrics.timers_fired_late_source.get(), 11);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn timers_wait_for_events_that_the_shard_itself_holds_back() {
    let mut world = World::new();
    world.settings.outbox_soft = 4;
    let shard = world.start();
    let opened = ["p", "a", "b", "c", "d"].map(|key| pay_opened(key, 1));
    shard.deliver(EVENTS, 1, opened.to_vec()).await;
    let rows = shard.outbox().await;
    let paid = event(pay("p"), "Pay.Settled", 2, &json!({"id": "p"}));
    shard.deliver(EVENTS, 2, vec![paid]).await;
    for _ in 0..3 {
        world.clock.advance(11 * MINUTE);
        shard.until_idle().await;
    }
    assert_eq!(shard.position(EVENTS), 1, "the payment is held back");
    assert_eq!(world.metrics.timers_fired.get(), 0);

    let answers = rows.iter().filter(|(_, item)| item.instance != pay("p")).take(2);
    let receipts = answers.map(|(_, item)| result(item, 1, &json!({"receipt": "r"})));
    shard.deliver(RESULTS, 1, receipts.collect()).await;
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).unwrap();
    assert_eq!(
        (record.phase, record.timers.len()),
        (Phase::Running, 0),
        "it is paid"
    );
    assert_eq!(world.metrics.timers_fired_late_source.get(), 0);
    shard.stop().await;
}

/// What is known of the clock of one stream may be more than of the one that is furthest behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_barrier_that_is_ahead_of_the_clock_counts_up_to_now() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    world.clock.advance(MINUTE + Duration::from_millis(500));
    shard.until_idle().await;
    shard.barrier(world.clock.now().plus_ms(20)).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).expect("its charge is still under way");
    assert_eq!(record.failure.as_ref().unwrap().code, "unpaid");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_backlog_of_timers_takes_half_a_commit_at_most() {
    let mut world = World::new();
    world.settings.batch_inputs = 8;
    let shard = world.start();
    let keys: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    let inputs = keys.iter().map(|key| pay_opened(key, 1)).collect();
    shard.deliver(EVENTS, 1, inputs).await;
    shard.until_idle().await;
    world.clock.advance(2 * MINUTE);
    let commits = shard.handle.status.commits();
    shard.barrier(world.clock.now()).await;
    let all = async {
        while world.metrics.timers_fired.get() < 10 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all)
        .await
        .expect("all fire");
    shard.until_idle().await;
    assert!(shard.handle.status.commits() - commits >= 3);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_timer_of_a_blocked_instance_waits_its_turn() {
    let source = super::world::PAY.replace("set: {paid: true}", "set: {paid: '${100 / event.data.by == 1}'}");
    let mut world = World::new();
    world.definitions = super::world::set_of(vec![super::world::compile(&source)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let bad = event(pay("p"), "Pay.Settled", 2, &json!({"id": "p", "by": 0}));
    shard.deliver(EVENTS, 2, vec![bad]).await;
    world.clock.advance(2 * MINUTE);
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let (behind, rows) = shard.handle.reader.inbox(&pay("p"), 10).unwrap();
    assert!(behind.is_some());
    let [(_, row)] = rows.as_slice() else {
        panic!("the timer waits, found {rows:?}");
    };
    assert_eq!(row.input.origin, Origin::Timer);
    assert!(matches!(&row.input.body, InputBody::Timer { name } if name == "unpaid"));
    let due: Vec<TimeMs> = shard
        .handle
        .reader
        .timers(None, 10)
        .unwrap()
        .into_iter()
        .map(|(due, ..)| due)
        .collect();
    assert_eq!(due, []);
    shard.stop().await;
}
