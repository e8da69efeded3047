//! Events that come before their instance, and after its end.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::storage::rows::{early_number, early_timer};

fn with(keys: &str) -> World {
    let mut world = World::new();
    let text = LIST.replacen("\nkey:", &format!("\n{keys}\nkey:"), 1);
    world.definitions = set_of(vec![compile(&text), compile(PAY)]);
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_waits_for_its_instance_across_a_restart_and_keeps_its_order() {
    let world = with("no_instance: {park: 1h}");
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![added("a", 1, 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 2)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    assert_eq!(shard.inbox("a").1.len(), 2);
    shard.stop().await;

    let shard = world.start();
    shard.deliver(EVENTS, 3, vec![opened("a", 3)]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 3)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1, 2, 3]));
    assert_eq!(shard.inbox("a").1.len(), 0);
    let reader = shard.handle.reader.clone();
    let timers = reader.timers(None, 10).expect("readable");
    assert_eq!(timers.len(), 0, "nothing is left to expire");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_whose_instance_does_not_begin_in_time_is_dropped() {
    let world = with("no_instance: {park: 1h}");
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![added("a", 1, 1)]).await;
    shard.until_idle().await;
    assert_eq!(shard.inbox("a").1.len(), 1);
    world.clock.advance(Duration::from_mins(61));
    shard.barrier(START.plus_ms(61 * 60_000)).await;
    let mut left = 1;
    for _ in 0..1_000 {
        shard.until_idle().await;
        left = shard.inbox("a").1.len();
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(left, 0, "its time is over");
    shard.deliver(EVENTS, 2, vec![opened("a", 2)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn early_inputs_are_bounded_per_shard() {
    let mut world = with("no_instance: {park: 1h}");
    world.limits.early_inputs = 2;
    let shard = world.start();
    for (sequence, key) in [(1, "a"), (2, "b"), (3, "c")] {
        shard
            .deliver(EVENTS, sequence, vec![added(key, sequence, 1)])
            .await;
    }
    shard.until_idle().await;
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "inbox.overflow");
    // Room that an instance makes is room for others, and nothing waits behind the dead letter.
    shard.deliver(EVENTS, 4, vec![opened("a", 4)]).await;
    shard.deliver(EVENTS, 5, vec![added("c", 5, 5)]).await;
    shard.deliver(EVENTS, 6, vec![opened("c", 6)]).await;
    shard.until_idle().await;
    assert_eq!((shard.items("a"), shard.items("c")), (json!([1]), json!([5])));
    assert_eq!(shard.dead_letters().len(), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_ended_instance_hears_what_comes_after_the_end() {
    let world = with("after_end: {List.Added: {set: {items: '${state.items + [event.data.n]}'}}}");
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![named("a", "List.Closed", 2)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 7)]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 8)]).await;
    // The same message again.
    shard.deliver(EVENTS, 5, vec![added("a", 3, 7)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    let ended = shard.ended(&list("a")).expect("it is kept");
    let state: serde_json::Value = serde_json::from_slice(&ended.data).expect("JSON");
    assert_eq!(state["items"], json!([7, 8]));
    assert_eq!(shard.history(&list("a")).len(), 4);
    shard.stop().await;
    let uses = world.store().reader().definitions().expect("readable");
    let of_list = uses.iter().find(|(_, row, _)| row.saga.as_str() == "list");
    assert_eq!(of_list.map(|(_, _, uses)| (uses.live, uses.ended)), Some((0, 1)));
}

#[test]
fn the_names_of_timers_that_end_a_wait_are_read_back() {
    assert_eq!(early_number(&early_timer(77)), Some(77));
    assert_eq!(early_number("unpaid"), None);
}
