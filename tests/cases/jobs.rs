//! Jobs over many instances, on a real broker: killed in the middle, commanded from another process, contended for.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use saga_runner::ports::broker::Broker;
use serde_json::{Value, json};

use super::{connect, publish};
use crate::api::caller::{Answer, get, items, post};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, event_body};

pub(super) const ASK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ask
start: Ask.Opened
key: {"Ask.*": event.data.ask}
state: {init: {heard: 0}}
handlers:
  Ask.Noted: {set: {heard: "${state.heard + 1}"}}
steps:
  approve: {wait: {signal: approve}}
"#;

pub(super) const JOBS: &str = "/v1/tenants/acme/jobs";
const BUCKET: &str = "WORKFLOW_CLUSTER";

async fn started(server: &NatsServer, extra: Value) -> Rig {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("ask", ASK);
    rig.start().await;
    rig
}

pub(super) async fn counted(rig: &Rig, query: &str) -> u64 {
    let counted = get(rig, &format!("/v1/tenants/acme/instances/count?{query}")).await;
    counted.json()["instances"].as_u64().expect("a number")
}

async fn opened(rig: &Rig, server: &NatsServer, count: usize) {
    let broker = connect(&server.url()).await;
    for number in 0..count {
        let key = format!("a-{number:05}");
        let body = event_body("Ask", &key, "Opened", &json!({"ask": key}));
        publish(broker.as_ref(), "Ask", &key, body).await;
    }
    let begin = Instant::now();
    while counted(rig, "phase=running").await < count as u64 {
        assert!(begin.elapsed() < Duration::from_mins(2), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn skip(rate: u32) -> Value {
    json!({
        "verb": "skip", "step": "approve", "filter": {"saga": "ask", "phase": "running"}, "rate": rate,
        "reason": "approved on paper", "by": "ada",
    })
}

pub(super) async fn start(rig: &Rig, order: &Value) -> String {
    let answer = post(rig, JOBS, order.to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["id"].as_str().expect("an id").to_owned()
}

pub(super) async fn show(rig: &Rig, id: &str) -> Value {
    get(rig, &format!("{JOBS}/{id}")).await.json()
}

async fn command(rig: &Rig, id: &str, command: &str) -> Answer {
    let body = json!({"by": "bob", "reason": "a look"}).to_string();
    post(rig, &format!("{JOBS}/{id}/{command}"), body).await
}

pub(super) async fn until(rig: &Rig, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let job = show(rig, id).await;
        if wanted(&job) {
            return job;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(2),
            "{job}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn ended(rig: &Rig, id: &str) -> Value {
    until(rig, id, |job| job["ended"].is_string()).await
}

/// How often each instance has had the part of a job, and what became of it.
async fn parts(rig: &Rig, id: &str, count: usize) -> BTreeMap<(usize, String), usize> {
    let mut found = BTreeMap::new();
    for number in 0..count {
        let path = format!("/v1/tenants/acme/sagas/ask/instances/a-{number:05}/history");
        let history = get(rig, &path).await.json();
        let rows: Vec<&Value> = items(&history).iter().filter(|row| row["input"] == id).collect();
        let outcomes: Vec<&str> = rows.iter().filter_map(|row| row["outcome"].as_str()).collect();
        *found.entry((rows.len(), outcomes.join(","))).or_insert(0) += 1;
    }
    found
}

fn cli(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("job").args(arguments);
    command.args(["--tenant", "acme", "--url", &rig.url("")]);
    command.output().expect("the binary starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_process_is_killed_in_the_middle_does_each_instance_exactly_once() {
    const COUNT: usize = 1_200;
    let server = NatsServer::start();
    let mut rig = started(&server, json!({})).await;
    opened(&rig, &server, COUNT).await;
    let id = start(&rig, &skip(400)).await;
    let handled = |job: &Value| job["handled"].as_u64().unwrap_or_default();
    until(&rig, &id, |job| handled(job) >= 200).await;
    rig.kill();
    rig.start().await;
    let seen = show(&rig, &id).await;
    assert!(
        (200..1_200).contains(&handled(&seen)),
        "it was in the middle: {seen}"
    );
    // One that comes into the filter now is none of its business.
    rig.send("Ask", "late", "Ask.Opened", json!({"ask": "late"}))
        .await;
    let job = ended(&rig, &id).await;
    assert_eq!(job["state"], "completed", "{job}");
    for (count, expected) in [
        ("selected", 1_200),
        ("handled", 1_200),
        ("applied", 1_200),
        ("failed", 0),
    ] {
        assert_eq!(job[count], expected, "{count}: {job}");
    }
    assert_eq!(job["ignored"], json!({}), "{job}");
    let parts = parts(&rig, &id, COUNT).await;
    assert_eq!(parts, BTreeMap::from([((1, "applied".to_owned()), COUNT)]));
    assert_eq!(counted(&rig, "phase=completed").await, 1_200);
    rig.wait_for("ask", "late", |view| view["phase"] == "running")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_changes_nothing_and_names_the_first_twenty() {
    let server = NatsServer::start();
    let rig = started(&server, json!({"jobs": {"instances_max": 30}})).await;
    opened(&rig, &server, 25).await;
    let mut order = skip(50);
    order["dry_run"] = json!(true);
    let answer = post(&rig, JOBS, order.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let plan = answer.json();
    assert_eq!(
        (&plan["selected"], &plan["dry_run"]),
        (&json!(25), &json!(true)),
        "{plan}"
    );
    assert_eq!(plan["instances"].as_array().map(Vec::len), Some(20), "{plan}");
    let arguments = [
        "start",
        "cancel",
        "--saga",
        "ask",
        "--key-prefix",
        "a-0000",
        "--reason",
        "no more",
    ];
    let dry = cli(&rig, &[&arguments[..], &["--dry-run"]].concat());
    let told = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(
        dry.status.success() && told.contains("10 instance(s) selected; nothing was changed"),
        "{told}"
    );
    let silent = cli(&rig, &arguments);
    let told = String::from_utf8_lossy(&silent.stderr).into_owned();
    assert_eq!(silent.status.code(), Some(64), "{told}");
    assert!(told.contains("cancel is sent to 10 instance(s)"), "{told}");
    assert_eq!(items(&get(&rig, JOBS).await.json()).len(), 0, "there is no job");
    assert_eq!(counted(&rig, "phase=running").await, 25);

    let yes = cli(&rig, &[&arguments[..], &["--yes", "-o", "json"]].concat());
    let job: Value = serde_json::from_slice(&yes.stdout).expect("JSON");
    let id = job["id"].as_str().expect("an id");
    let job = ended(&rig, id).await;
    assert_eq!(
        (&job["applied"], &job["state"]),
        (&json!(10), &json!("completed")),
        "{job}"
    );
    assert_eq!(counted(&rig, "phase=running").await, 15);
    let told = cli(&rig, &["list"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(id) && told.contains("completed"), "{told}");

    // The same once more finds nothing, and another verb only what it does not concern.
    let mut resume = skip(1_000);
    resume["verb"] = json!("resume");
    resume["filter"] = json!({"saga": "ask"});
    resume.as_object_mut().expect("an object").remove("step");
    let id = start(&rig, &resume).await;
    let job = ended(&rig, &id).await;
    assert_eq!(job["applied"], 0, "{job}");
    assert_eq!(job["ignored"], json!({"nothing_to_do": 15, "ended": 10}), "{job}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_cannot_be_carried_out_is_refused_and_too_many_instances_fail_it() {
    let server = NatsServer::start();
    let rig = started(
        &server,
        json!({"jobs": {"instances_max": 3, "kept_max": 2, "active_max": 1}}),
    )
    .await;
    opened(&rig, &server, 4).await;
    let with = |name: &str, value: Value| {
        let mut order = skip(50);
        order[name] = value;
        order
    };
    for (order, told) in [
        (with("verb", json!("destroy")), "unknown variant"),
        (with("filter", json!({})), "needs a `filter`"),
        (with("filter", json!({"fase": "running"})), "fase"),
        (with("filter", json!({"phase": "stopped"})), "is not one of"),
        (with("filter", json!({"where": "state.("})), "where"),
        (with("filter", json!({"limit": "3"})), "limit"),
        (with("reason", json!(" ")), "reason"),
        (with("rate", json!(0)), "rate"),
        (with("rate", json!(1_001)), "rate"),
        (with("ended", json!(true)), "ended"),
        (with("mode", json!("drain")), "mode"),
        (
            with("step", Value::Null)
                .as_object()
                .map(|order| {
                    let mut order = order.clone();
                    order.remove("step");
                    order.insert("as".to_owned(), json!("done"));
                    Value::Object(order)
                })
                .expect("an object"),
            "say which",
        ),
        (with("to", json!("sha256:1")), "to"),
        (with("to_all", json!(1)), "to_all"),
    ] {
        let problem = post(&rig, JOBS, order.to_string())
            .await
            .is_problem(400, "SR0501");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(told), "{order}: {detail}");
    }
    get(&rig, &format!("{JOBS}/job-1"))
        .await
        .is_problem(404, "SR0502");
    command(&rig, "job-1", "stop").await.is_problem(404, "SR0502");

    let id = start(&rig, &skip(50)).await;
    let job = ended(&rig, &id).await;
    assert_eq!(job["state"], "failed", "{job}");
    assert!(
        job["message"]
            .as_str()
            .is_some_and(|told| told.contains("jobs.instances_max")),
        "{job}"
    );
    assert_eq!(
        (&job["sent"], counted(&rig, "phase=running").await),
        (&json!(0), 4)
    );
    command(&rig, &id, "stop").await.is_problem(409, "SR0503");
    get(&rig, &format!("/v1/tenants/globex/jobs/{id}"))
        .await
        .is_problem(404, "SR0502");

    // As many are kept as the manifest says: the oldest that has ended makes room.
    let one = json!({"saga": "ask", "key_prefix": "a-00000"});
    let second = start(&rig, &with("filter", one.clone())).await;
    ended(&rig, &second).await;
    let third = start(&rig, &with("filter", one)).await;
    ended(&rig, &third).await;
    get(&rig, &format!("{JOBS}/{id}")).await.is_problem(404, "SR0502");
    assert_eq!(items(&get(&rig, JOBS).await.json()).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_no_sagas_commands_jobs_and_one_that_is_stopped_sends_nothing_more() {
    let server = NatsServer::start();
    let bounds = json!({"jobs": {"active_max": 1}});
    let rig = started(&server, bounds.clone()).await;
    opened(&rig, &server, 60).await;
    let mut other = Rig::new(Some(server.url()), "30m", Duration::ZERO, bounds).await;
    other.clear_definitions();
    other.add_saga("ask", ASK);
    other.start_as("effect").await;
    let id = start(&other, &skip(5)).await;
    until(&other, &id, |job| job["handled"].as_u64() >= Some(5)).await;
    let second = post(&other, JOBS, skip(5).to_string()).await;
    second.is_problem(409, "SR0503");
    let paused = command(&other, &id, "pause").await;
    assert_eq!(
        (paused.status, &paused.json()["state"]),
        (200, &json!("paused")),
        "{paused:?}"
    );
    command(&other, &id, "pause").await.is_problem(409, "SR0503");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let job = show(&rig, &id).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(show(&rig, &id).await["handled"], job["handled"], "it is paused");
    assert_eq!(job["message"], "paused by bob: a look", "{job}");
    command(&other, &id, "resume").await;
    let before = job["handled"].as_u64();
    until(&other, &id, |job| job["handled"].as_u64() > before).await;
    let stopped = command(&other, &id, "stop").await;
    assert_eq!(stopped.status, 200, "{stopped:?}");
    let job = ended(&rig, &id).await;
    assert_eq!(job["state"], "stopped", "{job}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let done = job["applied"].as_u64().expect("a number");
    assert_eq!(
        counted(&rig, "phase=running").await,
        60 - done,
        "what was sent stands: {job}"
    );
    command(&other, &id, "resume").await.is_problem(409, "SR0503");
}

/// The record of the one job, as the broker has it.
async fn record(broker: &dyn Broker) -> (Value, u64) {
    let entry = broker.entry(BUCKET, "crash.jobs.0").await.expect("an answer");
    let entry = entry.expect("a record");
    let record = serde_json::from_slice(&entry.value).expect("JSON");
    (record, entry.revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_at_a_time_carries_on_a_job_and_another_one_when_its_lease_is_over() {
    let server = NatsServer::start();
    let rig = started(&server, json!({})).await;
    opened(&rig, &server, 40).await;
    let broker = connect(&server.url()).await;
    let id = start(&rig, &skip(5)).await;
    until(&rig, &id, |job| job["handled"].as_u64() >= Some(5)).await;
    // Another process takes it, as it may when a lease is over.
    let until_ms = jiff::Timestamp::now().as_millisecond() + 6_000;
    loop {
        let (mut taken, revision) = record(broker.as_ref()).await;
        taken["lease"] = json!({"holder": "another", "until": until_ms});
        let bytes = Bytes::from(taken.to_string());
        let put = broker
            .put_entry(BUCKET, "crash.jobs.0", bytes, Some(revision))
            .await;
        if put.is_ok() {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = show(&rig, &id).await["handled"].clone();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (kept, _) = record(broker.as_ref()).await;
    assert_eq!(kept["lease"]["holder"], "another", "{kept}");
    assert_eq!(
        show(&rig, &id).await["handled"],
        before,
        "this process leaves it alone"
    );
    let job = ended(&rig, &id).await;
    assert_eq!(
        (&job["state"], &job["applied"], &job["handled"]),
        (&json!("completed"), &json!(40), &json!(40))
    );
    assert!(jiff::Timestamp::now().as_millisecond() >= until_ms);
    let parts = parts(&rig, &id, 40).await;
    assert_eq!(parts, BTreeMap::from([((1, "applied".to_owned()), 40)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_a_shard_that_is_not_open() {
    let server = NatsServer::start();
    let rig = started(&server, json!({})).await;
    opened(&rig, &server, 30).await;
    let closed = post(&rig, "/admin/shards/1/close", "").await;
    assert_eq!(closed.status, 200, "{closed:?}");
    let id = start(&rig, &skip(1_000)).await;
    let job = until(&rig, &id, |job| job["waits_for_shard"] == 1).await;
    assert_eq!(
        (&job["state"], &job["sent"]),
        (&json!("selecting"), &json!(0)),
        "{job}"
    );
    let opened = post(&rig, "/admin/shards/1/open", "").await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let job = ended(&rig, &id).await;
    assert_eq!(
        (&job["applied"], &job["selected"]),
        (&json!(30), &json!(30)),
        "{job}"
    );
}
