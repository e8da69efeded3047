//! Clients that the API is not for, that are too slow, or too many.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::caller::{get, instance, post, runner, send, until};
use crate::support::rig::Rig;

/// The status of a request as it stands, and the whole answer.
pub fn raw(rig: &Rig, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(rig.address()).expect("connected");
    stream.write_all(request.as_bytes()).expect("sent");
    let answer = rest(&mut stream);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer: {answer:?}")), answer)
}

/// What comes until the runner closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .expect("a timeout");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("closed by the runner");
    answer
}

fn head(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_pages_of_other_origins_change_nothing() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    let found = instance("acme", "ratio", "r-1");
    until(&rig, &found, |_| true).await;
    let changes = [
        "/admin/drain".to_owned(),
        "/admin/reload".to_owned(),
        "/admin/breakers/x".to_owned(),
        "/v1/callbacks/token".to_owned(),
        "/v1/definitions/abcdef/migrate".to_owned(),
        "/v1/tenants/acme/events".to_owned(),
        "/v1/tenants/acme/sagas/ratio/instances".to_owned(),
        "/v1/tenants/acme/sagas/ratio/schedule/pause".to_owned(),
        "/v1/tenants/acme/dead-letters/0-1/discard".to_owned(),
        format!("{found}/cancel"),
        format!("{found}/signals/go"),
        format!("{found}/resolve"),
    ];
    let own = rig.address();
    for path in &changes {
        for foreign in [
            format!("host: {own}\r\norigin: http://other.example\r\n"),
            format!("host: {own}\r\norigin: null\r\n"),
            format!("host: {own}\r\nsec-fetch-site: cross-site\r\n"),
            "host: other.example\r\n".to_owned(),
        ] {
            let (status, answer) = raw(&rig, &head("POST", path, &foreign));
            assert_eq!(status, 403, "{path}, {foreign:?}: {answer}");
            assert!(answer.contains("SR0509"), "{answer}");
        }
        let form = format!(
            "POST {path} HTTP/1.1\r\nhost: {own}\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        assert_eq!(raw(&rig, &form).0, 415, "{path}");
    }
    let rebound = head("GET", &found, "host: other.example\r\n");
    assert_eq!(raw(&rig, &rebound).0, 403, "nor do they read");
    for page in ["/health", "/metrics"] {
        let rebound = head("GET", page, "host: other.example\r\n");
        assert_eq!(raw(&rig, &rebound).0, 403, "{page} names sagas");
    }
    assert_eq!(
        raw(&rig, &head("GET", "/ready", "host: other.example\r\n")).0,
        200
    );
    let view = get(&rig, &found).await.json();
    assert_eq!((&view["phase"], &view["version"]), (&json!("running"), &json!(1)));
    let same = format!(
        "host: localhost:{0}\r\norigin: http://localhost:{0}\r\nsec-fetch-site: same-origin\r\n",
        own.port()
    );
    assert_eq!(raw(&rig, &head("POST", &format!("{found}/cancel"), &same)).0, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_the_manifest_is_known() {
    let mut rig = Rig::new(
        None,
        "30m",
        Duration::ZERO,
        json!({"http": {"hosts": ["sagas.example.com"]}}),
    )
    .await;
    rig.start().await;
    for (host, status) in [("sagas.example.com", 200), ("other.example.com", 403)] {
        let request = head("POST", "/admin/reload", &format!("host: {host}\r\n"));
        assert_eq!(raw(&rig, &request).0, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_idle_clients_are_cut_off_in_every_mode() {
    let server = crate::support::nats_server::NatsServer::start();
    let http = json!({"http": {"header_timeout": "300ms"}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, http).await;
    for mode in ["combined", "effect"] {
        rig.start_as(mode).await;
        let begin = Instant::now();
        let mut idle = TcpStream::connect(rig.address()).expect("connected");
        let mut slow = TcpStream::connect(rig.address()).expect("connected");
        slow.write_all(b"GET /info HTTP/1.1\r\nHost: localhost\r\n")
            .expect("sent");
        let mut resting = TcpStream::connect(rig.address()).expect("connected");
        resting
            .write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("sent");
        assert!(rest(&mut resting).starts_with("HTTP/1.1 200 "), "{mode}");
        assert_eq!(
            (rest(&mut idle), rest(&mut slow)),
            (String::new(), String::new()),
            "{mode}"
        );
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{mode}: {:?}",
            begin.elapsed()
        );
        assert_eq!(rig.terminate().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_bound_have_their_probes_answered_and_nothing_else() {
    let http = json!({"http": {"connections_max": 8, "header_timeout": "20s"}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, http).await;
    rig.start().await;
    let connect = |_| TcpStream::connect(rig.address()).expect("connected");
    // What the rig has asked with may still be open.
    let held: Vec<TcpStream> = (0..8).map(connect).collect();
    let ask = |path: &str| raw(&rig, &head("GET", path, "host: localhost\r\n"));
    let begin = Instant::now();
    while ask("/info").0 == 200 {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "8 connections are held"
        );
    }
    assert_eq!((ask("/live").0, ask("/ready").0), (200, 200));
    let (status, answer) = ask("/info");
    assert_eq!(status, 503, "{answer}");
    assert!(
        answer.contains("SR0504") && answer.contains("http.connections_max"),
        "{answer}"
    );
    drop(held);
    let begin = Instant::now();
    while ask("/info").0 != 200 {
        assert!(begin.elapsed() < Duration::from_secs(10), "there is room again");
    }
}

pub(super) const LARGE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: large
start: Large.Opened
key: {"Large.*": event.data.id}
state: {init: {text: ""}}
handlers:
  Large.Opened: {set: {text: "${event.data.text}"}}
  Large.Noted: {set: {text: "${event.data.text}"}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_bounded_in_bytes_and_the_next_goes_on_behind_it() {
    let http = json!({"http": {"page_bytes_max": 100_000}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, http).await;
    rig.add_saga("large", LARGE);
    rig.start().await;
    let text = "x".repeat(40_000);
    for at in 0..7 {
        let payload = json!({"id": format!("l-{at}"), "text": text});
        send(&rig, "acme", &format!("e-{at}"), "Large.Opened", payload).await;
    }
    for at in 0..7 {
        until(&rig, &instance("acme", "large", &format!("l-{at}")), |_| true).await;
    }
    let (mut keys, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("/v1/tenants/acme/sagas/large/instances?limit=500{after}");
        let page = get(&rig, &path).await;
        assert_eq!(page.status, 200, "{page:?}");
        assert!(page.text.len() < 150_000, "{} bytes", page.text.len());
        let page = page.json();
        let items = page["items"].as_array().expect("items");
        keys.extend(
            items
                .iter()
                .map(|item| item["key"].as_str().expect("a key").to_owned()),
        );
        pages += 1;
        match &page["next"] {
            Value::String(next) => after = format!("&after={next}"),
            _ => break,
        }
    }
    keys.sort();
    let expected: Vec<String> = (0..7).map(|at| format!("l-{at}")).collect();
    assert_eq!(keys, expected, "each once");
    assert!(pages >= 3, "{pages} pages");
    post(&rig, "/v1/tenants/acme/sagas/large/instances?limit=1", "{}")
        .await
        .is_problem(400, "SR0501");
}

/// All inputs of an instance came at once, up to 5,000 of 1 MiB each, and of more there were none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inputs_of_an_instance_come_in_bounded_pages_and_replay_reads_all_of_them() {
    let http = json!({"http": {"page_bytes_max": 100_000}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, http).await;
    rig.add_saga("large", LARGE);
    rig.start().await;
    let payload = json!({"id": "l", "text": "x".repeat(40_000)});
    send(&rig, "acme", "i-0", "Large.Opened", payload.clone()).await;
    for at in 1..7 {
        send(&rig, "acme", &format!("i-{at}"), "Large.Noted", payload.clone()).await;
    }
    let shown = instance("acme", "large", "l");
    until(&rig, &shown, |view| view["version"] == 7).await;
    let path = format!("{shown}/inputs");
    let (mut ids, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = get(&rig, &format!("{path}?limit=5{after}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        assert!(page.text.len() < 150_000, "{} bytes", page.text.len());
        let page = page.json();
        for input in page["inputs"].as_array().expect("inputs") {
            ids.push(input["id"].as_str().expect("an id").to_owned());
        }
        pages += 1;
        match &page["next"] {
            Value::String(next) => after = format!("&after={next}"),
            _ => break,
        }
    }
    let sent: Vec<String> = (0..7).map(|at| format!("i-{at}")).collect();
    assert_eq!(ids, sent, "each once, oldest first");
    assert!(pages >= 3, "{pages} pages");
    for forged in ["1", "x-1", "1-x"] {
        let page = get(&rig, &format!("{path}?after={forged}")).await;
        page.is_problem(400, "SR0501");
    }
    let again = get(&rig, &format!("{path}?after=7-1")).await;
    again.is_problem(409, "SR0503");
    let replayed = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .arg("replay")
        .arg(rig.folder())
        .arg("--from")
        .arg(rig.url(&path))
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert!(
        replayed.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&replayed.stderr)
    );
    assert!(said.contains("7 input(s)"), "{said}");
}
