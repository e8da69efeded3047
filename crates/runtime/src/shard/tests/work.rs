//! The outbox: released after the commit, found again when a release is lost, and bounded.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::world::{
    EVENTS, LIST, RESULTS, World, added, compile, event, list, opened, pay, pay_opened, result, set_of,
};
use crate::kernel::duration::Millis;
use crate::kernel::ids::{EffectName, InstanceId, SagaName};
use crate::kernel::input::WorkOutcome;
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{Mail, Notice, Refused};
use crate::storage::StorageError;

fn told(key: &str, sequence: u64) -> crate::kernel::input::Input {
    event(list(key), "List.Told", sequence, &json!({"text": "news"}))
}

fn encoded(row: WorkRef) -> u64 {
    row.log_sequence << 16 | u64::from(row.index)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn work_is_released_once_and_completed_with_its_result() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let rows = shard.outbox().await;
    let released = shard.drain_released();
    assert_eq!(released.len(), 1);
    assert_eq!(released[0].work, rows);
    assert_eq!(released[0].shard, 3);
    let receipt = result(&rows[0].1, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt.clone()]).await;
    assert_eq!(shard.outbox().await, []);
    assert_eq!(shard.drain_released()[0].completed, [rows[0].0]);
    assert!(shard.ended(&pay("p")).is_some());
    // The sweeper may find the same result again.
    shard.deliver(RESULTS, 2, vec![receipt]).await;
    shard.until_idle().await;
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_of_this_process_is_applied_and_put_into_the_outbox_in_one_commit() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let (row, item) = shard.outbox().await.remove(0);
    shard.drain_released();
    let body = Bytes::from_static(br#"{"receipt":"r"}"#);
    let publish = WorkItem {
        kind: WorkKind::Result {
            effect: EffectName::parse("card-charge").unwrap(),
            body: body.clone(),
        },
        ..item.clone()
    };
    let outcome = WorkOutcome::Succeeded { payload: body };
    let message = Some(Box::new(publish.clone()));
    shard
        .published_verdict(pay("p"), item.command_id, outcome, message)
        .await;
    let rows = shard.outbox().await;
    assert!(shard.ended(&pay("p")).is_some());
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].1, publish);
    let released = shard.drain_released();
    assert_eq!(released.len(), 1, "one commit");
    assert_eq!(
        (&released[0].completed[..], &released[0].work),
        (&[row][..], &rows)
    );
    shard.stop().await;
    let after = world.start();
    assert_eq!(after.outbox().await, rows, "it is not lost");
    after.mail(Mail::Delivered(vec![rows[0].0])).await;
    assert_eq!(after.outbox().await, []);
    after.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn delivered_rows_leave_the_outbox() {
    let world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), told("a", 1), told("a", 2)])
        .await;
    let rows = shard.outbox().await;
    assert_eq!(rows.len(), 2);
    shard.mail(Mail::Delivered(vec![rows[0].0])).await;
    assert_eq!(shard.outbox().await, rows[1..]);
    shard.stop().await;
    assert_eq!(world.start().outbox().await, rows[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_release_that_finds_no_room_is_told_and_can_be_asked_for() {
    let mut world = World::new();
    world.release_room = 1;
    let mut shard = world.start();
    for sequence in 1..=3 {
        let key = format!("p{sequence}");
        shard
            .deliver(EVENTS, sequence, vec![pay_opened(&key, sequence)])
            .await;
        shard.until_idle().await;
    }
    assert!(shard.handle.status.take_spilled());
    assert!(!shard.handle.status.take_spilled());
    let released = shard.drain_released();
    assert_eq!(released.len(), 1);
    let (reply, answer) = tokio::sync::oneshot::channel();
    shard
        .mail(Mail::Refill {
            after: Some(released[0].work[0].0),
            limit: 1,
            reply,
        })
        .await;
    let rows = answer.await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].1.instance, pay("p2"));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_command_says_the_same_deadline_however_long_its_input_had_waited() {
    let mut made = Vec::new();
    for waited in [0, 1, 3_600] {
        let world = World::new();
        world.clock.advance(Duration::from_secs(waited));
        let shard = world.start();
        shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
        let (_, item) = shard.outbox().await.remove(0);
        assert!(item.ends() > world.clock.now(), "it is given its time: {item:?}");
        made.push(item);
        shard.stop().await;
    }
    let said = |item: &WorkItem| (item.command_id, item.created, item.deadline);
    assert_eq!(said(&made[0]), said(&made[1]));
    assert_eq!(said(&made[0]), said(&made[2]));
    let waited: Vec<i64> = made.iter().map(|item| item.waited_ms).collect();
    assert_eq!(
        waited,
        [0, 0, 3_599_999],
        "its input was stored a millisecond later"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_sent_floor_survives_a_restart() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let (row, _) = shard.outbox().await.remove(0);
    shard.handle.relayed.floor.store(encoded(row), Ordering::Release);
    shard.deliver(EVENTS, 2, vec![opened("a", 2)]).await;
    shard.stop().await;
    assert_eq!(
        world.start().handle.relayed.floor.load(Ordering::Acquire),
        encoded(row)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn overdue_work_is_reported_and_then_left_alone_for_a_while() {
    let world = World::new();
    let mut shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![pay_opened("p", 1), pay_opened("q", 1)])
        .await;
    let rows = shard.outbox().await;
    shard.drain_released();
    shard
        .handle
        .relayed
        .floor
        .store(encoded(rows[0].0), Ordering::Release);
    let look = Duration::from_secs(6);
    let mut reports = Vec::new();
    for _ in 0..12 {
        world.clock.advance(look);
        shard.until_idle().await;
        let found: Vec<_> = shard
            .drain_released()
            .into_iter()
            .flat_map(|released| released.overdue)
            .collect();
        reports.push(found);
    }
    assert!(
        reports[..4].iter().all(Vec::is_empty),
        "not before 30 s have passed: {reports:?}"
    );
    let found: Vec<_> = reports.concat();
    // 72 s: twice, and never the row that was not handed over.
    assert_eq!(found, [rows[0].clone(), rows[0].clone()]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_outbox_holds_back_domain_events_and_nothing_else() {
    let mut world = World::new();
    world.settings.outbox_soft = 0;
    world.settings.idle_commit = Millis(1);
    let mut shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![pay_opened("p", 1), opened("a", 1)])
        .await;
    let (_, item) = shard.outbox().await.remove(0);
    shard.deliver(EVENTS, 2, vec![added("a", 2, 2)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 3)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    assert_eq!(shard.position(EVENTS), 1);
    shard
        .deliver(RESULTS, 1, vec![result(&item, 1, &json!({"receipt": "r"}))])
        .await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 3]));
    assert_eq!(shard.position(EVENTS), 3);
    assert!(shard.noticed.try_recv().is_err(), "nothing was refused");
    shard.stop().await;
}

/// A saga that waits for the list that it has begun.
const TRIP: &str = r"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Opened
key: {'Trip.*': event.data.id}
steps:
  list: {saga: {name: list, key: '${key}', input: {}}}
";

/// The list waits for events itself, so nothing would ever have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rows_that_wait_for_another_saga_to_end_hold_back_no_events() {
    let mut world = World::new();
    world.definitions = set_of(vec![compile(LIST), compile(TRIP)]);
    world.settings.outbox_soft = 0;
    let shard = world.start();
    let id = InstanceId {
        saga: SagaName::parse("trip").unwrap(),
        ..list("a")
    };
    let begun = event(id, "Trip.Opened", 1, &json!({"id": "a"}));
    shard.deliver(EVENTS, 1, vec![begun, opened("a", 1)]).await;
    let (row, item) = shard.outbox().await.remove(0);
    assert!(item.kind.awaits_saga(), "{item:?}");
    shard.deliver(EVENTS, 2, vec![added("a", 2, 2)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2]));
    shard.stop().await;
    let shard = world.start();
    shard.deliver(EVENTS, 3, vec![added("a", 3, 3)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 3]), "also in the next life");
    shard
        .deliver(RESULTS, 1, vec![result(&item, 1, &json!({}))])
        .await;
    let left = shard.outbox().await;
    assert!(left.iter().all(|(left, _)| *left != row), "{left:?}");
    shard.stop().await;
    let awaited = world
        .store()
        .write::<_, StorageError>(|batch| Ok(batch.counters()?.awaited_sagas));
    assert_eq!(awaited.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn events_beyond_what_can_be_held_are_fed_again_when_there_is_room() {
    let mut world = World::new();
    world.settings.outbox_soft = 0;
    world.settings.held_deliveries = 1;
    let mut shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![pay_opened("p", 1), opened("a", 1)])
        .await;
    let (_, item) = shard.outbox().await.remove(0);
    for sequence in 2..=4 {
        let n = i64::try_from(sequence).unwrap();
        shard
            .deliver(EVENTS, sequence, vec![added("a", sequence, n)])
            .await;
    }
    shard.until_idle().await;
    assert!(shard.noticed.try_recv().is_err(), "no use before there is room");
    shard
        .deliver(RESULTS, 1, vec![result(&item, 1, &json!({"receipt": "r"}))])
        .await;
    shard.until_idle().await;
    let gap = Notice::Gap {
        shard: 3,
        stream: EVENTS,
        position: 2,
    };
    assert_eq!(shard.noticed.try_recv(), Ok(gap));
    assert_eq!(shard.items("a"), json!([2]));
    shard
        .deliver_after(EVENTS, 2, 4, vec![added("a", 3, 3), added("a", 4, 4)])
        .await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 3, 4]));
    shard.stop().await;
}

async fn call_begins(shard: &super::world::Shard, row: WorkRef) -> Result<(), Refused> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    shard.mail(Mail::CallBegins { row, reply }).await;
    answer.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_call_that_begins_is_known_to_the_next_life_until_its_row_is_completed_or_it_was_not_made() {
    let world = World::new();
    let shard = world.start();
    let opened: Vec<_> = (1..=3).map(|n| pay_opened(&format!("p-{n}"), n)).collect();
    shard.deliver(EVENTS, 1, opened).await;
    let rows: Vec<_> = shard.outbox().await;
    let [first, second, third] = [0, 1, 2].map(|n| rows[n].0);
    for row in [first, second, third] {
        call_begins(&shard, row).await.unwrap();
    }
    shard.mail(Mail::NotCalled(second)).await;
    let receipt = result(&rows[2].1, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt]).await;
    shard.outbox().await;
    assert!(
        call_begins(&shard, third).await.is_err(),
        "a completed row needs no call"
    );
    shard.stop().await;
    let shard = world.start();
    assert_eq!(shard.handle.begun, BTreeSet::from([first]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stop_in_order_tells_which_calls_may_have_been_made_and_that_no_other_was() {
    let world = World::new();
    let shard = world.start();
    let three = ["p", "q", "r"].map(|key| pay_opened(key, 1));
    shard.deliver(EVENTS, 1, three.to_vec()).await;
    let rows = shard.outbox().await;
    let [completed, cut_off, waits] = [0, 1, 2].map(|n| rows[n].0);
    shard.handle.relayed.calls(completed);
    shard.handle.relayed.calls(cut_off);
    let receipt = result(&rows[0].1, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt]).await;
    shard.until_idle().await;
    assert_eq!(shard.handle.relayed.called(), BTreeSet::from([cut_off]));
    shard.stop().await;
    let shard = world.start();
    assert!(shard.handle.began_after >= waits.log_sequence);
    assert_eq!(shard.handle.maybe_called, 0);
    assert_eq!(shard.handle.begun, BTreeSet::from([cut_off]));
    shard.stop().await;

    // The outcome of a killed life is unknown, and later ones know no more.
    let kill = |world: &World| {
        let killed = world
            .store()
            .write::<_, crate::storage::StorageError>(|batch| batch.put_closed(None));
        killed.unwrap();
    };
    kill(&world);
    let shard = world.start();
    let unknown = shard.handle.maybe_called;
    assert_eq!(unknown, shard.handle.began_after);
    shard.deliver(EVENTS, 2, vec![pay_opened("s", 2)]).await;
    shard.until_idle().await;
    shard.stop().await;
    let shard = world.start();
    assert!(shard.handle.began_after > unknown);
    assert_eq!(shard.handle.maybe_called, unknown);
    shard.stop().await;
}
