//! Many commands, an upstream that is not well, and a worker that is killed again and again: the real binary in
//! mode `effect` over a real nats-server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use saga_runner::kernel::subject::Subject;
use saga_runner::ports::broker::{Expect, Message, Publication, ReaderSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::work::rig::{Rig, effect};

const COMMANDS: u128 = 5_000;
const KILLS: usize = 10;
const CONCURRENCY: usize = 64;

/// What the upstream did, by idempotency key.
#[derive(Default)]
struct Books {
    calls: Mutex<BTreeMap<String, Vec<Deed>>>,
    done: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Done,
    Error,
    Silence,
    Reset,
}

/// 10 % errors, 5 % silence, 1 % resets, by a hash of what is asked.
fn fate(key: &str, call: usize) -> Deed {
    let digest = blake3::hash(format!("{key}/{call}").as_bytes());
    match u16::from_le_bytes([digest.as_bytes()[0], digest.as_bytes()[1]]) % 100 {
        0..10 => Deed::Error,
        10..15 => Deed::Silence,
        15 => Deed::Reset,
        _ => Deed::Done,
    }
}

async fn upstream(books: Arc<Books>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let books = Arc::clone(&books);
            tokio::spawn(async move {
                // A client that was killed breaks its connections.
                let _broken = answer_all(stream, &books).await;
            });
        }
    });
    url
}

async fn answer_all(stream: TcpStream, books: &Books) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
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
        let deed = {
            let mut calls = books.calls.lock().unwrap();
            let calls = calls.entry(key.clone()).or_default();
            calls.push(fate(&key, calls.len()));
            calls[calls.len() - 1]
        };
        let answer = match deed {
            Deed::Done => {
                books.done.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
                let body = json!({"id": key}).to_string();
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            Deed::Error => "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Deed::Silence => {
                // Longer than anyone waits.
                tokio::time::sleep(Duration::from_secs(5)).await;
                return Ok(());
            }
            Deed::Reset => {
                stream.get_ref().set_zero_linger()?;
                return Ok(());
            }
        };
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}

fn prepare(dir: &Path, nats: &str, upstream: &str) {
    for folder in ["sagas", "effects"] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let charge = format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: charge\n\
         http: {{method: POST, url: \"${{upstreams.pay}}/charges\", body: \"${{input}}\"}}\n\
         timeout: {{total: 400ms}}\n\
         retry: {{attempts: 20, backoff: {{initial: 100ms, max: 400ms}}}}\n\
         limits: {{concurrency: {CONCURRENCY}}}\n"
    );
    std::fs::write(dir.join("effects/charge.yaml"), charge).unwrap();
    let port = saga_runner::app::nats_server::free_port().unwrap();
    let manifest = json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": "load",
        "mode": "effect",
        "tenants": ["acme"],
        "sagas": dir.join("sagas"),
        "effects": dir.join("effects"),
        "broker": {"kind": "nats", "nats": {"urls": [nats]}},
        "upstreams": {"pay": upstream},
        "http": {"listen": format!("127.0.0.1:{port}"), "admin_listen": format!("127.0.0.1:{port}")},
        "worker": {"ack_wait": "1500ms", "yield_retry": "0ms"},
    });
    std::fs::write(dir.join("manifest.yaml"), manifest.to_string()).unwrap();
}

/// A worker process, killed with the value.
struct Process(Child);

impl Process {
    fn start(dir: &Path) -> Self {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
            .args(["run", "--config"])
            .arg(dir.join("manifest.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // On Unix this is SIGKILL.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn results(rig: &Rig) -> Vec<Value> {
    let events = rig.streams.events.clone();
    let mut reader = rig
        .broker
        .reader(ReaderSpec {
            stream: events,
            filters: vec!["tenant.*.effect_result.>".to_owned()],
            start_sequence: 1,
            name: format!("books-{}", uuid::Uuid::new_v4().simple()),
            buffer: 1_000,
        })
        .await
        .unwrap();
    let (mut found, mut after) = (Vec::new(), 0);
    let mut take = |message: Message| {
        found.push(serde_json::from_slice(&message.payload).unwrap());
        message.stream_sequence
    };
    loop {
        while let Some(message) = reader.ready() {
            after = take(message.unwrap());
        }
        match reader.horizon().await.unwrap() {
            Some(horizon) if horizon.after <= after => return found,
            _ => after = take(reader.next().await.unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_has_one_result_despite_faults_of_upstream_and_worker() {
    let rig = Rig::on_nats().await;
    let books = Arc::new(Books::default());
    let upstream = upstream(Arc::clone(&books)).await;
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &rig.nats_url(), &upstream);
    let items: Vec<_> = (1..=COMMANDS)
        .map(|n| effect(&rig, &format!("o-{n}"), n))
        .collect();
    let sent = futures::stream::iter(&items).map(|item| {
        let (tenant, command) = (item.instance.tenant.clone(), item.command_id);
        let effect = crate::work::rig::effect_name();
        let envelope = json!({
            "tenant_id": tenant, "command_id": command, "effect_name": effect, "payload": {"amount": 12},
            "metadata": {
                "saga": "order", "key": item.instance.key, "correlation_id": item.instance.key,
                "causation_id": "e-1", "idempotency_key": item.idempotency_key, "path": item.path,
                "attempt": 1, "deadline_ms": item.deadline.0,
            },
        });
        rig.broker.publish(Publication {
            stream: rig.streams.commands.clone(),
            subject: Subject::Effect {
                tenant,
                effect,
                command,
            }
            .render(),
            headers: Vec::new(),
            payload: envelope.to_string().into(),
            expect: Expect::FirstOnSubject,
        })
    });
    let sent: Vec<_> = sent.buffer_unordered(256).collect().await;
    assert!(sent.iter().all(Result::is_ok));

    let begin = Instant::now();
    let mut worker = Process::start(dir.path());
    let mut kills = 0;
    loop {
        let recorded = rig.messages(&rig.streams.events).await;
        if u128::from(recorded) >= COMMANDS {
            break;
        }
        let share = usize::try_from(COMMANDS).unwrap() / (KILLS + 1);
        if kills < KILLS && usize::try_from(recorded).unwrap() > share * (kills + 1) {
            drop(worker);
            kills += 1;
            worker = Process::start(dir.path());
        }
        assert!(
            begin.elapsed() < Duration::from_secs(100),
            "{recorded} results after {kills} kills: {}",
            std::fs::read_to_string(dir.path().join("log")).unwrap()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(kills, KILLS);
    let took = begin.elapsed();
    // What is still under way may only find that there is a result.
    rig.until_queued("effect-load-charge@acme", |queue| {
        queue.pending + queue.unacknowledged == 0
    })
    .await;
    drop(worker);

    let results = results(&rig).await;
    let answered: BTreeSet<&str> = results
        .iter()
        .map(|result| result["command_id"].as_str().unwrap())
        .collect();
    let commanded: BTreeSet<String> = items.iter().map(|item| item.command_id.to_string()).collect();
    assert_eq!(results.len(), items.len(), "one result each");
    assert!(commanded.iter().all(|id| answered.contains(id.as_str())));
    for result in &results {
        assert_eq!(result["result_type"], "Succeeded", "{result}");
    }
    let calls = books.calls.lock().unwrap();
    assert_eq!(calls.len(), items.len(), "every key is that of a command");
    let of = |deed: Deed| calls.values().flatten().filter(|one| **one == deed).count();
    assert!(of(Deed::Error) > 400 && of(Deed::Silence) > 200 && of(Deed::Reset) > 25);
    let twice = calls
        .values()
        .filter(|deeds| deeds.iter().filter(|deed| **deed == Deed::Done).count() > 1)
        .count();
    assert!(
        twice <= KILLS * CONCURRENCY,
        "{twice} commands were executed again, more than were in progress when the worker was killed"
    );
    println!("{kills} kills, {twice} executed again, {took:?}");
}
