//! A key that is used again, on a real nats-server, across a kill.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cases::{connect, publish};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, event_body};

const VISIT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: visit
start: {event: Visit.Began, set: {room: "${event.data.room}"}}
key: {"Visit.*": event.data.guest}
reuse: always
no_instance: {park: 1h}
after_end:
  Visit.Lost: {set: {lost: true}}
state: {init: {room: 0, booked: false, lost: false}}
handlers:
  Visit.Booked: {set: {booked: true}}
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
    // The booking comes before the guest.
    let booked = event_body("Visit", "b-1", "Booked", &json!({"guest": "ann"}));
    publish(broker.as_ref(), "Visit", "ann", booked).await;
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
        assert_eq!(view["state"]["booked"], visit == 1);
    }
    let lost = event_body("Visit", "l-1", "Lost", &json!({"guest": "ann"}));
    publish(broker.as_ref(), "Visit", "ann", lost).await;
    let view = rig
        .wait_for("visit", "ann", |view| view["state"]["lost"] == true)
        .await;
    assert_eq!(
        (&view["generation"], &view["phase"]),
        (&json!(3), &json!("completed"))
    );
}
