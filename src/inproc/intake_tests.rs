//! The intake on the embedded broker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{InprocBroker, Settings};
use crate::intake::Halt;
use crate::kernel::ids::{Key, shard_of};
use crate::ports::broker::{Broker, Expect, Publication, StreamSpec};
use broker::Scripted;
use fixtures::{acme, event, order_saga};
use world::{Ahead, Mood, Plan, STREAMS, World};

// What the intake's own tests are made of.
#[path = "../../crates/runtime/src/intake/tests/broker.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod broker;
#[path = "../../crates/runtime/src/intake/tests/fixtures.rs"]
mod fixtures;
#[path = "../../crates/runtime/src/intake/tests/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("it happens in time")
}

async fn halted(world: &World) -> Halt {
    soon(async {
        loop {
            if let Some(halt) = world.intake.status()[0].halted.clone() {
                return halt;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

#[tokio::test]
async fn on_the_embedded_broker_messages_that_are_trimmed_unread_end_reading() {
    let dir = tempfile::tempdir().expect("a directory");
    let real = embedded(dir.path()).await;
    let mut plan = Plan::new(1);
    // The word that a reader was opened, for each stream, and one delivery.
    plan.mailbox = 4;
    plan.settings.buffer = 8;
    plan.settings.batch_messages = 4;
    plan.settings.delivery_inputs = 1;
    let mut world = plan.start_on(Arc::clone(&real) as Arc<dyn Broker>, Scripted::new());
    for order in 0..300 {
        store(&real, &format!("o-{order}")).await;
    }
    soon(async {
        while world.intake.status()[0].read == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    real.trim(STREAMS[0], 201).await.expect("trimmed");
    let shard = world.shard(0, Mood::default());
    let halt = halted(&world).await;
    assert_eq!(halt.reason, "stream.gap");
    assert!(halt.message.contains("to 200 of"), "{halt:?}");
    world.intake.drain().await;
    assert!(
        shard.applied().iter().all(|sequence| *sequence < 201),
        "{:?}",
        shard.applied()
    );
}

/// An embedded broker with the streams.
async fn embedded(dir: &std::path::Path) -> Arc<InprocBroker> {
    let clock = Arc::new(Ahead(Scripted::new()));
    let real = InprocBroker::open(dir, Settings::default(), clock).expect("a broker");
    for name in STREAMS {
        let subjects = match name {
            "AGGREGATE_EVENTS" => vec!["tenant.*.aggregate.>".to_owned()],
            "WORKFLOW_EVENTS" => vec!["tenant.*.effect_result.>".to_owned()],
            _ => vec!["tenant.*.workflow.>".to_owned(), "tenant.*.effect.>".to_owned()],
        };
        let spec = StreamSpec {
            name: name.to_owned(),
            subjects,
            replicas: 1,
            message_bytes_max: 1 << 20,
            foreign: false,
        };
        real.ensure_stream(&spec).await.expect("a stream");
    }
    real
}

/// Stores the event of an order.
async fn store(real: &InprocBroker, order: &str) -> u64 {
    let payload = event(json!({"event_id": order, "payload": {"order_id": order}}));
    let ack = real
        .publish(Publication {
            stream: STREAMS[0].to_owned(),
            subject: format!("tenant.acme.aggregate.Order.{order}"),
            headers: Vec::new(),
            payload: payload.into(),
            expect: Expect::Nothing,
        })
        .await;
    ack.expect("stored").sequence
}

#[tokio::test]
async fn on_the_embedded_broker_every_shard_gets_its_inputs_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let real = embedded(dir.path()).await;
    let mut plan = Plan::new(3);
    plan.mailbox = 4;
    let mut world = plan.start_on(Arc::clone(&real) as Arc<dyn Broker>, Scripted::new());
    let slow = Mood {
        pauses: vec![0, 0, 30],
        ..Mood::default()
    };
    let mut shards = [slow, Mood::default(), Mood::default()];
    let mut shards: Vec<_> = (0..3_u16)
        .map(|index| world.shard(index, std::mem::take(&mut shards[usize::from(index)])))
        .collect();
    let mut expected = vec![Vec::new(); 3];
    for order in 0..300 {
        let order = format!("o-{order}");
        let sequence = store(&real, &order).await;
        let key = Key::parse(&order).expect("legal");
        expected[usize::from(shard_of(&acme(), &key, 3))].push(sequence);
    }
    for (shard, expected) in shards.iter_mut().zip(expected) {
        shard.knows(300).await;
        assert_eq!(shard.applied(), expected);
    }
    world.intake.drain().await;
}
