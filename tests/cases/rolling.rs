//! A saga changes twice while a thousand instances run: the first half keeps its version, the second goes over.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::rig::{Rig, TENANT};

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Opened
key: {"Parcel.*": event.data.parcel}
state: {init: {seen: [], build: 0}}
handlers:
  Parcel.Scanned: {set: {seen: "${state.seen + [event.data.n]}"}}
machine:
  initial: open
  states:
    open: {handlers: {Parcel.Closed: {to: closed}}}
    closed: {final: true}
"#;

const HALF: usize = 500;
const SCANS: i64 = 3;

fn build(number: u32) -> String {
    SAGA.replace("build: 0", &format!("build: {number}"))
}

async fn send(rig: &Rig, kind: &str, parcel: &str, n: i64) {
    let body = json!({
        "tenant_id": TENANT, "event_id": format!("{parcel}-{kind}-{n}"), "event_type": kind,
        "aggregate_type": "Parcel", "aggregate_id": parcel, "sequence": 1, "schema_version": 1,
        "payload": {"parcel": parcel, "n": n}, "metadata": {"correlation_id": parcel},
    });
    rig.send_body(body.to_string()).await;
}

/// Sends one event to each of the parcels, many at a time.
async fn send_all(rig: &Rig, kind: &str, parcels: &[String], n: i64) {
    stream::iter(parcels)
        .for_each_concurrent(24, |parcel| send(rig, kind, parcel, n))
        .await;
}

async fn reload(rig: &Rig, saga: &str) {
    rig.add_saga("parcel", saga);
    let answer = rig
        .client
        .post(rig.url("/admin/reload"))
        .send()
        .await
        .expect("an answer");
    let (status, body) = (answer.status(), answer.text().await.expect("a body"));
    assert!(status.is_success(), "{body}");
}

/// Live instances of each version, by hash.
async fn live(rig: &Rig, hash: &str) -> u64 {
    let answer = rig
        .client
        .get(rig.url("/v1/definitions?saga=parcel"))
        .send()
        .await
        .expect("an answer");
    let list: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
    let items = list["items"].as_array().expect("items");
    let found = items.iter().find(|item| item["hash"] == hash);
    found.and_then(|item| item["live"].as_u64()).unwrap_or(0)
}

async fn until_live(rig: &Rig, hash: &str, wanted: usize) {
    for _ in 0..1_500 {
        if live(rig, hash).await == wanted as u64 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    panic!(
        "{hash} has {} live instances\n{}",
        live(rig, hash).await,
        rig.log_tail()
    );
}

fn migrate(rig: &Rig, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["definition", "migrate", "parcel", "--json", "--url", &rig.url("")]);
    let output = command.args(arguments).output().expect("the binary starts");
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

/// The report says why the first half stays and in which line, and asking changes nothing.
fn check_report(rig: &Rig, line: usize) {
    let (code, report) = migrate(rig, &["--dry-run"]);
    assert_eq!(
        (code, &report["moved"], &report["refused"]),
        (Some(1), &json!(0), &json!(HALF)),
        "{report}"
    );
    let problem = &report["refusals"][0]["problems"][0];
    let message = problem["message"].as_str().expect("a reason");
    assert!(message.contains("migrate.from does not name"), "{problem}");
    let at = problem["at"].as_str().expect("a place");
    assert!(at.ends_with(&format!("parcel.yaml:{line}:11")), "{at}");
    assert_eq!(report["refusals"].as_array().map(Vec::len), Some(100));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args([
        "definition",
        "migrate",
        "parcel",
        "--dry-run",
        "--url",
        &rig.url(""),
    ]);
    let output = command.output().expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.starts_with("0 instance(s) would be migrated, 500 unchanged\n"),
        "{text}"
    );
    assert!(text.contains(at) && text.ends_with("and 400 more\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_change_of_a_thousand_instances_half_pinned_half_migrated_loses_nothing() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("parcel", &build(0));
    rig.start().await;
    let hash = |text: &str| {
        let definition = saga_runner::kernel::definition::compile_archived(text).expect("compiles");
        definition.hash.to_string()
    };
    let (v0, v1) = (hash(&build(0)), hash(&build(1)));
    let names = |half: &str| {
        (0..HALF)
            .map(|number| format!("{half}-{number:03}"))
            .collect::<Vec<_>>()
    };
    let (first, second) = (names("first"), names("second"));
    send_all(&rig, "Opened", &first, 0).await;
    until_live(&rig, &v0, HALF).await;
    reload(&rig, &build(1)).await;
    send_all(&rig, "Opened", &second, 0).await;
    until_live(&rig, &v1, HALF).await;

    // Events of both halves flow on while the second half goes over.
    let second_build = build(2)
        .replace("seen:", "scans:")
        .replace("state.seen", "state.scans")
        .replace("seen", "scans");
    let mapping = format!(
        "on_change: migrate\nmigrate: {{from: \"{v1}\", set: {{scans: \"${{state.seen}}\", build: 2}}, drop: {{state: [seen]}}, undo: {{set: {{seen: \"${{state.scans}}\", build: 1}}, drop: {{state: [scans]}}}}}}\n"
    );
    let v2 = hash(&second_build);
    let (sent, mut flowing) = watch::channel(0);
    let flow = async {
        for n in 1..=SCANS {
            tokio::join!(
                send_all(&rig, "Scanned", &first, n),
                send_all(&rig, "Scanned", &second, n)
            );
            sent.send_replace(n);
        }
    };
    let change = async {
        flowing.wait_for(|n| *n >= 1).await.expect("events flow");
        reload(&rig, &format!("{second_build}{mapping}")).await;
    };
    tokio::join!(flow, change);
    until_live(&rig, &v2, HALF).await;
    assert_eq!((live(&rig, &v0).await, live(&rig, &v1).await), (HALF as u64, 0));

    check_report(&rig, second_build.lines().count() + 2);

    // A kill in between loses neither versions nor instances.
    rig.kill();
    rig.start().await;
    let expected: Vec<i64> = (1..=SCANS).collect();
    for (parcels, field) in [(&first, "seen"), (&second, "scans")] {
        for parcel in parcels {
            let all = |view: &Value| {
                view["state"][field]
                    .as_array()
                    .is_some_and(|seen| seen.len() >= expected.len())
            };
            let view = rig.wait_for("parcel", parcel, all).await;
            assert_eq!(view["state"][field], json!(expected), "{view}");
        }
    }
    let moved = rig.wait_for("parcel", &second[0], |_| true).await;
    let history = moved["history"].as_array().expect("a history");
    assert!(
        history.iter().any(|row| row["notes"][0]["migrated"]["to"] == v2),
        "the migration is in the history: {moved}"
    );

    // And back, to where each came from; a new one stays.
    send(&rig, "Opened", "new-1", 0).await;
    until_live(&rig, &v2, HALF + 1).await;
    // Inputs after a kill are begun one by one, so the answer may come before the end.
    let (code, report) = migrate(&rig, &["--undo"]);
    assert_eq!(
        (code, &report["moved"], &report["seen"], &report["refused"]),
        (Some(0), &json!(HALF), &json!(HALF + 1), &json!(0)),
        "{report}"
    );
    until_live(&rig, &v1, HALF).await;
    assert_eq!((live(&rig, &v0).await, live(&rig, &v2).await), (HALF as u64, 1));
    let view = rig
        .wait_for("parcel", &second[0], |view| view["definition"] == v1)
        .await;
    assert_eq!(view["state"], json!({"build": 1, "seen": expected}));
    send_all(
        &rig,
        "Closed",
        &[first, second, vec!["new-1".to_owned()]].concat(),
        9,
    )
    .await;
    until_live(&rig, &v2, 0).await;
    until_live(&rig, &v1, 0).await;
    until_live(&rig, &v0, 0).await;
}
