//! The cost of a durable commit: what 1, 10 and 100 transitions write, over 10,000 live instances.
//!
//! Each transition reads and replaces a record of about 600 bytes at a random place, appends one row to the
//! outbox and one to the history, and deletes the outbox row of an earlier one. The time holds the waits for the
//! disk; divide by the number of transitions. `with write sets`: the same, and what each commit has changed is captured
//! and encoded. `cargo bench --bench commit -- compare` takes both in turns and prints the ratio.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use procfs::process::Process;
use saga_runner_partition::storage::{Log, WriteSet};
use serde_bytes::ByteBuf;

use tokio::time::Instant;

use saga_runner::kernel::ids::{
    ClusterId, CommandId, DefinitionHash, EffectName, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use saga_runner::kernel::input::SourceStream;
use saga_runner::kernel::patch::Note;
use saga_runner::kernel::record::{Phase, Record, Seen};
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::mdbx;
use saga_runner::storage::rows::{HistoryOutcome, HistoryRow, PositionRow, StreamIdentity};
use saga_runner::storage::write::Counters;
use saga_runner::storage::{Batch, OpenOptions, Settings, StorageError, Store};

const INSTANCES: u64 = 10_000;
/// Transitions between a row's commit and its result.
const IN_FLIGHT: usize = 256;

fn id(number: u64) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse("t1").expect("legal"),
        saga: SagaName::parse("order").expect("legal"),
        key: Key::parse(&format!("order-{number:08x}")).expect("legal"),
    }
}

fn record() -> Record {
    Record {
        generation: 1,
        definition: DefinitionHash([7; 32]),
        version: 1,
        phase: Phase::Running,
        started: TimeMs(1_767_225_600_000),
        updated: TimeMs(1_767_225_600_000),
        start_event: "01980000-0000-7000-8000-000000000000".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 0,
        input: None,
        parent: None,
        data: ByteBuf::from(vec![b'x'; 450]),
        machine: None,
        steps: Vec::new(),
        ledger: saga_runner::kernel::ledger::Ledger::default(),
        strays: Vec::new(),
        doubts: Vec::new(),
        off_ledger: Vec::new(),
        sources: Vec::new(),
        buffer: Vec::new(),
        timers: BTreeMap::new(),
        failure: None,
        early: None,
        seen_events: vec![
            Seen {
                id: u64::MAX,
                content: u32::MAX
            };
            4
        ],
        seen_results: Vec::new(),
        deferred: 0,
        last_history: None,
        left: None,
        program: None,
        aliases: Vec::new(),
        released: Vec::new(),
        paused: None,
        listing: None,
    }
}

fn work_item(instance: &InstanceId) -> WorkItem {
    WorkItem {
        instance: instance.clone(),
        command_id: CommandId(uuid::Uuid::from_u128(u128::MAX)),
        idempotency_key: "0123456789abcdef0123456789abcdef".to_owned(),
        path: "steps.charge".to_owned(),
        attempt: 1,
        created: TimeMs(1_767_225_600_000),
        deadline: TimeMs(1_767_226_500_000),
        waited_ms: 0,
        causation_id: "01980000-0000-7000-8000-000000000000".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 1,
        kind: WorkKind::Effect {
            effect: EffectName::parse("payments-charge").expect("legal"),
            payload: Bytes::from(vec![b'p'; 200]),
        },
    }
}

fn history_row(instance: &InstanceId, previous: Option<u64>) -> HistoryRow {
    HistoryRow {
        instance: instance.clone(),
        input_id: "01980000-0000-7000-8000-000000000000".to_owned(),
        kind: "result of payments-charge".to_owned(),
        time: TimeMs(1_767_225_600_000),
        source: Some((SourceStream::WorkflowEvents, 1)),
        outcome: HistoryOutcome::Applied,
        notes: vec![Note::StepDone {
            step: "charge".to_owned(),
        }],
        late_source: false,
        previous,
    }
}

/// Encodes write sets, as whoever sends them has to.
#[derive(Debug)]
struct Encoding;

impl Log for Encoding {
    fn append(&self, set: WriteSet) {
        black_box(set.encode());
    }
}

/// A store and the sequence of transitions that it has seen.
struct Fixture {
    _dir: tempfile::TempDir,
    store: Store,
    counters: Counters,
    outstanding: VecDeque<WorkRef>,
    random: u64,
}

impl Fixture {
    fn new(captured: bool) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let options = OpenOptions {
            cluster: "bench".to_owned(),
            cluster_id: ClusterId::OFFLINE,
            shard: 0,
            shards: 1,
            create: true,
        };
        let mut store = mdbx::open(dir.path(), &Settings::default(), &options).expect("opens");
        if captured {
            store = store.logged(Arc::new(Encoding));
        }
        store
            .write::<_, StorageError>(|batch| {
                (0..INSTANCES).try_for_each(|number| batch.put_record(&id(number), &record()))
            })
            .expect("commits");
        Self {
            _dir: dir,
            store,
            counters: Counters::default(),
            outstanding: VecDeque::new(),
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    fn commit(&mut self, transitions: usize) {
        let Self {
            store,
            counters,
            outstanding,
            random,
            ..
        } = self;
        store
            .write::<_, StorageError>(|batch| {
                for _ in 0..transitions {
                    counters.log_sequence += 1;
                    // xorshift: the same instances in every run.
                    *random ^= *random << 13;
                    *random ^= *random >> 7;
                    *random ^= *random << 17;
                    transition(
                        batch,
                        &id(*random % INSTANCES),
                        counters.log_sequence,
                        outstanding,
                    )?;
                }
                batch.put_counters(counters)?;
                let position = PositionRow {
                    stream: StreamIdentity {
                        name: "WORKFLOW_EVENTS".to_owned(),
                        created_ns: 1,
                    },
                    sequence: counters.log_sequence,
                    stamp: None,
                };
                batch.put_position(SourceStream::WorkflowEvents, &position)
            })
            .expect("commits");
    }
}

fn transition(
    batch: &Batch<'_>,
    id: &InstanceId,
    log_sequence: u64,
    outstanding: &mut VecDeque<WorkRef>,
) -> Result<(), StorageError> {
    let mut record = batch.record(id)?.expect("every instance was written");
    let previous = record.last_history.replace(log_sequence);
    record.version += 1;
    batch.put_record(id, &record)?;
    let row = WorkRef {
        log_sequence,
        index: 0,
    };
    batch.put_work(row, &work_item(id))?;
    batch.put_history(log_sequence, &history_row(id, previous))?;
    outstanding.push_back(row);
    if outstanding.len() > IN_FLIGHT
        && let Some(settled) = outstanding.pop_front()
    {
        black_box(batch.delete_work(settled)?);
    }
    Ok(())
}

fn commit(criterion: &mut Criterion) {
    for (name, captured) in [("commit", false), ("commit with write sets", true)] {
        let mut group = criterion.benchmark_group(name);
        for transitions in [1_usize, 10, 100] {
            let mut fixture = Fixture::new(captured);
            group.throughput(Throughput::Elements(transitions as u64));
            group.bench_function(BenchmarkId::from_parameter(transitions), |bencher| {
                bencher.iter(|| fixture.commit(transitions));
            });
        }
        group.finish();
    }
}

/// Rounds of [`compare`], and commits of one round.
const ROUNDS: usize = 10;
const COMMITS: usize = 1_000;
/// Transitions of one round.
const TRANSITIONS: f64 = 100_000.0;

/// User and system time of this process so far, in seconds.
#[allow(clippy::cast_precision_loss, reason = "ticks far below 2^52")]
fn cpu() -> f64 {
    let stat = Process::myself()
        .and_then(|process| process.stat())
        .expect("this is Linux");
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}

/// What a transition costs without and with write sets, in turns: CPU and time, commits of 100 transitions.
fn compare() {
    let mut fixtures = [false, true].map(Fixture::new);
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 1..=ROUNDS {
        let costs = fixtures.each_mut().map(|fixture| {
            let (start, before) = (Instant::now(), cpu());
            (0..COMMITS).for_each(|_| fixture.commit(100));
            [cpu() - before, start.elapsed().as_secs_f64()].map(|seconds| seconds / TRANSITIONS * 1e6)
        });
        let [[plain_cpu, plain], [captured_cpu, captured]] = costs;
        println!(
            "round {round}: {plain_cpu:.2} us of CPU and {plain:.2} us without, {captured_cpu:.2} and {captured:.2} with write sets"
        );
        ratios[0].push(captured_cpu / plain_cpu);
        ratios[1].push(captured / plain);
    }
    for (name, mut ratios) in ["CPU", "time"].into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let median = f64::midpoint(ratios[ROUNDS / 2 - 1], ratios[ROUNDS / 2]);
        println!(
            "{name}: median ratio {median:.3}, {:.3} to {:.3}",
            ratios[0],
            ratios[ROUNDS - 1]
        );
    }
}

criterion_group!(benches, commit);

fn main() {
    if std::env::args().any(|argument| argument == "compare") {
        return compare();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
