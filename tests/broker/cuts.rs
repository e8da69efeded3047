//! Connections that break and servers that are killed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saga_runner::nats::{NatsBroker, Settings, Status};
use saga_runner::ports::broker::{Broker, BucketSpec, Manner, PublishError, PutError, QueueSpec};
use serde_json::Value;

use crate::broker::nats::{api, connect, first, message, publish, reader_spec, settings, spec};
use crate::broker::suite::{eventually, within};
use crate::support::nats_server::NatsServer;
use crate::support::proxy::{Fault, Proxy};

/// A connection cut with unread deliveries once went on behind them as if they had been read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_with_unread_deliveries_breaks_the_reader_and_loses_nothing() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let broker = connect(&proxy.url()).await;
    let direct = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    publish(&direct, 100).await;

    let mut reader = broker.reader(reader_spec("first", 1)).await.unwrap();
    for expected in 1..=50 {
        assert_eq!(
            within("next", reader.next()).await.unwrap().stream_sequence,
            expected
        );
    }
    // All hundred are delivered as the server sees it: fifty of them lie unread here.
    eventually("all are delivered", || async {
        let info = api(&server.url(), "CONSUMER.INFO.S.first", Value::Null).await;
        info["delivered"]["consumer_seq"] == 100
    })
    .await;
    proxy.cut();
    // What was not yet given out is given up, whether the client is back by then or not.
    eventually("back", || async { broker.ping().await.is_ok() }).await;
    publish(&direct, 50).await;
    assert!(within("next", reader.next()).await.is_err());
    assert!(matches!(reader.ready(), Some(Err(_))));

    let mut reader = broker.reader(reader_spec("second", 51)).await.unwrap();
    for expected in 51..=150 {
        let message = within("next", reader.next()).await.unwrap();
        assert_eq!(
            (message.stream_sequence, message.consumer_sequence),
            (expected, expected - 50)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_under_load_never_show_a_reader_a_gap() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let broker = connect(&proxy.url()).await;
    let direct = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let total = 20_000;
    let writer = async {
        for chunk in 0..total / 100 {
            let all = (0..100).map(|_| direct.publish(message("a")));
            for stored in futures::future::join_all(all).await {
                stored.unwrap();
            }
            if chunk % 20 == 10 {
                proxy.cut();
            }
        }
    };
    let read = async {
        let (mut position, mut readers) = (0, 0);
        while position < total {
            readers += 1;
            let spec = reader_spec(&format!("r{readers}"), position + 1);
            let Ok(mut reader) = broker.reader(spec).await else {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            while let Ok(message) = reader.next().await {
                position += 1;
                assert_eq!(message.stream_sequence, position, "reader {readers}");
                if position == total {
                    break;
                }
            }
        }
    };
    within("all", async { tokio::join!(writer, read) }).await;
}

fn bucket() -> BucketSpec {
    BucketSpec {
        name: "B".to_owned(),
        replicas: 1,
    }
}

/// The answer to a write is lost with its connection: the write is read back over the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_is_lost_is_read_back() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let broker = connect(&proxy.url()).await;
    let direct = connect(&server.url()).await;
    broker.ensure_bucket(&bucket()).await.unwrap();
    let mut revision = None;
    for n in 1..=5_u64 {
        let value = Bytes::from(n.to_string());
        proxy.set(Fault::Stall);
        let write = async {
            let written = broker.put_entry("B", "a", value.clone(), revision).await;
            written.unwrap_or_else(|error| panic!("write {n}: {error:?}"))
        };
        let cut = async {
            eventually("stored", || async {
                let found = direct.entry("B", "a").await.unwrap();
                found.is_some_and(|entry| entry.value == value)
            })
            .await;
            proxy.cut();
            // Until then the answer might still pass.
            let mut status = broker.status();
            let lost = status
                .wait_for(|status| !matches!(status, Status::Ready { .. }))
                .await;
            lost.expect("the broker lives");
            proxy.set(Fault::None);
        };
        let (written, ()) = within("write", async { tokio::join!(write, cut) }).await;
        revision = Some(written);
    }
    assert_eq!(revision, Some(5), "each was stored once");
}

/// Whatever is cut, a counter that is read and replaced counts each of its steps once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_never_make_a_write_count_twice() {
    const WRITES: u64 = 200;
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let broker = connect(&proxy.url()).await;
    broker.ensure_bucket(&bucket()).await.unwrap();
    let write = async {
        let mut revision = None;
        for n in 1..=WRITES {
            let value = Bytes::from(n.to_string());
            loop {
                match broker.put_entry("B", "a", value.clone(), revision).await {
                    Ok(written) => {
                        revision = Some(written);
                        break;
                    }
                    // Its own first write, which it could not read back.
                    Err(PutError::Conflict) => {
                        if let Ok(Some(found)) = broker.entry("B", "a").await {
                            assert_eq!(found.value, value);
                            revision = Some(found.revision);
                            break;
                        }
                    }
                    Err(PutError::Unavailable(_) | PutError::Unknown(_)) => {}
                    Err(PutError::Refused(why)) => panic!("{why}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if n % 10 == 5 {
                proxy.cut();
            }
        }
        revision
    };
    assert_eq!(within("writes", write).await, Some(WRITES));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_breaks_a_waiting_reader() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    // Probes are far away: only the heartbeats can tell.
    let quiet = Settings {
        ping_interval: saga_runner::kernel::duration::Millis::seconds(600),
        ..settings(&proxy.url())
    };
    let broker = NatsBroker::connect(quiet).await.unwrap();
    within("connect", broker.connected()).await.unwrap();
    broker.ensure_stream(&spec()).await.unwrap();
    let mut reader = broker.reader(reader_spec("r", 1)).await.unwrap();
    // Longer than two heartbeats: an idle stream is not silence.
    let idle = tokio::time::timeout(Duration::from_millis(2_500), reader.next()).await;
    assert!(idle.is_err(), "{idle:?}");
    proxy.set(Fault::BlackHole);
    let broken = within("next", reader.next()).await.unwrap_err();
    assert!(broken.0.contains("no sign of life"), "{broken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_lets_a_queue_hand_out_what_arrived_and_then_breaks_it_at_once() {
    cut_under_a_queue(Manner::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_lets_a_pushed_queue_hand_out_what_arrived_and_then_breaks_it_at_once() {
    let push = Manner {
        push: true,
        ..Manner::default()
    };
    cut_under_a_queue(push).await;
}

async fn cut_under_a_queue(manner: Manner) {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    // No heartbeat is due within the test: only the end of the connection can tell.
    let quiet = Settings {
        heartbeat: saga_runner::kernel::duration::Millis::seconds(600),
        ..settings(&proxy.url())
    };
    let broker = NatsBroker::connect(quiet).await.unwrap();
    within("connect", broker.connected()).await.unwrap();
    broker.ensure_stream(&spec()).await.unwrap();
    publish(&broker, 20).await;
    let spec = QueueSpec {
        group: None,
        stream: "S".to_owned(),
        filters: vec!["s.>".to_owned()],
        durable: "workers".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_unacknowledged: 100,
        buffer: 20,
        manner,
    };
    let mut queue = broker.queue(spec.clone()).await.unwrap();
    let first = within("next", queue.next()).await.unwrap();
    eventually("all are delivered", || async {
        let info = api(&server.url(), "CONSUMER.INFO.S.workers", Value::Null).await;
        info["num_ack_pending"] == 20
    })
    .await;
    // An answer to a request behind the deliveries says that they are here.
    broker.ping().await.unwrap();
    proxy.cut();
    eventually("back", || async { broker.ping().await.is_ok() }).await;
    let mut work = vec![first];
    let mut take = async || {
        while let Ok(message) = queue.next().await {
            work.push(message);
        }
    };
    within("the end", take()).await;
    assert_eq!(work.len(), 20);
    for work in &work {
        work.receipt.ack().await.unwrap();
    }
    eventually("answers over the new connection count", || async {
        broker.queue_floor("S", "workers").await == Ok(Some(20))
    })
    .await;
    within("close", queue.close()).await;
    // Whoever joins again gets what is new, and nothing twice; the broken queue, which is still there, gets nothing.
    publish(&broker, 1).await;
    let mut heir = broker.queue(spec).await.unwrap();
    let next = within("next", heir.next()).await.unwrap();
    assert_eq!((next.message.stream_sequence, next.message.delivered), (21, 1));
    within("close", heir.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_without_an_answer_is_unknown_and_found_out_later() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let broker = connect(&proxy.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    proxy.set(Fault::Stall);
    let first = first("once");
    let lost = tokio::spawn({
        let (broker, first) = (Arc::clone(&broker), first.clone());
        async move { broker.publish(first).await }
    });
    let direct = connect(&server.url()).await;
    eventually("stored", || async {
        direct.stream_state("S").await.unwrap().last_sequence == 1
    })
    .await;
    proxy.cut();
    let outcome = within("publish", lost).await.unwrap();
    proxy.set(Fault::None);
    assert!(matches!(outcome, Err(PublishError::Unknown(_))), "{outcome:?}");
    eventually("back", || async { broker.ping().await.is_ok() }).await;
    assert_eq!(broker.publish(first).await, Err(PublishError::AlreadyThere));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_of_a_publication_is_unknown() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let slow_to_give_up = Settings {
        ping_interval: saga_runner::kernel::duration::Millis::seconds(600),
        request_timeout: saga_runner::kernel::duration::Millis(300),
        ..settings(&proxy.url())
    };
    let broker = NatsBroker::connect(slow_to_give_up).await.unwrap();
    within("connect", broker.connected()).await.unwrap();
    broker.ensure_stream(&spec()).await.unwrap();
    proxy.set(Fault::BlackHole);
    let outcome = within("publish", broker.publish(message("a"))).await;
    assert!(matches!(outcome, Err(PublishError::Unknown(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_messages_survive_the_kill_of_the_server() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    survive_kills(server, broker, 1).await;
}

/// Publishes so many at a time while the server is killed, and looks for what it has acknowledged.
pub async fn survive_kills(mut server: NatsServer, broker: Arc<NatsBroker>, at_once: usize) {
    broker.ensure_stream(&spec()).await.unwrap();
    let mut stored = Vec::new();
    for round in 0..3 {
        let flood = {
            let broker = Arc::clone(&broker);
            tokio::spawn(async move {
                let mut stored = Vec::new();
                for n in 0.. {
                    let together = (0..at_once).map(|m| first(&format!("{round}.{n}.{m}")));
                    let outcomes = together.map(async |message| {
                        let subject = message.subject.clone();
                        broker.publish(message).await.map(|ack| (ack.sequence, subject))
                    });
                    for outcome in futures::future::join_all(outcomes).await {
                        match outcome {
                            Ok(found) => stored.push(found),
                            Err(_) => return stored,
                        }
                    }
                }
                stored
            })
        };
        let enough = (round + 1) * 200 * u64::try_from(at_once.min(10)).unwrap();
        eventually("some are stored", || async {
            let state = broker.stream_state("S").await;
            state.is_ok_and(|state| state.last_sequence > enough)
        })
        .await;
        server.kill();
        stored.extend(within("flood", flood).await.unwrap());
        server.launch();
        eventually("back", || async { broker.ping().await.is_ok() }).await;
    }
    assert!(stored.len() > 300, "{}", stored.len());
    for (sequence, subject) in stored {
        let found = broker.message_at("S", sequence).await.unwrap();
        assert_eq!(found.map(|found| found.subject), Some(subject), "{sequence}");
    }
}
