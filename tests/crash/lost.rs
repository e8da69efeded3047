//! A server that lost its newest messages with its power, and has grown again before the runner is back.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};

async fn order(rig: &Rig, id: &str) {
    rig.send("Order", id, "Placed", order_payload(id)).await;
    rig.wait_for("order", id, |_| true).await;
}

/// Stores events as other producers do.
async fn produce(url: &str, orders: std::ops::Range<u32>) {
    let client = async_nats::connect(url).await.expect("connected");
    let stream = jetstream::new(client);
    for number in orders {
        let id = format!("n-{number}");
        let body = event_body("Order", &id, "Placed", &order_payload(&id));
        let subject = format!("tenant.{TENANT}.aggregate.Order.{id}");
        let stored = stream.publish(subject, body.into()).await.expect("sent");
        stored.await.expect("stored");
    }
}

/// What `/health` says once some shard or stream is halted.
async fn halted(rig: &Rig, reason: &str) -> Value {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        if let Ok(answer) = rig.client.get(rig.url("/health")).send().await {
            let text = answer.text().await.expect("a body");
            if text.contains(reason) {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const STREAMS: [&str; 3] = ["AGGREGATE_EVENTS", "WORKFLOW_EVENTS", "WORKFLOW_COMMANDS"];

/// What was lost is looked for soon.
fn soon() -> Value {
    json!({
        "worker": {"ack_wait": "2s"},
        "shard": {"sweep_every": "200ms", "sweep_after": "1s"},
        "relay": {"recheck_after": "1s"},
    })
}

/// Whatever the runner does meanwhile: nothing of what stands in the place of lost messages is skipped in silence.
async fn stands_still(is_stopped: bool, extra: Value) -> (NatsServer, Rig) {
    let mut server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.start().await;
    order(&rig, "o-1").await;
    server.remember();
    for id in ["o-2", "o-3", "o-4"] {
        order(&rig, id).await;
    }
    if is_stopped {
        rig.terminate().await;
    }
    server.lose();
    let port = server.launch_elsewhere();
    produce(&server.url(), 0..40).await;
    server.kill();
    server.launch_at(port);
    if is_stopped {
        rig.launch();
    }
    let health = halted(&rig, "has grown again").await.to_string();
    assert!(health.contains("stream.identity"), "{health}");
    assert!(rig.instance("order", "n-39").await.is_none());
    (server, rig)
}

/// Says of every shard and stream that needs it that the stream is to be read as it is.
async fn rebind(rig: &Rig) {
    accept(rig, "rebind", &STREAMS).await;
}

async fn accept(rig: &Rig, verb: &str, streams: &[&str]) {
    for stream in streams {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command.args([
            "shard",
            verb,
            "--stream",
            stream,
            "--reason",
            "the server lost power",
            "--yes",
        ]);
        command.args(["--url", &rig.url("")]);
        let begin = Instant::now();
        loop {
            let output = command.output().expect("the command runs");
            match output.status.code() {
                // There is nothing to accept.
                Some(0 | 5) => break,
                // What was read is on its way.
                Some(69) if begin.elapsed() < Duration::from_secs(30) => {}
                code => panic!("{code:?}: {output:?}\n{}", rig.log_tail()),
            }
        }
    }
    let begin = Instant::now();
    loop {
        if let Ok(answer) = rig.client.get(rig.url("/ready")).send().await {
            if answer.status().is_success() {
                return;
            }
            let reasons = answer.text().await.expect("a body");
            assert!(
                begin.elapsed() < Duration::from_mins(1),
                "{reasons}\n{}",
                rig.log_tail()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// After the verb the runner reads what stands in the stream, and what it had done before is not done again.
async fn goes_on(rig: &Rig) {
    let path = "/admin/shards/0/rebind";
    let body = json!({"stream": STREAMS[0], "dry_run": true});
    let answer = rig
        .client
        .post(rig.url(path))
        .header("content-type", "application/json")
        .body(body.to_string())
        .send()
        .await
        .expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("a body"));
    let plan: Value = serde_json::from_str(&text).expect("JSON");
    assert!(status.is_success(), "{plan}");
    assert_eq!(
        (&plan["done"], &plan["found"]),
        (&json!(false), &json!("stream.identity")),
        "{plan}"
    );
    assert!(
        plan["new_position"].as_u64() < plan["position"].as_u64(),
        "{plan}"
    );
    assert_eq!(plan["to_read"]["to"], 41, "{plan}");
    rebind(rig).await;
    for id in ["o-1", "o-2", "o-4", "n-0", "n-39"] {
        let view = rig
            .wait_for("order", id, |view| view["phase"] == "completed")
            .await;
        assert_eq!(view["generation"], 1, "{view}");
    }
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(log.contains("a position is moved by an operator"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_was_stopped_reads_on_only_when_an_operator_says_so() {
    let (_server, rig) = stands_still(true, soon()).await;
    goes_on(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_runs_reads_on_only_when_an_operator_says_so() {
    let (_server, rig) = stands_still(false, soon()).await;
    goes_on(&rig).await;
}

/// By the message at the position the runner would know the stream; without it nothing there is taken for read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_the_place_of_lost_ones_are_read_although_the_one_at_the_position_was_removed() {
    // One shard has read all four orders, up to the position.
    let mut extra = soon();
    extra["shards"] = json!(1);
    let (server, rig) = stands_still(false, extra).await;
    let client = async_nats::connect(server.url()).await.expect("connected");
    let events = jetstream::new(client)
        .get_stream(STREAMS[0])
        .await
        .expect("there");
    // The orders o-1 to o-4 were read; n-0 to n-2 stand in the place of the last three.
    assert!(events.delete_message(4).await.expect("deleted"));
    rebind(&rig).await;
    for id in ["o-1", "n-0", "n-1", "n-3", "n-39"] {
        rig.wait_for("order", id, |view| view["phase"] == "completed")
            .await;
    }
}

/// Orders that wait for their upstream while the streams of the runner are deleted and created again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_published_again_into_streams_that_were_created_again() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::from_millis(300), soon()).await;
    rig.start().await;
    for number in 0..10 {
        rig.send(
            "Order",
            &format!("o-{number}"),
            "Placed",
            order_payload(&format!("o-{number}")),
        )
        .await;
    }
    rig.kill();
    let client = async_nats::connect(server.url()).await.expect("connected");
    let streams = jetstream::new(client);
    for stream in &STREAMS[1..] {
        streams.delete_stream(stream).await.expect("deleted");
    }
    rig.launch();
    halted(&rig, "stream.identity").await;
    rebind(&rig).await;
    for number in 0..10 {
        rig.wait_for("order", &format!("o-{number}"), |view| {
            view["phase"] == "completed"
        })
        .await;
    }
}

/// Events that are purged before the runner has read them, while it is stopped or stands still.
async fn goes_on_behind_a_gap(is_stopped: bool) {
    let server = NatsServer::start();
    let mut extra = soon();
    // The server sends no more ahead than that.
    extra["intake"] = json!({"buffer": 2, "batch_messages": 2});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.start().await;
    order(&rig, "o-1").await;
    if is_stopped {
        rig.terminate().await;
    } else {
        rig.signal(Signal::SIGSTOP);
    }
    produce(&server.url(), 0..20).await;
    let client = async_nats::connect(server.url()).await.expect("connected");
    let events = jetstream::new(client)
        .get_stream(STREAMS[0])
        .await
        .expect("there");
    events.purge().sequence(12).await.expect("purged");
    if is_stopped {
        rig.launch();
    } else {
        rig.signal(Signal::SIGCONT);
    }
    halted(&rig, "stream.gap").await;
    produce(&server.url(), 20..25).await;
    // A restart is no way around the operator, though a reader that begins anew would see no gap.
    rig.terminate().await;
    rig.launch();
    let health = halted(&rig, "stream.gap").await.to_string();
    assert!(health.contains("messages"), "{health}");
    assert!(rig.instance("order", "n-24").await.is_none());
    accept(&rig, "accept-gap", &STREAMS[..1]).await;
    for id in ["o-1", "n-19", "n-24"] {
        rig.wait_for("order", id, |view| view["phase"] == "completed")
            .await;
    }
    let body = json!({"stream": STREAMS[0], "reason": "again"}).to_string();
    let answer = rig.client.post(rig.url("/admin/shards/0/accept-gap"));
    let answer = answer
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await;
    assert_eq!(
        answer.expect("an answer").status(),
        409,
        "there is nothing left to accept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_was_stopped_goes_on_behind_a_gap_when_an_operator_says_so() {
    goes_on_behind_a_gap(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_runs_goes_on_behind_a_gap_when_an_operator_says_so() {
    goes_on_behind_a_gap(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_gone_while_the_runner_runs_is_named_by_its_check() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, soon()).await;
    rig.start().await;
    order(&rig, "o-1").await;
    let client = async_nats::connect(server.url()).await.expect("connected");
    let deleted = jetstream::new(client).delete_stream(STREAMS[0]).await;
    assert!(deleted.expect("deleted").success);
    let wanted = "it is not being read: stream AGGREGATE_EVENTS does not exist";
    let health = halted(&rig, wanted).await;
    let checks = health["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == STREAMS[0]);
    assert_eq!(check.expect("a check")["ok"], false, "{health}");
}
