//! What an operator decides about instances, from the command line.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, runner, send, until};
use crate::support::rig::Rig;

/// Its second step fails, and its first one cannot be undone.
const STUCK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: stuck
start: Stuck.Opened
key: {"Stuck.*": event.data.stuck}
state: {init: {}}
steps:
  first: {effect: divide, with: {by: 1}, compensate: {effect: divide, with: {by: 0}, retry: {attempts: 1}}}
  second: {needs: [first], effect: divide, with: {by: 0}}
finally: {failed: {effect: divide, name: tidy, with: {by: 2}}}
"#;

/// Its second step waits.
const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Patient.Opened
key: {"Patient.*": event.data.patient}
state: {init: {}}
steps:
  first: {effect: divide, with: {by: 1}, compensate: {effect: divide, with: {by: 2}}}
  second: {needs: [first], wait: {signal: go, timeout: 1h}}
"#;

/// What an event fails keeps one of its steps.
const CLOSED: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: closed
start: Shop.Opened
key: {"Shop.*": event.data.shop}
state: {init: {}}
handlers:
  Shop.Closed: {fail: {code: closed, keep: [tell, all]}}
steps:
  hold: {effect: divide, with: {by: 1}, compensate: {effect: divide, with: {by: 2}}}
  tell: {needs: [hold], effect: divide, with: {by: 4}, compensate: {effect: divide, with: {by: 5}}}
  all:
    needs: [tell]
    foreach: {over: "[1, 2]", as: n}
    effect: divide
    with: {by: "${n}"}
    compensate: {effect: divide, with: {by: 10}}
  wait: {needs: [all], wait: {signal: go, timeout: 1h}}
"#;

const DIVIDE: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: divide
transform: {}
result: {share: "${100 / input.by}"}
"#;

async fn running() -> Rig {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_effect("divide", DIVIDE);
    rig.add_saga("stuck", STUCK);
    rig.add_saga("patient", PATIENT);
    rig.add_saga("closed", CLOSED);
    rig.start().await;
    rig
}

/// Carries out `saga-runner instance VERB SAGA KEY ...`.
fn decide(rig: &Rig, verb: &str, saga: &str, key: &str, more: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let url = rig.url("");
    command.args([
        "instance", verb, saga, key, "--json", "--tenant", "acme", "--url", &url,
    ]);
    let output = command.args(more).output().expect("the binary starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_compensation_is_retried_skipped_or_resolved_and_the_history_names_the_operator() {
    let rig = running().await;
    for (verb, status) in [("skip", "kept"), ("resolve", "undone")] {
        let path = instance("acme", "stuck", verb);
        send(
            &rig,
            "acme",
            &format!("e-{verb}"),
            "Stuck.Opened",
            json!({"stuck": verb}),
        )
        .await;
        let stuck = |view: &Value| view["phase"] == "compensation_failed";
        let view = until(&rig, &path, stuck).await;
        assert_eq!(view["ledger"][0]["status"], "stuck", "{view}");
        decide(&rig, "retry", "stuck", verb, &["--by", "ada"]);
        let again = |view: &Value| {
            let history = view["history"].to_string();
            stuck(view) && history.contains(r#""verdict":"retry""#) && view["ledger"][0]["attempt"] == 1
        };
        until(&rig, &path, again).await;
        decide(
            &rig,
            verb,
            "stuck",
            verb,
            &["--step", "first", "--by", "ada", "--reason", "by phone"],
        );
        let view = until(&rig, &path, |view| view["ended"].is_string()).await;
        assert_eq!(
            (&view["phase"], &view["ledger"][0]["status"]),
            (&json!("failed"), &json!(status))
        );
        let told = view["history"].to_string();
        assert!(told.contains(&format!(r#""verdict":"{verb}""#)), "{told}");
        assert!(
            told.contains(r#""by":"ada""#) && told.contains("by phone"),
            "{told}"
        );
        assert!(told.contains("finally.failed.tidy"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_undoes_or_leaves_what_was_done() {
    let rig = running().await;
    for (mode, status) in [("compensate", "undone"), ("drain", "undone"), ("abandon", "kept")] {
        let path = instance("acme", "patient", mode);
        send(
            &rig,
            "acme",
            &format!("e-{mode}"),
            "Patient.Opened",
            json!({"patient": mode}),
        )
        .await;
        until(&rig, &path, |view| view["steps"][1]["status"] == "waiting").await;
        decide(
            &rig,
            "cancel",
            "patient",
            mode,
            &["--mode", mode, "--reason", "second thoughts", "--yes"],
        );
        let view = until(&rig, &path, |view| view["ended"].is_string()).await;
        assert_eq!(
            (&view["phase"], &view["ledger"][0]["status"]),
            (&json!("cancelled"), &json!(status))
        );
        assert_eq!(
            decide(&rig, "show", "patient", mode, &[])["failure"]["message"],
            "second thoughts"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_undoes_all_but_the_kept_steps_despite_restarts() {
    let mut rig = running().await;
    let path = instance("acme", "closed", "s-1");
    send(&rig, "acme", "e-1", "Shop.Opened", json!({"shop": "s-1"})).await;
    until(&rig, &path, |view| {
        view["ledger"].as_array().is_some_and(|ledger| ledger.len() == 4)
    })
    .await;
    rig.kill();
    rig.start().await;
    send(&rig, "acme", "e-2", "Shop.Closed", json!({"shop": "s-1"})).await;
    let view = until(&rig, &path, |view| view["ended"].is_string()).await;
    assert_eq!(
        (&view["phase"], &view["failure"]["code"]),
        (&json!("failed"), &json!("closed"))
    );
    let ledger = view["ledger"].as_array().expect("a ledger");
    let found: Vec<(&str, &str)> = ledger
        .iter()
        .map(|entry| {
            (
                entry["step"].as_str().expect("a step"),
                entry["status"].as_str().expect("a status"),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("hold", "undone"),
            ("tell", "kept"),
            ("all.item", "kept"),
            ("all.item", "kept")
        ]
    );
}

/// Keeps what its event brings.
const HOARD: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: hoard
start: Hoard.Opened
key: {"Hoard.*": event.data.hoard}
state: {init: {text: ""}}
handlers: {Hoard.Opened: {set: {text: "${event.data.text}"}}}
machine:
  initial: open
  states:
    open: {handlers: {Hoard.Closed: {to: closed}}}
    closed: {final: true}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_whose_disk_is_full_stops_when_it_is_told() {
    let extra = json!({
        "shards": 1,
        "storage": {"max_bytes": 16 << 20},
        "shard": {"mailbox": 1},
    });
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.add_saga("hoard", HOARD);
    rig.start().await;
    let text = "x".repeat(200_000);
    let mut behind = 0;
    for number in 0..200 {
        let id = format!("h-{number}");
        let payload = json!({"hoard": id, "text": text});
        send(&rig, "acme", &id, "Hoard.Opened", payload).await;
        behind += u32::from(get(&rig, "/ready").await.status != 200);
        // As many as neither the mailbox nor the shard takes.
        if behind == 8 {
            break;
        }
    }
    assert_eq!(behind, 8, "the disk is full");
    let ended = tokio::time::timeout(Duration::from_secs(20), rig.terminate());
    assert_eq!(ended.await.expect("it ends"), Some(0), "{}", rig.log_tail());
}
