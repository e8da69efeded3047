//! Ended instances that are deleted before their time.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{Answer, get, instance, post, send, until};
use crate::support::rig::Rig;

/// What starts it is heard by the next generation as well.
const DOOR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: door
start: Door.Opened
reuse: always
key: {"Door.*": event.data.door}
state: {init: {}}
steps:
  hold: {wait: {signal: close, timeout: 1h}}
"#;

const TOUR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tour
start: Tour.Booked
key: {"Tour.*": event.data.tour}
state: {init: {}}
steps:
  hotel: {saga: {name: hotel, key: "${key}-hotel", input: {}}, compensate: {saga: undo}}
  guide: {needs: [hotel], wait: {signal: guide, timeout: 1h}}
"#;

const HOTEL: &str = r"
apiVersion: sagas/v1
kind: Saga
name: hotel
input: {type: object}
state: {init: {}}
steps:
  room: {effect: room, with: {}}
";

async fn running() -> Rig {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"shards": 4})).await;
    for (name, text) in [("door", DOOR), ("tour", TOUR), ("hotel", HOTEL)] {
        rig.add_saga(name, text);
    }
    let room = "apiVersion: sagas/v1\nkind: Effect\nname: room\ntransform: {}\nresult: {}\n";
    rig.add_effect("room", room);
    rig.start().await;
    rig
}

async fn delete(rig: &Rig, path: &str, body: &Value) -> Answer {
    let request = rig.client.delete(rig.url(&format!("{path}?wait=20s")));
    let request = request.header("content-type", "application/json");
    Answer::of(request.body(body.to_string())).await
}

fn why() -> Value {
    json!({"by": "ada", "reason": "erasure 4711"})
}

async fn open(rig: &Rig, key: &str) -> String {
    let data = json!({"door": key, "secret": "s3cr3t"});
    send(rig, "acme", &format!("open-{key}"), "Door.Opened", data).await;
    let path = instance("acme", "door", key);
    until(rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

async fn close(rig: &Rig, path: &str) {
    let answer = post(rig, &format!("{path}/signals/close"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(rig, path, |view| view["ended"].is_string()).await;
}

fn cli(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(arguments)
        .args(["--tenant", "acme", "--url", &rig.url("")]);
    command.output().expect("the binary starts")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_instance_is_not_shown_and_does_not_begin_again_by_a_late_duplicate() {
    let mut rig = running().await;
    let path = open(&rig, "d-1").await;
    let body = json!({"by": "ada", "reason": "erasure 4711", "request_id": "del-1"});
    let problem = delete(&rig, &path, &body).await.is_problem(409, "SR0503");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains("only an instance that has ended"), "{detail}");
    close(&rig, &path).await;
    let silent = delete(&rig, &path, &json!({})).await;
    assert_eq!(silent.status, 400, "{silent:?}");

    for _again in 0..2 {
        let answer = delete(&rig, &path, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let outcome = &answer.json()["outcome"];
        assert_eq!(
            (&outcome["state"], &outcome["generation"]),
            (&json!("applied"), &json!(1))
        );
        assert!(outcome["notes"].to_string().contains("erasure 4711"), "{outcome}");
        rig.kill();
        rig.start().await;
    }
    for page in ["", "/history", "/why"] {
        assert_eq!(get(&rig, &format!("{path}{page}")).await.status, 404, "{page}");
    }
    let list = get(&rig, "/v1/tenants/acme/instances?saga=door").await.json();
    assert_eq!(list["items"], json!([]));
    let data = json!({"door": "d-1", "secret": "s3cr3t"});
    send(&rig, "acme", "open-d-1", "Door.Opened", data.clone()).await;
    // What comes behind the duplicate has been applied, so the duplicate has.
    send(&rig, "acme", "other", "Door.Opened", data).await;
    let view = until(&rig, &path, |view| view["phase"] == "running").await;
    assert_eq!(view["generation"], 2);
    let history = get(&rig, &format!("{path}/history")).await.json();
    assert!(!history.to_string().contains("open-d-1"), "{history}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_is_not_deleted_before_its_parent_has_ended() {
    let rig = running().await;
    send(&rig, "acme", "t-1", "Tour.Booked", json!({"tour": "t-1"})).await;
    let (parent, child) = (
        instance("acme", "tour", "t-1"),
        instance("acme", "hotel", "t-1-hotel"),
    );
    until(&rig, &parent, |view| view["steps"][1]["status"] == "waiting").await;
    let problem = delete(&rig, &child, &why()).await.is_problem(409, "SR0503");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("instance t-1 of saga tour has started it"),
        "{detail}"
    );
    let answer = post(&rig, &format!("{parent}/signals/guide"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(&rig, &parent, |view| view["ended"].is_string()).await;
    let answer = delete(&rig, &child, &why()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(get(&rig, &child).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_deletes_one_that_is_confirmed_and_a_job_all_that_have_ended() {
    let rig = running().await;
    for key in ["c-1", "c-2", "c-3"] {
        let path = open(&rig, key).await;
        close(&rig, &path).await;
    }
    open(&rig, "c-4").await;
    let one = [
        "instance", "delete", "door", "c-1", "--reason", "erasure", "--wait",
    ];
    let unsure = cli(&rig, &one);
    assert_eq!(unsure.status.code(), Some(64), "{}", told(&unsure));
    assert_eq!(get(&rig, &instance("acme", "door", "c-1")).await.status, 200);
    let sure = cli(&rig, &[&one[..], &["--yes"]].concat());
    assert!(sure.status.success(), "{}", told(&sure));
    assert_eq!(get(&rig, &instance("acme", "door", "c-1")).await.status, 404);
    let runs = cli(
        &rig,
        &["instance", "delete", "door", "c-4", "--reason", "x", "--yes"],
    );
    assert_eq!(runs.status.code(), Some(5), "{}", told(&runs));

    let order = json!({"verb": "delete", "filter": {"saga": "door"}, "reason": "erasure"});
    let started = post(&rig, "/v1/tenants/acme/jobs", order.to_string()).await;
    assert_eq!(started.status, 202, "{started:?}");
    let id = started.json()["id"].as_str().expect("an id").to_owned();
    let job = until(&rig, &format!("/v1/tenants/acme/jobs/{id}"), |job| {
        job["ended"].is_string()
    })
    .await;
    assert_eq!(
        (&job["selected"], &job["applied"]),
        (&json!(2), &json!(2)),
        "{job}"
    );
    let list = get(&rig, "/v1/tenants/acme/instances?saga=door").await.json();
    assert_eq!(list["items"][0]["key"], "c-4", "{list}");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
}

/// Opens the door once more, after it has been closed.
async fn reopen(rig: &Rig, key: &str, times: usize) -> String {
    let data = json!({"door": key, "secret": "again"});
    send(rig, "acme", &format!("{times}-open-{key}"), "Door.Opened", data).await;
    let path = instance("acme", "door", key);
    until(rig, &path, |view| {
        view["generation"] == times && view["steps"][0]["status"] == "waiting"
    })
    .await;
    path
}

async fn listed(rig: &Rig, filter: &str) -> usize {
    let list = get(rig, &format!("/v1/tenants/acme/instances?saga=door&{filter}")).await;
    list.json()["items"].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_generations_of_a_key_are_deleted_with_the_last_one_and_stay_while_it_runs() {
    let mut rig = running().await;
    let path = open(&rig, "g-1").await;
    close(&rig, &path).await;
    for times in 2..=3 {
        reopen(&rig, "g-1", times).await;
        close(&rig, &path).await;
    }
    let other = open(&rig, "g-2").await;
    close(&rig, &other).await;
    reopen(&rig, "g-1", 4).await;
    assert_eq!(listed(&rig, "phase=completed").await, 4);
    delete(&rig, &path, &why()).await.is_problem(409, "SR0503");
    assert_eq!(listed(&rig, "phase=completed").await, 4);
    close(&rig, &path).await;
    rig.kill();
    rig.start().await;
    let answer = delete(&rig, &path, &why()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(get(&rig, &path).await.status, 404);
    assert_eq!(listed(&rig, "phase=completed").await, 1, "that of the other key");
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(log.contains("\"earlier_generations\":3"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_about_the_last_generation_of_a_key_and_leaves_one_that_the_filter_does_not_select() {
    let rig = running().await;
    let path = open(&rig, "j-1").await;
    close(&rig, &path).await;
    reopen(&rig, "j-1", 2).await;
    let alone = open(&rig, "j-2").await;
    close(&rig, &alone).await;
    assert_eq!(listed(&rig, "phase=completed").await, 2);
    assert_eq!(listed(&rig, "phase=completed&last_generation=true").await, 1);
    assert_eq!(listed(&rig, "key_prefix=j-1").await, 2);
    assert_eq!(listed(&rig, "key_prefix=j-1&last_generation=true").await, 1);
    for verb in ["kill", "delete"] {
        let order = json!({"verb": verb, "filter": {"saga": "door", "phase": "completed"}, "reason": "r"});
        let mut dry = order.clone();
        dry["dry_run"] = json!(true);
        let plan = post(&rig, "/v1/tenants/acme/jobs", dry.to_string()).await.json();
        assert_eq!(plan["selected"], 1, "{plan}");
        assert_eq!(plan["instances"][0]["key"], "j-2", "{plan}");
        let started = post(&rig, "/v1/tenants/acme/jobs", order.to_string()).await;
        assert_eq!(started.status, 202, "{started:?}");
        let job = format!(
            "/v1/tenants/acme/jobs/{}",
            started.json()["id"].as_str().expect("an id")
        );
        let job = until(&rig, &job, |job| job["ended"].is_string()).await;
        assert_eq!(job["selected"], 1, "{job}");
        let view = get(&rig, &path).await.json();
        assert_eq!(
            (&view["phase"], &view["generation"]),
            (&json!("running"), &json!(2))
        );
    }
}
