//! A server that lost its newest messages with its power, and has grown again before the runner is back.

use std::time::{Duration, Instant};

use async_nats::jetstream;
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
async fn halted(rig: &Rig) -> Value {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        if let Ok(answer) = rig.client.get(rig.url("/health")).send().await {
            let text = answer.text().await.expect("a body");
            if text.contains("stream.identity") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whatever the runner does meanwhile: nothing of what stands in the place of lost messages is skipped in silence.
async fn stands_still(is_stopped: bool) {
    let mut server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
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
    let health = halted(&rig).await.to_string();
    assert!(health.contains("has grown again"), "{health}");
    assert!(rig.instance("order", "n-39").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_was_stopped_does_not_read_on() {
    stands_still(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_runs_does_not_read_on() {
    stands_still(false).await;
}
