//! Calls that take longer than the ack wait, and more commands than there is room for: each command is called once.
//!
//! `make faults-slow-upstream` runs the first of these in full size and prints its figures.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use saga_runner::effects::{Worker, WorkerSpec};
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::work::WorkItem;
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::Broker;
use saga_runner::telemetry::Metrics;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::proxy::{self, Proxy};
use crate::work::faults::{Fault, Faulty};
use crate::work::grouping::{enqueue_all, items, named, succeeded};
use crate::work::rig::{Rig, plan, until};

const PUSH: &str = "{by: effect, delivery: push}";
const BY_TENANT: &str = "by: tenant";

/// How much there is to do. The environment may say otherwise.
#[derive(Debug, Clone, Copy)]
struct Size {
    commands: u64,
    concurrency: u32,
    answer: Duration,
    ack_wait: Duration,
}

impl Size {
    fn of_environment() -> Self {
        let number = |name: &str, default: u64| {
            let value = std::env::var(name).ok();
            value.map_or(default, |value| value.parse().unwrap())
        };
        Self {
            commands: number("FAULTS_COMMANDS", 20),
            concurrency: u32::try_from(number("FAULTS_CONCURRENCY", 5)).unwrap(),
            answer: Duration::from_millis(number("FAULTS_ANSWER_MS", 1_200)),
            ack_wait: Duration::from_millis(number("FAULTS_ACK_WAIT_MS", 1_000)),
        }
    }

    fn small() -> Self {
        Self {
            commands: 20,
            concurrency: 5,
            answer: Duration::from_millis(1_200),
            ack_wait: Duration::from_secs(1),
        }
    }

    /// Calls one after the other, if all places are used by `workers`.
    fn rounds(&self, workers: u64) -> usize {
        usize::try_from(self.commands.div_ceil(u64::from(self.concurrency) * workers)).unwrap()
    }

    fn effect(&self) -> EffectDefinition {
        let mut effect = named("charge", self.concurrency);
        effect.timeout_ms = u64::try_from(self.answer.as_millis()).unwrap() + 10_000;
        effect
    }

    fn spec(&self, rig: &Rig, consumers: &str, upstream: &Upstream) -> WorkerSpec {
        // Two, so that a consumer may have to serve more than one.
        let effects = vec![self.effect(), named("refund", 3)];
        let mut spec = rig.spec("test", effects, &upstream.url, Arc::new(Metrics::new()));
        spec.settings.ack_wait = Millis(u64::try_from(self.ack_wait.as_millis()).unwrap());
        spec.consumers = plan(consumers, "test", &spec.effects);
        spec
    }

    fn work(&self, rig: &Rig) -> Vec<WorkItem> {
        items(rig, "acme", "charge", 1, self.commands.into())
    }
}

/// Answers everything after a while, and keeps books.
struct Upstream {
    url: String,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    status: &'static str,
    /// Every answer comes so long after its call.
    answer: Duration,
    /// When calls began, by idempotency key.
    calls: BTreeMap<String, Vec<Instant>>,
    in_flight: usize,
    in_flight_max: usize,
}

impl Upstream {
    async fn start(answer: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let books = Arc::new(Mutex::new(Books {
            answer,
            status: "200 OK",
            ..Books::default()
        }));
        let kept = Arc::clone(&books);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let books = Arc::clone(&kept);
                tokio::spawn(async move {
                    // A client that goes away breaks its connections.
                    let _broken = answer_all(stream, &books).await;
                });
            }
        });
        Self { url, books }
    }

    fn answers_after(&self, answer: Duration) {
        self.books.lock().unwrap().answer = answer;
    }

    fn calls(&self) -> usize {
        self.books.lock().unwrap().calls.values().map(Vec::len).sum()
    }

    fn calls_of(&self, item: &WorkItem) -> usize {
        let books = self.books.lock().unwrap();
        books.calls.get(&item.idempotency_key).map_or(0, Vec::len)
    }

    /// In how many rounds calls were made; one ends when the first of its calls does. Each command was called once, and no
    /// more at a time than may be.
    #[allow(clippy::print_stdout, reason = "the full size is run for its figures")]
    fn rounds(&self, size: Size, workers: u64) -> usize {
        let books = self.books.lock().unwrap();
        let twice = books.calls.values().filter(|calls| calls.len() > 1).count();
        let mut begun: Vec<Instant> = books.calls.values().flatten().copied().collect();
        begun.sort_unstable();
        let (mut rounds, mut end) = (0, None);
        for at in &begun {
            if end.is_none_or(|end| *at >= end) {
                rounds += 1;
                end = Some(*at + size.answer);
            }
        }
        let span = begun[begun.len() - 1] + size.answer - begun[0];
        let at_best = size.answer * u32::try_from(size.rounds(workers)).unwrap();
        println!(
            "{} commands, {} called twice, {} calls at most at a time, {rounds} rounds, {span:.1?} from first call to last \
             answer, {at_best:.1?} at best",
            books.calls.len(),
            twice,
            books.in_flight_max
        );
        assert_eq!(books.calls.len() as u64, size.commands);
        assert_eq!(twice, 0);
        assert!(books.in_flight_max as u64 <= u64::from(size.concurrency) * workers);
        rounds
    }
}

async fn answer_all(stream: TcpStream, books: &Mutex<Books>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut key, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let Some((name, value)) = line.split_once(':') else {
                if line.trim().is_empty() {
                    break;
                }
                continue;
            };
            match name.to_ascii_lowercase().as_str() {
                "idempotency-key" => value.trim().clone_into(&mut key),
                "content-length" => length = value.trim().parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let (answer, status) = {
            let mut books = books.lock().unwrap();
            books.calls.entry(key).or_default().push(Instant::now());
            books.in_flight += 1;
            books.in_flight_max = books.in_flight_max.max(books.in_flight);
            (books.answer, books.status)
        };
        tokio::time::sleep(answer).await;
        books.lock().unwrap().in_flight -= 1;
        let said =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.get_mut().write_all(said.as_bytes()).await?;
    }
}

async fn called_once(rig: Rig, size: Size, consumers: &str, workers: u64) {
    let upstream = Upstream::start(size.answer).await;
    let work = size.work(&rig);
    let specs: Vec<_> = (0..workers)
        .map(|_| size.spec(&rig, consumers, &upstream))
        .collect();
    let running: Vec<_> = specs.iter().map(|spec| Worker::start(spec).unwrap()).collect();
    enqueue_all(&rig, &work).await;
    let patience = size.answer * u32::try_from(size.rounds(workers) * 3).unwrap() + Duration::from_mins(1);
    let recorded = async {
        while rig.messages(&rig.streams.events).await < size.commands {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(patience, recorded)
        .await
        .expect("all results");
    succeeded(&rig, &work).await;
    let rounds = upstream.rounds(size, workers);
    // What a shared consumer brings while there is no room comes again by and by.
    assert!(
        consumers == BY_TENANT || rounds <= size.rounds(workers) + 2,
        "{rounds} rounds"
    );
    for worker in running {
        worker.drain(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_wait_behind_slow_calls_are_called_once_on_nats() {
    called_once(Rig::on_nats().await, Size::of_environment(), "by: effect", 1).await;
}

#[tokio::test]
async fn commands_that_wait_behind_slow_calls_are_called_once() {
    called_once(Rig::new().await, Size::small(), "by: effect", 1).await;
}

#[tokio::test]
async fn two_workers_share_slow_calls_and_make_each_once() {
    called_once(Rig::new().await, Size::small(), "by: effect", 2).await;
}

#[tokio::test]
async fn two_workers_share_slow_calls_and_make_each_once_on_nats() {
    called_once(Rig::on_nats().await, Size::small(), "by: effect", 2).await;
}

#[tokio::test]
async fn pushed_commands_that_wait_behind_slow_calls_are_called_once() {
    called_once(Rig::on_nats().await, Size::small(), PUSH, 1).await;
}

#[tokio::test]
async fn commands_of_a_shared_consumer_that_wait_behind_slow_calls_are_called_once() {
    called_once(Rig::on_nats().await, Size::small(), BY_TENANT, 1).await;
}

/// Quick commands make the worker take some ahead; then the upstream becomes slow.
#[tokio::test]
async fn commands_that_were_taken_ahead_are_called_once_when_calls_become_slow() {
    let size = Size::small();
    let rig = Rig::on_nats().await;
    let upstream = Upstream::start(Duration::ZERO).await;
    let worker = Worker::start(&size.spec(&rig, "by: effect", &upstream)).unwrap();
    enqueue_all(&rig, &items(&rig, "acme", "charge", 1_001, 100)).await;
    until(async || (rig.messages(&rig.streams.events).await == 100).then_some(())).await;
    upstream.answers_after(size.answer);
    let work = size.work(&rig);
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    for item in &work {
        assert_eq!(upstream.calls_of(item), 1);
    }
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn another_delivery_of_a_command_in_progress_begins_nothing() {
    another_delivery(Rig::new().await).await;
}

#[tokio::test]
async fn another_delivery_of_a_command_in_progress_begins_nothing_on_nats() {
    another_delivery(Rig::on_nats().await).await;
}

/// No claim is renewed, so the broker delivers all again to the worker that has them in progress.
async fn another_delivery(rig: Rig) {
    let size = Size {
        commands: 6,
        concurrency: 20,
        ..Size::small()
    };
    let upstream = Upstream::start(size.answer * 2).await;
    let broker = Faulty::new(Arc::clone(&rig.broker), |_| Fault::None);
    broker.loses_claims.store(true, Ordering::Relaxed);
    let mut spec = size.spec(&rig, "by: effect", &upstream);
    spec.broker = Arc::clone(&broker) as Arc<dyn Broker>;
    let worker = Worker::start(&spec).unwrap();
    let work = size.work(&rig);
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    assert!(broker.delivered_again.load(Ordering::Relaxed) > 0);
    for item in &work {
        assert_eq!(upstream.calls_of(item), 1);
    }
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_delivery_that_begins_nothing_leaves_no_doubt_about_calls() {
    no_doubt(Rig::new().await).await;
}

#[tokio::test]
async fn a_delivery_that_begins_nothing_leaves_no_doubt_about_calls_on_nats() {
    no_doubt(Rig::on_nats().await).await;
}

/// Takes the places that two effects have in common, of a worker that has four, by calls of the other effect.
async fn take_common(rig: &Rig, upstream: &Upstream) {
    enqueue_all(rig, &items(rig, "acme", "refund", 500, 3)).await;
    until(async || (upstream.calls() == 3).then_some(())).await;
}

/// A command that waits for a place is delivered again and given back. Whoever gets it next knows that nobody called.
async fn no_doubt(rig: Rig) {
    let size = Size {
        commands: 2,
        concurrency: 20,
        ..Size::small()
    };
    let upstream = Upstream::start(size.answer * 2).await;
    let broker = Faulty::new(Arc::clone(&rig.broker), |_| Fault::None);
    broker.loses_claims.store(true, Ordering::Relaxed);
    let mut spec = size.spec(&rig, "by: effect", &upstream);
    spec.broker = Arc::clone(&broker) as Arc<dyn Broker>;
    spec.settings.concurrency = 4;
    let worker = Worker::start(&spec).unwrap();
    take_common(&rig, &upstream).await;
    let work = size.work(&rig);
    enqueue_all(&rig, &work).await;
    until(async || (broker.delivered_again.load(Ordering::Relaxed) == 2).then_some(())).await;
    worker.drain(Duration::from_secs(20)).await;
    let waited = work.iter().find(|item| upstream.calls_of(item) == 0).unwrap();
    let refusing = Upstream::start(Duration::ZERO).await;
    refusing.books.lock().unwrap().status = "422 Unprocessable Content";
    let next = Worker::start(&size.spec(&rig, "by: effect", &refusing)).unwrap();
    let result = rig.result(waited).await;
    assert_eq!(result["result_type"], "Failed", "{result}");
    assert_eq!(refusing.calls_of(waited), 1);
    next.drain(Duration::from_secs(5)).await;
}

/// The first worker makes one call and holds another command, for which it has no place. Cut off from the broker, it loses
/// both to the second worker, and does not begin the other one.
#[tokio::test]
async fn a_worker_that_was_cut_off_begins_nothing_that_another_one_has() {
    let size = Size {
        commands: 2,
        concurrency: 2,
        answer: Duration::from_secs(4),
        ack_wait: Duration::from_secs(1),
    };
    let rig = Rig::on_nats().await;
    let slow = Upstream::start(size.answer).await;
    let quick = Upstream::start(Duration::ZERO).await;
    let target = rig.nats_url().trim_start_matches("nats://").to_owned();
    let proxy = Proxy::start(target).await;
    let settings: Settings = serde_json::from_value(serde_json::json!({ "urls": [proxy.url()] })).unwrap();
    let broker = NatsBroker::connect(settings).await.unwrap();
    broker.connected().await.unwrap();
    let mut cut_off = size.spec(&rig, "by: effect", &slow);
    cut_off.broker = broker;
    cut_off.settings.concurrency = 4;
    let lost = cut_off
        .metrics
        .effect_commands_returned
        .with_label_values(&["charge", "lost"]);
    let first = Worker::start(&cut_off).unwrap();
    take_common(&rig, &slow).await;
    let work = size.work(&rig);
    enqueue_all(&rig, &work).await;
    let running = cut_off
        .metrics
        .effect_commands_in_progress
        .with_label_values(&["charge"]);
    until(async || (slow.calls() == 4 && running.get() == 2).then_some(())).await;
    let waiting = work.iter().find(|item| slow.calls_of(item) == 0).unwrap();
    proxy.set(proxy::Fault::BlackHole);
    let second = Worker::start(&size.spec(&rig, "by: effect", &quick)).unwrap();
    until(async || (quick.calls_of(waiting) == 1).then_some(())).await;
    until(async || (lost.get() == 1).then_some(())).await;
    assert_eq!(slow.calls_of(waiting), 0);
    assert_eq!(quick.calls_of(waiting), 1);
    drop(first);
    second.drain(Duration::from_secs(5)).await;
}
