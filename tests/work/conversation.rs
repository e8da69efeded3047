//! Sagas that hear each other's facts and send each other signals, on a real nats-server, with the real binary killed in between.

use std::time::Duration;

use async_nats::jetstream;
use saga_runner::kernel::ids::{Key, TenantId, shard_of};
use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body};

const HALL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: hall
start: Hall.Opened
key: {"Hall.*": event.data.hall}
state: {init: {guest: "", thanked: []}}
handlers:
  Hall.Opened: {set: {guest: "${event.data.guest}"}}
  Hall.Moved: {emit: {publish: {type: seat.moved, payload: {guest: "${state.guest}", to: "${event.data.to}"}}}}
  Hall.Emptied: {emit: {publish: {type: seat.gone}}}
  signal.thanks: {set: {thanked: "${state.thanked + [signal.by]}"}}
steps:
  seat: {publish: {type: seat.confirmed, payload: {guest: "${state.guest}"}}}
  hold: {wait: {signal: close, timeout: 1h}}
"#;
const GUEST: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: guest
start: seat.confirmed
key: {"seat.*": event.data.guest}
events:
  seat.confirmed:
    from: hall
    schema: {type: object, required: [guest], properties: {guest: {type: string}}}
  seat.moved: {from: hall}
  seat.gone: {from: hall, by: {hall: event.aggregate_id}}
state: {init: {hall: "", seats: [], order: [], late: 0}}
handlers:
  seat.confirmed:
    set: {hall: "${event.aggregate_id}", order: "${[event.sequence]}"}
    alias: {hall: "${event.aggregate_id}"}
    emit: {signal: {saga: hall, key: "${event.aggregate_id}", name: thanks, data: {from: "${key}"}}}
  seat.moved: {set: {seats: "${state.seats + [event.data.to]}", order: "${state.order + [event.sequence]}"}}
after_end:
  seat.moved: {set: {late: "${state.late + 1}"}}
steps:
  leave: {wait: {event: seat.gone, timeout: 1h}}
"#;

/// Ends by a timer, which fires when its shard has taken all that was stored before it was due.
const BELL: &str = r"
apiVersion: sagas/v1
kind: Saga
name: bell
start: Bell.Rung
key: {Bell.Rung: event.data.bell}
timers: {rung: {after: 10ms, complete: {outcome: rung}}}
steps:
  hold: {wait: {signal: never, timeout: 1h}}
";

/// A hall and its guest in different shards.
fn apart(number: usize) -> (String, String) {
    let shard = |key: &str| {
        let tenant = TenantId::parse(TENANT).expect("legal");
        shard_of(&tenant, &Key::parse(key).expect("legal"), 4)
    };
    let hall = format!("h-{number}");
    let guest = (0..).map(|n| format!("g-{number}-{n}"));
    let guest = guest.into_iter().find(|guest| shard(guest) != shard(&hall));
    (hall, guest.expect("some are apart"))
}

async fn happens(rig: &Rig, hall: &str, id: &str, event: &str, payload: Value) {
    let body = event_body("Hall", hall, event, &payload);
    let body = body.replace(&format!("Hall-{event}-{hall}"), id);
    rig.send_body(body).await;
}

async fn opened(rig: &Rig, hall: &str, guest: &str) {
    happens(
        rig,
        hall,
        &format!("open-{hall}"),
        "Opened",
        json!({"hall": hall, "guest": guest}),
    )
    .await;
}

/// The newest fact of a hall.
async fn newest(stream: &jetstream::Context, hall: &str) -> Value {
    let stored = stream.get_stream("WORKFLOW_EVENTS").await.expect("is there");
    let subject = format!("tenant.{TENANT}.workflow_event.hall.{hall}");
    let last = stored
        .get_last_raw_message_by_subject(&subject)
        .await
        .expect("is there");
    serde_json::from_slice(&last.payload).expect("JSON")
}

async fn store(stream: &jetstream::Context, subject: String, body: &Value) {
    let stored = stream
        .publish(subject, body.to_string().into())
        .await
        .expect("sent");
    stored.await.expect("stored");
}

/// A hall tells its guest a fact before anybody listens, and the guest's shard has read that.
async fn told_too_early(rig: &Rig, stream: &jetstream::Context) -> String {
    let (before, nobody) = apart(0);
    opened(rig, &before, &nobody).await;
    rig.wait_for("hall", &before, |view| view["phase"] == "running")
        .await;
    while stream
        .get_stream("WORKFLOW_EVENTS")
        .await
        .expect("is there")
        .cached_info()
        .state
        .messages
        == 0
    {}
    rig.send_body(event_body("Bell", &nobody, "Rung", &json!({"bell": nobody})))
        .await;
    rig.wait_for("bell", &nobody, |view| view["phase"] == "completed")
        .await;
    nobody
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_hears_facts_of_another_in_order_once_and_of_its_tenant_alone_over_kills() {
    let server = NatsServer::start();
    let stream = jetstream::new(async_nats::connect(server.url()).await.expect("connects"));
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({"shards": 4})).await;
    rig.clear_definitions();
    rig.add_saga("hall", HALL);
    rig.add_saga("bell", BELL);
    rig.start().await;
    let nobody = told_too_early(&rig, &stream).await;
    rig.add_saga("guest", GUEST);
    let reload = rig
        .client
        .post(rig.url("/admin/reload"))
        .send()
        .await
        .expect("an answer");
    assert!(
        reload.status().is_success(),
        "{}",
        reload.text().await.expect("a text")
    );

    let (hall, guest) = apart(1);
    opened(&rig, &hall, &guest).await;
    rig.kill();
    rig.start().await;
    let registered = |view: &Value| view["aliases"]["hall"].is_array();
    rig.wait_for("guest", &guest, registered).await;
    assert!(rig.instance("guest", &nobody).await.is_none());
    for to in 1..=6 {
        happens(
            &rig,
            &hall,
            &format!("move-{to}"),
            "Moved",
            json!({"hall": hall, "to": to}),
        )
        .await;
        if to == 3 {
            rig.kill();
            rig.start().await;
        }
    }
    let seated = |count: usize| {
        move |view: &Value| {
            view["state"]["seats"]
                .as_array()
                .is_some_and(|all| all.len() == count)
        }
    };
    rig.wait_for("guest", &guest, seated(6)).await;

    // The same fact once more, and one of another tenant.
    let mut fact = newest(&stream, &hall).await;
    assert_eq!(fact["event_type"], "seat.moved");
    store(
        &stream,
        format!("tenant.{TENANT}.workflow_event.hall.{hall}"),
        &fact,
    )
    .await;
    fact["tenant_id"] = json!("globex");
    fact["event_id"] = json!("018f3a1c-0000-7000-8000-000000000001");
    store(
        &stream,
        format!("tenant.globex.workflow_event.hall.{hall}"),
        &fact,
    )
    .await;
    happens(&rig, &hall, "move-7", "Moved", json!({"hall": hall, "to": 7})).await;
    let view = rig.wait_for("guest", &guest, seated(7)).await;
    assert_eq!(view["state"]["seats"], json!([1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(view["state"]["hall"], json!(hall));
    let order: Vec<u64> = serde_json::from_value(view["state"]["order"].clone()).expect("numbers");
    assert!(
        order.is_sorted_by(|left, right| left < right) && order[0] > 0,
        "{order:?}"
    );
    let thanked = rig
        .wait_for("hall", &hall, |view| view["state"]["thanked"] != json!([]))
        .await;
    assert_eq!(thanked["state"]["thanked"], json!([format!("guest/{guest}")]));

    // By an alias, and after the end.
    happens(&rig, &hall, "empty", "Emptied", json!({"hall": hall})).await;
    rig.wait_for("guest", &guest, |view| view["phase"] == "completed")
        .await;
    happens(&rig, &hall, "move-8", "Moved", json!({"hall": hall, "to": 8})).await;
    let late = rig
        .wait_for("guest", &guest, |view| view["state"]["late"] == 1)
        .await;
    assert_eq!(late["state"]["seats"].as_array().map(Vec::len), Some(7));
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
