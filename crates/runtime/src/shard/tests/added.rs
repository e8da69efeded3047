//! A saga that is added while its shard is behind hears all that the shard has not applied by then, and nothing of before.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use super::world::{
    EVENTS, LIST, PAY, RESULTS, START, Shard, World, added, compile, event, opened, pay_opened, result,
    set_of,
};
use crate::kernel::definition::DefinitionSet;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{InstanceId, SagaName};
use crate::kernel::input::Input;
use crate::kernel::work::WorkItem;
use crate::shard::mailbox::{Arrival, Delivery, Mail, Notice};

pub(super) fn with_audit() -> Arc<DefinitionSet> {
    let audit = LIST.replace("name: list", "name: audit");
    set_of(vec![compile(LIST), compile(PAY), compile(&audit)])
}

async fn activate(shard: &Shard, definitions: Arc<DefinitionSet>, revision: u64) {
    let (reply, answer) = oneshot::channel();
    let mail = Mail::Activate {
        definitions,
        revision,
        routed_by: revision,
        reply,
    };
    shard.mail(mail).await;
    answer.await.unwrap().unwrap();
}

fn audit(key: &str) -> InstanceId {
    InstanceId {
        saga: SagaName::parse("audit").unwrap(),
        ..super::world::list(key)
    }
}

/// What one message is for both sagas.
fn both(input: Input) -> Vec<Input> {
    let InstanceId { key, .. } = &input.instance;
    let other = Input {
        instance: audit(key.as_str()),
        ..input.clone()
    };
    vec![input, other]
}

async fn routed(shard: &Shard, routed_by: u64, after: u64, inputs: Vec<Vec<Input>>) {
    let sequence = after + u64::try_from(inputs.len()).unwrap();
    shard
        .mail(Mail::Delivery(Delivery {
            stream: EVENTS,
            after,
            sequence,
            stamp: None,
            routed_by,
            inputs: inputs.into_iter().flatten().map(Arrival::Input).collect(),
        }))
        .await;
}

fn gap(position: u64) -> Notice {
    Notice::Gap {
        shard: 3,
        stream: EVENTS,
        position,
    }
}

/// A shard that has applied the first event and holds three, since its outbox is full.
async fn behind(world: &World) -> (Shard, WorkItem) {
    let mut shard = world.start();
    routed(&shard, 0, 0, vec![vec![pay_opened("p", 1), opened("before", 1)]]).await;
    let (_, item) = shard.outbox().await.remove(0);
    routed(&shard, 0, 1, vec![vec![opened("a", 2)], vec![added("a", 3, 3)]]).await;
    routed(&shard, 0, 3, vec![vec![added("before", 4, 4)]]).await;
    shard.until_idle().await;
    assert_eq!(shard.position(EVENTS), 1);
    assert!(shard.noticed.try_recv().is_err(), "it holds them");
    (shard, item)
}

async fn go_on(shard: &Shard, item: &WorkItem) {
    let receipt = result(item, 1, &json!({"receipt": "r"}));
    shard.deliver(RESULTS, 1, vec![receipt]).await;
    shard.until_idle().await;
}

fn full() -> World {
    let mut world = World::new();
    world.settings.outbox_soft = 0;
    world.settings.idle_commit = Millis(1);
    world
}

/// Where the saga became active is kept: what came before is not its concern in any later life.
fn since(shard: &Shard) -> u64 {
    let active = shard.handle.reader.active_definitions().unwrap();
    active.sagas["audit"].since[EVENTS.index()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn events_that_a_shard_holds_are_fed_again_for_a_saga_that_is_added_meanwhile() {
    let world = full();
    let (mut shard, item) = behind(&world).await;
    activate(&shard, with_audit(), 2).await;
    assert_eq!(shard.noticed.try_recv(), Ok(gap(1)));
    // What was on its way is of no use, and no news.
    routed(&shard, 0, 4, vec![vec![added("a", 5, 5)]]).await;
    routed(&shard, 0, 1, vec![vec![opened("a", 2)], vec![added("a", 3, 3)]]).await;
    let again = vec![
        both(opened("a", 2)),
        both(added("a", 3, 3)),
        both(added("before", 4, 4)),
    ];
    routed(&shard, 2, 1, again).await;
    routed(&shard, 2, 4, vec![both(added("a", 5, 5))]).await;
    go_on(&shard, &item).await;
    assert!(shard.noticed.try_recv().is_err(), "one notice for all of it");
    assert_eq!(shard.position(EVENTS), 5);
    assert_eq!(shard.items("a"), json!([3, 5]));
    assert_eq!(shard.state(&audit("a"), "items"), json!([3, 5]));
    assert_eq!(
        shard.record(&audit("before")),
        None,
        "its start was applied before"
    );
    assert_eq!(since(&shard), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn events_in_the_mailbox_are_fed_again_for_a_saga_that_is_added_before_them() {
    let world = World::new();
    let mut shard = world.start();
    routed(&shard, 0, 0, vec![vec![opened("before", 1)]]).await;
    activate(&shard, with_audit(), 2).await;
    assert!(shard.noticed.try_recv().is_err(), "it holds nothing");
    routed(&shard, 0, 1, vec![vec![opened("a", 2)]]).await;
    // A watermark of before may pass over what the new saga listens to.
    routed(&shard, 0, 2, vec![vec![]]).await;
    shard.until_idle().await;
    assert_eq!(shard.noticed.try_recv(), Ok(gap(1)));
    assert!(shard.noticed.try_recv().is_err(), "one notice for all of it");
    routed(&shard, 2, 1, vec![both(opened("a", 2)), both(added("a", 3, 3))]).await;
    shard.until_idle().await;
    assert_eq!(shard.state(&audit("a"), "items"), json!([3]));
    assert_eq!(since(&shard), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn deliveries_waiting_in_stored_order_are_read_again_for_a_saga_added_meanwhile() {
    let mut world = World::new();
    world.settings.catch_up_wait = Millis::seconds(10);
    let mut shard = world.start();
    // The other streams have not said that they hold nothing of before.
    routed(&shard, 0, 0, vec![vec![opened("a", 1)], vec![added("a", 2, 2)]]).await;
    shard.until_idle().await;
    assert_eq!(shard.position(EVENTS), 0);
    activate(&shard, with_audit(), 2).await;
    let mut noticed = Vec::new();
    while !noticed.contains(&gap(0)) {
        let notice = tokio::time::timeout(Duration::from_secs(20), shard.noticed.recv());
        noticed.push(notice.await.expect("it is asked for").expect("the shard lives"));
    }
    routed(&shard, 2, 0, vec![both(opened("a", 1)), both(added("a", 2, 2))]).await;
    shard.barrier(START).await;
    shard.until_idle().await;
    assert_eq!(shard.state(&audit("a"), "items"), json!([2]));
    assert_eq!(shard.items("a"), json!([2]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_new_version_that_listens_to_nothing_else_has_nothing_fed_again() {
    let world = full();
    let (mut shard, item) = behind(&world).await;
    let tens = LIST.replace("[event.data.n]", "[event.data.n * 10]");
    let archived = vec![Arc::new(compile(LIST))];
    let active = vec![Arc::new(compile(&tens)), Arc::new(compile(PAY))];
    activate(&shard, Arc::new(DefinitionSet::new(active, archived)), 2).await;
    go_on(&shard, &item).await;
    assert!(shard.noticed.try_recv().is_err(), "nothing is refused");
    assert_eq!(shard.items("a"), json!([30]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_version_that_listens_to_more_hears_it_of_what_is_not_applied_too() {
    let world = full();
    let (mut shard, item) = behind(&world).await;
    let more = LIST.replace(
        "        List.Closed:\n",
        "        List.Counted: {set: {big: heard}}\n        List.Closed:\n",
    );
    assert_ne!(more, LIST);
    let archived = vec![Arc::new(compile(LIST))];
    let active = vec![Arc::new(compile(&more)), Arc::new(compile(PAY))];
    activate(&shard, Arc::new(DefinitionSet::new(active, archived)), 2).await;
    assert_eq!(shard.noticed.try_recv(), Ok(gap(1)));
    let counted = event(super::world::list("a"), "List.Counted", 3, &json!({}));
    routed(&shard, 2, 1, vec![vec![opened("a", 2)], vec![counted]]).await;
    go_on(&shard, &item).await;
    assert_eq!(shard.state(&super::world::list("a"), "big"), json!("heard"));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_saga_that_begins_to_hear_facts_hears_those_on_their_way_too_and_events_are_not_fed_again() {
    let world = World::new();
    let mut shard = world.start();
    let hears = "apiVersion: sagas/v1\nkind: Saga\nname: audit\nstart: list.told\nkey: {\"*\": event.data.list}\nevents: {list.told: {from: list}}\nsteps: {rest: {delay: 1h}}\n";
    activate(
        &shard,
        set_of(vec![compile(LIST), compile(PAY), compile(hears)]),
        2,
    )
    .await;
    routed(&shard, 0, 0, vec![vec![opened("a", 1)]]).await;
    // A watermark of before may pass over facts.
    shard.deliver(RESULTS, 1, Vec::new()).await;
    shard.until_idle().await;
    let gap = Notice::Gap {
        shard: 3,
        stream: RESULTS,
        position: 0,
    };
    assert_eq!(shard.noticed.try_recv(), Ok(gap));
    assert!(shard.noticed.try_recv().is_err(), "events mean what they did");
    assert_eq!((shard.position(EVENTS), shard.position(RESULTS)), (1, 0));
    shard
        .mail(Mail::Delivery(Delivery {
            stream: RESULTS,
            after: 0,
            sequence: 1,
            stamp: None,
            routed_by: 2,
            inputs: vec![Arrival::Input(event(
                audit("a"),
                "list.told",
                1,
                &json!({"list": "a"}),
            ))],
        }))
        .await;
    shard.until_idle().await;
    assert!(shard.record(&audit("a")).is_some());
    shard.stop().await;
}
