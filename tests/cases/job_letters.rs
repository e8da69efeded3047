//! Jobs about dead letters on the embedded broker: each letter is decided once, although the process is killed in the middle.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::jobs::{JOBS, ended, start, until};
use crate::api::caller::{RATIO, get, instance, items, letters, post, send};
use crate::support::rig::Rig;

const SELECTED: usize = 30;
const OTHERS: usize = 5;

fn key(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number:03}")
}

async fn count(rig: &Rig, query: &str) -> u64 {
    let counted = get(rig, &format!("{}/count?{query}", letters("acme")))
        .await
        .json();
    counted["letters"].as_u64().unwrap_or_default()
}

async fn until_counted(rig: &Rig, wanted: usize) {
    while count(rig, "").await < wanted as u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Instances that divide by zero, and then by two.
async fn divided() -> Rig {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("ratio", RATIO);
    rig.start().await;
    for (prefix, count) in [("r", SELECTED), ("s", OTHERS)] {
        for number in 0..count {
            let key = key(prefix, number);
            for (id, kind, by) in [
                ("o", "Ratio.Opened", 1),
                ("z", "Ratio.Divided", 0),
                ("t", "Ratio.Divided", 2),
            ] {
                send(
                    &rig,
                    "acme",
                    &format!("{id}-{key}"),
                    kind,
                    json!({"ratio": key, "by": by}),
                )
                .await;
            }
        }
    }
    until_counted(&rig, SELECTED + OTHERS).await;
    rig
}

fn order(verb: &str, filter: &Value) -> Value {
    json!({"verb": verb, "filter": filter, "rate": 10, "reason": "ticket 9", "by": "ada"})
}

/// How many rows of a history say this with the id of the job.
async fn decisions(rig: &Rig, key: &str, outcome: &str, job: &str) -> usize {
    let path = format!("{}/history", instance("acme", "ratio", key));
    let history = get(rig, &path).await.json();
    let rows = items(&history).iter().filter(|row| row["outcome"] == outcome);
    let of_job = |row: &&Value| row["notes"].to_string().contains(&format!("\"job\":\"{job}\""));
    rows.filter(of_job).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_discards_dead_letters_decides_each_once_although_its_process_is_killed() {
    let mut rig = divided().await;
    let id = start(
        &rig,
        &order(
            "discard_letters",
            &json!({"key_prefix": "r-", "reason": "expression"}),
        ),
    )
    .await;
    let handled = |job: &Value| job["handled"].as_u64().unwrap_or_default();
    until(&rig, &id, |job| handled(job) >= 10).await;
    rig.kill();
    rig.start().await;
    let job = ended(&rig, &id).await;
    assert_eq!(job["state"], "completed", "{job}");
    for count in ["selected", "handled", "applied", "sent"] {
        assert_eq!(job[count], SELECTED, "{count}: {job}");
    }
    assert_eq!(
        (&job["failed"], &job["ignored"]),
        (&json!(0), &json!({})),
        "{job}"
    );
    assert_eq!(count(&rig, "").await, OTHERS as u64);
    for number in 0..SELECTED {
        let key = key("r", number);
        assert_eq!(decisions(&rig, &key, "discarded", &id).await, 1, "{key}");
        let view = get(&rig, &instance("acme", "ratio", &key)).await.json();
        assert_eq!(
            view["state"]["shares"],
            json!([50]),
            "what waited goes on: {view}"
        );
    }
    // What is not cured fails again, and is told; each letter is tried once, not the one that follows from it.
    let id = start(&rig, &order("retry_letters", &json!({"saga": "ratio"}))).await;
    let job = ended(&rig, &id).await;
    assert_eq!(
        (&job["selected"], &job["failed"], &job["applied"]),
        (&json!(5), &json!(5), &json!(0)),
        "{job}"
    );
    let failure = &job["failures"][0];
    assert!(failure["letter"].is_string(), "{job}");
    assert!(
        failure["message"]
            .as_str()
            .is_some_and(|told| told.contains("again: expression")),
        "{job}"
    );
    for number in 0..OTHERS {
        let key = key("s", number);
        assert_eq!(decisions(&rig, &key, "retried", &id).await, 1, "{key}");
    }
    assert_eq!(count(&rig, "").await, OTHERS as u64);
}

/// Divides at the start, so its dead letters have no instance.
const SHARE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ratio
start: Ratio.Opened
key: {"Ratio.*": event.data.ratio}
state: {init: {shares: []}}
handlers:
  Ratio.Opened: {set: {shares: ["${100 / event.data.by}"]}}
machine:
  initial: open
  states:
    open: {handlers: {Ratio.Closed: {to: closed}}}
    closed: {final: true}
"#;

fn cli(rig: &Rig, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("dead-letter").args(arguments);
    command.args(["--tenant", "acme", "--url", &rig.url("")]);
    command.output().expect("the binary starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_whose_cause_is_cured_are_retried_from_the_command_line_after_a_dry_run() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("ratio", SHARE);
    rig.start().await;
    for number in 0..3 {
        let key = key("r", number);
        let payload = json!({"ratio": key, "by": 0});
        send(&rig, "acme", &format!("o-{key}"), "Ratio.Opened", payload).await;
    }
    send(&rig, "acme", "bad", "Ratio.Opened", json!({"ratoi": "x"})).await;
    until_counted(&rig, 4).await;
    for (order, told) in [
        (order("retry_letters", &json!({})), "needs a `filter`"),
        (order("retry_letters", &json!({"phase": "failed"})), "phase"),
        (order("retry_letters", &json!({"kind": "x"})), "kind"),
        (order("retry_letters", &json!({"after": "0-1"})), "after"),
    ] {
        let problem = post(&rig, JOBS, order.to_string())
            .await
            .is_problem(400, "SR0501");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains(told)),
            "{problem}"
        );
    }
    let mut both = order("discard_letters", &json!({"saga": "ratio"}));
    both["all"] = json!(true);
    post(&rig, JOBS, both.to_string()).await.is_problem(400, "SR0501");
    let mut instances = order("pause", &json!({"saga": "ratio"}));
    instances["all"] = json!(true);
    post(&rig, JOBS, instances.to_string())
        .await
        .is_problem(400, "SR0501");

    rig.add_saga("ratio", &SHARE.replace("100 / event.data.by", "event.data.by"));
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let arguments = ["retry", "--saga", "ratio", "--reason", "ticket 9"];
    let dry = cli(&rig, &[&arguments[..], &["--dry-run"]].concat());
    let told = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(
        told.contains("3 dead letter(s) selected; nothing was changed"),
        "{dry:?}"
    );
    let silent = cli(&rig, &arguments);
    assert_eq!(silent.status.code(), Some(64), "{silent:?}");
    for wrong in [
        &["retry"][..],
        &["retry", "0-1", "--all"],
        &["discard", "0-1", "--saga", "x", "--yes"],
    ] {
        assert_eq!(cli(&rig, wrong).status.code(), Some(64), "{wrong:?}");
    }
    assert_eq!(count(&rig, "").await, 4);
    let started = cli(&rig, &[&arguments[..], &["--yes", "-o", "json"]].concat());
    let job: Value = serde_json::from_slice(&started.stdout).expect("JSON");
    let job = ended(&rig, job["id"].as_str().expect("an id")).await;
    assert_eq!(
        (&job["applied"], &job["ignored"]),
        (&json!(3), &json!({})),
        "{job}"
    );
    for number in 0..3 {
        let view = get(&rig, &instance("acme", "ratio", &key("r", number)))
            .await
            .json();
        assert_eq!(view["state"]["shares"], json!([0]), "{view}");
    }
    // What could not be read cannot be retried, and all can be discarded.
    let started = cli(
        &rig,
        &["discard", "--all", "--reason", "ticket 9", "--yes", "-o", "json"],
    );
    let job: Value = serde_json::from_slice(&started.stdout).expect("JSON");
    let job = ended(&rig, job["id"].as_str().expect("an id")).await;
    assert_eq!(job["applied"], 1, "{job}");
    assert_eq!(count(&rig, "").await, 0);
}
