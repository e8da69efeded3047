//! Ended instances that go to the archive before they are deleted.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::caller::{Answer, get, instance, post, send, until};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const DOOR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: door
start: Door.Opened
key: {"Door.*": event.data.door}
state: {init: {n: 7}}
steps:
  hold: {wait: {signal: close, timeout: 1h}}
"#;

const STREAM: &str = "WORKFLOW_ARCHIVE";

async fn running(nats: Option<&NatsServer>, extra: Value) -> Rig {
    let mut rig = Rig::new(nats.map(NatsServer::url), "30m", Duration::ZERO, extra).await;
    rig.add_saga("door", DOOR);
    rig.start().await;
    rig
}

async fn open(rig: &Rig, key: &str) -> String {
    send(
        rig,
        "acme",
        &format!("open-{key}"),
        "Door.Opened",
        json!({"door": key}),
    )
    .await;
    let path = instance("acme", "door", key);
    until(rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

async fn close(rig: &Rig, path: &str) {
    let answer = post(rig, &format!("{path}/signals/close"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
}

/// Messages in the archive. With the embedded broker nothing may run.
fn entries(rig: &Rig) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(["streams", "check", "-o", "json", "--config"])
        .arg(rig.manifest());
    let output = command.output().expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let lines = lines["items"].as_array().or_else(|| lines.as_array());
    let mut lines = lines.expect("a list").iter();
    let line = lines.find(|line| line["name"] == STREAM).expect("the archive");
    line["messages"].as_u64().expect("a number")
}

/// What a check of the doctor says while nothing runs.
fn doctor(rig: &Rig, check: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(["doctor", "-o", "json", "--config"])
        .arg(rig.manifest());
    let output = command.output().expect("the binary starts");
    let told: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let mut checks = told["items"].as_array().expect("a list").iter();
    let found = checks.find(|found| found["check"] == check);
    found.unwrap_or_else(|| panic!("{check}: {told}"))["detail"]
        .as_str()
        .expect("a detail")
        .to_owned()
}

async fn delete(rig: &Rig, path: &str, wait: &str) -> Answer {
    let request = rig.client.delete(rig.url(&format!("{path}?wait={wait}")));
    let body = json!({"by": "ada", "reason": "erasure", "request_id": "del-1"});
    let request = request.header("content-type", "application/json");
    Answer::of(request.body(body.to_string())).await
}

/// Asserts that the archive has what the instance has taken, page by page, and that it can be replayed from there.
async fn is_replayed(rig: &Rig, path: &str) {
    let all = get(rig, &format!("{path}/inputs")).await.json();
    assert_eq!((&all["archived"], &all["left_out"]), (&json!(true), &json!(0)));
    let inputs = all["inputs"].as_array().expect("inputs");
    assert_eq!(
        inputs[0]["input"]["event"]["payload"],
        json!({"door": "d-0"}),
        "{all}"
    );
    let signal = inputs
        .iter()
        .find(|input| input["input"]["signal"]["name"] == "close");
    assert!(signal.is_some(), "{all}");
    let first = get(rig, &format!("{path}/inputs?limit=1")).await.json();
    let next = first["next"].as_str().expect("more");
    let rest = get(rig, &format!("{path}/inputs?limit=100&after={next}"))
        .await
        .json();
    assert_eq!(rest["inputs"].as_array().expect("inputs")[..], inputs[1..]);
    assert!(rest["next"].is_null(), "{rest}");
    let forged = get(rig, &format!("{path}/inputs?after=archived-x")).await;
    assert_eq!(forged.status, 400, "{forged:?}");
    let (is_ok, told) = replay(rig, path);
    assert!(is_ok && told.starts_with("ok"), "{told}");
}

/// Whether an instance is replayed as it was, and what is told of it.
fn replay(rig: &Rig, path: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("replay").arg(rig.folder());
    command.arg("--from").arg(rig.url(&format!("{path}/inputs")));
    let output = command.output().expect("the binary starts");
    let told = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&told).into_owned(),
    )
}

/// Text that cannot be compressed by much.
fn noise(bytes: usize) -> String {
    let parts = (0..bytes / 64).map(|part| blake3::hash(&part.to_le_bytes()).to_hex().to_string());
    parts.collect()
}

/// Closes a door with data that an entry has no room for, and gives what the archive then says of its inputs.
async fn closed_with(storage: Value, data: &str) -> (Rig, String) {
    let rig = running(None, json!({"storage": storage})).await;
    let path = open(&rig, "d-0").await;
    let body = json!({"data": {"note": data}}).to_string();
    let answer = post(&rig, &format!("{path}/signals/close"), body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(&rig, &path, |view| view["archived"] == true).await;
    (rig, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_do_not_fit_into_an_entry_are_told_as_left_out() {
    let cases = [
        json!({"entry_bytes_max": 16_384}),
        json!({"inputs_bytes_max": 2_000}),
    ];
    for archive in cases {
        let storage = json!({"keep_ended": "1ms", "archive": archive});
        let (rig, path) = closed_with(storage, &noise(40_000)).await;
        let shown = get(&rig, &path).await.json();
        let left_out = shown["inputs_left_out"].as_u64().expect("some were");
        assert!(shown["truncated"].is_null(), "the history is whole: {shown}");
        assert_eq!(shown["state"], json!({"n": 7}));
        let told = get(&rig, &format!("{path}/inputs")).await.json();
        let inputs = told["inputs"].as_array().expect("inputs");
        assert_eq!(told["left_out"], left_out);
        assert_eq!(inputs[0]["input"]["event"]["payload"], json!({"door": "d-0"}));
        let whole = inputs.len() - usize::try_from(left_out).expect("few");
        assert_eq!(
            inputs[whole]["input"]["missing"]["kind"], "signal close",
            "{archive}: {inputs:?}"
        );
        let (is_ok, told) = replay(&rig, &path);
        assert!(!is_ok && told.contains("was not kept"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_inputs_are_kept_the_archive_has_none() {
    let cases = [
        json!({"keep_ended": "1ms", "archive": {}, "keep_input_bytes": 0}),
        json!({"keep_ended": "1ms", "archive": {"inputs_bytes_max": 0}}),
    ];
    for storage in cases {
        let (rig, path) = closed_with(storage, "x").await;
        let answer = get(&rig, &format!("{path}/inputs")).await;
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.text.contains("without its inputs"), "{answer:?}");
        let history = get(&rig, &format!("{path}/history")).await.json();
        assert_eq!(history["archived"], true, "{history}");
    }
}

/// Whatever is killed at whatever time, each instance is in the archive once, and is shown from there.
async fn each_is_archived_once(nats: Option<NatsServer>) {
    const COUNT: usize = 40;
    let mut rig = running(
        nats.as_ref(),
        json!({"storage": {"keep_ended": "1ms", "archive": {}}}),
    )
    .await;
    let mut paths = Vec::new();
    for number in 0..COUNT {
        paths.push(open(&rig, &format!("d-{number}")).await);
    }
    for (number, path) in paths.iter().enumerate() {
        close(&rig, path).await;
        if number % 10 == 9 {
            rig.kill();
            rig.start().await;
        }
    }
    for path in &paths {
        let shown = until(&rig, path, |view| view["archived"] == true).await;
        assert_eq!(
            (&shown["phase"], &shown["state"], &shown["generation"]),
            (&json!("completed"), &json!({"n": 7}), &json!(1))
        );
        assert_eq!(shown["steps"][0]["status"], "done");
        assert!(shown["archived_at"].is_string(), "{shown}");
    }
    let list = get(&rig, "/v1/tenants/acme/instances").await.json();
    assert_eq!(list["items"], json!([]));
    let whole = get(&rig, &format!("{}/history", paths[0])).await.json();
    let rows = whole["items"].as_array().expect("rows");
    assert!(whole["archived"] == true && rows.len() >= 2, "{whole}");
    let first = get(&rig, &format!("{}/history?limit=1", paths[0])).await.json();
    let next = first["next"].as_str().expect("more");
    let rest = get(&rig, &format!("{}/history?limit=100&after={next}", paths[0]))
        .await
        .json();
    assert_eq!(rest["items"].as_array().expect("rows")[..], rows[1..]);
    let forged = get(&rig, &format!("{}/history?after=archived-x", paths[0])).await;
    assert_eq!(forged.status, 400, "{forged:?}");
    is_replayed(&rig, &paths[0]).await;
    // Nobody else's, and none that never was.
    for path in [instance("globex", "door", "d-1"), instance("acme", "door", "d-x")] {
        assert_eq!(get(&rig, &path).await.status, 404, "{path}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let shown = command.args([
        "instance",
        "show",
        "door",
        "d-1",
        "--tenant",
        "acme",
        "--url",
        &rig.url(""),
    ]);
    let shown = shown.output().expect("the binary starts");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && text.contains("Archived"), "{text}");
    rig.kill();
    assert_eq!(entries(&rig), COUNT as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_instance_is_archived_once_over_kills_and_shown_from_there() {
    each_is_archived_once(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_instance_is_archived_once_over_kills_and_shown_from_there_on_nats() {
    each_is_archived_once(Some(NatsServer::start())).await;
}

/// Waits until the process has told it.
async fn told(it: impl Future<Output = ()>) {
    let in_time = tokio::time::timeout(Duration::from_secs(30), it).await;
    in_time.expect("it is told within 30 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_archive_is_full_nothing_is_deleted_and_the_process_is_not_ready() {
    let full = json!({"storage": {"archive": {"max_bytes": 0}}, "stalled_after": "1s"});
    let mut rig = running(None, full).await;
    let path = open(&rig, "f-1").await;
    close(&rig, &path).await;
    until(&rig, &path, |view| view["ended"].is_string()).await;
    let refused = async {
        loop {
            let answer = delete(&rig, &path, "1s").await;
            assert_eq!(answer.status, 202, "{answer:?}");
            if answer.json()["outcome"]["reason"] == "archive" {
                return;
            }
        }
    };
    told(refused).await;
    let unready = async {
        loop {
            let answer = get(&rig, "/ready").await;
            if answer.status == 503 && answer.text.contains("the archive is full") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    told(unready).await;
    let metrics = get(&rig, "/metrics").await.text;
    for line in [
        "saga_runner_archive_waiting_instances 1",
        "saga_runner_archive_oldest_waiting_seconds ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let unhealthy = async {
        let (waits, why) = (
            "at least 1 ended instance(s) wait for the archive",
            "the archive is full",
        );
        loop {
            let health = get(&rig, "/health").await.json();
            let mut checks = health["checks"].as_array().expect("checks").iter();
            let check = checks.find(|check| check["name"] == "archive");
            let check = check.expect("one of the archive");
            let detail = check["detail"].as_str().expect("a detail");
            if check["ok"] == false && detail.contains(waits) && detail.contains(why) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    told(unhealthy).await;
    let shown = get(&rig, &path).await.json();
    assert!(
        shown["ended"].is_string() && shown["archived"].is_null(),
        "{shown}"
    );
    rig.kill();
    for (check, says) in [
        ("archive", "0 entries, 0 of 0 bytes"),
        ("instances for the archive", "at least 1 ended instance(s) wait"),
    ] {
        let detail = doctor(&rig, check);
        assert!(detail.contains(says), "{check}: {detail}");
    }
    let manifest = std::fs::read_to_string(rig.manifest()).expect("a manifest");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    manifest["storage"]["archive"] = json!({});
    std::fs::write(rig.manifest(), manifest.to_string()).expect("written");
    rig.start().await;
    // The first request may have been carried out by now.
    let answer = delete(&rig, &path, "20s").await;
    assert!([200, 404].contains(&answer.status), "{answer:?}");
    let shown = get(&rig, &path).await.json();
    assert_eq!((&shown["archived"], &shown["key"]), (&json!(true), &json!("f-1")));
    rig.kill();
    assert_eq!(entries(&rig), 1);
}

/// Tells that two seconds have passed.
const CLOCK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: clock
start: Clock.Opened
key: {"Clock.*": event.data.clock}
state: {init: {late: false}}
timers: {bell: {after: 2s, set: {late: true}}}
steps:
  hold: {wait: {signal: stop, timeout: 1h}}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_older_than_it_may_be_is_deleted_and_a_younger_one_stays() {
    let server = NatsServer::start();
    let archive = json!({"storage": {"keep_ended": "1ms", "archive": {"max_age": "1s"}}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, archive).await;
    rig.add_saga("door", DOOR);
    rig.add_saga("clock", CLOCK);
    rig.start().await;
    let old = open(&rig, "d-old").await;
    close(&rig, &old).await;
    until(&rig, &old, |view| view["archived"] == true).await;
    send(&rig, "acme", "c-1", "Clock.Opened", json!({"clock": "c-1"})).await;
    until(&rig, &instance("acme", "clock", "c-1"), |view| {
        view["state"]["late"] == true
    })
    .await;
    // It is looked at once the process has started.
    rig.kill();
    rig.start().await;
    let begin = Instant::now();
    while get(&rig, &old).await.status != 404 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let young = open(&rig, "d-young").await;
    close(&rig, &young).await;
    until(&rig, &young, |view| view["archived"] == true).await;
}

/// As a door, and its key can be used again.
fn gate() -> String {
    let text = DOOR.replace("Door", "Gate").replace("door", "gate");
    text.replace("key: ", "reuse: always\nkey: ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_generations_that_are_archived_together_the_newest_is_shown() {
    const COUNT: u64 = 12;
    let full = json!({"storage": {"keep_ended": "1ms", "archive": {"max_bytes": 0}}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, full).await;
    rig.add_saga("gate", &gate());
    rig.start().await;
    let path = |number: u64| instance("acme", "gate", &format!("g-{number}"));
    for (number, generation) in (0..COUNT).flat_map(|number| [(number, 1), (number, 2)]) {
        let id = format!("open-{number}-{generation}");
        let data = json!({"gate": format!("g-{number}")});
        send(&rig, "acme", &id, "Gate.Opened", data).await;
        let is_open =
            |view: &Value| view["generation"] == generation && view["steps"][0]["status"] == "waiting";
        until(&rig, &path(number), is_open).await;
        close(&rig, &path(number)).await;
        until(&rig, &path(number), |view| view["ended"].is_string()).await;
    }
    rig.kill();
    let manifest = std::fs::read_to_string(rig.manifest()).expect("a manifest");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    manifest["storage"]["archive"] = json!({});
    std::fs::write(rig.manifest(), manifest.to_string()).expect("written");
    rig.start().await;
    for number in 0..COUNT {
        let shown = until(&rig, &path(number), |view| view["archived"] == true).await;
        assert_eq!(shown["generation"], 2, "{shown}");
        let told = get(&rig, &format!("{}/inputs", path(number))).await.json();
        let of_it = told["inputs"].as_array().expect("inputs").iter();
        assert!(
            of_it
                .map(|input| &input["generation"])
                .all(|generation| *generation == 2),
            "{told}"
        );
    }
    rig.kill();
    assert_eq!(entries(&rig), 2 * COUNT);
}
