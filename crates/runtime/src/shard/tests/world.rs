//! A shard over a store that outlives it, with a clock that tests set.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use saga_runner_partition::storage::tables::LOCAL;
use saga_runner_partition::storage::{Log, Memory, WriteSet};

use crate::kernel::definition::{Definition, DefinitionSet, compile_archived};
use crate::kernel::ids::{
    ClusterId, CommandId, DefinitionHash, EventId, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use crate::kernel::input::{
    Control, DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use crate::kernel::limits::Limits;
use crate::kernel::record::Record;
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::broker::{StreamIdentity, StreamState};
use crate::ports::clock::Clock;
use crate::shard::mailbox::{Arrival, Delivery, LetterOrder, Mail, Notice, Refused, Released, Verdict};
use crate::shard::{Settings, ShardHandle, ShardSpec, ShardState};
use crate::storage::read::Found;
use crate::storage::rows::{DeadLetter, HistoryRow};
use crate::storage::{OpenOptions, StorageError, Store};
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

pub const EVENTS: SourceStream = SourceStream::AggregateEvents;
pub const RESULTS: SourceStream = SourceStream::WorkflowEvents;
pub const CONTROLS: SourceStream = SourceStream::WorkflowCommands;

/// The wall clock stands still unless a test moves it; the other one runs, and can be moved forward.
pub struct TestClock {
    /// The next call panics.
    broken: AtomicBool,
    gate: Arc<Gate>,
    wall_ms: AtomicI64,
    ahead_ms: AtomicU64,
    started: tokio::time::Instant,
}

pub const START: TimeMs = TimeMs(1_767_225_600_000);

impl TestClock {
    fn new() -> Self {
        Self {
            broken: AtomicBool::new(false),
            gate: Arc::default(),
            wall_ms: AtomicI64::new(START.0),
            ahead_ms: AtomicU64::new(0),
            started: tokio::time::Instant::now(),
        }
    }

    pub fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap();
        self.wall_ms.fetch_add(ms.cast_signed(), Ordering::SeqCst);
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// The thread that asks next panics.
    pub fn panic_once(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Threads that ask what time it is hang, as long as the value lives.
    pub fn hang(&self) -> Hang {
        *self.gate.closed.lock().unwrap() = true;
        self.gate.somebody.store(false, Ordering::SeqCst);
        Hang(Arc::clone(&self.gate))
    }

    /// Time that passes while no shard runs.
    pub fn advance_wall(&self, by: Duration) {
        let ms = i64::try_from(by.as_millis()).unwrap();
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

/// Lets no thread pass while it is closed.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Somebody waits before it.
    somebody: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            self.somebody.store(true, Ordering::SeqCst);
            closed = self.opened.wait(closed).unwrap();
        }
    }
}

pub struct Hang(Arc<Gate>);

impl Hang {
    /// Waits until a thread hangs.
    pub async fn reached(&self) {
        while !self.0.somebody.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        *self.0.closed.lock().unwrap() = false;
        self.0.opened.notify_all();
    }
}

impl Clock for TestClock {
    fn now(&self) -> TimeMs {
        assert!(!self.broken.swap(false, Ordering::SeqCst), "the clock is broken");
        self.gate.pass();
        TimeMs(self.wall_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed() + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }
}

/// Applies write sets as another process does that has never seen the folder.
#[derive(Debug, Default)]
struct Replica(Memory);

impl Log for Replica {
    fn append(&self, set: WriteSet) {
        let set = WriteSet::decode(&set.encode()).unwrap();
        self.0.write_rows(|rows| set.apply(rows)).unwrap();
    }
}

impl Replica {
    /// Whether it has the rows of the shard, but those that are about its folder. A damaged shard is not compared.
    fn check(&self, store: &Store) {
        if let Ok(mut rows) = store.rows() {
            rows.retain(|(table, _)| *table != LOCAL);
            assert_eq!(rows, self.0.rows(), "write sets miss something");
        }
    }
}

/// A list that events append to. `held` defers, `Divided` fails where it divides by zero.
pub const LIST: &str = r"
apiVersion: sagas/v1
kind: Saga
name: list
start: List.Opened
key: {'List.*': event.data.list}
state:
  init: {items: [], big: ''}
machine:
  initial: open
  states:
    open:
      handlers:
        List.Added:
          set: {items: '${state.items + [event.data.n]}'}
        List.Divided:
          set: {items: '${state.items + [100 / event.data.by]}'}
        List.Filled:
          set: {big: '${event.data.text}'}
        List.Told:
          emit:
            publish: {type: list.told, payload: {text: '${event.data.text}'}}
        List.Held:
          to: held
        List.Closed:
          to: closed
    held:
      handlers:
        List.Added:
          - when: event.data.n == 99
            set: {items: '${state.items + [99]}'}
            to: held_again
          - defer: true
        List.Divided: {defer: true}
        List.Released:
          to: open
    held_again:
      handlers:
        List.Added: {defer: true}
        List.Released: {to: open}
    closed:
      final: true
";

/// One charge, and a timer while it is unpaid.
pub const PAY: &str = r"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {'Pay.*': event.data.id}
state:
  init: {paid: false}
handlers:
  Pay.Settled:
    set: {paid: true}
steps:
  charge:
    effect: card-charge
    with: {id: '${key}'}
    set: {receipt: '${result.receipt}'}
timers:
  unpaid:
    after: 1m
    cancel_when: state.paid
    fail: {code: unpaid}
";

pub fn compile(source: &str) -> Definition {
    compile_archived(source).unwrap_or_else(|findings| panic!("{findings:#?}"))
}

/// The same saga, corrected, under the hash that instances already run under.
pub fn corrected(source: &str, hash: DefinitionHash) -> Definition {
    Definition {
        hash,
        ..compile(source)
    }
}

pub fn set_of(definitions: Vec<Definition>) -> Arc<DefinitionSet> {
    let active = definitions.into_iter().map(Arc::new).collect();
    Arc::new(DefinitionSet::new(active, Vec::new()))
}

/// Opens the store of the shard.
type Opener = Box<dyn Fn(&crate::storage::Settings, &OpenOptions) -> Store + Send + Sync>;

/// What outlives a shard.
pub struct World {
    open: Opener,
    /// The shard once more, made of the write sets of all its commits.
    replica: Arc<Replica>,
    pub clock: Arc<TestClock>,
    pub metrics: Arc<Metrics>,
    pub definitions: Arc<DefinitionSet>,
    pub scheduled_tenants: Vec<TenantId>,
    pub settings: Settings,
    pub storage: crate::storage::Settings,
    pub limits: Limits,
    pub streams: [StreamState; 3],
    pub standing: [Option<crate::shard::Standing>; 3],
    pub release_room: usize,
}

impl World {
    /// Over a store in memory.
    pub fn new() -> Self {
        let memory = Memory::default();
        Self::over(move |settings, options| {
            Store::over(
                Arc::new(memory.clone()),
                Path::new("shard-0003"),
                settings,
                options,
            )
            .unwrap()
        })
    }

    /// Over the store that `open` gives.
    pub fn over(
        open: impl Fn(&crate::storage::Settings, &OpenOptions) -> Store + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
            replica: Arc::default(),
            clock: Arc::new(TestClock::new()),
            metrics: Arc::new(Metrics::new()),
            definitions: set_of(vec![compile(LIST), compile(PAY)]),
            scheduled_tenants: vec![TenantId::parse("t1").unwrap(), TenantId::parse("t2").unwrap()],
            settings: Settings {
                full_pause: crate::kernel::duration::Millis(5),
                // Most tests deliver what they want to be taken next.
                catch_up_wait: crate::kernel::duration::Millis(0),
                ..Settings::default()
            },
            storage: crate::storage::Settings::default(),
            limits: Limits::default(),
            streams: ["EVENTS", "RESULTS", "CONTROLS"].map(|name| StreamState {
                identity: StreamIdentity {
                    name: name.to_owned(),
                    created_ns: 1,
                },
                first_sequence: 1,
                last_sequence: 1_000_000,
                last_time: Some(TimeMs(1)),
                messages: 1_000_000,
                bytes: 0,
                told: TimeMs(1),
            }),
            standing: [None; 3],
            release_room: 1_024,
        }
    }

    pub fn store(&self) -> Store {
        let options = OpenOptions {
            cluster: "test".to_owned(),
            cluster_id: ClusterId::OFFLINE,
            shard: 3,
            shards: 4,
            create: true,
        };
        let store = (self.open)(&self.storage, &options);
        self.replica.check(&store);
        store.logged(Arc::clone(&self.replica) as Arc<dyn Log>)
    }

    pub fn start(&self) -> Shard {
        let (release, released) = mpsc::channel(self.release_room);
        let (notices, heard) = mpsc::channel(16);
        let handle = ShardHandle::start(ShardSpec {
            index: 3,
            store: self.store(),
            definitions: Arc::clone(&self.definitions),
            scheduled_tenants: self.scheduled_tenants.clone(),
            revision: 1,
            limits: self.limits.clone(),
            settings: self.settings.clone(),
            delivery_inputs: 64,
            streams: self.streams.clone(),
            standing: self.standing,
            initial_positions: [0; 3],
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            metrics: Arc::clone(&self.metrics),
            tasks: Tasks::new(&self.metrics, &(Arc::clone(&self.clock) as Arc<dyn Clock>)),
            release,
            notices,
        })
        .unwrap();
        Shard {
            handle,
            released,
            noticed: heard,
            definitions: Arc::clone(&self.definitions),
        }
    }
}

/// A running shard.
pub struct Shard {
    pub handle: ShardHandle,
    pub released: mpsc::Receiver<Released>,
    pub noticed: mpsc::Receiver<Notice>,
    definitions: Arc<DefinitionSet>,
}

impl Shard {
    pub async fn mail(&self, mail: Mail) {
        self.handle.mail.send(mail).await.unwrap();
    }

    /// Inputs of one message, which is `sequence` of its stream and follows the one before.
    pub async fn deliver(&self, stream: SourceStream, sequence: u64, inputs: Vec<Input>) {
        self.deliver_after(stream, sequence - 1, sequence, inputs).await;
    }

    pub async fn deliver_after(&self, stream: SourceStream, after: u64, sequence: u64, inputs: Vec<Input>) {
        self.mail(Mail::Delivery(Delivery {
            stream,
            after,
            sequence,
            stamp: None,
            routed_by: 0,
            inputs: inputs.into_iter().map(Arrival::Input).collect(),
        }))
        .await;
    }

    pub async fn barrier(&self, as_of: TimeMs) {
        for stream in SourceStream::ALL {
            self.mail(Mail::Barrier { stream, as_of }).await;
        }
    }

    /// All rows of the outbox, behind the commit of everything that was mailed before.
    pub async fn outbox(&self) -> Vec<(WorkRef, WorkItem)> {
        let (reply, answer) = oneshot::channel();
        self.mail(Mail::Refill {
            after: None,
            limit: 100_000,
            reply,
        })
        .await;
        answer.await.expect("the shard answers")
    }

    /// Waits until everything that was mailed before is committed, and the timers that became known by it were
    /// looked at.
    pub async fn until_idle(&self) {
        self.outbox().await;
        self.outbox().await;
    }

    pub async fn decide(&self, number: u64, order: impl Into<LetterOrder>) -> Result<(), Refused> {
        self.decide_as("t1", number, order).await
    }

    pub async fn decide_as(
        &self,
        tenant: &str,
        number: u64,
        order: impl Into<LetterOrder>,
    ) -> Result<(), Refused> {
        let (reply, answer) = oneshot::channel();
        self.mail(Mail::DeadLetter {
            tenant: TenantId::parse(tenant).unwrap(),
            number,
            order: order.into(),
            reply,
        })
        .await;
        answer.await.unwrap()
    }

    pub async fn verdict(&self, instance: InstanceId, command_id: CommandId, outcome: WorkOutcome) {
        self.published_verdict(instance, command_id, outcome, None).await;
    }

    /// The same, to be published as well.
    pub async fn published_verdict(
        &self,
        instance: InstanceId,
        command_id: CommandId,
        outcome: WorkOutcome,
        publish: Option<Box<WorkItem>>,
    ) {
        self.mail(Mail::Verdict(Verdict {
            instance,
            result: WorkResult {
                command_id,
                effect: Some(crate::kernel::ids::EffectName::parse("card-charge").unwrap()),
                outcome,
            },
            time: START,
            publish,
        }))
        .await;
    }

    pub fn record(&self, id: &InstanceId) -> Option<Record> {
        match self.handle.reader.instance(id).unwrap()? {
            Found::Live(record) => Some(record),
            Found::Ended(_) => None,
        }
    }

    pub fn ended(&self, id: &InstanceId) -> Option<Record> {
        match self.handle.reader.instance(id).unwrap()? {
            Found::Live(_) => None,
            Found::Ended(summary) => Some(summary.record),
        }
    }

    /// A member of the instance's state.
    pub fn state(&self, id: &InstanceId, member: &str) -> Value {
        let record = self
            .record(id)
            .or_else(|| self.ended(id))
            .expect("the instance exists");
        serde_json::from_slice::<Value>(&record.data).unwrap()[member].clone()
    }

    pub fn items(&self, key: &str) -> Value {
        self.state(&list(key), "items")
    }

    pub fn history(&self, id: &InstanceId) -> Vec<HistoryRow> {
        let record = self
            .record(id)
            .or_else(|| self.ended(id))
            .expect("the instance exists");
        let rows = self.handle.reader.history(record.last_history, 1_000).unwrap();
        rows.into_iter().map(|(_, row)| row).collect()
    }

    pub fn dead_letters(&self) -> Vec<(u64, DeadLetter)> {
        let tenant = TenantId::parse("t1").unwrap();
        self.handle.reader.dead_letters(&tenant, None, 1_000).unwrap().0
    }

    /// Ids of the inputs that wait for a list, oldest first, and the dead letter before them.
    pub fn inbox(&self, key: &str) -> (Option<u64>, Vec<String>) {
        let (behind, rows) = self.handle.reader.inbox(&list(key), 10_000).unwrap();
        (behind, rows.into_iter().map(|(_, row)| row.input.id).collect())
    }

    pub fn position(&self, stream: SourceStream) -> u64 {
        self.handle.status.position(stream)
    }

    pub fn drain_released(&mut self) -> Vec<Released> {
        std::iter::from_fn(|| self.released.try_recv().ok()).collect()
    }

    /// Waits until the thread says that it is in a state.
    pub async fn until(&self, reached: impl Fn(&ShardState) -> bool) -> ShardState {
        let wait = async {
            loop {
                let state = self.handle.status.state();
                if reached(&state) {
                    return state;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("the state is reached")
    }

    /// Stops it. Whatever the test has done to it, nothing may be left that waits for ever.
    pub async fn stop(self) {
        let reader = self.handle.reader.clone();
        self.handle.stop().await;
        match reader.orphans(&self.definitions, &mut |_| {}) {
            Ok(found) => assert_eq!(found, [""; 0]),
            // The test has destroyed it.
            Err(StorageError::Corrupt(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn list(key: &str) -> InstanceId {
    instance("list", key)
}

pub fn pay(key: &str) -> InstanceId {
    instance("pay", key)
}

fn instance(saga: &str, key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse("t1").unwrap(),
        saga: SagaName::parse(saga).unwrap(),
        key: Key::parse(key).unwrap(),
    }
}

/// An event; its id is its type and data.
pub fn event(instance: InstanceId, event_type: &str, sequence: u64, data: &Value) -> Input {
    let id = format!("{event_type}/{}/{sequence}", instance.key);
    let (aggregate_type, _) = event_type.split_once('.').unwrap();
    Input {
        time: START.plus_ms(i64::try_from(sequence).unwrap()),
        origin: Origin::Stream {
            stream: EVENTS,
            sequence,
        },
        body: InputBody::Event(DomainEvent {
            event_id: EventId::parse(&id).unwrap(),
            event_type: event_type.to_owned(),
            aggregate_type: aggregate_type.to_owned(),
            aggregate_id: instance.key.as_str().to_owned(),
            sequence,
            schema_version: 1,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: false,
            payload: Bytes::from(data.to_string()),
            via: None,
        }),
        id,
        instance,
    }
}

pub fn opened(key: &str, sequence: u64) -> Input {
    event(list(key), "List.Opened", sequence, &json!({}))
}

pub fn added(key: &str, sequence: u64, n: i64) -> Input {
    event(list(key), "List.Added", sequence, &json!({"n": n}))
}

pub fn divided(key: &str, sequence: u64, by: i64) -> Input {
    event(list(key), "List.Divided", sequence, &json!({"by": by}))
}

pub fn named(key: &str, event_type: &str, sequence: u64) -> Input {
    event(list(key), event_type, sequence, &json!({}))
}

pub fn pay_opened(key: &str, sequence: u64) -> Input {
    event(pay(key), "Pay.Opened", sequence, &json!({"id": key}))
}

/// The result of a command, as the stream brings it.
pub fn result(item: &WorkItem, sequence: u64, payload: &Value) -> Input {
    Input {
        instance: item.instance.clone(),
        id: item.command_id.to_string(),
        time: START.plus_ms(i64::try_from(sequence).unwrap()),
        origin: Origin::Stream {
            stream: RESULTS,
            sequence,
        },
        body: InputBody::Result(WorkResult {
            command_id: item.command_id,
            effect: Some(crate::kernel::ids::EffectName::parse("card-charge").unwrap()),
            outcome: WorkOutcome::Succeeded {
                payload: Bytes::from(payload.to_string()),
            },
        }),
    }
}

pub fn cancel(instance: InstanceId, sequence: u64) -> Input {
    Input {
        instance,
        id: format!("cancel-{sequence}"),
        time: START.plus_ms(i64::try_from(sequence).unwrap()),
        origin: Origin::Stream {
            stream: CONTROLS,
            sequence,
        },
        body: InputBody::Control(Control::cancel("test".to_owned())),
    }
}

pub fn filled(key: &str, sequence: u64, text: &str) -> Input {
    event(list(key), "List.Filled", sequence, &json!({"text": text}))
}

pub fn delivery(sequence: u64, inputs: Vec<Input>) -> Mail {
    Mail::Delivery(Delivery {
        stream: EVENTS,
        after: sequence - 1,
        sequence,
        stamp: None,
        routed_by: 0,
        inputs: inputs.into_iter().map(Arrival::Input).collect(),
    })
}

/// An instance that has come and gone, and leaves much behind.
pub fn lived(key: &str, sequence: u64, text: &str) -> Mail {
    let closed = named(key, "List.Closed", sequence);
    delivery(
        sequence,
        vec![opened(key, sequence), filled(key, sequence, text), closed],
    )
}
