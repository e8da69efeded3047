//! Who asks for a change and why, as bodies and flags say it, and what the audit has of the thing that was asked for.

use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api::audit::{OF_ACME, OF_ALL, records};
use crate::api::caller::{get, instance, items, post};
use crate::api::conflicts::{DIVIDE, PATIENT, STARTS};
use crate::api::forwarding::{pair, unavailable};
use crate::api::schedules::LEAP;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const PAUSE: &str = "/v1/tenants/acme/sagas/leap/schedule/pause";

async fn started() -> Rig {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    rig.add_saga("leap", LEAP);
    rig.add_effect("divide", DIVIDE);
    rig.start().await;
    rig
}

fn cli(rig: &Rig, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(arguments)
        .args(["--url", &rig.url("")])
        .env("USER", "ada")
        .output()
        .expect("the binary starts")
}

/// Who and why, by actions, the oldest first.
fn accounts(records: &[Value]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let told = records.iter().rev();
    told.map(|record| {
        let (action, by, reason) = (&record["action"], &record["by"], &record["reason"]);
        (text(action), text(by), text(reason))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_takes_who_and_why_which_the_audit_has() {
    let rig = started().await;
    let start = json!({"key": "p-1", "input": {}}).to_string();
    assert_eq!(post(&rig, STARTS, start).await.status, 201);
    let patient = instance("acme", "patient", "p-1");
    let account = json!({"by": "ann", "reason": "maintenance"}).to_string();
    let with = |more: Value| {
        let mut body = more;
        body["by"] = json!("ann");
        body["reason"] = json!("maintenance");
        body.to_string()
    };
    let requests = [
        (PAUSE.to_owned(), account.clone(), 200, "schedule.pause"),
        (
            PAUSE.replace("pause", "resume"),
            account.clone(),
            200,
            "schedule.resume",
        ),
        ("/admin/reload".to_owned(), account.clone(), 200, "reload"),
        (
            "/admin/shards/0/close".to_owned(),
            account.clone(),
            200,
            "shards.close",
        ),
        (
            "/admin/shards/0/open".to_owned(),
            account.clone(),
            200,
            "shards.open",
        ),
        (
            "/admin/shards/0/backup".to_owned(),
            account.clone(),
            200,
            "shards.backup",
        ),
        (
            "/admin/breakers/nobody".to_owned(),
            with(json!({"state": "open"})),
            404,
            "breakers",
        ),
        (
            "/admin/shards/0/rebind".to_owned(),
            with(json!({"stream": "NONE"})),
            0,
            "shards.rebind",
        ),
        (
            "/admin/shards/0/release".to_owned(),
            with(json!({})),
            0,
            "shards.release",
        ),
        (
            "/v1/definitions/sha256:00/migrate".to_owned(),
            account.clone(),
            0,
            "definitions.migrate",
        ),
        (
            format!("{patient}/signals/rest"),
            with(json!({"data": {}})),
            202,
            "instances.signals",
        ),
        (
            STARTS.to_owned(),
            with(json!({"key": "p-2", "input": {}})),
            201,
            "instances.start",
        ),
        (
            format!("{patient}/cancel"),
            account.clone(),
            202,
            "instances.cancel",
        ),
    ];
    let mut wanted = vec![("instances.start".to_owned(), "-".to_owned(), "-".to_owned())];
    for (path, body, status, action) in requests {
        let answer = post(&rig, &path, body).await;
        if status == 0 {
            assert!(
                [200, 400, 404, 409].contains(&answer.status),
                "{path}: {answer:?}"
            );
            assert!(!answer.text.contains("unknown field"), "{path}: {answer:?}");
        } else {
            assert_eq!(answer.status, status, "{path}: {answer:?}");
        }
        wanted.push((action.to_owned(), "ann".to_owned(), "maintenance".to_owned()));
    }
    let found = records(&rig, "", OF_ALL, wanted.len()).await;
    assert_eq!(accounts(&found), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_an_endpoint_does_not_read_is_refused_and_changes_nothing() {
    let rig = started().await;
    for (path, body) in [
        (PAUSE, "not json".to_owned()),
        (PAUSE, json!({"by": "ann", "until": "tomorrow"}).to_string()),
        (PAUSE, json!(["ann", "maintenance"]).to_string()),
        (PAUSE, json!({"by": "x".repeat(257)}).to_string()),
        (PAUSE, json!({"reason": "x".repeat(1_025)}).to_string()),
        ("/admin/reload", "not json".to_owned()),
        ("/admin/drain", json!({"timeout": "1s"}).to_string()),
        ("/admin/shards/0/close", json!({"shard": 1}).to_string()),
        ("/admin/shards/0/open", "null".to_owned()),
        ("/admin/shards/0/backup", "[]".to_owned()),
    ] {
        post(&rig, path, body).await.is_problem(400, "SR0501");
    }
    let schedule = get(&rig, "/v1/tenants/acme/sagas/leap/schedule").await.json();
    assert_eq!(schedule["paused"], false, "{schedule}");
    assert_eq!(get(&rig, "/ready").await.status, 200);
    // No body at all says nothing, as before.
    assert_eq!(post(&rig, PAUSE, "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_change_has_who_and_why_too_and_a_wrong_body_is_refused_where_it_comes_to() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (_owner, asked) = pair(&server, &upstream, json!({})).await;
    post(&asked, PAUSE, "not json").await.is_problem(400, "SR0501");
    let body = json!({"by": "ann", "reason": "maintenance"}).to_string();
    let begin = std::time::Instant::now();
    // The owner hears of forwarded requests a moment after it is ready.
    while post(&asked, PAUSE, body.clone()).await.status != 200 {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", asked.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let done = format!("{OF_ACME}&action=schedule.pause&outcome=done");
    let found = records(&asked, "", &done, 1).await;
    assert_eq!(
        (&found[0]["by"], &found[0]["reason"]),
        (&json!("ann"), &json!("maintenance"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_say_who_and_why() {
    let rig = started().await;
    let why = ["--reason", "maintenance"];
    for command in [
        &["schedule", "pause", "leap", "--tenant", "acme"][..],
        &["schedule", "resume", "leap", "--tenant", "acme"],
        &["reload"],
        &["shard", "close", "0"],
        &["shard", "open", "0"],
    ] {
        let output = cli(&rig, &[command, &why[..]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {told}");
    }
    let found = records(&rig, "", OF_ALL, 5).await;
    let wanted = [
        "schedule.pause",
        "schedule.resume",
        "reload",
        "shards.close",
        "shards.open",
    ];
    let wanted = wanted.map(|action| (action.to_owned(), "ada".to_owned(), "maintenance".to_owned()));
    assert_eq!(accounts(&found), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_a_job_says_which_instances_it_is_about_and_which_job_it_is() {
    let rig = started().await;
    let start = json!({"key": "p-1", "input": {}}).to_string();
    assert_eq!(post(&rig, STARTS, start).await.status, 201);
    let job = |dry_run: bool| {
        json!({
            "verb": "cancel", "filter": {"saga": "patient", "phase": "running"}, "rate": 7, "mode": "drain",
            "by": "ann", "reason": "recall", "dry_run": dry_run,
        })
        .to_string()
    };
    let jobs = "/v1/tenants/acme/jobs";
    assert_eq!(post(&rig, jobs, job(true)).await.status, 200);
    let started = post(&rig, jobs, job(false)).await;
    assert_eq!(started.status, 202, "{started:?}");
    let of_jobs = format!("{OF_ACME}&action=jobs.start&saga=patient");
    let found = records(&rig, "", &of_jobs, 2).await;
    let target = json!({
        "verb": "cancel", "filter": r#"{"phase":"running","saga":"patient"}"#, "saga": "patient", "rate": "7",
        "mode": "drain",
    });
    assert_eq!(
        (&found[1]["target"], &found[1]["dry_run"]),
        (&target, &json!(true))
    );
    let mut with_id = target;
    with_id["id"] = started.json()["id"].clone();
    assert_eq!(
        (&found[0]["target"], &found[0]["dry_run"]),
        (&with_id, &Value::Null)
    );
    let listed = cli(&rig, &["audit", "list", "--tenant", "acme", "--action", "jobs"]);
    let table = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(table.matches("jobs.start (dry run)").count(), 1, "{table}");
    // A deletion has an action of its own.
    let page = get(&rig, &format!("{OF_ACME}&action=instances.delete"))
        .await
        .json();
    assert_eq!(items(&page).len(), 0, "{page}");
    let delete = rig.client.delete(rig.url(&instance("acme", "patient", "absent")));
    let answer = delete.send().await.expect("answered");
    assert!(answer.status().is_client_error(), "{answer:?}");
    let deleted = records(&rig, "", &format!("{OF_ACME}&action=instances.delete"), 1).await;
    assert_eq!(deleted[0]["target"]["key"], "absent", "{deleted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_by_a_signal_is_recorded_with_its_outcome() {
    let rig = started().await;
    rig.signal(Signal::SIGHUP);
    let done = records(&rig, "", OF_ALL, 1).await;
    assert_eq!(
        (&done[0]["action"], &done[0]["principal"], &done[0]["outcome"]),
        (&json!("reload"), &json!("signal"), &json!("done"))
    );
    rig.add_saga("broken", "kind: Saga");
    rig.signal(Signal::SIGHUP);
    let found = records(&rig, "", &format!("{OF_ALL}&action=reload&principal=signal"), 2).await;
    assert_eq!(found[0]["outcome"], "refused", "{found:?}");
    assert_eq!(found[1], done[0]);
    assert_eq!(found[0]["method"], "SIGHUP", "{found:?}");
}
