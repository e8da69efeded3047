//! Answers that are large, and clients that take them slowly: what both cost the process is bounded.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::api::caller::{Answer, get, instance, items, send, until};
use crate::api::clients::LARGE;
use crate::support::rig::Rig;

const LIST: &str = "/v1/tenants/acme/sagas/large/instances";
/// Bytes of the state of most instances here.
const STATE: usize = 40_000;
/// So many instances with states of so many bytes fill the buffers that the system has for a connection, and more.
const MANY: (usize, usize) = (80, 200_000);
/// Bytes of a portion (`PORTION_BYTES`).
const PORTION: usize = 64 * 1_024;

/// A runner with so many instances, whose states have so many bytes.
async fn filled(instances: usize, bytes: usize, http: Value) -> Rig {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({ "http": http })).await;
    rig.add_saga("large", LARGE);
    rig.start().await;
    let text = "x".repeat(bytes);
    for at in 0..instances {
        let payload = json!({"id": format!("l-{at:03}"), "text": text});
        send(&rig, "acme", &format!("e-{at}"), "Large.Opened", payload).await;
    }
    for at in 0..instances {
        until(&rig, &instance("acme", "large", &format!("l-{at:03}")), |_| true).await;
    }
    rig
}

/// A client that has sent a request, and takes as little of the answer as the system lets it: its status.
pub(super) async fn slow(rig: &Rig, path: &str) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut stream = socket.connect(rig.address()).await.expect("connected");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("a status");
    (stream, String::from_utf8_lossy(&status).into_owned())
}

/// The value of a series without labels.
async fn series(rig: &Rig, name: &str) -> usize {
    let answer = get(rig, "/metrics").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let found = answer
        .text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// Bytes of answers that clients have not taken yet.
pub(super) async fn held(rig: &Rig) -> usize {
    series(rig, "saga_runner_http_answer_bytes").await
}

/// Threads of the runner.
fn threads(rig: &Rig) -> usize {
    let folder = format!("/proc/{}/task", rig.pid());
    std::fs::read_dir(folder).expect("its threads").count()
}

fn keys(page: &Value) -> Vec<&str> {
    items(page)
        .iter()
        .map(|item| item["key"].as_str().expect("a key"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_that_are_slow_hold_portions_of_their_pages() {
    const INSTANCES: usize = 200;
    const READERS: usize = 50;
    let rig = filled(INSTANCES, STATE, json!({"page_bytes_max": 64 * 1_024 * 1_024})).await;
    let path = format!("{LIST}?limit=500");
    let before = threads(&rig);
    let (mut readers, mut most) = (Vec::new(), 0);
    for _ in 0..READERS {
        let (reader, status) = slow(&rig, &path).await;
        assert_eq!(status, "HTTP/1.1 200");
        readers.push(reader);
        most = most.max(held(&rig).await);
    }
    // One for each of `http.reads_max`, and some for the embedded broker.
    assert!(threads(&rig) < before + 16, "{before}, {}", threads(&rig));
    // A connection takes a portion while less than one waits in it, and an item more than the portion has room for.
    let bound = READERS * (2 * PORTION + STATE + 2_000);
    assert!(READERS * STATE < most && most < bound, "{most} bytes");

    let page = get(&rig, &path).await;
    assert_eq!((page.status, page.kind.as_str()), (200, "application/json"));
    assert!(page.text.len() > INSTANCES * STATE);
    let page = page.json();
    let mut found = keys(&page);
    found.sort_unstable();
    let expected: Vec<String> = (0..INSTANCES).map(|at| format!("l-{at:03}")).collect();
    assert_eq!(found, expected, "each once");
    assert_eq!(
        (&page["next"], &page["absent_shards"]),
        (&Value::Null, &Value::Null)
    );
    assert!(held(&rig).await < bound);

    drop(readers);
    let begin = Instant::now();
    while held(&rig).await > 0 {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "clients that are gone hold bytes"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_in_portions_is_the_page_that_it_would_be_in_one() {
    const INSTANCES: usize = 90;
    let rig = filled(INSTANCES, STATE, json!({"page_bytes_max": 600_000})).await;
    // Summaries are short: the bytes of a page are what a client asks for by its limit.
    let all = get(&rig, "/v1/tenants/acme/instances?limit=500").await.json();
    assert_eq!(keys(&all).len(), INSTANCES);
    let condition = "where=state.text%20%21%3D%20%22%22";
    let some = get(&rig, &format!("/v1/tenants/acme/instances?limit=70&{condition}")).await;
    let some = some.json();
    assert_eq!((keys(&some).len(), &some["looked_at"]), (70, &json!(70)));
    assert!(some["next"].is_string());

    let (mut found, mut after, mut pages) = (Vec::new(), String::new(), Vec::new());
    loop {
        let page = get(&rig, &format!("{LIST}?limit=40{after}")).await;
        assert!(
            page.text.len() < 600_000 + STATE + 2_000,
            "{} bytes",
            page.text.len()
        );
        let page = page.json();
        pages.push(items(&page).len());
        found.extend(keys(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    found.sort_unstable();
    let expected: Vec<String> = (0..INSTANCES).map(|at| format!("l-{at:03}")).collect();
    assert_eq!(found, expected, "each once");
    // 15 items have 600,000 bytes.
    assert!(pages.iter().rev().skip(1).all(|items| *items == 15), "{pages:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_long_answers_are_refused_while_others_hold_all_there_may_be() {
    let http = json!({"page_bytes_max": 64 * 1_024 * 1_024, "answer_bytes_max": 1_000_000});
    let rig = filled(MANY.0, MANY.1, http).await;
    let path = format!("{LIST}?limit=500");
    let mut readers = Vec::new();
    let begin = Instant::now();
    let refused = loop {
        let (mut reader, status) = slow(&rig, &path).await;
        if status == "HTTP/1.1 503" {
            let mut rest = String::new();
            reader.read_to_string(&mut rest).await.expect("a whole answer");
            break rest;
        }
        assert_eq!(status, "HTTP/1.1 200");
        readers.push(reader);
        assert!(held(&rig).await <= 1_000_000 + 2_000);
        assert!(begin.elapsed() < Duration::from_mins(1), "nobody was refused");
    };
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert!(
        refused.contains("SR0504") && refused.contains("http.answer_bytes_max"),
        "{refused}"
    );
    assert!(series(&rig, "saga_runner_http_answers_refused_total").await >= 1);
    // What is short is answered.
    let short = get(&rig, "/v1/tenants/acme/instances?limit=5").await;
    assert_eq!(short.status, 200, "{short:?}");
    drop(readers);
    let begin = Instant::now();
    loop {
        let answer: Answer = get(&rig, &path).await;
        if answer.status == 200 {
            assert_eq!(keys(&answer.json()).len(), MANY.0);
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "there is room again: {answer:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_taken_too_slowly_ends_without_its_end() {
    let http = json!({"page_bytes_max": 64 * 1_024 * 1_024, "answer_timeout": "1s"});
    let rig = filled(MANY.0, MANY.1, http).await;
    let (mut reader, status) = slow(&rig, &format!("{LIST}?limit=500")).await;
    assert_eq!(status, "HTTP/1.1 200");
    let begin = Instant::now();
    // Between two portions nothing is held.
    while begin.elapsed() < Duration::from_secs(3) || held(&rig).await > 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "it was not given up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ended = reader.read_to_end(&mut rest).await;
    assert!(rest.len() < MANY.0 * MANY.1, "{} bytes came", rest.len());
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks whole");
}
