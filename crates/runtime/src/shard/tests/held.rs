//! What a shard holds back that goes on from an adopted state.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;

use super::reposition::reposition;
use super::world::{
    EVENTS, RESULTS, START, Shard, World, added, compile, opened, pay, pay_opened, result, set_of,
};
use crate::kernel::ids::{EffectName, TimeMs};
use crate::kernel::input::{Input, Origin, SourceStream, WorkOutcome};
use crate::kernel::record::Phase;
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{Applied, Arrival, Delivery, HeldDecision, Mail, Notice, Refused, Stamp};
use crate::storage::rows::HistoryRow;
use crate::storage::{Decided, HeldRow, StorageError};

/// Makes the folder of the world one that was adopted.
fn adopt(world: &World) {
    let held = HeldRow {
        since: START,
        given_up: 4,
        read: None,
        released: None,
    };
    let put = world
        .store()
        .write::<_, StorageError>(|batch| batch.put_held(&held));
    put.expect("commits");
}

fn held(shard: &Shard) -> HeldRow {
    shard.handle.reader.held().expect("readable").expect("adopted")
}

async fn decide(shard: &Shard, decision: HeldDecision) -> Result<(), Refused> {
    let (reply, answer) = oneshot::channel();
    let reason = "compared".to_owned();
    shard
        .mail(Mail::Held {
            decision,
            reason,
            reply,
        })
        .await;
    answer.await.expect("the shard answers")
}

fn decided(shard: &Shard) -> Vec<Decided> {
    let rows = shard.handle.reader.decided().expect("readable");
    rows.into_iter().map(|row| row.what).collect()
}

/// A shard with one charge in its outbox that was adopted and has read its streams.
async fn with_a_charge(world: &World) -> (Shard, WorkRef, WorkItem) {
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    shard.stop().await;
    adopt(world);
    let shard = world.start();
    shard.deliver(EVENTS, 2, vec![opened("a", 2)]).await;
    shard.until_idle().await;
    let early = decide(&shard, HeldDecision::Release).await;
    assert!(
        matches!(early, Err(Refused::Conflict(_))),
        "its streams are not read: {early:?}"
    );
    shard.deliver(EVENTS, 3, vec![added("a", 3, 1)]).await;
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let mut rows = shard.outbox().await;
    let (row, item) = rows.pop().expect("the charge");
    assert!(rows.is_empty());
    (shard, row, item)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_adopted_shard_holds_what_it_would_send_until_it_is_told_over_restarts() {
    let world = World::new();
    let (shard, row, _) = with_a_charge(&world).await;
    let before = held(&shard);
    assert!(before.holds());
    let (log_sequence, _) = before.read.expect("its streams are read");
    assert!(log_sequence >= row.log_sequence, "the charge may have been made");
    shard.stop().await;
    let shard = world.start();
    shard.deliver(EVENTS, 4, vec![added("a", 4, 2)]).await;
    shard.until_idle().await;
    assert_eq!(held(&shard), before, "neither a restart nor an input releases it");
    assert_eq!(decide(&shard, HeldDecision::Release).await, Ok(()));
    assert!(!held(&shard).holds());
    let twice = decide(&shard, HeldDecision::Release).await;
    assert!(matches!(twice, Err(Refused::Conflict(_))), "{twice:?}");
    shard.stop().await;
    let shard = world.start();
    shard.until_idle().await;
    assert_eq!(held(&shard).read, before.read);
    assert!(!held(&shard).holds());
    assert_eq!(decided(&shard), [Decided::Released { rows: 1 }]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_discarded_command_completes_its_step_as_unknown_and_tells_workers_so() {
    let world = World::new();
    let (mut shard, row, item) = with_a_charge(&world).await;
    shard.drain_released();
    let gone = WorkRef {
        log_sequence: row.log_sequence,
        index: 7,
    };
    assert_eq!(
        decide(&shard, HeldDecision::Discard(vec![row, gone])).await,
        Ok(())
    );
    let rows = shard.outbox().await;
    assert!(rows.iter().all(|(kept, _)| *kept != row), "{rows:?}");
    let told = rows
        .iter()
        .find(|(_, kept)| matches!(kept.kind, WorkKind::Result { .. }))
        .expect("a result in the place of the worker's");
    assert_eq!(told.1.command_id, item.command_id);
    let settled = shard.drain_released();
    assert!(settled.iter().any(|released| released.completed.contains(&row)));
    let record = shard.ended(&pay("p")).expect("nothing is left to wait for");
    assert_eq!(record.phase, Phase::Failed);
    assert_eq!(
        decided(&shard),
        [Decided::Discarded {
            commands: 1,
            others: 0,
            first: vec![item.command_id]
        }]
    );
    assert!(held(&shard).holds(), "the rest waits for its release");
    let again = decide(&shard, HeldDecision::Discard(vec![told.0])).await;
    assert_eq!(again, Ok(()));
    assert!(
        shard.outbox().await.iter().any(|(kept, _)| *kept == told.0),
        "what tells workers is not given up"
    );
    shard.stop().await;
}

/// The result waits behind the dead letter, and the command would have been sent with the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_discarded_command_of_a_blocked_instance_is_not_sent_either() {
    let mut world = World::new();
    let source = super::world::PAY.replace("set: {paid: true}", "set: {paid: '${1 / 0 == 1}'}");
    world.definitions = super::world::set_of(vec![
        super::world::compile(super::world::LIST),
        super::world::compile(&source),
    ]);
    let (shard, row, _) = with_a_charge(&world).await;
    let poison = super::world::event(pay("p"), "Pay.Settled", 4, &json!({"id": "p"}));
    shard.deliver(EVENTS, 4, vec![poison]).await;
    assert_eq!(decide(&shard, HeldDecision::Discard(vec![row])).await, Ok(()));
    assert!(shard.outbox().await.iter().all(|(kept, _)| *kept != row));
    let (_, waiting) = shard.handle.reader.inbox(&pay("p"), 10).expect("readable");
    assert_eq!(
        waiting.len(),
        1,
        "the outcome waits behind the dead letter: {waiting:?}"
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_adopted_shard_with_nothing_to_send_goes_on_by_itself() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    shard.stop().await;
    adopt(&world);
    let mut shard = world.start();
    // Its streams are silent, and no timer asks for what they hold.
    assert_eq!(
        shard.noticed.recv().await,
        Some(Notice::BarrierWanted { shard: 3 })
    );
    shard.barrier(world.clock.now()).await;
    let released = async {
        while held(&shard).holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), released)
        .await
        .expect("released");
    assert_eq!(decided(&shard), [Decided::Released { rows: 0 }]);
    shard.stop().await;
}

/// The ends of the streams were noted at the adoption, and one that was created again never came to its end: the release was
/// refused for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_is_rebound_while_an_adopted_shard_reads_it_is_read_to_the_end_that_it_has_then() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.deliver_after(RESULTS, 0, 50, Vec::new()).await;
    shard.until_idle().await;
    shard.stop().await;
    adopt(&world);
    let shard = world.start();
    let as_of = world.clock.now();
    let proven = async |stream| {
        shard.mail(Mail::Barrier { stream, as_of }).await;
        shard.until_idle().await;
        held(&shard).read.is_some()
    };
    assert!(!proven(EVENTS).await);
    assert!(!proven(RESULTS).await);
    assert_eq!(reposition(&world, &shard, RESULTS, 50, 7).await, Ok(()));
    assert!(
        !proven(SourceStream::WorkflowCommands).await,
        "what was proven of the results is gone with their stream"
    );
    shard.deliver_after(RESULTS, 7, 9, Vec::new()).await;
    assert!(proven(RESULTS).await);
    assert_eq!(decide(&shard, HeldDecision::Release).await, Ok(()));
    assert!(!held(&shard).holds());
    shard.stop().await;
}

/// The bound was left out for the life of the process, and an outbox grew without end behind the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_outbox_holds_back_domain_events_once_an_adopted_shard_is_released_and_not_before() {
    let mut world = World::new();
    world.settings.outbox_soft = 0;
    let (shard, _, item) = with_a_charge(&world).await;
    assert_eq!(shard.items("a"), json!([1]), "nothing would make room for it");
    assert_eq!(decide(&shard, HeldDecision::Release).await, Ok(()));
    shard.deliver(EVENTS, 4, vec![added("a", 4, 2)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    assert_eq!(shard.position(EVENTS), 3);
    let receipt = result(&item, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1, 2]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_adopted_shard_whose_commands_have_their_results_in_the_streams_goes_on_by_itself() {
    let world = World::new();
    let (shard, _, item) = with_a_charge(&world).await;
    let receipt = result(&item, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt]).await;
    shard.until_idle().await;
    assert!(!held(&shard).holds());
    assert!(held(&shard).released >= Some(TimeMs(0)));
    shard.stop().await;
}

/// Two charges, one behind the other.
const TWICE: &str = r"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {'Pay.*': event.data.id}
steps:
  first:
    effect: card-charge
    with: {id: '${key}'}
  second:
    needs: [first]
    effect: card-charge
    with: {id: '${key}'}
";

/// A shard with the first of two charges in its outbox.
async fn with_the_first_of_two() -> (World, Shard, WorkItem) {
    let mut world = World::new();
    world.definitions = set_of(vec![compile(TWICE)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let (_, first) = shard.outbox().await.pop().expect("the first charge");
    (world, shard, first)
}

/// The effect that the outbox has.
async fn charge(shard: &Shard) -> WorkItem {
    let rows = shard.outbox().await.into_iter();
    let mut charges = rows.filter(|(_, item)| matches!(item.kind, WorkKind::Effect { .. }));
    charges.next().expect("a charge").1
}

/// The ids of the commands behind a result that was applied without a message had the time of its message, so that the results of
/// these commands completed nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn commands_behind_a_local_result_have_the_same_ids_when_an_older_copy_reads_it_in_the_stream() {
    let (world, shard, first) = with_the_first_of_two().await;
    world.clock.advance(Duration::from_secs(5));
    let body = Bytes::from_static(br#"{"receipt":"r"}"#);
    let message = WorkItem {
        kind: WorkKind::Result {
            effect: EffectName::parse("card-charge").unwrap(),
            body: body.clone(),
        },
        ..first.clone()
    };
    let outcome = WorkOutcome::Succeeded { payload: body };
    shard
        .published_verdict(pay("p"), first.command_id, outcome, Some(Box::new(message)))
        .await;
    let rows = shard.outbox().await;
    let published = rows
        .iter()
        .find(|(_, item)| matches!(item.kind, WorkKind::Result { .. }));
    let applied = published.expect("for everybody else").1.created;
    assert_eq!(
        applied,
        START.plus_ms(5_000),
        "its message says when it was applied"
    );
    let second = charge(&shard).await;
    let known = shard.history(&pay("p"));
    shard.stop().await;

    // The copy has neither the result nor the second charge.
    let (world, copy, again) = with_the_first_of_two().await;
    assert_eq!(again.command_id, first.command_id);
    world.clock.advance(Duration::from_mins(1));
    let stored = applied.plus_ms(300);
    let input = Input {
        time: applied,
        origin: Origin::Local,
        ..result(&first, 1, &json!({"receipt": "r"}))
    };
    copy.mail(Mail::Delivery(Delivery {
        stream: RESULTS,
        after: 0,
        sequence: 1,
        stamp: Some(Stamp::at(stored)),
        routed_by: 0,
        inputs: vec![Arrival::Applied(Applied {
            input,
            stored,
            sequence: 1,
        })],
    }))
    .await;
    let derived = charge(&copy).await;
    assert_eq!(derived.path, "steps.second");
    assert_eq!(derived.command_id, second.command_id);
    assert_eq!(copy.position(RESULTS), 1);
    let rows = copy.history(&pay("p"));
    let told = |rows: &[HistoryRow]| -> Vec<_> { rows.iter().map(|row| (row.time, row.source)).collect() };
    assert_eq!(told(&rows), told(&known), "the history is as it was");
    copy.stop().await;
}
