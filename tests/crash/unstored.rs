//! Streams of the runner that take no more, because they are full or because its user may not publish: it is not ready, says
//! why, and goes on by itself.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::nats_server::{NatsServer, Options};
use crate::support::rig::{Rig, order_payload};

/// Waits until `/ready` answers with this status, and names this and not that among its reasons.
async fn until_ready(rig: &Rig, status: u16, named: &str, not: &str) -> String {
    let begin = Instant::now();
    loop {
        let answer = rig.client.get(rig.url("/ready")).send().await.expect("an answer");
        let found = answer.status().as_u16();
        let body: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        let reasons = body["reasons"].to_string();
        if found == status && reasons.contains(named) && !reasons.contains(not) {
            return reasons;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{body}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The check of `/health` about what is published.
async fn publications(rig: &Rig) -> Value {
    let answer = rig
        .client
        .get(rig.url("/health"))
        .send()
        .await
        .expect("an answer");
    let body: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
    let checks = body["checks"].as_array().expect("checks");
    let named = checks.iter().find(|check| check["name"] == "publications");
    named.expect("there is one").clone()
}

/// A runner on the server that waits shortly until it calls something stuck.
async fn runner(server: &NatsServer, more: &Value) -> Rig {
    let mut nats = json!({"urls": [server.url()], "request_timeout": "500ms"});
    let more = more.as_object().expect("an object").clone();
    nats.as_object_mut().expect("an object").extend(more);
    let extra = json!({
        "broker": {"kind": "nats", "nats": nats},
        "relay": {"retry_max": "100ms"},
        "stalled_after": "1s",
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.start().await;
    rig
}

/// Lets a stream hold no more than it has.
async fn fill(context: &jetstream::Context, name: &str) {
    let mut stream = context.get_stream(name).await.expect("there");
    let info = stream.info().await.expect("known").clone();
    let bytes = i64::try_from(info.state.bytes).expect("small").max(1);
    context
        .update_stream(stream::Config {
            max_bytes: bytes,
            ..info.config
        })
        .await
        .expect("changed");
}

async fn widen(context: &jetstream::Context, name: &str) {
    let stream = context.get_stream(name).await.expect("there");
    let config = stream.cached_info().config.clone();
    context
        .update_stream(stream::Config {
            max_bytes: -1,
            ..config
        })
        .await
        .expect("changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_whose_stream_is_full_is_not_ready_until_there_is_room() {
    let server = NatsServer::start();
    let mut rig = runner(&server, &json!({})).await;
    let client = async_nats::connect(server.url()).await.expect("connects");
    let context = jetstream::new(client);
    assert_eq!(publications(&rig).await["ok"], true);

    // The relay's commands.
    fill(&context, "WORKFLOW_COMMANDS").await;
    rig.send("Order", "o-1", "Placed", order_payload("o-1")).await;
    let reasons = until_ready(&rig, 503, "WORKFLOW_COMMANDS: ", "WORKFLOW_EVENTS").await;
    assert!(reasons.contains("maximum bytes exceeded"), "{reasons}");
    assert_eq!(publications(&rig).await["ok"], false);

    // The worker's results.
    fill(&context, "WORKFLOW_EVENTS").await;
    widen(&context, "WORKFLOW_COMMANDS").await;
    until_ready(&rig, 503, "WORKFLOW_EVENTS: ", "WORKFLOW_COMMANDS").await;
    widen(&context, "WORKFLOW_EVENTS").await;
    until_ready(&rig, 200, "[]", "WORKFLOW").await;
    assert_eq!(publications(&rig).await["ok"], true);
    rig.wait_for("order", "o-1", |view| view["phase"] == "completed")
        .await;
    let charges = rig
        .upstream
        .deeds()
        .into_iter()
        .filter(|deed| deed.kind == "charges");
    assert_eq!(charges.count(), 1);
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

/// A server whose only user may not publish what `denied` names.
fn config(denied: &str) -> String {
    format!(
        "authorization {{ users = [ {{ user: u, password: p, permissions: {{ publish: {{ deny: [{denied}] }} }} }} ] }}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_may_not_publish_is_not_ready_until_it_may() {
    let denied = config("\"tenant.*.effect.>\"");
    let server = NatsServer::start_with(&Options {
        config: denied.clone(),
        ..Options::default()
    });
    let password = server.folder().join("password");
    std::fs::write(&password, "p").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("set");
    let user = json!({"user": "u", "password_file": password});
    let mut rig = runner(&server, &user).await;
    rig.send("Order", "o-1", "Placed", order_payload("o-1")).await;
    until_ready(&rig, 503, "WORKFLOW_COMMANDS: ", "WORKFLOW_EVENTS").await;
    let file = server.folder().join("server.conf");
    let text = std::fs::read_to_string(&file).expect("readable");
    std::fs::write(&file, text.replace(&denied, &config("\"nothing\""))).expect("written");
    server.signal(Signal::SIGHUP);
    until_ready(&rig, 200, "[]", "WORKFLOW").await;
    rig.wait_for("order", "o-1", |view| view["phase"] == "completed")
        .await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
