//! Commands that would change nothing are refused, and the command line says so.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, post, runner, send, until};
use crate::support::rig::Rig;

/// Waits for a signal, fails on another event.
const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Patient.Opened
key: {"Patient.*": event.data.id}
state: {init: {}}
handlers:
  Patient.Refused: {fail: {code: refused}}
  signal.note: {set: {note: "${signal.text} by ${signal.by}"}}
after_end:
  signal.note: {set: {late: "${signal.text}"}}
steps:
  approval: {wait: {signal: approve, timeout: 1h}}
  parcel: {needs: [approval], wait: {signal: shipped, timeout: 1h}}
"#;

async fn running() -> Rig {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    rig
}

async fn opened(rig: &Rig, key: &str) -> String {
    send(
        rig,
        "acme",
        &format!("open-{key}"),
        "Patient.Opened",
        json!({"id": key}),
    )
    .await;
    let path = instance("acme", "patient", key);
    until(rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

/// Exit code, standard output and standard error of `saga-runner instance VERB patient KEY`.
fn command(rig: &Rig, verb: &str, key: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args([
        "instance",
        verb,
        "patient",
        key,
        "--json",
        "--tenant",
        "acme",
        "--url",
        &rig.url(""),
    ]);
    let output = command.args(more).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_would_change_nothing_is_refused_with_the_reason() {
    let rig = running().await;
    let path = opened(&rig, "p-1").await;
    let before = get(&rig, &path).await.json();
    for (verb, body, told) in [
        ("signals/aprove", json!({}), "takes approve, note, shipped"),
        (
            "retry",
            json!({}),
            "nothing of instance p-1, which is running, is stuck",
        ),
        ("retry", json!({"step": "typo"}), "has no step typo"),
        ("retry", json!({"step": "approval"}), "is waiting, not stuck"),
        (
            "skip",
            json!({"reason": "not needed"}),
            "to skip a step that is in progress, say which",
        ),
        (
            "skip",
            json!({"step": "approval", "as": "not_done", "reason": "not needed"}),
            "leave out `as`",
        ),
        (
            "resolve",
            json!({}),
            "nothing of instance p-1, which is running, is stuck",
        ),
        (
            "resolve",
            json!({"step": "approval", "as": "not_done"}),
            "not stuck",
        ),
    ] {
        let answer = post(&rig, &format!("{path}/{verb}"), body.to_string()).await;
        let problem = answer.is_problem(409, "SR0503");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(told), "{verb}: {detail}");
    }
    let deep = format!("{{\"data\":{{\"a\":{}{}}}}}", "[".repeat(100), "]".repeat(100));
    post(&rig, &format!("{path}/signals/approve"), deep)
        .await
        .is_problem(400, "SR0501");
    assert_eq!(get(&rig, &path).await.json(), before, "and nothing was stored");

    // What is waited for later is kept for it.
    let early = post(&rig, &format!("{path}/signals/shipped"), "{}").await;
    assert_eq!(early.status, 202, "{early:?}");
    until(&rig, &path, |view| view["buffer"][0]["name"] == "shipped").await;

    let note = json!({"data": {"text": "tired"}, "by": "ada"}).to_string();
    let noted = post(&rig, &format!("{path}/signals/note"), note).await;
    assert_eq!(noted.status, 202, "{noted:?}");
    until(&rig, &path, |view| view["state"]["note"] == "tired by ada").await;

    send(&rig, "acme", "e-9", "Patient.Refused", json!({"id": "p-1"})).await;
    until(&rig, &path, |view| view["ended"].is_string()).await;
    let late = json!({"data": {"text": "gone"}}).to_string();
    assert_eq!(
        post(&rig, &format!("{path}/signals/note"), late).await.status,
        202
    );
    until(&rig, &path, |view| view["state"]["late"] == "gone").await;
    for (verb, told) in [
        (
            "cancel",
            "instance p-1 is failed: only a running one can be cancelled",
        ),
        (
            "signals/approve",
            "instance p-1 is failed, and its saga says nothing about the signal approve under after_end",
        ),
        ("retry", "instance p-1 has ended, it is failed: nothing is stuck"),
    ] {
        let problem = post(&rig, &format!("{path}/{verb}"), "{}")
            .await
            .is_problem(409, "SR0503");
        assert!(
            problem["detail"].as_str().unwrap_or_default().contains(told),
            "{problem}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_repeated_is_answered_as_the_first() {
    let rig = running().await;
    let path = opened(&rig, "p-2").await;
    let body = json!({"request_id": "r-1", "reason": "enough"}).to_string();
    let first = post(&rig, &format!("{path}/cancel"), body.clone()).await;
    assert_eq!((first.status, &first.json()["duplicate"]), (202, &json!(false)));
    until(&rig, &path, |view| view["ended"].is_string()).await;
    let again = post(&rig, &format!("{path}/cancel"), body).await;
    assert_eq!((again.status, &again.json()["duplicate"]), (202, &json!(true)));
    assert_eq!(again.json()["sequence"], first.json()["sequence"]);
    let other = json!({"request_id": "r-2"}).to_string();
    post(&rig, &format!("{path}/cancel"), other)
        .await
        .is_problem(409, "SR0503");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_says_stored_of_what_is_of_use_alone() {
    let rig = running().await;
    let path = opened(&rig, "p-3").await;
    for (verb, key, more, code, told) in [
        ("retry", "p-3", &[][..], 5, "is stuck"),
        (
            "skip",
            "p-3",
            &["--step", "typo", "--reason", "not needed"],
            5,
            "has no step typo",
        ),
        ("cancel", "absent", &[], 4, "no instance absent"),
        (
            "show",
            "absent",
            &[],
            4,
            "no instance absent of saga patient of tenant acme",
        ),
        (
            "resolve",
            "p-3",
            &["--step", "approval", "--as", "done"],
            5,
            "not stuck",
        ),
    ] {
        let (exit, shown, errors) = command(&rig, verb, key, more);
        assert_eq!(exit, Some(code), "{verb}: {errors}");
        assert_eq!(shown, "", "{verb}");
        assert!(
            errors.contains(told) && !errors.contains("stored"),
            "{verb}: {errors}"
        );
    }
    let (exit, shown, errors) = command(&rig, "cancel", "p-3", &["--reason", "enough"]);
    assert_eq!(exit, Some(0), "{errors}");
    assert!(errors.contains("request stored"), "{errors}");
    let stored: Value = serde_json::from_str(&shown).expect("JSON");
    let view = until(&rig, &path, |view| view["ended"].is_string()).await;
    let entry = view["history"].as_array().expect("entries").iter();
    let entry = entry
        .into_iter()
        .find(|entry| entry["sequence"] == stored["sequence"]);
    assert_eq!(entry.expect("it is told")["kind"], "cancel");
}
