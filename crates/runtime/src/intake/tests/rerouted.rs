//! Each delivery tells by which definitions it was asked for and routed, all of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use super::broker::Scripted;
use super::world::{Plan, STREAMS, World};
use super::*;
use crate::shard::mailbox::{Delivery, Mail, Notice};

const EVENTS: SourceStream = SourceStream::AggregateEvents;

fn store(broker: &Scripted, aggregate: &str, id: &str) -> u64 {
    let changes = json!({
        "event_id": id, "aggregate_type": aggregate, "aggregate_id": id, "payload": {"order_id": id}
    });
    let subject = format!("tenant.acme.aggregate.{aggregate}.{id}");
    broker.store(STREAMS[0], &subject, event(changes))
}

/// The saga of orders, and one that hears of orders and ships.
fn widened() -> Arc<DefinitionSet> {
    let bill = saga(
        "bill",
        1,
        &["Order.Placed", "Ship.Placed"],
        &[("*", "event.data.order_id")],
    );
    Arc::new(DefinitionSet::new(vec![order_saga(), bill], Vec::new()))
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("it happens in time")
}

async fn has_read(world: &World, sequence: u64) {
    soon(async {
        while world.intake.status()[EVENTS.index()].read < sequence {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Deliveries of events up to the one that reaches `sequence`.
async fn up_to(mailbox: &mut mpsc::Receiver<Mail>, sequence: u64) -> Vec<Delivery> {
    let mut deliveries: Vec<Delivery> = Vec::new();
    while deliveries.last().is_none_or(|last| last.sequence < sequence) {
        if let Mail::Delivery(delivery) = soon(mailbox.recv()).await.expect("the intake lives")
            && delivery.stream == EVENTS
        {
            deliveries.push(delivery);
        }
    }
    deliveries
}

/// Which sagas the deliveries that say so are for, with the sequence.
fn told(deliveries: &[Delivery], routed_by: u64) -> Vec<(u64, String)> {
    let meant = deliveries.iter().filter(|one| one.routed_by == routed_by);
    meant
        .flat_map(|delivery| &delivery.inputs)
        .map(|arrival| match arrival {
            Arrival::Input(input) => match input.origin {
                crate::kernel::input::Origin::Stream { sequence, .. } => {
                    (sequence, input.instance.saga.to_string())
                }
                other => panic!("not from a stream: {other:?}"),
            },
            other @ (Arrival::Applied(_) | Arrival::Unreadable(_)) => panic!("no event: {other:?}"),
        })
        .collect()
}

fn names(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    let names = expected.iter();
    names
        .map(|(sequence, saga)| (*sequence, (*saga).to_owned()))
        .collect()
}

async fn mixed(mailbox: usize) {
    let broker = Scripted::new();
    store(&broker, "Order", "o-1");
    store(&broker, "Ship", "s-1");
    store(&broker, "Order", "o-2");
    store(&broker, "Ship", "s-2");
    let mut plan = Plan::new(1);
    plan.mailbox = mailbox;
    // Deliveries would grow over the change.
    plan.settings.delivery_inputs = 1_000;
    let mut world = plan.start(broker);
    let mut mailbox = world.mailbox(0);
    has_read(&world, 3).await;
    assert_eq!(world.intake.widen(&widened()), 1);
    store(&world.broker, "Order", "o-3");
    store(&world.broker, "Ship", "s-3");
    let deliveries = up_to(&mut mailbox, 6).await;
    assert_eq!(told(&deliveries, 0), names(&[(1, "order"), (3, "order")]));
    let last = deliveries.iter().rfind(|one| one.routed_by == 0);
    let behind = last.expect("what was read before").sequence;
    let expected: Vec<_> = [(4, "bill"), (5, "order"), (5, "bill"), (6, "bill")]
        .into_iter()
        .filter(|(sequence, _)| *sequence > behind)
        .collect();
    assert_eq!(told(&deliveries, 1), names(&expected));
    let gap = Notice::Gap {
        shard: 0,
        stream: EVENTS,
        position: 1,
    };
    world.notices.send(gap).await.expect("the intake lives");
    let again = up_to(&mut mailbox, 6).await;
    assert_eq!(again[0].after, 1);
    assert!(again.iter().all(|one| one.routed_by == 1), "{again:?}");
    let all = [
        (2, "bill"),
        (3, "order"),
        (3, "bill"),
        (4, "bill"),
        (5, "order"),
        (5, "bill"),
        (6, "bill"),
    ];
    assert_eq!(told(&again, 1), names(&all));
}

#[tokio::test]
async fn a_delivery_from_before_a_reload_is_marked_and_routed_again_by_the_new_definitions() {
    mixed(64).await;
}

/// One delivery is not of both, nor does a watermark of the one pass over what the other would have heard.
#[tokio::test]
async fn deliveries_waiting_during_a_reload_are_never_merged_with_later_ones() {
    mixed(1).await;
}
