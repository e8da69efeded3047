//! A key that is used again, on a real nats-server, across a kill.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Rig, event_body};
use crate::support::nats_server::NatsServer;
use crate::{connect, publish};

const VISIT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: visit
start: {event: Visit.Began, set: {room: "${event.data.room}"}}
key: {"Visit.*": event.data.guest}
reuse: always
state: {init: {room: 0}}
handlers:
  Visit.Over: {complete: {outcome: left}}
steps:
  stay: {wait: {signal: over, timeout: 1000h}}
"#;

fn is(generation: u64, phase: &'static str) -> impl Fn(&Value) -> bool {
    move |view| view["generation"] == generation && view["phase"] == phase
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_visit_of_a_guest_is_a_generation() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("visit", VISIT);
    rig.start().await;
    let broker = connect(&server.url()).await;
    for visit in 1..=3_u64 {
        let began = event_body(
            "Visit",
            &format!("v-{visit}"),
            "Began",
            &json!({"guest": "ann", "room": visit}),
        );
        publish(broker.as_ref(), "Visit", "ann", began).await;
        let view = rig.wait_for("visit", "ann", is(visit, "running")).await;
        assert_eq!(view["state"]["room"], visit);
        rig.kill();
        let over = event_body("Visit", &format!("o-{visit}"), "Over", &json!({"guest": "ann"}));
        publish(broker.as_ref(), "Visit", "ann", over).await;
        rig.start().await;
        let view = rig.wait_for("visit", "ann", is(visit, "completed")).await;
        assert_eq!(view["outcome"], "left");
    }
}
