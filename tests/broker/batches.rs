//! Publications by atomic batch, on a server that syncs each write: the promises of all publications, and what becomes of
//! a batch that cannot be stored whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use saga_runner::kernel::duration::Millis;
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::{Broker, Expect, Publication, PublishAck, PublishError};

use crate::broker::cuts::survive_kills;
use crate::broker::nats::{NatsGround, connect, connect_with, first, message, settings, spec};
use crate::broker::suite::{Ground, MESSAGE_BYTES_MAX, within};
use crate::support::nats_server::{NatsServer, Options};
use crate::support::proxy::{Fault, Proxy};

/// Messages of one batch.
const BATCH: usize = 100;

fn server() -> NatsServer {
    NatsServer::start_with(&Options {
        sync_interval: Some("always"),
        ..Options::default()
    })
}

fn batching_settings(url: &str) -> Settings {
    Settings {
        publish_batch_max: BATCH,
        ..settings(url)
    }
}

async fn batching(url: &str) -> Arc<NatsBroker> {
    connect_with(batching_settings(url)).await
}

/// Six thousand synced writes take their time on a machine that is busy, and no test of the suite waits for a timeout.
fn patient_settings(url: &str) -> Settings {
    Settings {
        request_timeout: Millis::seconds(20),
        ..batching_settings(url)
    }
}

fn ground() -> Arc<NatsGround> {
    NatsGround::new(server(), patient_settings)
}

fn shared() -> Arc<dyn Ground> {
    static SHARED: Mutex<Weak<NatsGround>> = Mutex::new(Weak::new());
    NatsGround::shared(&SHARED, ground)
}

fn private() -> Arc<dyn Ground> {
    ground()
}

crate::conformance!(shared, private);

/// Publishes all at once.
async fn all(broker: &NatsBroker, messages: Vec<Publication>) -> Vec<Result<PublishAck, PublishError>> {
    let stored = messages.into_iter().map(|message| broker.publish(message));
    within("publish", join_all(stored)).await
}

/// The batch that brought each message of the stream, by sequence; none for those that came alone.
async fn batches(url: &str, messages: u64) -> BTreeMap<u64, Option<String>> {
    let raw = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = raw.get_stream("S").await.unwrap();
    let mut found = BTreeMap::new();
    for sequence in 1..=messages {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let id = message.headers.get("Nats-Batch-Id").map(ToString::to_string);
        found.insert(sequence, id);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_batch_are_stored_together_and_each_has_its_sequence() {
    let server = server();
    let broker = batching(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let subjects: Vec<String> = (0..300).map(|n| format!("n.{n}")).collect();
    let stored = all(&broker, subjects.iter().map(|rest| first(rest)).collect()).await;
    for (n, ack) in stored.into_iter().enumerate() {
        let ack = ack.unwrap();
        assert_eq!((ack.sequence, ack.duplicate), (n as u64 + 1, false));
        let found = broker.message_at("S", ack.sequence).await.unwrap().unwrap();
        assert_eq!(found.subject, format!("s.n.{n}"));
        assert_eq!(
            found.headers,
            [],
            "what marks a batch is not a header of the message"
        );
    }
    let batches = batches(&server.url(), 300).await;
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for id in batches.values().flatten() {
        *sizes.entry(id).or_default() += 1;
    }
    assert!(sizes.values().all(|size| *size <= BATCH), "{sizes:?}");
    assert!(sizes.values().sum::<usize>() >= 200, "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_by_itself_is_no_batch() {
    let server = server();
    let broker = batching(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    for n in 0..5 {
        broker.publish(first(&n.to_string())).await.unwrap();
    }
    let batches = batches(&server.url(), 5).await;
    assert!(batches.values().all(Option::is_none), "{batches:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_stored_does_not_stop_the_others_of_its_batch() {
    let server = server();
    let broker = batching(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    broker.publish(first("taken")).await.unwrap();
    let mut messages: Vec<Publication> = (0..60).map(|n| first(&format!("n.{n}"))).collect();
    messages[20] = first("taken");
    messages[30].payload = Bytes::from(vec![b'x'; 2 * MESSAGE_BYTES_MAX]);
    messages[40].subject = "s.*".to_owned();
    messages[45].headers = vec![("bad".to_owned(), "line\nend".to_owned())];
    // Twice in the same batch.
    messages[50] = first("n.49");
    let stored = all(&broker, messages).await;
    let mut expected = 1;
    for (n, outcome) in stored.into_iter().enumerate() {
        match n {
            20 | 50 => assert_eq!(outcome, Err(PublishError::AlreadyThere), "{n}"),
            30 | 40 | 45 => assert!(
                matches!(outcome, Err(PublishError::Refused(_))),
                "{n}: {outcome:?}"
            ),
            _ => {
                expected += 1;
                assert_eq!(outcome.unwrap().sequence, expected, "{n}");
            }
        }
    }
    assert_eq!(broker.stream_state("S").await.unwrap().last_sequence, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_message_id_among_others_is_told_as_a_duplicate() {
    let server = server();
    let broker = batching(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let with_id = |n: usize| Publication {
        expect: Expect::MessageId(format!("id-{n}")),
        ..message("a")
    };
    broker.publish(with_id(7)).await.unwrap();
    let stored = all(&broker, (0..40).map(with_id).collect()).await;
    for (n, ack) in stored.into_iter().enumerate() {
        let ack = ack.unwrap();
        assert_eq!(ack.duplicate, n == 7, "{n}");
        assert_eq!(ack.sequence == 1, n == 7, "{n}");
    }
    assert_eq!(broker.stream_state("S").await.unwrap().messages, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_takes_no_batches_gets_each_by_itself() {
    let server = server();
    connect(&server.url()).await.ensure_stream(&spec()).await.unwrap();
    let broker = batching(&server.url()).await;
    for round in 0..2 {
        let messages = (0..50).map(|n| first(&format!("{round}.{n}"))).collect();
        for (n, ack) in all(&broker, messages).await.into_iter().enumerate() {
            assert_eq!(ack.unwrap().sequence, round * 50 + n as u64 + 1);
        }
    }
    assert!(batches(&server.url(), 100).await.values().all(Option::is_none));
    // It is made to take them where the runner looks after it.
    let differences = broker.check_stream(&spec()).await.unwrap();
    assert_eq!(differences, ["allow_atomic is null, expected true"]);
    broker.ensure_stream(&spec()).await.unwrap();
    assert_eq!(broker.check_stream(&spec()).await.unwrap(), Vec::<String>::new());
    let fresh = batching(&server.url()).await;
    let stored = all(&fresh, (0..50).map(|n| first(&format!("2.{n}"))).collect()).await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let marked = batches(&server.url(), 150).await.into_values().flatten().count();
    assert!(marked > 0);
}

/// What is told as stored is stored, and nothing twice, when the connection breaks under batches that are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_under_load_lose_nothing_and_store_nothing_twice() {
    let server = server();
    let proxy = Proxy::start(server.address()).await;
    let broker = batching(&proxy.url()).await;
    let direct = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let publish = |n: usize| {
        let broker = Arc::clone(&broker);
        async move {
            loop {
                match broker.publish(first(&format!("n.{n}"))).await {
                    Ok(_) | Err(PublishError::AlreadyThere) => return,
                    Err(PublishError::Refused(why)) => panic!("{n}: {why}"),
                    Err(PublishError::Unavailable(_) | PublishError::Unknown(_)) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        }
    };
    let work = async {
        let mut waiting = (0..4_000).map(publish);
        let mut running = FuturesUnordered::new();
        let mut done = 0;
        while done < 4_000 {
            while running.len() < 300 {
                let Some(next) = waiting.next() else { break };
                running.push(next);
            }
            running.next().await;
            done += 1;
            if done % 500 == 250 {
                // Half of the cuts fall between the store and its answer.
                proxy.set(if done % 1_000 == 250 {
                    Fault::Stall
                } else {
                    Fault::None
                });
                tokio::time::sleep(Duration::from_millis(20)).await;
                proxy.cut();
                proxy.set(Fault::None);
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(2), work)
        .await
        .expect("all are stored");
    let state = direct.stream_state("S").await.unwrap();
    assert_eq!(state.messages, 4_000);
    let mut subjects = BTreeSet::new();
    for sequence in 1..=4_000 {
        subjects.insert(direct.message_at("S", sequence).await.unwrap().unwrap().subject);
    }
    assert_eq!(subjects.len(), 4_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_batches_survive_the_kill_of_the_server() {
    let server = server();
    let broker = batching(&server.url()).await;
    survive_kills(server, broker, 64).await;
}
