//! The table of outcomes in docs/effects.md, row by row: what an upstream does, how often it is called for it, what the saga's
//! step fails with, and whether it is undone. For each `on_ambiguous` and both ways of dispatch, and with the runner killed in
//! the middle of its calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};

use crate::faults::http;
use crate::faults::until;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const POLICIES: [&str; 3] = ["retry", "fail", "ask"];
/// Calls of a command that may be made again, as the effect says.
const ATTEMPTS: usize = 3;
/// An answer that is longer than the runner takes.
const TOO_LONG: usize = 8_192;

/// What is known after an upstream did what a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It is certain that nothing was done.
    NotDone,
    /// It was refused.
    Refused,
    /// Nothing is certain, and another call may be made.
    Unknown,
    /// Nothing is certain, and another call would give the same.
    UnknownFinal,
    /// It was done.
    Done,
}

struct Row {
    /// What the upstream does, by its path.
    name: &'static str,
    known: Known,
    /// What the step fails with.
    class: &'static str,
}

const fn row(name: &'static str, known: Known, class: &'static str) -> Row {
    Row { name, known, class }
}

const ROWS: &[Row] = &[
    row("refuses", Known::Refused, "permanent"),
    row("is-gone", Known::NotDone, "transient"),
    row("is-busy", Known::NotDone, "transient"),
    row("throttles", Known::NotDone, "throttled"),
    row("breaks", Known::Unknown, "timeout"),
    row("gives-up-waiting", Known::Unknown, "timeout"),
    row("hangs-up", Known::Unknown, "timeout"),
    row("says-nothing", Known::Unknown, "timeout"),
    row("stammers", Known::UnknownFinal, "response.malformed"),
    row("rambles", Known::UnknownFinal, "response.size"),
    row("says-something-else", Known::Done, "result.schema"),
    row("leaves-something-out", Known::Done, "result.expression"),
];

impl Row {
    /// Calls that the upstream gets.
    fn calls(&self, policy: &str) -> usize {
        match self.known {
            Known::NotDone if self.name == "is-gone" => 0,
            Known::NotDone => ATTEMPTS,
            Known::Unknown if policy == "retry" => ATTEMPTS,
            Known::Unknown | Known::UnknownFinal | Known::Refused | Known::Done => 1,
        }
    }

    const fn is_unknown(&self) -> bool {
        matches!(self.known, Known::Unknown | Known::UnknownFinal)
    }

    /// Whether what may have been done is undone.
    const fn undoes(&self) -> bool {
        self.is_unknown() || matches!(self.known, Known::Done)
    }
}

/// Keys of the calls by their paths.
type Calls = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

async fn upstream() -> (SocketAddr, Calls) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                // A caller that has waited long enough, or is killed, leaves in the middle.
                let _ = serve(stream, &seen).await;
            });
        }
    });
    (address, calls)
}

async fn serve(stream: TcpStream, calls: &Calls) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = http::read(&mut stream).await? {
        let before = {
            let mut calls = calls.lock().expect("not poisoned");
            let keys = calls.entry(request.path.clone()).or_default();
            keys.push(request.key().to_owned());
            keys.len() - 1
        };
        let conduct = request.path.split('/').nth(1).unwrap_or_default();
        let long = format!("\"{}\"", "x".repeat(TOO_LONG));
        let (status, body) = match conduct {
            "refuses" => ("402 Payment Required", "{}"),
            "is-busy" => ("503 Service Unavailable", "{}"),
            "throttles" => ("429 Too Many Requests", "{}"),
            "breaks" => ("500 Internal Server Error", "{}"),
            "gives-up-waiting" => ("504 Gateway Timeout", "{}"),
            "hangs-up" => return Ok(()),
            "says-nothing" => return std::future::pending().await,
            "holds" if before == 0 => return std::future::pending().await,
            "stammers" => ("200 OK", "{\"id\": 1e400, \"id\": "),
            "rambles" => ("200 OK", long.as_str()),
            "says-something-else" => ("200 OK", "{\"id\": 7}"),
            "leaves-something-out" => ("200 OK", "{}"),
            _ => ("200 OK", "{\"id\": \"r-1\"}"),
        };
        http::answer(&mut stream, status, body).await?;
    }
    Ok(())
}

/// Effects of each policy, for an upstream that answers and for one that is gone, and one that undoes.
fn define(rig: &Rig) {
    for policy in POLICIES {
        for upstream in ["peer", "gone"] {
            let name = format!("{upstream}-{policy}");
            rig.add_effect(&name, &effect(&name, upstream, policy));
            rig.add_saga(&name, &saga(&name));
        }
    }
    rig.add_effect(
        "undo",
        "apiVersion: sagas/v1\nkind: Effect\nname: undo\n\
         http: {method: POST, url: \"${upstreams.peer}/undo/${url(input.row)}/${url(input.policy)}\", body: {}}\n",
    );
}

fn effect(name: &str, upstream: &str, policy: &str) -> String {
    format!(
        r#"apiVersion: sagas/v1
kind: Effect
name: {name}
http: {{method: POST, url: "${{upstreams.{upstream}}}/${{url(input.row)}}/{policy}", body: {{}}}}
timeout: {{connect: 500ms, total: 700ms}}
retry: {{attempts: {ATTEMPTS}, backoff: {{initial: 100ms, max: 200ms}}}}
on_ambiguous: {policy}
breaker: {{scope: effect, min_calls: 1000}}
output: {{type: object, required: [id], properties: {{id: {{type: string}}}}}}
result: {{id: "${{response.body.id}}"}}
"#
    )
}

fn saga(name: &str) -> String {
    format!(
        r#"apiVersion: sagas/v1
kind: Saga
name: {name}
start: {{event: Row.Asked, when: 'event.data.saga == "{name}"'}}
key: {{"Row.*": event.data.row}}
state: {{init: {{row: ""}}}}
handlers: {{Row.Asked: {{set: {{row: "${{event.data.row}}"}}}}}}
steps:
  work:
    effect: {name}
    with: {{row: "${{state.row}}"}}
    compensate: {{effect: undo, on_unknown: compensate, with: {{row: "${{state.row}}", policy: {name}}}}}
"#
    )
}

async fn rig(dispatch: &str, server: &NatsServer, peer: SocketAddr) -> Rig {
    let gone = saga_runner::app::nats_server::free_port().expect("a free port");
    let extra = json!({
        "dispatch": dispatch,
        "upstreams": {"peer": format!("http://{peer}"), "gone": format!("http://127.0.0.1:{gone}")},
        "worker": {"ack_wait": "2s", "recheck_after": "1s", "yield_retry": "0s", "response_bytes": 4_096},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::from_secs(1), extra).await;
    rig.clear_definitions();
    define(&rig);
    rig.start().await;
    rig
}

async fn ask(rig: &Rig, saga: &str, row: &str) {
    let id = format!("{saga}-{row}");
    rig.send("Row", &id, "Asked", json!({"row": row, "saga": saga}))
        .await;
}

/// Waits until an instance has ended or asks, and checks what it says.
async fn check(rig: &Rig, calls: &Calls, row: &Row, policy: &str) {
    let of = if row.name == "is-gone" { "gone" } else { "peer" };
    let saga = format!("{of}-{policy}");
    let over =
        |view: &Value| view["ended"].is_string() || view["stuck"].as_array().is_some_and(|s| !s.is_empty());
    let view = rig.wait_for(&saga, row.name, over).await;
    let told = format!("{} with on_ambiguous: {policy}: {view}", row.name);
    let asks = policy == "ask" && row.is_unknown();
    if asks {
        assert_eq!(view["phase"], "running", "{told}");
        assert_eq!(view["stuck"][0]["step"], "work", "{told}");
    } else {
        assert_eq!(view["phase"], "failed", "{told}");
        assert_eq!(view["failure"]["code"], row.class, "{told}");
    }
    let calls = calls.lock().expect("not poisoned");
    let keys = |path: String| calls.get(&path).cloned().unwrap_or_default();
    let made = keys(format!("/{}/{policy}", row.name));
    assert_eq!(made.len(), row.calls(policy), "calls of {told}");
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]), "keys of {told}");
    let undone = keys(format!("/undo/{}/{saga}", row.name)).len();
    assert_eq!(undone, usize::from(row.undoes() && !asks), "undone: {told}");
}

async fn every_row(dispatch: &str) {
    let server = NatsServer::start();
    let (peer, calls) = upstream().await;
    let mut rig = rig(dispatch, &server, peer).await;
    for row in ROWS {
        for policy in POLICIES {
            let of = if row.name == "is-gone" { "gone" } else { "peer" };
            ask(&rig, &format!("{of}-{policy}"), row.name).await;
        }
    }
    for row in ROWS {
        for policy in POLICIES {
            check(&rig, &calls, row, policy).await;
        }
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_outcome_is_what_the_table_says_through_the_broker() {
    every_row("broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_outcome_is_what_the_table_says_within_the_process() {
    every_row("local").await;
}

/// A call that a kill cuts off is an unknown outcome: made again under its key, or not, or asked about.
async fn killed_in_the_call(dispatch: &str) {
    let server = NatsServer::start();
    let (peer, calls) = upstream().await;
    let mut rig = rig(dispatch, &server, peer).await;
    // Nobody gives up before the kill.
    rig.add_effect(
        "peer-retry",
        &effect("peer-retry", "peer", "retry").replace("700ms", "1m"),
    );
    rig.add_effect(
        "peer-fail",
        &effect("peer-fail", "peer", "fail").replace("700ms", "1m"),
    );
    rig.add_effect(
        "peer-ask",
        &effect("peer-ask", "peer", "ask").replace("700ms", "1m"),
    );
    rig.kill();
    rig.start().await;
    for policy in POLICIES {
        ask(&rig, &format!("peer-{policy}"), "holds").await;
    }
    until(&rig, async || {
        let calls = calls.lock().expect("not poisoned");
        POLICIES
            .iter()
            .all(|policy| calls.contains_key(&format!("/holds/{policy}")))
    })
    .await;
    rig.kill();
    rig.start().await;
    let done = rig
        .wait_for("peer-retry", "holds", |view| view["ended"].is_string())
        .await;
    assert_eq!(done["phase"], "completed", "{done}");
    let row = row("holds", Known::Unknown, "timeout");
    for policy in ["fail", "ask"] {
        check(&rig, &calls, &row, policy).await;
    }
    let again = calls.lock().expect("not poisoned")["/holds/retry"].clone();
    assert_eq!(again.len(), 2);
    assert_eq!(again[0], again[1], "the key stays");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_kill_cuts_off_is_an_unknown_outcome_through_the_broker() {
    killed_in_the_call("broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_kill_cuts_off_is_an_unknown_outcome_within_the_process() {
    killed_in_the_call("local").await;
}
