//! The broker in this process: the suite, and a process that is killed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use saga_runner::inproc::{InprocBroker, Settings};
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{
    Broker, BrokerError, BucketSpec, Entry, Expect, Manner, Publication, PublishAck, PublishError, PutError,
    Queue, QueueSpec, QueueState, Reader, ReaderSpec, StoredMessage, StreamSpec, StreamState,
};
use saga_runner::ports::clock::Clock;
use tempfile::TempDir;

use crate::broker::suite::Ground;

struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> TimeMs {
        TimeMs(jiff::Timestamp::now().as_millisecond())
    }

    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed()
    }
}

fn open(dir: &Path) -> Arc<InprocBroker> {
    InprocBroker::open(dir, Settings::default(), Arc::new(RealClock)).expect("the folder is free")
}

/// A folder and the broker that is open on it now.
struct Place {
    dir: TempDir,
    broker: RwLock<Arc<InprocBroker>>,
}

impl Place {
    fn current(&self) -> Arc<InprocBroker> {
        Arc::clone(&self.broker.read().unwrap_or_else(PoisonError::into_inner))
    }
}

struct InprocGround(Arc<Place>);

fn ground() -> Arc<dyn Ground> {
    let dir = tempfile::tempdir().expect("a folder for the streams");
    let broker = RwLock::new(open(dir.path()));
    Arc::new(InprocGround(Arc::new(Place { dir, broker })))
}

#[async_trait]
impl Ground for InprocGround {
    async fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(Client(Arc::clone(&self.0)))
    }

    async fn delete_stream(&self, stream: &str) {
        self.0.current().delete_stream(stream).await.unwrap();
    }

    async fn restart(&self) {
        let mut broker = self.0.broker.write().unwrap_or_else(PoisonError::into_inner);
        broker.abort();
        let halted = Arc::downgrade(&broker);
        // The slot cannot be empty, so another broker keeps it until the folder is free.
        let elsewhere = tempfile::tempdir().expect("a folder for a moment");
        *broker = open(elsewhere.path());
        assert!(halted.upgrade().is_none(), "nobody else holds the broker");
        *broker = open(self.0.dir.path());
    }
}

/// Finds the broker that is open now, as a client finds its server again.
struct Client(Arc<Place>);

#[async_trait]
impl Broker for Client {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        self.0.current().ensure_stream(spec).await
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        self.0.current().check_stream(spec).await
    }

    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        self.0.current().stream_state(stream).await
    }

    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        self.0.current().publish(message).await
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        self.0.current().reader(spec).await
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        self.0.current().queue(spec).await
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        self.0.current().last_by_subject(stream, subject).await
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        self.0.current().message_at(stream, sequence).await
    }

    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError> {
        self.0.current().trim(stream, sequence).await
    }

    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        self.0.current().queue_floor(stream, durable).await
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        self.0.current().check_queue(spec).await
    }

    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        self.0.current().queue_state(stream, durable).await
    }

    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        self.0.current().ensure_bucket(spec).await
    }

    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        self.0.current().check_bucket(spec).await
    }

    async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
        self.0.current().entry(bucket, key).await
    }

    async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        self.0.current().put_entry(bucket, key, value, expected).await
    }

    async fn ping(&self) -> Result<Duration, BrokerError> {
        self.0.current().ping().await
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        self.0.current().flush().await
    }
}

crate::conformance!(ground, ground);

const CHILD: &str = "SAGA_RUNNER_TEST_BROKER_DIR";

fn stream() -> StreamSpec {
    StreamSpec {
        name: "S".to_owned(),
        subjects: vec!["work.>".to_owned()],
        replicas: 1,
        message_bytes_max: 4_096,
        foreign: false,
    }
}

fn queue() -> QueueSpec {
    QueueSpec {
        group: None,
        stream: "S".to_owned(),
        filters: vec!["work.>".to_owned()],
        durable: "workers".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_unacknowledged: 10_000,
        buffer: 1,
        manner: Manner::default(),
    }
}

/// Publishes until it is killed and says on standard output what was answered, and which floor it was told.
async fn publish_until_killed(dir: &Path) {
    let broker = open(dir);
    broker.ensure_stream(&stream()).await.unwrap();
    let mut member = broker.queue(queue()).await.unwrap();
    let publisher = |lane: u32| {
        let broker = Arc::clone(&broker);
        async move {
            for n in 0_u64.. {
                let message = Publication {
                    stream: "S".to_owned(),
                    subject: format!("work.{}.{lane}.{n}", std::process::id()),
                    headers: Vec::new(),
                    payload: Bytes::from(vec![b'x'; 300]),
                    expect: Expect::FirstOnSubject,
                };
                let subject = message.subject.clone();
                let ack = broker.publish(message).await.unwrap();
                println!("stored {} {subject}", ack.sequence);
            }
        }
    };
    let worker = async {
        loop {
            for _ in 0..50 {
                member.next().await.unwrap().receipt.ack().await.unwrap();
            }
            let floor = broker.queue_floor("S", "workers").await.unwrap().unwrap();
            println!("floor {floor}");
        }
    };
    tokio::join!(futures::future::join_all((0..8).map(publisher)), worker);
}

/// Runs this test again as a process of its own, kills it after `lines` lines, and returns what it said.
fn killed_after(lines: usize, dir: &Path) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args([
            "--exact",
            "broker::inproc::a_killed_process_loses_nothing_that_was_answered",
            "--nocapture",
        ])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process can be started");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut answers: Vec<String> = said
        .by_ref()
        .take(lines)
        .map(|line| line.expect("text"))
        .collect();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    // What it had said before it died; the last line may be torn.
    answers.extend(said.map_while(Result::ok));
    answers.pop();
    answers
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_was_answered() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return publish_until_killed(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut stored, mut floor) = (0, 0);
    for round in 0..5 {
        let answers = killed_after(400 + 173 * round, dir.path());
        let broker = open(dir.path());
        for line in answers {
            match *line.split(' ').collect::<Vec<_>>() {
                ["stored", sequence, subject] => {
                    let sequence: u64 = sequence.parse().unwrap();
                    let found = broker.message_at("S", sequence).await.unwrap().unwrap();
                    assert_eq!((found.subject.as_str(), found.payload.len()), (subject, 300));
                    let last = broker.last_by_subject("S", subject).await.unwrap().unwrap();
                    assert_eq!(last.sequence, sequence);
                    stored += 1;
                }
                ["floor", told] => floor = told.parse().unwrap(),
                // The harness speaks, too.
                _ => {}
            }
        }
        // What was told to be answered for does not come again, everything else does.
        let mut member = broker.queue(queue()).await.unwrap();
        let next = member.next().await.unwrap().message;
        assert!(
            next.stream_sequence > floor,
            "{} after floor {floor}",
            next.stream_sequence
        );
        assert_eq!(next.delivered, 2);
    }
    assert!(stored > 2_000, "{stored}");
    assert!(floor > 0);
}
