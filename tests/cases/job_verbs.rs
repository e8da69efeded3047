//! The verbs of jobs on the embedded broker, with the process killed in the middle: the selected instances have each their part once, and
//! no other has any.

use std::time::Duration;

use serde_json::{Value, json};

use super::jobs::{ASK, counted, ended, start, until};
use crate::api::caller::{get, items, post};
use crate::support::rig::Rig;

const SELECTED: usize = 30;
const OTHERS: usize = 10;

fn key(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number:03}")
}

/// A runner with instances of two kinds of keys, which wait.
async fn opened() -> Rig {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("ask", &asking(""));
    rig.start().await;
    for (prefix, count) in [("a", SELECTED), ("b", OTHERS)] {
        for number in 0..count {
            let key = key(prefix, number);
            rig.send("Ask", &key, "Ask.Opened", json!({"ask": key})).await;
        }
    }
    while counted(&rig, "phase=running").await < (SELECTED + OTHERS) as u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    rig
}

fn asking(more: &str) -> String {
    let refused = "  Ask.Refused: {fail: {code: refused}}\nsteps:";
    let text = ASK.replacen("steps:", refused, 1);
    format!("{text}{more}")
}

/// Carries out a job about the instances whose keys begin with `a`; its process is killed when it has begun.
async fn carried_out(rig: &mut Rig, mut order: Value) -> Value {
    order["rate"] = json!(10);
    order["reason"] = json!("ticket 7");
    order["by"] = json!("ada");
    let id = start(rig, &order).await;
    let handled = |job: &Value| job["handled"].as_u64().unwrap_or_default();
    until(rig, &id, |job| handled(job) >= 10).await;
    rig.kill();
    rig.start().await;
    let job = until(rig, &id, |job| handled(job) >= 10).await;
    assert!(handled(&job) < SELECTED as u64, "it was in the middle: {job}");
    let job = ended(rig, &id).await;
    assert_eq!(job["state"], "completed", "{job}");
    for count in ["selected", "handled", "applied", "sent"] {
        assert_eq!(job[count], SELECTED, "{count}: {job}");
    }
    assert_eq!(
        (&job["failed"], &job["ignored"]),
        (&json!(0), &json!({})),
        "{job}"
    );
    job
}

/// The view of each instance, and how often its history names the input of the job.
async fn instances(rig: &Rig, prefix: &str, count: usize, input: &str) -> Vec<(Value, usize)> {
    let mut found = Vec::new();
    for number in 0..count {
        let path = format!("/v1/tenants/acme/sagas/ask/instances/{}", key(prefix, number));
        let view = get(rig, &path).await.json();
        let history = get(rig, &format!("{path}/history")).await.json();
        let rows = items(&history).iter().filter(|row| row["input"] == input);
        found.push((view, rows.count()));
    }
    found
}

/// Each of the selected ones has had the input once, and is as wanted; no other one has, and they are as they were.
async fn exactly_the_selected(rig: &Rig, input: &str, wanted: impl Fn(&Value) -> bool) {
    for (view, rows) in instances(rig, "a", SELECTED, input).await {
        assert_eq!(rows, 1, "{view}");
        assert!(wanted(&view), "{view}");
    }
    for (view, rows) in instances(rig, "b", OTHERS, input).await {
        assert_eq!(rows, 0, "{view}");
        assert!(!wanted(&view), "{view}");
    }
}

fn of_a() -> Value {
    json!({"saga": "ask", "key_prefix": "a-"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_kills_ends_exactly_the_selected_instances_although_its_process_is_killed() {
    let mut rig = opened().await;
    let job = carried_out(&mut rig, json!({"verb": "kill", "filter": of_a()})).await;
    let id = job["id"].as_str().expect("an id");
    exactly_the_selected(&rig, id, |view| view["ended"].is_string()).await;
    assert_eq!(counted(&rig, "phase=running").await, OTHERS as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_pauses_holds_exactly_the_selected_instances_although_its_process_is_killed() {
    let mut rig = opened().await;
    let job = carried_out(&mut rig, json!({"verb": "pause", "filter": of_a()})).await;
    let id = job["id"].as_str().expect("an id");
    exactly_the_selected(&rig, id, |view| view["blocked_by"]["paused"]["by"] == "ada").await;
    assert_eq!(counted(&rig, "blocked_by=paused").await, SELECTED as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_retries_ended_instances_begins_each_once_again_although_its_process_is_killed() {
    let mut rig = opened().await;
    for number in 0..SELECTED {
        let key = key("a", number);
        rig.send("Ask", &key, "Ask.Refused", json!({"ask": key})).await;
    }
    // One of the others has failed as well.
    rig.send("Ask", "b-000", "Ask.Refused", json!({"ask": "b-000"}))
        .await;
    while counted(&rig, "phase=failed").await < SELECTED as u64 + 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut filter = of_a();
    filter["phase"] = json!("failed");
    let job = carried_out(
        &mut rig,
        json!({"verb": "retry", "ended": true, "filter": filter}),
    )
    .await;
    let id = job["id"].as_str().expect("an id");
    exactly_the_selected(&rig, id, |view| {
        view["generation"] == 2 && view["phase"] == "running"
    })
    .await;
    let other = get(&rig, "/v1/tenants/acme/sagas/ask/instances/b-000")
        .await
        .json();
    assert_eq!(
        (&other["phase"], &other["generation"]),
        (&json!("failed"), &json!(1)),
        "{other}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_migrates_moves_exactly_the_selected_instances_although_its_process_is_killed() {
    let mut rig = opened().await;
    rig.add_saga(
        "ask",
        &asking("  sign: {needs: [approve], wait: {signal: sign}}\n"),
    );
    let reloaded = post(&rig, "/admin/reload", "").await;
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    let versions = get(&rig, "/v1/definitions?saga=ask").await.json();
    let active = items(&versions).iter().find(|version| version["active"] == true);
    let hash = active.expect("one in force")["hash"]
        .as_str()
        .expect("a hash")
        .to_owned();
    let job = carried_out(&mut rig, json!({"verb": "migrate", "to": hash, "filter": of_a()})).await;
    let input = format!("migrate:{hash}:{}", job["id"].as_str().expect("an id"));
    exactly_the_selected(&rig, &input, |view| view["definition"] == hash.as_str()).await;
}
