//! Definitions change while the real binary runs, on both brokers.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

use std::time::Duration;

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT};
use serde_json::{Value, json};
use tokio::sync::watch;

const TALLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tally
start: Tally.Opened
key: {"Tally.*": event.data.tally}
state: {init: {seen: []}}
handlers:
  Tally.Counted: {set: {seen: "${state.seen + [event.data.n]}"}}
machine:
  initial: open
  states:
    open: {handlers: {Tally.Closed: {to: closed}}}
    closed: {final: true}
"#;

/// Counts in another way, and wants what no saga wanted before.
fn second() -> String {
    let handlers = "handlers:\n  Extra.Counted: {set: {seen: \"${state.seen + [0 - event.data.n]}\"}}";
    TALLY
        .replacen("handlers:", handlers, 1)
        .replacen("[event.data.n]", "[event.data.n * 1000]", 1)
        .replace("{\"Tally.*\"", "{\"Extra.*\": event.data.tally, \"Tally.*\"")
}

async fn runner(nats: Option<&NatsServer>) -> Rig {
    let mut rig = Rig::new(nats.map(NatsServer::url), "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("tally", TALLY);
    rig.start().await;
    rig
}

async fn reload(rig: &Rig) -> (u16, Value) {
    let answer = rig
        .client
        .post(rig.url("/admin/reload"))
        .send()
        .await
        .expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.text().await.expect("a body");
    (status, serde_json::from_str(&body).expect("JSON"))
}

async fn get(rig: &Rig, path: &str) -> Value {
    let answer = rig.client.get(rig.url(path)).send().await.expect("an answer");
    serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON")
}

async fn send(rig: &Rig, aggregate: &str, kind: &str, tally: &str, n: i64) {
    let body = json!({
        "tenant_id": TENANT, "event_id": format!("{aggregate}-{kind}-{tally}-{n}"), "event_type": kind,
        "aggregate_type": aggregate, "aggregate_id": tally, "sequence": 1, "schema_version": 1,
        "payload": {"tally": tally, "n": n}, "metadata": {"correlation_id": tally},
    });
    rig.send_body(body.to_string()).await;
}

/// Events flow without a pause; in the middle the saga changes. Instances from before keep their version, those from
/// after get the new one, and nobody misses an event or sees one twice.
async fn no_event_is_lost_or_doubled(rig: &Rig) {
    const EVENTS: i64 = 300;
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    for key in KEYS {
        send(rig, "Tally", "Opened", key, 0).await;
        rig.wait_for("tally", key, |view| view["phase"] == "running")
            .await;
    }
    let (sent, mut flowing) = watch::channel(0);
    let flow = async {
        for n in 1..=EVENTS {
            futures::future::join_all(KEYS.map(|key| send(rig, "Tally", "Counted", key, n))).await;
            sent.send_replace(n);
        }
    };
    let change = async {
        flowing
            .wait_for(|n| *n >= EVENTS / 10)
            .await
            .expect("events flow");
        rig.add_saga("tally", &second());
        let (status, answer) = reload(rig).await;
        assert_eq!((status, &answer["revision"]), (200, &json!(2)), "{answer}");
        assert_eq!(answer["sagas"][0]["saga"], "tally");
        assert_eq!(answer["problems"], json!([]));
        // From the answer on the new version sees everything, also what nobody wanted before.
        send(rig, "Tally", "Opened", "late", 0).await;
        for n in 1..=20 {
            send(rig, "Extra", "Counted", "late", n).await;
        }
        rig.add_saga(
            "tally",
            "apiVersion: sagas/v1\nkind: Saga\nname: tally\nstart: [}\n",
        );
        let (status, answer) = reload(rig).await;
        assert_eq!((status, &answer["code"]), (422, &json!("SR0508")), "{answer}");
        assert!(answer["errors"][0]["line"].is_u64(), "{answer}");
        rig.add_saga("tally", &second());
    };
    tokio::join!(flow, change);
    let expected: Vec<i64> = (1..=EVENTS).collect();
    for key in KEYS {
        let done = |view: &Value| {
            view["state"]["seen"]
                .as_array()
                .is_some_and(|seen| seen.len() >= expected.len())
        };
        let view = rig.wait_for("tally", key, done).await;
        let mut seen: Vec<i64> = serde_json::from_value(view["state"]["seen"].clone()).expect("numbers");
        seen.sort_unstable();
        assert_eq!(seen, expected, "{key} keeps its version");
    }
    let expected: Vec<i64> = (1..=20).map(|n| -n).collect();
    rig.wait_for("tally", "late", |view| view["state"]["seen"] == json!(expected))
        .await;

    let info = get(rig, "/info").await;
    assert_eq!(
        (&info["revision"], &info["reload"]["ok"]),
        (&json!(2), &json!(false))
    );
    let versions = get(rig, "/v1/definitions?saga=tally").await;
    let live: Vec<_> = (0..2)
        .map(|at| (&versions["items"][at]["active"], &versions["items"][at]["live"]))
        .collect();
    assert_eq!(
        live,
        [(&json!(true), &json!(1)), (&json!(false), &json!(4))],
        "{versions}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_and_doubles_nothing_on_the_embedded_broker() {
    let mut rig = runner(None).await;
    no_event_is_lost_or_doubled(&rig).await;
    // What is archived outlives the process, and the instances with it.
    rig.kill();
    rig.start().await;
    send(&rig, "Tally", "Counted", "a", 301).await;
    rig.wait_for("tally", "a", |view| view["state"]["seen"][300] == 301)
        .await;
    assert_eq!(get(&rig, "/ready").await["revision"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_and_doubles_nothing_on_nats() {
    let server = NatsServer::start();
    let rig = runner(Some(&server)).await;
    no_event_is_lost_or_doubled(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reloads_sagas_and_effects() {
    let rig = runner(None).await;
    rig.add_saga(
        "other",
        &TALLY
            .replace("name: tally", "name: other")
            .replace("Tally", "Other"),
    );
    rig.add_effect(
        "double",
        "apiVersion: sagas/v1\nkind: Effect\nname: double\ntransform: {}\nresult: {n: \"${input.n * 2}\"}\n",
    );
    rig.signal(nix::sys::signal::Signal::SIGHUP);
    for _ in 0..600 {
        if get(&rig, "/info").await["reload"]["ok"] == true {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let info = get(&rig, "/info").await;
    assert_eq!(
        (&info["revision"], &info["reload"]["ok"]),
        (&json!(2), &json!(true)),
        "{info}"
    );
    assert!(
        info["effects"]
            .as_array()
            .is_some_and(|effects| effects.contains(&json!("double")))
    );
    send(&rig, "Other", "Opened", "o", 0).await;
    rig.wait_for("other", "o", |view| view["phase"] == "running")
        .await;
    let metrics = metrics(&rig).await;
    assert!(
        metrics.contains("saga_runner_definitions_revision 2"),
        "{metrics}"
    );
    assert!(metrics.contains("saga=\"other\""));
}

async fn metrics(rig: &Rig) -> String {
    let answer = rig.client.get(rig.url("/metrics")).send().await;
    answer.expect("an answer").text().await.expect("text")
}

/// Keeps what it is told.
const ALBUM: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: album
start: Album.Opened
key: {"Album.*": event.data.album}
state: {init: {picture: ""}}
handlers:
  Album.Opened: {set: {picture: "${event.data.picture}"}}
machine:
  initial: open
  states:
    open: {handlers: {Album.Closed: {to: closed}}}
    closed: {final: true}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_without_room_for_a_reload_takes_it_with_the_next_one() {
    let storage = json!({"max_bytes": 16 << 20, "keep_ended": "1ms"});
    let extra = json!({"shards": 1, "storage": storage});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("album", ALBUM);
    rig.start().await;
    // Half of what the shard has room for.
    let albums: Vec<String> = (0..40).map(|n| format!("a-{n}")).collect();
    let event = async |album: &str, kind: &str, payload: Value| {
        rig.send("Album", album, kind, payload).await;
    };
    for album in &albums {
        event(
            album,
            "Opened",
            json!({"album": album, "picture": "x".repeat(200_000)}),
        )
        .await;
    }
    rig.wait_for("album", "a-39", |view| view["phase"] == "running")
        .await;
    // The other half, and more.
    for n in 0..10 {
        let text = TALLY.replace("name: tally", &format!("name: tally-{n}"));
        rig.add_saga(
            &format!("tally-{n}"),
            &format!("{text}# {}\n", "x".repeat(950_000)),
        );
    }
    for _ in 0..2 {
        let (status, body) = reload(&rig).await;
        assert_eq!(status, 200, "{body}");
        let problem = body["problems"][0].as_str().unwrap_or_default();
        assert!(problem.contains("shard 0: storage is full"), "{body}");
        let health = get(&rig, "/health").await;
        assert!(
            health
                .to_string()
                .contains("no room for the definitions of the last reload"),
            "{health}"
        );
    }
    for album in &albums {
        event(album, "Closed", json!({"album": album})).await;
    }
    let begin = std::time::Instant::now();
    loop {
        let (status, body) = reload(&rig).await;
        assert_eq!(
            (status, &body["sagas"]),
            (200, &json!([])),
            "nothing has changed: {body}"
        );
        if body["problems"] == json!([]) {
            break;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{body}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    send(&rig, "Tally", "Opened", "t-1", 1).await;
    rig.wait_for("tally-9", "t-1", |view| view["phase"] == "running")
        .await;
    let health = get(&rig, "/health").await;
    assert_eq!(health["healthy"], true, "{health}");
}

/// What a saga holds, from the first version on.
fn typed(state: &str, more: &str) -> String {
    TALLY.replace("state: {init: {seen: []}}", &format!("state: {state}")) + more
}

const SEEN: &str = "seen: {type: array, items: {type: integer}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_is_refused_that_no_live_instance_could_follow() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"shards": 1})).await;
    let first = format!(
        "{{init: {{seen: []}}, schema: {{type: object, properties: {{{SEEN}}}, additionalProperties: false}}}}"
    );
    rig.add_saga("tally", &typed(&first, ""));
    rig.start().await;
    send(&rig, "Tally", "Opened", "t-1", 0).await;
    rig.wait_for("tally", "t-1", |view| view["phase"] == "running")
        .await;
    let wider = format!(
        "{{init: {{seen: [], sum: 0}}, schema: {{type: object, required: [sum], properties: {{{SEEN}, sum: {{type: integer}}}}, additionalProperties: false}}}}"
    );
    rig.add_saga("tally", &typed(&wider, "on_change: migrate\n"));
    let (status, answer) = reload(&rig).await;
    assert_eq!(status, 422, "{answer}");
    let finding = &answer["errors"][0];
    assert_eq!(
        (&finding["code"], finding["line"].is_u64()),
        (&json!("SR0178"), true),
        "{answer}"
    );
    let message = finding["message"].as_str().expect("a sentence");
    assert!(
        message.contains("must have \"sum\", which nothing sets"),
        "{message}"
    );
    assert!(message.contains("1 live instance(s)"), "{message}");
    assert_eq!(get(&rig, "/info").await["revision"], 1);
    let told = metrics(&rig).await;
    assert!(told.contains("saga_runner_definitions_refused 1"), "{told}");

    let filled = "on_change: migrate\nmigrate: {set: {sum: \"${state.seen.size()}\"}}\n";
    rig.add_saga("tally", &typed(&wider, filled));
    let (status, answer) = reload(&rig).await;
    assert_eq!(status, 200, "{answer}");
    rig.wait_for("tally", "t-1", |view| view["state"]["sum"] == 0)
        .await;
    let told = metrics(&rig).await;
    assert!(told.contains("saga_runner_definitions_refused 0"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_tells_which_work_would_begin() {
    let rig = runner(None).await;
    for tally in ["t-1", "t-2"] {
        send(&rig, "Tally", "Opened", tally, 0).await;
        rig.wait_for("tally", tally, |view| view["phase"] == "running")
            .await;
    }
    rig.add_saga(
        "tally",
        &format!("{TALLY}steps:\n  tell: {{publish: {{type: tally.told}}}}\n"),
    );
    assert_eq!(reload(&rig).await.0, 200);
    let versions = get(&rig, "/v1/definitions?saga=tally").await;
    let active = versions["items"][0]["hash"].as_str().expect("a hash");
    let path = format!("/v1/definitions/{active}/migrate?dry_run=true");
    let answer = rig.client.post(rig.url(&path)).send().await.expect("an answer");
    let report: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
    assert_eq!(
        (&report["moved"], &report["dry_run"]),
        (&json!(2), &json!(true)),
        "{report}"
    );
    assert_eq!(
        report["starts"],
        json!({"steps.tell: fact tally.told": 2}),
        "{report}"
    );
    let view = get(&rig, &format!("/v1/tenants/{TENANT}/sagas/tally/instances/t-1")).await;
    assert!(!view.to_string().contains("tell"), "nothing has begun: {view}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_would_begin_an_instance_of_a_saga_that_is_gone_is_logged() {
    let rig = runner(None).await;
    send(&rig, "Tally", "Opened", "t", 0).await;
    rig.wait_for("tally", "t", |view| view["phase"] == "running")
        .await;
    rig.add_saga(
        "other",
        &TALLY
            .replace("name: tally", "name: other")
            .replace("Tally", "Other"),
    );
    rig.remove_file("sagas/tally.yaml");
    let (status, body) = reload(&rig).await;
    assert_eq!(status, 200, "{body}");
    send(&rig, "Tally", "Opened", "u", 0).await;
    let begin = std::time::Instant::now();
    while !rig.log_tail().contains("an event begins no instance") {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
