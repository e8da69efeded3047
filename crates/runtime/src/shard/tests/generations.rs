//! Keys that are used again.

use serde_json::json;

use super::world::*;
use crate::kernel::input::WorkOutcome;
use crate::kernel::record::Phase;

fn reusing() -> World {
    let reuse = |text: &str, policy: &str| text.replacen("\nkey:", &format!("\nreuse: {policy}\nkey:"), 1);
    let mut world = World::new();
    world.definitions = set_of(vec![
        compile(&reuse(LIST, "always")),
        compile(&reuse(PAY, "{after: [cancelled]}")),
    ]);
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_next_generation_has_a_history_of_its_own_and_survives_a_restart() {
    let world = reusing();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(EVENTS, 3, vec![named("a", "List.Closed", 3)]).await;
    // The event that began it is a duplicate, another one is not.
    shard.deliver(EVENTS, 4, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    shard.deliver(EVENTS, 5, vec![opened("a", 5)]).await;
    shard.deliver(EVENTS, 6, vec![added("a", 6, 2)]).await;
    shard.until_idle().await;
    shard.stop().await;

    let shard = world.start();
    let record = shard.record(&list("a")).expect("the second generation");
    assert_eq!(record.generation, 2);
    assert_eq!(shard.items("a"), json!([2]));
    assert_eq!(shard.history(&list("a")).len(), 2);
    shard.deliver(EVENTS, 7, vec![named("a", "List.Closed", 7)]).await;
    shard.deliver(EVENTS, 8, vec![opened("a", 5)]).await;
    shard.deliver(EVENTS, 9, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none(), "both are duplicates");
    let ended = shard.ended(&list("a")).expect("the second generation");
    assert_eq!((ended.generation, ended.phase), (2, Phase::Completed));
    shard.stop().await;
}

/// The saga keeps what was completed for an hour, and the shard all else for a week.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_key_is_free_when_the_time_is_over_that_its_saga_said_when_it_ended() {
    let keeping = |kept: &str| LIST.replacen("\nkey:", &format!("\nkeep_ended: {kept}\nkey:"), 1);
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&keeping("{completed: 1h}"))]);
    let shard = world.start();
    for (key, sequence) in [("a", 1), ("b", 3)] {
        shard.deliver(EVENTS, sequence, vec![opened(key, sequence)]).await;
        let closed = named(key, "List.Closed", sequence + 1);
        shard.deliver(EVENTS, sequence + 1, vec![closed]).await;
    }
    let after = |key: &str, sequence: u64, ms: i64| {
        let mut late = opened(key, sequence);
        late.time = opened(key, 4).time.plus_ms(ms);
        late
    };
    shard.deliver(EVENTS, 5, vec![after("a", 5, 3_500_000)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none(), "the key is used up");
    shard.stop().await;

    // What the file says later is for instances that end later.
    world.definitions = set_of(vec![compile(&keeping("90d"))]);
    let shard = world.start();
    shard.deliver(EVENTS, 6, vec![after("a", 6, 3_600_001)]).await;
    shard.deliver(EVENTS, 7, vec![named("a", "List.Closed", 7)]).await;
    shard.deliver(EVENTS, 8, vec![after("b", 8, 3_600_001)]).await;
    shard
        .deliver(EVENTS, 9, vec![after("a", 9, 89 * 86_400_000)])
        .await;
    shard.until_idle().await;
    let ended = shard
        .ended(&list("a"))
        .expect("kept for longer than the shard says");
    assert_eq!(ended.generation, 2);
    let began = shard.record(&list("b")).expect("the key is free again");
    assert_eq!(began.generation, 2);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_start_waits_in_the_inbox_until_what_comes_late_is_undone() {
    let world = reusing();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.deliver(CONTROLS, 1, vec![cancel(pay("p"), 1)]).await;
    shard.deliver(EVENTS, 2, vec![pay_opened("p", 2)]).await;
    shard.until_idle().await;
    let first = shard.record(&pay("p")).expect("its charge is still under way");
    assert_eq!((first.generation, first.deferred), (1, 1));
    shard.stop().await;

    let shard = world.start();
    let charges = async || {
        let mut outbox = shard.outbox().await;
        outbox.retain(|(_, item)| item.kind.awaits_result());
        outbox
    };
    let first = charges().await;
    assert_eq!(first.len(), 1, "one charge");
    let charge = &first[0].1;
    let outcome = WorkOutcome::failed("declined".to_owned(), String::new());
    shard.verdict(pay("p"), charge.command_id, outcome).await;
    shard.until_idle().await;
    let second = shard.record(&pay("p")).expect("the next generation");
    assert_eq!((second.generation, second.phase), (2, Phase::Running));
    let next = charges().await;
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].1.idempotency_key, charge.idempotency_key);
    shard.stop().await;
}
