//! Bounds that lie between what belongs together: one event and its two sagas, a full outbox and the calls that would empty it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cases::{connect, phase_is, publish};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, event_body, order_payload};

/// A saga that counts what the other one counts, too.
fn counts(name: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: {name}
start: Pair.Opened
key: {{"Pair.*": event.data.pair}}
state: {{init: {{seen: []}}}}
handlers:
  Pair.Added: {{set: {{seen: "${{state.seen + [event.data.n]}}"}}}}
steps:
  stay: {{wait: {{signal: over, timeout: 1000h}}}}
"#
    )
}

/// A commit takes one input, and an event is one for each of its sagas. The process is killed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sagas_take_each_event_once_with_the_bound_of_a_batch_between_them_over_kills() {
    const PAIRS: usize = 4;
    const EACH: u64 = 40;
    let server = NatsServer::start();
    let extra = json!({"shard": {"batch_inputs": 1}, "intake": {"delivery_inputs": 1}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    for saga in ["left", "right"] {
        rig.add_saga(saga, &counts(saga));
    }
    rig.start().await;
    let broker = connect(&server.url()).await;
    for pair in 0..PAIRS {
        let id = format!("p{pair}");
        let body = event_body("Pair", &id, "Opened", &json!({"pair": id}));
        publish(broker.as_ref(), "Pair", &id, body).await;
    }
    for n in 1..=EACH {
        for pair in 0..PAIRS {
            let id = format!("p{pair}");
            let body = event_body(
                "Pair",
                &format!("{id}-{n}"),
                "Added",
                &json!({"pair": id, "n": n}),
            );
            publish(broker.as_ref(), "Pair", &id, body).await;
        }
        if n.is_multiple_of(15) {
            rig.kill();
            rig.start().await;
        }
    }
    let all: Vec<u64> = (1..=EACH).collect();
    let is_whole = |view: &Value| view["state"]["seen"] == json!(all);
    for pair in 0..PAIRS {
        for saga in ["left", "right"] {
            rig.wait_for(saga, &format!("p{pair}"), is_whole).await;
        }
    }
}

/// Calls are made in the process, and there is room for two rows. Each order has several steps, so events wait for the
/// outbox most of the time, and the outbox for the calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_done_once_where_the_outbox_is_full_and_calls_are_made_in_the_process() {
    const ORDERS: usize = 30;
    let server = NatsServer::start();
    let extra = json!({
        "dispatch": "local", "shard": {"outbox_soft": 2}, "worker": {"concurrency": 2},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::from_millis(20), extra).await;
    rig.start().await;
    let broker = connect(&server.url()).await;
    for number in 0..ORDERS {
        let order = format!("happy-{number}");
        let body = event_body("Order", &order, "Placed", &order_payload(&order));
        publish(broker.as_ref(), "Order", &order, body).await;
    }
    for number in 0..ORDERS {
        rig.wait_for("order", &format!("happy-{number}"), phase_is("completed"))
            .await;
    }
    for deed in rig.upstream.deeds() {
        assert_eq!(deed.calls, 1, "{deed:?}");
    }
}
