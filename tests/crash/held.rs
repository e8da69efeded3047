//! What a shard would send that goes on from an adopted state is decided by a person.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::calls::{Bank, CALL_TIMEOUT, effect, saga};
use super::connect;
use super::owners::{copy, ready};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// `saga-runner shard ...` against the runner.
async fn shard(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("shard").args(arguments).args(["--url", &rig.url("")]);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}

async fn told(rig: &Rig, arguments: &[&str]) -> Value {
    let output = shard(rig, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Waits until the runner says this of why it is not ready.
async fn until_not_ready(rig: &Rig, why: &str) {
    let begin = Instant::now();
    loop {
        let answer = rig.client.get(rig.url("/ready")).send().await;
        let said = match answer {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        if said.contains(why) {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{said}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets a shard send what it holds back, once it has read its streams; one with nothing to send does so by itself.
pub async fn release(rig: &Rig, number: u16) {
    let number = number.to_string();
    let begin = Instant::now();
    loop {
        let output = shard(
            rig,
            &["release", &number, "--reason", "compared with the upstreams"],
        )
        .await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() || said.contains("holds nothing back") {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{said}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ends where an event says so, and tells that three seconds have passed.
const DOOR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: door
start: Door.Opened
key: {"Door.*": event.data.door}
state: {init: {rung: false}}
timers:
  chime: {after: 3s, set: {rung: true}}
machine:
  initial: open
  states:
    open: {handlers: {Door.Closed: {to: closed}}}
    closed: {final: true}
"#;

/// A runner whose folder is a copy of a state with three calls under way, and the bank that knows them; adopted by name.
async fn adopted(server: &NatsServer, storage: Value) -> (Rig, Arc<Bank>) {
    let (bank, url) = Bank::open(Duration::from_mins(1)).await;
    let extra = json!({
        "storage": storage,
        "shards": 1,
        "dispatch": "local",
        "upstreams": {"bank": url},
        "http": {"page_bytes_max": 1},
        "ownership": {"renew_every": "100ms", "send_within": "300ms", "take_over_after": "500ms"},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("door", DOOR);
    for answer in ["retry", "ask"] {
        rig.add_saga(answer, &saga(answer));
        rig.add_effect(&format!("pay-{answer}"), &effect(answer, 10, CALL_TIMEOUT));
    }
    rig.start().await;
    for key in ["retry-0", "retry-1", "ask-0"] {
        let (answer, _) = key.split_once('-').expect("its answer");
        rig.send("Payout", key, &format!("Payout.{answer}"), json!({}))
            .await;
    }
    bank.until(3).await;
    rig.kill();
    bank.take(Duration::ZERO);
    work_behind(server).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest()).args([
        "--adopt-loss",
        "0@2",
        "--reason",
        "the copy of Sunday",
    ]);
    rig.launch_as(command);
    (rig, bank)
}

/// As if another folder of the same owner had gone on.
async fn work_behind(server: &NatsServer) {
    let broker = connect(&server.url()).await;
    let (bucket, key) = ("WORKFLOW_CLUSTER", "crash.shard.0");
    let entry = broker
        .entry(bucket, key)
        .await
        .expect("the bucket")
        .expect("there");
    let mut record: Value = serde_json::from_slice(&entry.value).expect("JSON");
    record["epoch"] = json!(2);
    record["stopped"] = json!(true);
    let value = Bytes::from(record.to_string());
    broker
        .put_entry(bucket, key, value, Some(entry.revision))
        .await
        .expect("nobody renews it");
}

/// What the runner lists: three calls, all of which may have been made.
async fn listed(rig: &Rig) -> Vec<Value> {
    let health = rig.client.get(rig.url("/health")).send().await;
    let health = health.expect("an answer").text().await.expect("text");
    assert!(health.contains("shard release 0"), "{health}");
    let pending = told(rig, &["pending", "0", "--json"]).await;
    assert_eq!(
        (&pending["state"], &pending["rows"]),
        (&json!("held"), &json!(3)),
        "{pending}"
    );
    let sagas = pending["sagas"].as_array().expect("a list");
    let effects: Vec<_> = sagas
        .iter()
        .map(|saga| (&saga["saga"], &saga["effects"]))
        .collect();
    assert_eq!(
        effects,
        [(&json!("ask"), &json!(1)), (&json!("retry"), &json!(2))]
    );
    // A page has as many bytes as a page may have, so here one row.
    let (mut items, mut page) = (Vec::new(), pending);
    loop {
        let found = page["items"].as_array().expect("a list");
        assert_eq!(found.len(), 1, "{page}");
        items.extend(found.clone());
        let Some(next) = page["next"].as_str() else { break };
        page = told(rig, &["pending", "0", "--json", "--after", next]).await;
    }
    assert_eq!(items.len(), 3, "{items:?}");
    assert!(items.iter().all(|item| item["may_be_done"] == true), "{items:?}");
    items
}

/// Whatever a restored folder had in its outbox was called once more as soon as the streams were read, with nobody asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_an_adopted_folder_wait_for_a_decision_also_over_a_restart() {
    let server = NatsServer::start();
    let (mut rig, bank) = adopted(&server, json!({})).await;
    let mut calls = bank.calls();
    until_not_ready(&rig, "saga-runner shard pending 0").await;
    let unknown = "00000000-0000-0000-0000-000000000000";
    let refused = shard(
        &rig,
        &["discard", "0", "--command", unknown, "--reason", "x", "--yes"],
    )
    .await;
    assert!(!refused.status.success(), "there is no such command");
    rig.kill();
    rig.launch();
    until_not_ready(&rig, "saga-runner shard pending 0").await;

    // One is given up, the others are made.
    let items = listed(&rig).await;
    let item = items.iter().find(|item| item["key"] == "retry-1");
    let given_up = item.expect("listed")["id"].as_str().expect("an id");
    let plan = ["discard", "0", "--command", given_up, "--dry-run", "--json"];
    let planned = told(&rig, &plan).await;
    let said = (&planned["done"], &planned["unknown"]);
    assert_eq!(said, (&json!(false), &json!(1)), "{planned}");
    let discard = [
        "discard",
        "0",
        "--command",
        given_up,
        "--reason",
        "paid by hand",
        "--yes",
        "--json",
    ];
    let discarded = told(&rig, &discard).await;
    let said = (&discarded["done"], &discarded["sends"]);
    assert_eq!(said, (&json!(true), &json!(false)), "{discarded}");
    let ended = |view: &Value| view["ended"].is_string();
    let view = rig.wait_for("retry", "retry-1", ended).await;
    assert_eq!(view["phase"], "failed", "{view}");
    assert!(view.to_string().contains("timeout"), "an unknown outcome: {view}");
    assert_eq!(bank.calls(), calls, "nothing was called");
    assert!(!ready(&rig).await.0);
    release(&rig, 0).await;
    rig.wait_until_ready().await;
    let view = rig.wait_for("retry", "retry-0", ended).await;
    assert_eq!(view["phase"], "completed", "{view}");
    // It may have been called, and nobody is to find out by calling.
    rig.wait_for("ask", "ask-0", |view| view["steps"][0]["status"] == "stuck")
        .await;
    calls.insert("retry-0".to_owned(), 2);
    assert_eq!(bank.calls(), calls, "the one that was given up is not called");

    let pending = told(&rig, &["pending", "0", "--json"]).await;
    let decisions = pending["decisions"].as_array().expect("a list");
    let what: Vec<_> = decisions.iter().map(|decision| &decision["what"]).collect();
    assert_eq!(what, ["adopted", "discarded", "released"], "{pending}");
    assert_eq!(decisions[1]["reason"], "paid by hand");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let log = std::fs::read_to_string(rig.log()).expect("readable");
    for reason in [
        "the copy of Sunday",
        "paid by hand",
        "compared with the upstreams",
    ] {
        // The request for it has a line of its own.
        let audited = |line: &&str| {
            line.contains("\"target\":\"audit\"")
                && line.contains(reason)
                && !line.contains("a request for a change")
        };
        assert_eq!(log.lines().filter(audited).count(), 1, "{reason}");
    }
}

/// What another process may have changed meanwhile would stand in the archive as the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_folder_archives_nothing_before_it_is_released() {
    let server = NatsServer::start();
    let storage = json!({"keep_ended": "1ms", "archive": {}});
    let (rig, _bank) = adopted(&server, storage).await;
    until_not_ready(&rig, "saga-runner shard pending 0").await;
    for (key, event) in [("d-1", "Opened"), ("d-1", "Closed"), ("d-2", "Opened")] {
        rig.send("Door", key, event, json!({"door": key})).await;
    }
    rig.wait_for("door", "d-1", |view| view["ended"].is_string())
        .await;
    // The archive looks every second.
    rig.wait_for("door", "d-2", |view| view["state"]["rung"] == true)
        .await;
    let view = rig.instance("door", "d-1").await.expect("it is kept");
    assert_eq!(view["archived"], Value::Null, "{view}");
    release(&rig, 0).await;
    rig.wait_for("door", "d-1", |view| view["archived"] == true).await;
}

/// Three payments, one behind the other.
const CHAIN: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: chain
start: Payout.Chained
key: {"Payout.*": event.aggregate_id}
steps:
  a: {effect: pay-fail, with: {key: "${key}-a"}}
  b: {needs: [a], effect: pay-fail, with: {key: "${key}-b"}}
  c: {needs: [b], effect: pay-fail, with: {key: "${key}-c"}}
"#;

/// Begins so many chains, and waits until they are completed.
async fn chained(rig: &Rig, keys: &[&str]) {
    for key in keys {
        rig.send("Payout", key, "Payout.Chained", json!({})).await;
    }
    for key in keys {
        rig.wait_for("chain", key, |view| view["phase"] == "completed")
            .await;
    }
}

/// The commands behind the first result had other ids the second time, so their results were not found: completed work was
/// taken for unknown, failed, and was undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_local_calls_have_completed_behind_an_older_copy_are_completed_again_without_a_call() {
    let server = NatsServer::start();
    let (bank, url) = Bank::open(Duration::ZERO).await;
    let extra = json!({
        "shards": 1,
        "dispatch": "local",
        "upstreams": {"bank": url},
        "ownership": {"renew_every": "100ms", "send_within": "300ms", "take_over_after": "500ms"},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("chain", CHAIN);
    rig.add_effect("pay-fail", &effect("fail", 10, CALL_TIMEOUT));
    rig.start().await;
    chained(&rig, &["before"]).await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let (data, backup) = (rig.folder().join("data"), rig.folder().join("backup"));
    copy(&data, &backup);
    rig.start().await;
    let behind = ["behind-1", "behind-2", "behind-3", "behind-4", "behind-5"];
    chained(&rig, &behind).await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&backup, &data);
    let calls = bank.calls();
    assert_eq!(calls.values().sum::<usize>(), 18, "{calls:?}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest()).args([
        "--adopt-loss",
        "0@2",
        "--reason",
        "the copy of Sunday",
    ]);
    rig.launch_as(command);
    for key in behind {
        rig.wait_for("chain", key, |view| view["phase"] == "completed")
            .await;
    }
    // There is nothing to send, so it waits for no decision.
    rig.wait_until_ready().await;
    let pending = told(&rig, &["pending", "0", "--json"]).await;
    assert_eq!(pending["rows"], 0, "{pending}");
    assert_eq!(bank.calls(), calls);
}
