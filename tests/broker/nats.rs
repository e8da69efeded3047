//! The broker on NATS: the suite, and what only a network and a foreign server can do.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use saga_runner::nats::{ConnectError, NatsBroker, Settings, Status};
use saga_runner::ports::broker::{
    Broker, BrokerError, BucketSpec, Expect, KnownQueue, Manner, Publication, PublishError, PutError,
    QueueSpec, ReaderSpec, StreamSpec,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::broker::suite::{self, Ground, eventually, within};
use crate::support::nats_server::{NatsServer, Options};

/// A server, and how brokers connect to it.
pub struct NatsGround {
    server: tokio::sync::Mutex<NatsServer>,
    url: String,
    settings: fn(&str) -> Settings,
}

impl NatsGround {
    pub fn new(server: NatsServer, settings: fn(&str) -> Settings) -> Arc<Self> {
        Arc::new(Self {
            url: server.url(),
            server: tokio::sync::Mutex::new(server),
            settings,
        })
    }

    /// The one in `shared` if cases use it now, else a new one. Weak, so that the server ends with the last case and not
    /// with the process, which would leave it behind.
    pub fn shared(shared: &Mutex<Weak<Self>>, new: fn() -> Arc<Self>) -> Arc<dyn Ground> {
        let mut shared = shared.lock().expect("no case fails while it holds the lock");
        if let Some(ground) = shared.upgrade() {
            return ground;
        }
        let ground = new();
        *shared = Arc::downgrade(&ground);
        ground
    }
}

#[async_trait]
impl Ground for NatsGround {
    async fn broker(&self) -> Arc<dyn Broker> {
        connect_with((self.settings)(&self.url)).await
    }

    async fn delete_stream(&self, stream: &str) {
        api(&self.url, &format!("STREAM.DELETE.{stream}"), Value::Null).await;
    }

    async fn restart(&self) {
        let mut server = self.server.lock().await;
        server.kill();
        server.launch();
    }

    /// Listens beside the group: the server sends each message to whoever listens so, and to one member.
    async fn pushed(&self, durable: &str, count: usize) -> BoxFuture<'static, ()> {
        let client = async_nats::connect(&self.url).await.expect("connected");
        let subject = format!("_saga_runner.push.{durable}");
        let mut copies = client.subscribe(subject).await.expect("subscribed");
        client.flush().await.expect("the server answers");
        Box::pin(async move {
            for _ in 0..count {
                copies.next().await.expect("the subscription holds");
            }
            // As long as it listens, the consumer sends.
            copies.unsubscribe().await.expect("the client is there");
            client.flush().await.expect("the server answers");
        })
    }
}

fn ground() -> Arc<NatsGround> {
    NatsGround::new(NatsServer::start(), settings)
}

fn shared() -> Arc<dyn Ground> {
    static SHARED: Mutex<Weak<NatsGround>> = Mutex::new(Weak::new());
    NatsGround::shared(&SHARED, ground)
}

fn private() -> Arc<dyn Ground> {
    ground()
}

crate::conformance!(shared, private);

/// What holds for queues holds for those that push, too.
mod pushed {
    macro_rules! cases {
        ($($case:ident)*) => {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let case = crate::broker::suite::Case::pushed(super::shared(), stringify!($case)).await;
                    crate::broker::suite::$case(case).await;
                }
            )*
        };
    }

    cases! {
        each_message_goes_to_one_member
        an_unanswered_message_is_delivered_again
        a_refused_message_is_delivered_again_at_once
        a_refused_message_stays_away_for_its_delay
        progress_keeps_a_message_with_its_worker
        a_terminated_message_is_never_delivered_again
        the_floor_stops_below_an_unanswered_message
        the_floor_passes_messages_that_do_not_match
        a_queue_tells_how_far_it_was_delivered_and_whether_a_member_asks
        close_gives_back_what_was_not_taken
        members_together_hold_no_more_than_allowed
        a_queue_with_another_filter_is_not_joined
        a_queue_outlives_its_members
    }
}

pub fn settings(url: &str) -> Settings {
    serde_json::from_value(json!({
        "urls": [url],
        "request_timeout": "2s",
        "heartbeat": "500ms",
        "ping_interval": "1s",
    }))
    .unwrap()
}

pub async fn connect(url: &str) -> Arc<NatsBroker> {
    connect_with(settings(url)).await
}

pub async fn connect_with(settings: Settings) -> Arc<NatsBroker> {
    let broker = NatsBroker::connect(settings).await.unwrap();
    within("connect", broker.connected()).await.unwrap();
    broker
}

pub fn spec() -> StreamSpec {
    StreamSpec {
        name: "S".to_owned(),
        subjects: vec!["s.>".to_owned()],
        replicas: 1,
        message_bytes_max: suite::MESSAGE_BYTES_MAX,
        foreign: false,
    }
}

pub fn message(rest: &str) -> Publication {
    Publication {
        stream: "S".to_owned(),
        subject: format!("s.{rest}"),
        headers: Vec::new(),
        payload: Bytes::from_static(b"x"),
        expect: Expect::Nothing,
    }
}

pub fn first(rest: &str) -> Publication {
    Publication {
        expect: Expect::FirstOnSubject,
        ..message(rest)
    }
}

pub fn reader_spec(name: &str, start_sequence: u64) -> ReaderSpec {
    ReaderSpec {
        stream: "S".to_owned(),
        filters: vec!["s.>".to_owned()],
        start_sequence,
        name: name.to_owned(),
        buffer: 200,
    }
}

pub async fn publish(broker: &NatsBroker, count: usize) {
    for _ in 0..count {
        within("publish", broker.publish(message("a"))).await.unwrap();
    }
}

pub async fn api(url: &str, operation: &str, body: Value) -> Value {
    let raw = async_nats::connect(url).await.unwrap();
    let body = if body.is_null() {
        Bytes::new()
    } else {
        Bytes::from(body.to_string())
    };
    let answer = raw.request(format!("$JS.API.{operation}"), body).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_later_is_waited_for() {
    let mut server = NatsServer::start();
    server.kill();
    let broker = NatsBroker::connect(settings(&server.url())).await.unwrap();
    let down = broker.publish(message("a")).await;
    assert!(matches!(down, Err(PublishError::Unavailable(_))), "{down:?}");
    assert!(matches!(broker.ping().await, Err(BrokerError::Unavailable(_))));
    assert!(matches!(
        broker.ensure_stream(&spec()).await,
        Err(BrokerError::Unavailable(_))
    ));
    within("a report", async {
        let mut status = broker.status();
        let failed = |status: &Status| matches!(status, Status::Connecting { last_error: Some(_) });
        status.wait_for(failed).await.map(drop).unwrap();
    })
    .await;
    server.launch();
    let version = within("connect", broker.connected()).await.unwrap();
    assert!(version.starts_with("2."), "{version}");
    within("ensure", broker.ensure_stream(&spec())).await.unwrap();
    server.kill();
    within(
        "a report",
        broker
            .status()
            .wait_for(|status| matches!(status, Status::Connecting { .. })),
    )
    .await
    .unwrap();
    server.launch();
    within("connect", broker.connected()).await.unwrap();
}

/// Answers every request with three parts that begin with this letter.
async fn answering_with(broker: Arc<NatsBroker>, letter: &'static str) {
    let forwarding = broker.forwarding().unwrap();
    let mut listener = forwarding.listen("two").await.unwrap();
    tokio::spawn(async move {
        while let Some((_, mut reply)) = listener.request().await {
            tokio::spawn(async move {
                for part in 1..3 {
                    // Whoever is not asked for more is not read.
                    let sent = reply.send(format!("{letter}{part}").into(), Duration::from_secs(1));
                    if sent.await.is_err() {
                        return;
                    }
                }
                let _ = reply.finish(format!("{letter}3").into()).await;
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_two_processes_answer_the_parts_of_one_are_read() {
    let server = NatsServer::start();
    for letter in ["a", "b"] {
        let broker = NatsBroker::connect(settings(&server.url())).await.unwrap();
        broker.connected().await.unwrap();
        answering_with(broker, letter).await;
    }
    let asks = NatsBroker::connect(settings(&server.url())).await.unwrap();
    asks.connected().await.unwrap();
    let asks = asks.forwarding().unwrap();
    for _ in 0..20 {
        let mut answer = asks.forward("two", "?".into()).await.unwrap();
        let mut parts = Vec::new();
        while let Some(part) = answer.part(Duration::from_secs(5)).await.unwrap() {
            parts.push(String::from_utf8(part.to_vec()).unwrap());
        }
        let letter = &parts[0][..1];
        let expected: Vec<String> = (1..=3).map(|part| format!("{letter}{part}")).collect();
        assert_eq!(parts, expected);
    }
}

/// The address of what greets like a server of this version, and takes nothing for JetStream.
async fn greeting(version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let info = json!({
                    "server_id": "OLD", "server_name": "old", "version": version, "proto": 1,
                    "host": "127.0.0.1", "port": 4222, "headers": true, "max_payload": 1_048_576,
                    "jetstream": true,
                });
                write
                    .write_all(format!("INFO {info}\r\n").as_bytes())
                    .await
                    .unwrap();
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.starts_with("PING") && write.write_all(b"PONG\r\n").await.is_err() {
                        return;
                    }
                    assert!(!line.contains("$JS"), "nothing may be sent to it: {line}");
                }
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_below_the_floor_is_refused_by_code() {
    for version in [
        "2.9.10",
        "2.12.6",
        "2.12.7-RC.1",
        "2.13.4",
        "2.14.0-RC.2",
        "unknown",
    ] {
        let broker = NatsBroker::connect(settings(&greeting(version).await))
            .await
            .unwrap();
        let refused = within("connect", broker.connected()).await.unwrap_err();
        let expected = ConnectError::Unsupported {
            version: version.to_owned(),
        };
        assert_eq!(refused, expected);
        let text = refused.to_string();
        for part in ["SR0301", version, "2.12.7", "2.14.0"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(matches!(&*broker.status().borrow(), Status::Unsupported { .. }));
        match broker.publish(message("a")).await {
            Err(PublishError::Unavailable(why)) => assert!(why.contains("SR0301"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let candidate = NatsBroker::connect(settings(&greeting("2.15.0-RC.1").await))
        .await
        .unwrap();
    assert_eq!(
        within("connect", candidate.connected()).await.as_deref(),
        Ok("2.15.0-RC.1")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_open_the_connection_and_wrong_ones_are_reported() {
    let server = NatsServer::start_with(&Options {
        config: "authorization { users: [{ user: u, password: right }] }".to_owned(),
        ..Options::default()
    });
    let with = |password: &str| {
        let mut settings = settings(&server.url());
        settings.user = Some("u".to_owned());
        settings.password = Some(password.to_owned().into());
        settings
    };
    let broker = NatsBroker::connect(with("right")).await.unwrap();
    within("connect", broker.connected()).await.unwrap();
    let refused = NatsBroker::connect(with("wrong")).await.unwrap();
    within("a report", async {
        let mut status = refused.status();
        let told = |status: &Status| match status {
            Status::Connecting {
                last_error: Some(error),
            } => error.contains("authorization"),
            _ => false,
        };
        status.wait_for(told).await.map(drop).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_is_unavailable_and_keeps_what_its_operator_set() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let info = api(&server.url(), "STREAM.INFO.S", Value::Null).await;
    let mut config = info["config"].clone();
    config["max_msgs"] = json!(2);
    config["description"] = json!("by hand");
    config["max_age"] = json!(3_600_000_000_000_u64);
    let updated = api(&server.url(), "STREAM.UPDATE.S", config).await;
    assert_eq!(updated["config"]["max_msgs"], 2, "{updated}");
    let differences = broker.check_stream(&spec()).await.unwrap();
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert!(differences[0].starts_with("max_age"), "{differences:?}");

    broker.ensure_stream(&spec()).await.unwrap();
    let info = api(&server.url(), "STREAM.INFO.S", Value::Null).await;
    assert_eq!(info["config"]["max_age"], 0);
    assert_eq!(info["config"]["max_msgs"], 2);
    assert_eq!(info["config"]["description"], "by hand");
    publish(&broker, 2).await;
    let full = broker.publish(message("a")).await;
    assert!(matches!(full, Err(PublishError::Unavailable(_))), "{full:?}");
    broker.trim("S", 2).await.unwrap();
    publish(&broker, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_command_the_server_are_refused_by_our_streams() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    for (name, value) in [
        ("Nats-Rollup", "all"),
        ("Nats-TTL", "1s"),
        ("Nats-Schedule", "@every 1s"),
    ] {
        let refused = broker
            .publish(Publication {
                headers: vec![(name.to_owned(), value.to_owned())],
                ..message("a")
            })
            .await;
        assert!(
            matches!(refused, Err(PublishError::Refused(_))),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(broker.stream_state("S").await.unwrap().last_sequence, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_stream_without_direct_get_is_read_all_the_same() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let made = api(
        &server.url(),
        "STREAM.CREATE.S",
        json!({
            "name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "memory",
            "discard": "old", "max_age": 3_600_000_000_000_u64, "num_replicas": 1,
        }),
    )
    .await;
    assert!(made["error"].is_null(), "{made}");
    let foreign = StreamSpec {
        foreign: true,
        ..spec()
    };
    broker.ensure_stream(&foreign).await.unwrap();
    publish(&broker, 2).await;
    assert_eq!(broker.message_at("S", 2).await.unwrap().unwrap().subject, "s.a");
    assert_eq!(broker.message_at("S", 3).await.unwrap(), None);
    assert_eq!(
        broker
            .last_by_subject("S", "s.a")
            .await
            .unwrap()
            .unwrap()
            .sequence,
        2
    );
    assert_eq!(broker.last_by_subject("S", "s.b").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_reader_leaves_no_consumer_behind() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let reader = broker.reader(reader_spec("gone", 1)).await.unwrap();
    drop(reader);
    eventually("the consumer is gone", || async {
        let info = api(&server.url(), "CONSUMER.INFO.S.gone", Value::Null).await;
        info["error"]["err_code"] == 10_014
    })
    .await;
}

/// With a bound on what is not acknowledged the server stops to deliver at it, whoever needs no acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_leaves_nothing_to_be_acknowledged() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    publish(&broker, 300).await;
    let mut reader = broker.reader(reader_spec("r", 1)).await.unwrap();
    for _ in 0..300 {
        within("next", reader.next()).await.unwrap();
    }
    let info = api(&server.url(), "CONSUMER.INFO.S.r", Value::Null).await;
    assert_eq!(info["config"]["ack_policy"], "none", "{info}");
    assert_eq!(info["num_ack_pending"], 0, "{info}");
    assert!(
        info["config"]["max_ack_pending"].as_i64().unwrap_or(0) <= 0,
        "{info}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_removed_one_by_one_are_named() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    publish(&broker, 9).await;
    for sequence in [7, 3, 1] {
        let body = json!({ "seq": sequence });
        let answer = api(&server.url(), "STREAM.MSG.DELETE.S", body).await;
        assert_eq!(answer["success"], true, "{answer}");
    }
    let state = broker.stream_state("S").await.unwrap();
    assert_eq!((state.first_sequence, state.removed()), (2, 2));
    assert_eq!(broker.removed("S").await.unwrap(), [3, 7]);
}

fn workers() -> QueueSpec {
    QueueSpec {
        group: None,
        stream: "S".to_owned(),
        filters: vec!["s.>".to_owned()],
        durable: "workers".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_unacknowledged: 10,
        buffer: 4,
        manner: Manner::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_takes_over_new_waits_and_bounds() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let queue = workers();
    broker.queue(queue.clone()).await.unwrap();
    let changed = QueueSpec {
        ack_wait: Duration::from_mins(1),
        max_unacknowledged: 20,
        ..queue
    };
    broker.queue(changed).await.unwrap();
    let info = api(&server.url(), "CONSUMER.INFO.S.workers", Value::Null).await;
    assert_eq!(info["config"]["ack_wait"], 60_000_000_000_u64);
    assert_eq!(info["config"]["max_ack_pending"], 20);
}

/// Names alone do not tell: those of the groups `shop` and `shop-eu` begin alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_that_of_its_group() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    let queue = |group: Option<&str>| QueueSpec {
        group: group.map(str::to_owned),
        ..workers()
    };
    let known = |group: Option<&str>| KnownQueue {
        durable: "workers".to_owned(),
        group: group.map(str::to_owned),
    };
    broker.queue(queue(None)).await.unwrap();
    assert_eq!(broker.queues("S").await.unwrap(), [known(None)]);
    broker.queue(queue(Some("shop"))).await.unwrap();
    assert_eq!(broker.queues("S").await.unwrap(), [known(Some("shop"))]);
    broker.queue(queue(None)).await.unwrap();
    assert_eq!(broker.queues("S").await.unwrap(), [known(Some("shop"))]);

    let told = broker.check_queue(&queue(Some("shop-eu"))).await.unwrap();
    assert_eq!(
        told,
        ["consumer workers is of the group \"shop\", expected \"shop-eu\""]
    );
    let refused = broker.queue(queue(Some("shop-eu"))).await.err();
    assert!(
        matches!(refused, Some(BrokerError::Mismatch { .. })),
        "{refused:?}"
    );
    let bound = QueueSpec {
        manner: Manner {
            bound: true,
            push: false,
        },
        ..queue(Some("shop-eu"))
    };
    broker.queue(bound).await.unwrap();
    assert_eq!(broker.queues("S").await.unwrap(), [known(Some("shop"))]);

    // What tells of something else and ends with its reader is not a queue.
    let reader = broker.reader(reader_spec("reader", 1)).await.unwrap();
    assert_eq!(broker.queues("S").await.unwrap().len(), 1);
    drop(reader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_acknowledgements_have_reached_the_server() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    broker.ensure_stream(&spec()).await.unwrap();
    publish(&broker, 500).await;
    let spec = QueueSpec {
        max_unacknowledged: 1_000,
        buffer: 1_000,
        ..workers()
    };
    let mut queue = broker.queue(spec).await.unwrap();
    for _ in 0..500 {
        let work = within("next", queue.next()).await.unwrap();
        work.receipt.ack().await.unwrap();
    }
    within("flush", broker.flush()).await.unwrap();
    // The client is torn down here; what was flushed needs it no more.
    drop((queue, broker));
    eventually("all are answered", || async {
        let info = api(&server.url(), "CONSUMER.INFO.S.workers", Value::Null).await;
        info["num_ack_pending"] == 0 && info["ack_floor"]["stream_seq"] == 500
    })
    .await;
}

/// As `nats kv del` and `nats kv purge` leave it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_was_removed_is_not_there_and_can_be_created() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let bucket = BucketSpec {
        name: "B".to_owned(),
        replicas: 1,
    };
    broker.ensure_bucket(&bucket).await.unwrap();
    let raw = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let theirs = raw
        .get_key_value("B")
        .await
        .expect("NATS's own clients take it for a bucket");
    for (n, value) in ["one", "two"].into_iter().enumerate() {
        let value = Bytes::from_static(value.as_bytes());
        let revision = broker.put_entry("B", "a.b", value.clone(), None).await.unwrap();
        assert_eq!(theirs.get("a.b").await.unwrap(), Some(value));
        match n {
            0 => theirs.delete("a.b").await.unwrap(),
            _ => theirs.purge("a.b").await.unwrap(),
        }
        assert_eq!(broker.entry("B", "a.b").await.unwrap(), None);
        let stale = broker.put_entry("B", "a.b", Bytes::new(), Some(revision)).await;
        assert_eq!(stale, Err(PutError::Conflict));
    }
    let entry = theirs.put("a.b", Bytes::from_static(b"theirs")).await.unwrap();
    assert_eq!(broker.entry("B", "a.b").await.unwrap().unwrap().revision, entry);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_forgets_is_brought_to_its_spec() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let config = json!({"name": "KV_B", "subjects": ["$KV.B.>"], "max_age": 60_000_000_000_u64, "discard": "old",
        "max_msgs_per_subject": 1, "allow_rollup_hdrs": true, "deny_delete": true, "allow_direct": true});
    api(&server.url(), "STREAM.CREATE.KV_B", config).await;
    let bucket = BucketSpec {
        name: "B".to_owned(),
        replicas: 1,
    };
    let found = broker.check_bucket(&bucket).await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    broker.ensure_bucket(&bucket).await.unwrap();
    assert_eq!(broker.check_bucket(&bucket).await.unwrap(), Vec::<String>::new());
}
