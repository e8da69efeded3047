//! The raw figure: the same messages, published and consumed on the same broker, with nothing in between.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::drive::event;
use super::report::Raw;
use super::{Plan, StartError, system};
use crate::ports::broker::{Broker, Reader, ReaderSpec};

/// Sagas whose messages are counted at most.
const SAGAS_MAX: u64 = 50_000;

/// Publishes the messages of the plan's sagas with as many under way as the sagas had, and reads them all.
pub async fn measure(broker: &Arc<dyn Broker>, plan: &Plan) -> Result<Raw, StartError> {
    let per_saga = plan.messages_per_saga();
    let (messages, in_flight) = (plan.sagas.min(SAGAS_MAX) * per_saga, plan.in_flight);
    let state = broker.stream_state("AGGREGATE_EVENTS").await.map_err(system)?;
    let reader = broker
        .reader(ReaderSpec {
            stream: "AGGREGATE_EVENTS".to_owned(),
            filters: vec!["tenant.bench.aggregate.>".to_owned()],
            start_sequence: state.last_sequence + 1,
            name: format!("bench-raw-{}", std::process::id()),
            buffer: 2_048,
        })
        .await
        .map_err(system)?;
    let begin = Instant::now();
    let reading = tokio::spawn(read(reader, messages));
    let mut publishing = FuturesUnordered::new();
    let first = u64::from(u32::MAX);
    for number in 0..messages {
        if publishing.len() as u64 >= in_flight {
            publishing.next().await.transpose().map_err(system)?;
        }
        let broker = Arc::clone(broker);
        publishing.push(async move { broker.publish(event(first + number)).await.map(drop) });
    }
    while let Some(published) = publishing.next().await {
        published.map_err(system)?;
    }
    reading.await.map_err(system)??;
    let seconds = begin.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let per_second = messages as f64 / seconds;
    #[allow(clippy::cast_precision_loss, reason = "a small constant")]
    let sagas = per_second / per_saga as f64;
    Ok(Raw {
        messages,
        messages_per_second: per_second,
        sagas_per_second: sagas,
    })
}

async fn read(mut reader: Box<dyn Reader>, messages: u64) -> Result<(), StartError> {
    let mut taken = 0;
    while taken < messages {
        reader.next().await.map_err(system)?;
        taken += 1;
        while let Some(message) = reader.ready() {
            message.map_err(system)?;
            taken += 1;
        }
    }
    Ok(())
}
