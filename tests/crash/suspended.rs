//! Workers that stand still for longer than their commands stay with them, and consumers that are made again: nothing is called twice, and
//! no call is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::calls::{Bank, effect, saga};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// How long a command stays with a worker that is not heard of.
const ACK_WAIT: &str = "3s";

async fn process(server: &NatsServer, mode: &str, bank: &str, worker: Value) -> Rig {
    let extra = json!({"mode": mode, "upstreams": {"bank": bank}, "worker": worker});
    let rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_another_worker_has_carried_out_are_not_called_by_one_that_was_suspended_before_it_read_them()
 {
    let server = NatsServer::start();
    let (bank, url) = Bank::open(Duration::ZERO).await;
    let mut rigs = Vec::new();
    for mode in ["saga", "effect", "effect"] {
        let mut rig = process(&server, mode, &url, json!({"ack_wait": ACK_WAIT})).await;
        rig.add_saga("retry", &saga("retry"));
        rig.add_effect("pay-retry", &effect("retry", 10, "2s"));
        rig.start().await;
        rigs.push(rig);
    }
    let (owner, suspended) = (&rigs[0], &rigs[1]);
    let paid = async |key: &str| {
        owner.send("Payout", key, "Payout.retry", json!({})).await;
        key.to_owned()
    };
    let is_done = |view: &Value| view["phase"] == "completed";
    let first = paid("first").await;
    owner.wait_for("retry", &first, is_done).await;

    suspended.signal(Signal::SIGSTOP);
    let mut keys = vec![first];
    for number in 0..20 {
        keys.push(paid(&format!("p-{number}")).await);
    }
    for key in &keys {
        owner.wait_for("retry", key, is_done).await;
    }
    suspended.signal(Signal::SIGCONT);
    // It leaves what it had been sent, and takes part again.
    let begin = Instant::now();
    while !std::fs::read_to_string(suspended.log())
        .expect("a log")
        .contains("stood still")
    {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{}",
            suspended.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = paid("last").await;
    owner.wait_for("retry", &last, is_done).await;
    keys.push(last);
    let calls = bank.calls();
    for key in &keys {
        assert_eq!(calls.get(key), Some(&1), "{key}: {calls:?}");
    }
}

const ORDER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: order
start: Order.Placed
key: {"Order.*": event.aggregate_id}
state: {init: {}}
steps:
  pay: {effect: pay, with: {}, compensate: {effect: refund, with: {}}}
"#;

const PAY: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: pay
http: {method: POST, url: "${upstreams.bank}/pay"}
timeout: {total: 1s}
retry: {attempts: 3, backoff: {initial: 4s, max: 4s}}
"#;

const REFUND: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: refund
http: {method: POST, url: "${upstreams.bank}/refund"}
"#;

/// A bank that books the first payment and does not answer in time, and refuses what comes again; and the numbers of payments and refunds.
async fn slow_bank() -> (String, Arc<[AtomicUsize; 2]>) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let (payments, refunds) = (Arc::clone(&counts), Arc::clone(&counts));
    let pay = move || {
        let number = payments[0].fetch_add(1, Ordering::SeqCst);
        async move {
            if number == 0 {
                std::future::pending::<()>().await;
            }
            StatusCode::CONFLICT
        }
    };
    let refund = move || {
        refunds[1].fetch_add(1, Ordering::SeqCst);
        async { StatusCode::OK }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let routes = Router::new()
        .route("/pay", post(pay))
        .route("/refund", post(refund));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_answer_is_known_to_the_workers_of_another_consumer() {
    let server = NatsServer::start();
    let (url, counts) = slow_bank().await;
    let mut rigs = Vec::new();
    for (mode, worker) in [
        ("saga", json!({})),
        ("effect", json!({})),
        ("effect", json!({"consumers": {"by": "tenant"}})),
    ] {
        let rig = process(&server, mode, &url, worker).await;
        rig.add_saga("order", ORDER);
        rig.add_effect("pay", PAY);
        rig.add_effect("refund", REFUND);
        rigs.push(rig);
    }
    let [owner, before, after] = &mut rigs[..] else {
        unreachable!()
    };
    owner.start().await;
    before.start().await;
    owner.send("Order", "o-1", "Placed", json!({})).await;
    let instance = "/v1/tenants/acme/sagas/order/instances/o-1/why";
    let begin = Instant::now();
    loop {
        let answer = owner
            .client
            .get(owner.url(instance))
            .send()
            .await
            .expect("an answer");
        let told = answer.text().await.expect("a body");
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        if told["evidence"]["pending"][0]["calls"]["made"] == 1 || told["pending"][0]["calls"]["made"] == 1 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{told}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(before.terminate().await, Some(0));
    after.start().await;
    let view = owner
        .wait_for("order", "o-1", |view| view["phase"] == "failed")
        .await;
    let counts = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [2, 1], "{view}");
    assert_eq!(view["ledger"][0]["status"], "undone", "{view}");
}
