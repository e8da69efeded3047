//! What operators' questions cost with many instances that wait: list, count, show and why over HTTP, memory under slow readers,
//! and the time from SIGKILL to ready, with the real binary on a real nats-server.
//!
//! `cargo bench --bench queries` does it with 100,000 instances, `cargo bench --bench queries -- 1000000` with a million.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench stops where it unwraps, runs in real time, and prints what it measured"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use hdrhistogram::Histogram;
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::{Broker, Expect, Publication};
use serde_json::{Value, json};

#[path = "../tests/support/nats_server.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod nats_server;
#[path = "../tests/support/rig.rs"]
mod rig;

use nats_server::NatsServer;
use rig::{Rig, TENANT, event_body};

/// Instances that wait, where nobody says how many.
const INSTANCES: u64 = 100_000;
/// Every so many of them have failed.
const FAILED_EVERY: u64 = 1_000;
/// Instances beside them whose effect's upstream refuses connections.
const BACKING_OFF: u64 = 20;
/// Events that are on their way to the broker at the same time.
const IN_FLIGHT: usize = 1_000;
/// How often each question is asked, one after the other.
const QUESTIONS: u64 = 1_000;
const SLOW_READERS: usize = 50;
/// What one of them reads: a piece, and the pause behind it; together 200 kB a second.
const PIECE: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(100);
const SLOW_FOR: Duration = Duration::from_secs(20);
const RESTARTS: usize = 5;

const ASK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ask
start: Ask.Opened
key: {"Ask.*": event.data.ask}
state: {init: {amount: 0}}
handlers:
  Ask.Opened: {set: {amount: "${event.data.amount}", note: "${event.data.note}"}}
  Ask.Refused: {fail: {code: refused}}
steps:
  approve: {wait: {signal: approve}}
"#;

const CALL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: call
start: Call.Opened
key: {"Call.*": event.data.call}
state: {init: {status: new}}
steps:
  ring:
    effect: ring
    with: {call: "${key}"}
    timeout: 2h
"#;

const RING: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: ring
http: {method: POST, url: "${upstreams.nobody}/ring", body: "${input}"}
timeout: {total: 10s}
retry: {attempts: 20, backoff: {initial: 10m, max: 10m}}
"#;

fn main() {
    let asked = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(measure(asked.unwrap_or(INSTANCES)));
}

async fn measure(instances: u64) {
    let server = NatsServer::start();
    let extra = json!({"upstreams": {"nobody": "http://127.0.0.1:9"}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("ask", ASK);
    rig.add_saga("call", CALL);
    rig.add_effect("ring", RING);
    rig.start().await;
    fill(&rig, &server, instances).await;
    println!(
        "{instances} instances, {} bytes of state each",
        bytes_of(&rig.folder().join("data")) / instances
    );
    questions(&rig).await;
    slow_readers(&rig).await;
    restarts(&mut rig).await;
}

/// Publishes the events, and waits until each has its instance.
async fn fill(rig: &Rig, server: &NatsServer, instances: u64) {
    let settings: Settings = serde_json::from_value(json!({"urls": [server.url()]})).unwrap();
    let broker = NatsBroker::connect(settings).await.unwrap();
    broker.connected().await.unwrap();
    let begun = Instant::now();
    let opened = (0..instances).map(|number| {
        let key = format!("ask-{number:07}");
        let data = json!({"ask": key, "amount": number % 1_000, "note": "please ring twice"});
        ("Ask", key, "Opened", data)
    });
    let refused = (0..instances)
        .step_by(usize::try_from(FAILED_EVERY).unwrap())
        .map(|number| {
            let key = format!("ask-{number:07}");
            let data = json!({"ask": key});
            ("Ask", key, "Refused", data)
        });
    let called = (0..BACKING_OFF).map(|number| {
        let key = format!("call-{number}");
        let data = json!({"call": key});
        ("Call", key, "Opened", data)
    });
    let publish = |(aggregate, key, event, data): (&'static str, String, &'static str, Value)| {
        let broker = &broker;
        async move {
            let publication = Publication {
                stream: "AGGREGATE_EVENTS".to_owned(),
                subject: format!("tenant.{TENANT}.aggregate.{aggregate}.{key}"),
                headers: Vec::new(),
                payload: event_body(aggregate, &key, event, &data).into(),
                expect: Expect::Nothing,
            };
            broker.publish(publication).await.unwrap();
        }
    };
    futures::stream::iter(opened.chain(refused).chain(called))
        .map(publish)
        .buffer_unordered(IN_FLIGHT)
        .collect::<()>()
        .await;
    let failed = instances.div_ceil(FAILED_EVERY);
    for (query, wanted) in [
        ("saga=ask&phase=running", instances - failed),
        ("saga=ask&phase=failed", failed),
        ("saga=call&phase=running", BACKING_OFF),
    ] {
        while count(rig, query).await != wanted {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    println!("filled in {:.0} s", begun.elapsed().as_secs_f64());
}

async fn get(rig: &Rig, path: &str) -> Vec<u8> {
    let answer = rig.client.get(rig.url(path)).send().await.unwrap();
    let (status, body) = (answer.status(), answer.bytes().await.unwrap());
    assert!(status.is_success(), "{path}: {status}");
    body.to_vec()
}

async fn count(rig: &Rig, query: &str) -> u64 {
    let body = get(rig, &format!("/v1/tenants/{TENANT}/instances/count?{query}")).await;
    let answer: Value = serde_json::from_slice(&body).unwrap();
    answer["instances"].as_u64().unwrap()
}

async fn questions(rig: &Rig) {
    let tenant = format!("/v1/tenants/{TENANT}");
    for (name, path) in [
        (
            "list of 50, by phase",
            format!("{tenant}/instances?saga=ask&phase=running&limit=50"),
        ),
        (
            "list of 50, by error",
            format!("{tenant}/instances?error=refused&limit=50"),
        ),
        (
            "list of 50, by key prefix",
            format!("{tenant}/instances?saga=ask&key_prefix=ask-00500&limit=50"),
        ),
        (
            "list of 500, by what is waited for",
            format!("{tenant}/instances?waits_for=message&limit=500"),
        ),
        ("count of all", format!("{tenant}/instances/count")),
        (
            "count by phase and saga",
            format!("{tenant}/instances/count?saga=ask&phase=running"),
        ),
        ("show", format!("{tenant}/sagas/ask/instances/ask-0050001")),
        (
            "why it waits for a signal",
            format!("{tenant}/sagas/ask/instances/ask-0050001/why"),
        ),
        (
            "why it backs off",
            format!("{tenant}/sagas/call/instances/call-1/why"),
        ),
    ] {
        let mut took: Histogram<u64> = Histogram::new(3).unwrap();
        let mut bytes = 0;
        for _ in 0..QUESTIONS {
            let begun = Instant::now();
            bytes = get(rig, &path).await.len();
            took.record(u64::try_from(begun.elapsed().as_micros()).unwrap())
                .unwrap();
        }
        let ms = |quantile| {
            let micros = took.value_at_quantile(quantile);
            format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10)
        };
        println!("{name}: p50 {}, p99 {}, {bytes} bytes", ms(0.5), ms(0.99));
    }
}

/// How far memory rises while many read a large page slowly.
async fn slow_readers(rig: &Rig) {
    let before = resident(rig);
    let ended = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..SLOW_READERS)
        .map(|_| {
            let (address, ended) = (rig.address(), Arc::clone(&ended));
            std::thread::spawn(move || read_slowly(address, &ended))
        })
        .collect();
    let (begun, mut most) = (Instant::now(), before);
    while begun.elapsed() < SLOW_FOR {
        tokio::time::sleep(Duration::from_millis(200)).await;
        most = most.max(resident(rig));
    }
    ended.store(true, Ordering::Relaxed);
    let read: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    println!(
        "{SLOW_READERS} slow readers, {} MB in all: memory {} MB before, {} MB at most; its own {} MB before, {} MB at most",
        read / 1_000_000,
        before.all / 1_000_000,
        most.all / 1_000_000,
        before.own / 1_000_000,
        most.own / 1_000_000
    );
}

/// Reads pages one after the other, in small pieces, until it is told to end.
fn read_slowly(address: SocketAddr, ended: &AtomicBool) -> usize {
    let (mut read, mut piece) = (0, vec![0; PIECE]);
    while !ended.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(address).unwrap();
        let path = format!("/v1/tenants/{TENANT}/sagas/ask/instances?limit=500");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        while !ended.load(Ordering::Relaxed) {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes,
            }
            std::thread::sleep(PAUSE);
        }
    }
    read
}

/// The resident memory of the runner, in bytes.
#[derive(Debug, Clone, Copy)]
struct Resident {
    /// With the pages of mapped files, which the system takes back when it needs them.
    all: u64,
    /// What the runner has allocated.
    own: u64,
}

impl Resident {
    /// The higher of each.
    fn max(self, other: Self) -> Self {
        Self {
            all: self.all.max(other.all),
            own: self.own.max(other.own),
        }
    }
}

fn resident(rig: &Rig) -> Resident {
    let status = procfs::process::Process::new(rig.pid())
        .unwrap()
        .status()
        .unwrap();
    Resident {
        all: status.vmrss.unwrap() * 1_024,
        own: status.rssanon.unwrap() * 1_024,
    }
}

async fn restarts(rig: &mut Rig) {
    let mut all = Vec::new();
    for _ in 0..RESTARTS {
        rig.kill();
        let begun = Instant::now();
        rig.start().await;
        all.push(begun.elapsed().as_millis());
    }
    all.sort_unstable();
    println!("SIGKILL to ready: {all:?} ms");
}

/// What the files of a folder take on the disk, in bytes.
fn bytes_of(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                bytes_of(&entry.path())
            } else {
                about.blocks() * 512
            }
        })
        .sum()
}
