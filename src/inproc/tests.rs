//! Promises of the embedded broker beyond those of the port: what survives, what is bounded.

mod queues;
mod readers;
mod streams;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use tempfile::TempDir;

use super::*;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;
use crate::ports::broker::{Horizon, Manner, Message, QueueMessage};

/// A clock that stands still until it is set forward.
#[derive(Default)]
struct SetClock(AtomicI64);

impl SetClock {
    fn forward(&self, by: Duration) {
        self.0
            .fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> TimeMs {
        TimeMs(1_700_000_000_000 + self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst).unsigned_abs())
    }
}

/// A broker's folder, and a broker that can be ended and begun again.
struct Place {
    dir: TempDir,
    settings: Settings,
    clock: Arc<SetClock>,
}

const STREAM: &str = "S";
const ACK_WAIT: Duration = Duration::from_secs(30);

impl Place {
    fn new(settings: Settings) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            settings,
            clock: Arc::default(),
        }
    }

    fn open(&self) -> Arc<InprocBroker> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        InprocBroker::open(self.dir.path(), self.settings.clone(), clock).unwrap()
    }

    async fn with_stream(&self) -> Arc<InprocBroker> {
        let broker = self.open();
        broker.ensure_stream(&spec()).await.unwrap();
        broker
    }
}

fn place() -> Place {
    Place::new(Settings::default())
}

fn spec() -> StreamSpec {
    StreamSpec {
        name: STREAM.to_owned(),
        subjects: vec![">".to_owned()],
        replicas: 1,
        message_bytes_max: 1 << 20,
        foreign: false,
    }
}

fn message(subject: &str, payload: impl Into<Bytes>) -> Publication {
    Publication {
        stream: STREAM.to_owned(),
        subject: subject.to_owned(),
        headers: vec![("traceparent".to_owned(), "00-1-2-01".to_owned())],
        payload: payload.into(),
        expect: Expect::Nothing,
    }
}

fn expecting(subject: &str, expect: Expect) -> Publication {
    Publication {
        expect,
        ..message(subject, "x")
    }
}

async fn publish(broker: &InprocBroker, subject: &str, count: usize) {
    let all = (0..count).map(|n| broker.publish(message(subject, n.to_string())));
    for stored in join_all(all).await {
        stored.unwrap();
    }
}

async fn reader(
    broker: &InprocBroker,
    filters: &[&str],
    start_sequence: u64,
    buffer: usize,
) -> Box<dyn Reader> {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    let spec = ReaderSpec {
        stream: STREAM.to_owned(),
        filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
        start_sequence,
        name: format!("r{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        buffer,
    };
    broker.reader(spec).await.unwrap()
}

fn queue_spec(filter: &str) -> QueueSpec {
    QueueSpec {
        group: None,
        stream: STREAM.to_owned(),
        filters: vec![filter.to_owned()],
        durable: "workers".to_owned(),
        ack_wait: ACK_WAIT,
        max_unacknowledged: 1_000,
        buffer: 16,
        manner: Manner::default(),
    }
}

/// What is there must come at once; a message that stays out fails the test instead of hanging it.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), answer)
        .await
        .expect("an answer")
}

async fn take(reader: &mut dyn Reader, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(soon(reader.next()).await.unwrap());
    }
    messages
}

async fn work(queue: &mut dyn Queue, count: usize) -> Vec<QueueMessage> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(soon(queue.next()).await.unwrap());
    }
    messages
}

fn sequences(messages: &[QueueMessage]) -> Vec<u64> {
    messages.iter().map(|work| work.message.stream_sequence).collect()
}

#[tokio::test]
async fn publishers_wait_for_room_in_their_order() {
    let place = Place::new(Settings {
        pending_bytes: 4_096,
        batch_messages: 3,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    publish(&broker, "a", 300).await;
    let mut reader = reader(&broker, &["a"], 1, 64).await;
    for (n, message) in take(&mut *reader, 300).await.iter().enumerate() {
        assert_eq!(message.payload, n.to_string());
    }
}

#[tokio::test]
async fn overlapping_subjects_and_too_many_streams_are_refused() {
    let place = Place::new(Settings {
        streams_max: 2,
        ..Settings::default()
    });
    let broker = place.open();
    let stream = |name: &str, subject: &str| StreamSpec {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..spec()
    };
    broker.ensure_stream(&stream("A", "a.>")).await.unwrap();
    for (name, subject) in [("B", "a.b"), ("B", "*.b"), ("B", ""), ("B.C", "b"), ("", "b")] {
        let refused = broker.ensure_stream(&stream(name, subject)).await;
        assert!(
            matches!(refused, Err(BrokerError::Refused(_))),
            "{name} {subject}: {refused:?}"
        );
    }
    broker.ensure_stream(&stream("B", "b")).await.unwrap();
    let refused = broker.ensure_stream(&stream("C", "c")).await;
    assert!(matches!(refused, Err(BrokerError::Refused(_))), "{refused:?}");
    broker.delete_stream("A").await.unwrap();
    let state = broker.ensure_stream(&stream("C", "a.b")).await.unwrap();
    assert_eq!(state.last_sequence, 0);
    let copies = StreamSpec {
        replicas: 3,
        ..stream("C", "a.b")
    };
    assert!(matches!(
        broker.ensure_stream(&copies).await,
        Err(BrokerError::Mismatch { .. })
    ));
}

#[test]
fn settings_refuse_unknown_names() {
    let settings: Settings = serde_json::from_str(r#"{"duplicate_window": "30s"}"#).unwrap();
    assert_eq!(settings.duplicate_window, Millis::seconds(30));
    assert!(serde_json::from_str::<Settings>(r#"{"duplicate_windo": "30s"}"#).is_err());
}
