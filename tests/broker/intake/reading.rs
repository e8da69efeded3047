//! Nothing that a shard asks for, or another shard suffers, slows down reading.

use std::time::{Duration, Instant};

use saga_runner::kernel::duration::Millis;
use saga_runner::ports::broker::Broker;
use serde_json::json;

use super::{Plan, owner, place, streams};
use crate::broker::nats::connect;
use crate::broker::suite::eventually;
use crate::support::nats_server::NatsServer;

/// Twenty times what it takes without the timer.
const PATIENCE: Duration = Duration::from_secs(10);
const BACKLOG: u64 = 20_000;

/// Each look for the end of the stream once stood before the next messages, and with a backlog there is no end to be
/// found: a hundred messages a second were read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_is_read_as_fast_with_a_due_timer_as_without() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    place(&*broker, 0..BACKLOG).await;
    for has_timer in [false, true] {
        let mut stage = Plan::new(&[0]).start(broker.clone());
        if has_timer {
            stage.want_barrier(0).await;
        }
        let begin = Instant::now();
        let shard = stage.shard(0);
        let seen = shard
            .until(PATIENCE, "the backlog is read", |seen| {
                seen.applied.len() as u64 == BACKLOG
            })
            .await;
        println!("timer {has_timer}: {BACKLOG} events in {:?}", begin.elapsed());
        assert_eq!(seen.applied, (1..=BACKLOG).collect::<Vec<u64>>());
        if has_timer {
            let seen = shard
                .until(PATIENCE, "a barrier for each stream", |seen| {
                    seen.barriers.iter().all(|barriers| *barriers > 0)
                })
                .await;
            assert_eq!(
                seen.first_barrier[0], BACKLOG,
                "behind what was stored when it was asked for"
            );
        }
        stage.intake.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_fed_by_itself_catches_up_with_a_due_timer() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    place(&*broker, 0..BACKLOG).await;
    let mut plan = Plan::new(&[0, BACKLOG]);
    plan.settings.detach_behind = 1_000;
    let mut stage = plan.start(broker.clone());
    stage.want_barrier(0).await;
    let (behind, _ahead) = (stage.shard(0), stage.shard(1));
    let begin = Instant::now();
    behind
        .until(PATIENCE, "the backlog is read", |seen| seen.position >= BACKLOG)
        .await;
    println!("apart: {BACKLOG} events in {:?}", begin.elapsed());
    behind
        .until(PATIENCE, "a barrier for each stream", |seen| {
            seen.barriers.iter().all(|barriers| *barriers > 0)
        })
        .await;
    stage.intake.drain().await;
}

/// A shard that is brought back from an older copy stands before what the stream still has. The others once began to read
/// where it stands, found that gone, and read nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halted_shard_behind_the_beginning_of_the_stream_stops_no_other() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    place(&*broker, 0..30).await;
    broker.trim(super::EVENTS, 21).await.unwrap();
    let mut plan = Plan::new(&[5, 30]);
    plan.halted = vec![0];
    let mut stage = plan.start(broker.clone());
    place(&*broker, 30..60).await;
    let expected: Vec<u64> = (30..60).filter(|n| owner(*n, 2) == 1).map(|n| n + 1).collect();
    let seen = stage
        .shard(1)
        .until(PATIENCE, "it is fed", |seen| seen.position >= 60)
        .await;
    assert_eq!(seen.applied, expected);
    assert_eq!(stage.intake.status()[0].halted, None);
    stage.intake.drain().await;
}

/// The wait between two attempts grows while the server is away, and was once sat out when it was back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_ends_the_wait_for_the_next_attempt() {
    let mut server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    let mut plan = Plan::new(&[0]);
    plan.settings.reopen_initial = Millis::seconds(600);
    plan.settings.reopen_max = Millis::seconds(600);
    let mut stage = plan.start(broker.clone());
    let shard = stage.shard(0);
    place(&*broker, 0..1).await;
    shard
        .until(PATIENCE, "it is fed", |seen| seen.position == 1)
        .await;
    server.kill();
    eventually("the readers know", || {
        let status = stage.intake.status();
        std::future::ready(status.iter().all(|stream| !stream.connected))
    })
    .await;
    server.launch();
    eventually("back", || async { broker.ping().await.is_ok() }).await;
    place(&*broker, 1..2).await;
    shard
        .until(PATIENCE, "it is fed again", |seen| seen.position == 2)
        .await;
    stage.intake.drain().await;
}
