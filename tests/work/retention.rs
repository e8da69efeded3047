use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saga_runner::effects::durable_name;
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::input::SourceStream;
use saga_runner::outbox::{self, Retention, RetentionSpec};
use saga_runner::ports::broker::{Manner, QueueSpec};

use crate::rig::{RelayOptions, Rig, at, effect, effect_name, until};

#[tokio::test]
async fn a_command_goes_only_when_it_is_answered_for_and_read() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = (1..=4)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    shard.release(rows).await;
    shard.until_floor(at(4, 0)).await;
    let durable = durable_name("test", &effect_name());
    let mut queue = rig
        .broker
        .queue(QueueSpec {
            stream: rig.streams.commands.clone(),
            filters: vec!["tenant.*.effect.charge.>".to_owned()],
            durable: durable.clone(),
            ack_wait: Duration::from_mins(1),
            max_unacknowledged: 10,
            buffer: 1,
            manner: Manner::default(),
        })
        .await
        .unwrap();
    let position = Arc::new(AtomicU64::new(2));
    let read = Arc::clone(&position);
    let _retention = Retention::start(RetentionSpec {
        broker: Arc::clone(&rig.broker),
        streams: rig.streams.clone(),
        durables: Box::new(move || vec![durable.clone()]),
        positions: Arc::new(move |stream| {
            (stream == SourceStream::WorkflowCommands).then(|| read.load(Ordering::Acquire))
        }),
        settings: outbox::Settings {
            trim_interval: Millis(10),
            gate_horizon: Millis(0),
            ..outbox::Settings::default()
        },
        clock: Arc::clone(&rig.clock) as _,
    });
    let first = || async {
        rig.broker
            .stream_state(&rig.streams.commands)
            .await
            .unwrap()
            .first_sequence
    };
    let mut acknowledge = async || queue.next().await.unwrap().receipt.ack().await.unwrap();
    acknowledge().await;
    until(async || (first().await == 2).then_some(())).await;
    acknowledge().await;
    acknowledge().await;
    // Three are answered for, two are read.
    until(async || (first().await == 3).then_some(())).await;
    position.store(4, Ordering::Release);
    // Four are read, three are answered for.
    until(async || (first().await == 4).then_some(())).await;
    acknowledge().await;
    until(async || (rig.messages(&rig.streams.commands).await == 0).then_some(())).await;
}
