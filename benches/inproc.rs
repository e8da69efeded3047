//! The embedded broker: durable publications, and what readers and queues take.
//!
//! Messages are of the size that sagas exchange: 500 bytes, one header, a subject of its own each. Commits go
//! to the disk under `TMPDIR`; on a file system in memory the figures say nothing.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt as _;
use saga_runner::inproc::{InprocBroker, Settings};
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{Broker, Expect, Manner, Publication, QueueSpec, ReaderSpec, StreamSpec};
use saga_runner::ports::clock::Clock;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const STREAM: &str = "WORKFLOW_COMMANDS";

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> TimeMs {
        TimeMs(jiff::Timestamp::now().as_millisecond())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn open(dir: &Path, runtime: &Runtime) -> Arc<InprocBroker> {
    let clock = Arc::new(RealClock(now()));
    let broker = InprocBroker::open(dir, Settings::default(), clock).expect("the folder is free");
    let spec = StreamSpec {
        name: STREAM.to_owned(),
        subjects: vec!["tenant.*.effect.>".to_owned()],
        replicas: 1,
        message_bytes_max: 1 << 20,
        foreign: false,
    };
    runtime
        .block_on(broker.ensure_stream(&spec))
        .expect("a stream can be made");
    broker
}

fn place(runtime: &Runtime) -> (TempDir, Arc<InprocBroker>) {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path(), runtime);
    (dir, broker)
}

/// A command on a subject of its own, the ids ordered by time as the runner's are.
fn command() -> Publication {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Publication {
        stream: STREAM.to_owned(),
        subject: format!("tenant.acme.effect.charge.01930000-{n:016x}"),
        headers: vec![(
            "traceparent".to_owned(),
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        )],
        payload: Bytes::from(vec![b'x'; 500]),
        expect: Expect::FirstOnSubject,
    }
}

async fn publish(broker: &InprocBroker, count: u64, in_flight: usize) {
    let mut all = futures::stream::iter(0..count)
        .map(|_| broker.publish(command()))
        .buffered(in_flight);
    while let Some(stored) = all.next().await {
        stored.expect("there is room");
    }
}

/// Durable publications with so many of them unanswered at a time; 1 is the latency.
fn publishing(c: &mut Criterion) {
    let runtime = Runtime::new().expect("threads");
    let mut group = c.benchmark_group("publish");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for in_flight in [1, 16, 256, 2_048] {
        let (_dir, broker) = place(&runtime);
        group.bench_function(BenchmarkId::from_parameter(in_flight), |b| {
            b.iter_custom(|count| {
                let begin = now();
                runtime.block_on(async {
                    let broker = Arc::clone(&broker);
                    tokio::spawn(async move { publish(&broker, count, in_flight).await })
                        .await
                        .expect("it ends");
                });
                begin.elapsed()
            });
        });
    }
    group.finish();
}

/// Reading what is stored: from memory, and, with a tail that is far too short, from the store.
fn reading(c: &mut Criterion) {
    const MESSAGES: u64 = 16_000;
    let runtime = Runtime::new().expect("threads");
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(MESSAGES)).sample_size(20);
    for (name, behind) in [("memory", 0), ("store", MESSAGES * 2)] {
        let (_dir, broker) = place(&runtime);
        runtime.block_on(publish(&broker, MESSAGES + behind, 1_024));
        let mut round = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                round += 1;
                let spec = ReaderSpec {
                    stream: STREAM.to_owned(),
                    filters: vec!["tenant.*.effect.charge.>".to_owned()],
                    start_sequence: 1,
                    name: format!("r{round}"),
                    buffer: 1_024,
                };
                runtime.block_on(async {
                    let mut reader = broker.reader(spec).await.expect("a reader");
                    for _ in 0..MESSAGES {
                        black_box(reader.next().await.expect("it holds"));
                    }
                });
            });
        });
    }
    group.finish();
}

/// Taking and answering for the messages of a queue, without the publications.
fn working(c: &mut Criterion) {
    const MESSAGES: u64 = 16_000;
    let runtime = Runtime::new().expect("threads");
    let mut group = c.benchmark_group("queue");
    group.throughput(Throughput::Elements(MESSAGES)).sample_size(20);
    let (_dir, broker) = place(&runtime);
    runtime.block_on(publish(&broker, MESSAGES, 1_024));
    let mut round = 0;
    group.bench_function("take and ack", |b| {
        b.iter_custom(|count| {
            let mut spent = Duration::ZERO;
            for _ in 0..count {
                round += 1;
                let spec = QueueSpec {
                    group: None,
                    stream: STREAM.to_owned(),
                    filters: vec!["tenant.*.effect.charge.>".to_owned()],
                    durable: format!("q{round}"),
                    ack_wait: Duration::from_secs(30),
                    max_unacknowledged: 1_000,
                    buffer: 64,
                    manner: Manner::default(),
                };
                spent += runtime.block_on(async {
                    let mut queue = broker.queue(spec).await.expect("a queue");
                    let begin = now();
                    for _ in 0..MESSAGES {
                        let work = queue.next().await.expect("it holds");
                        work.receipt.ack().await.expect("it is open");
                    }
                    begin.elapsed()
                });
            }
            spent
        });
    });
    group.finish();
}

/// Removing messages and what the index knows of them; it has to keep up with publishing.
fn trimming(c: &mut Criterion) {
    const MESSAGES: u64 = 16_384;
    let runtime = Runtime::new().expect("threads");
    let mut group = c.benchmark_group("trim");
    group.throughput(Throughput::Elements(MESSAGES)).sample_size(10);
    let (_dir, broker) = place(&runtime);
    group.bench_function("all", |b| {
        b.iter_custom(|count| {
            let mut spent = Duration::ZERO;
            for _ in 0..count {
                spent += runtime.block_on(async {
                    publish(&broker, MESSAGES, 1_024).await;
                    let begin = now();
                    broker.trim(STREAM, u64::MAX).await.expect("it is open");
                    begin.elapsed()
                });
            }
            spent
        });
    });
    group.finish();
}

criterion_group!(benches, publishing, reading, working, trimming);
criterion_main!(benches);
