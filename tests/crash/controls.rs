//! What operators ask for is stored before they are answered: it is done once, whoever dies before it is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::connect;
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT};

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
input: {type: object}
state: {init: {reminded: 0}}
timers:
  remind: {after: 1h, set: {reminded: "${state.reminded + 1}"}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
"#;

async fn rig(server: &NatsServer, extra: Value) -> Rig {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    rig
}

async fn ask(rig: &Rig, path: &str, body: &Value) -> Value {
    let url = rig.url(&format!("/v1/tenants/{TENANT}/sagas/patient/instances{path}"));
    let request = rig.client.post(url).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await.expect("an answer");
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("text");
    assert!(
        [201, 202].contains(&status),
        "{path}: {status} {text}\n{}",
        rig.log_tail()
    );
    serde_json::from_str(&text).expect("JSON")
}

async fn waiting(rig: &Rig, key: &str) {
    ask(rig, "", &json!({"key": key})).await;
    let waits = |view: &Value| view["steps"][0]["status"] == "waiting";
    rig.wait_for("patient", key, waits).await;
}

/// How often a request was applied, by the history.
fn applied(view: &Value, request: &str) -> usize {
    let rows = view["history"].as_array().expect("a history").iter();
    rows.filter(|row| row["input"] == request && row["outcome"] == "applied")
        .count()
}

/// Waits until the shards have read all that is stored.
async fn all_is_read(rig: &Rig, url: &str) {
    let last = {
        let broker = connect(url).await;
        let state = broker.stream_state("WORKFLOW_COMMANDS").await.expect("a stream");
        state.last_sequence
    };
    let begin = Instant::now();
    loop {
        let answer = rig.client.get(rig.url("/admin/shards")).send().await;
        let text = answer.expect("an answer").text().await.expect("text");
        let shards: Value = serde_json::from_str(&text).expect("JSON");
        let behind = |shard: &Value| {
            let streams = shard["positions"].to_string();
            !streams.contains(&format!("\"WORKFLOW_COMMANDS\":{last}"))
        };
        if !shards["items"].as_array().expect("a list").iter().any(behind) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{last}: {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_that_are_stored_while_nobody_works_on_the_instance_are_done_once_however_often_they_stand_there()
 {
    let server = NatsServer::start();
    let extra = json!({"intake": {"watermark_interval": "100ms"}});
    let mut owner = rig(&server, extra).await;
    let mut asked = rig(&server, json!({"mode": "effect"})).await;
    let who = |request: &str| json!({"by": "ann", "reason": "asked to", "request_id": request});
    for key in ["pause", "kill", "fire", "clear", "again", "anew"] {
        waiting(&owner, key).await;
    }
    for key in ["again", "anew"] {
        ask(&owner, &format!("/{key}/kill"), &who(&format!("before-{key}"))).await;
        owner
            .wait_for("patient", key, |view| view["phase"] == "cancelled")
            .await;
    }
    owner.kill();

    let mut again = who("r-again");
    again["ended"] = json!(true);
    let wanted = [
        ("/pause/pause", who("r-pause")),
        ("/kill/kill", who("r-kill")),
        ("/fire/timers/remind/fire", who("r-fire")),
        ("/clear/timers/remind/cancel", who("r-clear")),
        ("/again/retry", again),
        ("/anew/restart", who("r-anew")),
    ];
    let broker = connect(&server.url()).await;
    let raw = async_nats::connect(server.url()).await.expect("connected");
    for (path, body) in &wanted {
        let first = ask(&asked, path, body).await;
        assert_eq!(
            (&first["checked"], &first["duplicate"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(ask(&asked, path, body).await["duplicate"], true, "{path}");
        // A broker that has forgotten its ids stores the same once more.
        let sequence = first["sequence"].as_u64().expect("a sequence");
        let stored = broker
            .message_at("WORKFLOW_COMMANDS", sequence)
            .await
            .expect("readable");
        let stored = stored.expect("it is there");
        assert!(
            stored.subject.starts_with("runner.crash.control.acme.patient."),
            "{stored:?}"
        );
        for _ in 0..2 {
            raw.publish(stored.subject.clone(), stored.payload.clone())
                .await
                .expect("sent");
        }
    }
    raw.flush().await.expect("flushed");
    asked.kill();

    owner.start().await;
    all_is_read(&owner, &server.url()).await;
    let shown = async |key: &str| owner.instance("patient", key).await.expect("there");
    let view = shown("pause").await;
    assert_eq!(view["blocked_by"]["paused"]["by"], "ann", "{view}");
    assert_eq!(applied(&view, "r-pause"), 1, "{view}");
    let view = shown("kill").await;
    assert_eq!(view["failure"]["code"], "killed", "{view}");
    assert_eq!(applied(&view, "r-kill"), 1, "{view}");
    let view = shown("fire").await;
    assert_eq!(view["state"]["reminded"], 1, "{view}");
    assert_eq!(applied(&view, "r-fire"), 1, "{view}");
    let view = shown("clear").await;
    assert_eq!(applied(&view, "r-clear"), 1, "{view}");
    assert!(!view["timers"].to_string().contains("remind"), "{view}");
    for key in ["again", "anew"] {
        let view = shown(key).await;
        assert_eq!(
            (&view["generation"], &view["phase"]),
            (&json!(2), &json!("running")),
            "{view}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_whose_runner_is_killed_right_behind_its_answer_is_done_once() {
    let server = NatsServer::start();
    let mut owner = rig(&server, json!({})).await;
    waiting(&owner, "p-1").await;
    let mut requests = Vec::new();
    for round in 0..8 {
        let (verb, is_paused) = [("pause", true), ("resume", false)][round % 2];
        let request = format!("r-{round}");
        let answer = ask(
            &owner,
            &format!("/p-1/{verb}"),
            &json!({"by": "ann", "request_id": request}),
        )
        .await;
        assert_eq!(answer["checked"], true);
        owner.kill();
        owner.start().await;
        let wanted = |view: &Value| view["blocked_by"]["paused"].is_null() != is_paused;
        owner.wait_for("patient", "p-1", wanted).await;
        requests.push(request);
    }
    ask(&owner, "/p-1/signals/go", &json!({})).await;
    let view = owner
        .wait_for("patient", "p-1", |view| view["phase"] == "completed")
        .await;
    for request in requests {
        assert_eq!(applied(&view, &request), 1, "{request}: {view}");
    }
}

/// Whoever loses the answer repeats the request under its id, and learns what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_answer_was_lost_in_a_kill_is_repeated_and_answered_and_begins_one_instance() {
    let server = NatsServer::start();
    let mut rig = rig(&server, json!({})).await;
    for (n, after_ms) in [0_u64, 1, 2, 4, 6, 8, 12, 20].into_iter().enumerate() {
        let (key, request) = (format!("lost-{n}"), format!("i-{n}"));
        let url = rig.url(&format!("/v1/tenants/{TENANT}/sagas/patient/instances?wait=20s"));
        let body = json!({"key": key, "input": {}}).to_string();
        let send = |client: &reqwest::Client| {
            let request = client.post(&url).header("idempotency-key", &request);
            request
                .header("content-type", "application/json")
                .body(body.clone())
                .send()
        };
        let first = tokio::spawn(send(&rig.client));
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        rig.kill();
        // It was answered in time, or not at all.
        let first = first
            .await
            .expect("it ends")
            .map(|answer| answer.status().as_u16());
        assert!(first.is_err() || matches!(first, Ok(201)), "{first:?}");
        rig.start().await;
        let again = send(&rig.client).await.expect("an answer");
        assert_eq!(
            again.status().as_u16(),
            201,
            "after {after_ms} ms: {}",
            rig.log_tail()
        );
        let again: Value = serde_json::from_str(&again.text().await.expect("text")).expect("JSON");
        assert_eq!(again["outcome"]["state"], "applied", "{again}");
        let view = rig
            .wait_for("patient", &key, |view| view["phase"] == "running")
            .await;
        assert_eq!(
            (&view["generation"], applied(&view, &request)),
            (&json!(1), 1),
            "{view}"
        );
    }
}
