//! One shard is closed and opened while the others go on: what is meant for it waits, is not trimmed, and is done once.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use saga_runner::kernel::ids::{Key, TenantId, shard_of};
use saga_runner::ports::broker::{Broker, Expect, Publication};
use serde_json::{Value, json};

use super::connect;
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};

const SHARDS: u16 = 3;
/// The shard that is closed.
const AWAY: u16 = 1;

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Patient.Opened
key: {"Patient.*": event.data.patient}
state: {init: {}}
steps:
  only: {wait: {signal: go, timeout: 1h}}
"#;

/// The first `count` keys of a shard.
fn keys(prefix: &str, shard: u16, count: usize) -> Vec<String> {
    let tenant = TenantId::parse(TENANT).expect("a tenant");
    let all = (0..).map(|number| format!("{prefix}-{number}"));
    all.filter(|key| shard_of(&tenant, &Key::parse(key).expect("a key"), SHARDS) == shard)
        .take(count)
        .collect()
}

async fn store(broker: &dyn Broker, stream: &str, subject: String, body: String) -> u64 {
    let id = format!("{subject}{body}");
    let message = Publication {
        stream: stream.to_owned(),
        subject,
        headers: Vec::new(),
        payload: Bytes::from(body),
        expect: Expect::MessageId(id),
    };
    broker.publish(message).await.expect("stored").sequence
}

async fn place(broker: &dyn Broker, order: &str) {
    let subject = format!("tenant.{TENANT}.aggregate.Order.{order}");
    let body = event_body("Order", order, "Placed", &order_payload(order));
    store(broker, "AGGREGATE_EVENTS", subject, body).await;
}

async fn cli(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("shard").args(arguments).args(["--url", &rig.url("")]);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}

async fn told(rig: &Rig, arguments: &[&str]) -> String {
    let output = cli(rig, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", rig.log_tail());
    String::from_utf8(output.stdout).expect("text")
}

async fn text(rig: &Rig, path: &str) -> (u16, String) {
    let answer = rig.client.get(rig.url(path)).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("text"))
}

async fn record(broker: &dyn Broker) -> Value {
    let key = format!("crash.shard.{AWAY}");
    let entry = broker.entry("WORKFLOW_CLUSTER", &key).await.expect("the bucket");
    serde_json::from_slice(&entry.expect("there").value).expect("JSON")
}

async fn completed_once(rig: &Rig, orders: &[String]) {
    for order in orders {
        rig.wait_for("order", order, |view| view["phase"] == "completed")
            .await;
        let deeds = rig.upstream.deeds();
        let charges = deeds
            .iter()
            .filter(|deed| deed.kind == "charges" && deed.order == *order);
        assert_eq!(charges.count(), 1, "{order}");
    }
}

async fn started(server: &NatsServer, dispatch: &str, horizon: &str) -> Rig {
    let extra = json!({
        "shards": SHARDS, "dispatch": dispatch,
        "relay": {"trim_interval": "50ms", "gate_horizon": horizon, "recheck_after": "100ms"},
        "intake": {"watermark_interval": "100ms"},
        "ownership": {"renew_every": "100ms", "send_within": "300ms", "take_over_after": "500ms"},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    rig
}

/// What stands in the runner's own streams behind the position of a shard that is not open was trimmed away once all others had
/// read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_a_closed_shard_has_not_read_are_kept_and_processed_once_after_a_kill() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = started(&server, "broker", "100ms").await;
    let patient = keys("patient", AWAY, 1).remove(0);
    let opened = event_body("Patient", &patient, "Opened", &json!({"patient": patient}));
    store(
        &*broker,
        "AGGREGATE_EVENTS",
        format!("tenant.{TENANT}.aggregate.Patient.{patient}"),
        opened,
    )
    .await;
    let waits = |view: &Value| view["steps"][0]["status"] == "waiting";
    rig.wait_for("patient", &patient, waits).await;

    assert_eq!(
        told(&rig, &["close", &AWAY.to_string()]).await,
        format!("shard {AWAY} is closed\n")
    );
    assert_eq!(record(&*broker).await["stopped"], true);
    let again = cli(&rig, &["close", &AWAY.to_string()]).await;
    assert!(!again.status.success(), "it is closed");
    let signal = json!({"request_id": "r-1", "control": "signal", "name": "go"});
    let signal = store(
        &*broker,
        "WORKFLOW_COMMANDS",
        format!("tenant.{TENANT}.workflow.patient.{patient}"),
        signal.to_string(),
    )
    .await;
    let (here, away) = (keys("happy", 0, 3), keys("happy", AWAY, 3));
    for order in here.iter().chain(&away) {
        place(&*broker, order).await;
    }
    completed_once(&rig, &here).await;

    // What operators see.
    let (status, said) = text(
        &rig,
        &format!("/v1/tenants/{TENANT}/sagas/order/instances/{}", away[0]),
    )
    .await;
    assert_eq!(status, 503, "{said}");
    assert!(
        said.contains(&format!(
            "shard {AWAY} is not open in this process: its owner is host"
        )),
        "{said}"
    );
    let (_, page) = text(&rig, &format!("/v1/tenants/{TENANT}/sagas/order/instances")).await;
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page["absent_shards"], json!([AWAY]), "{page}");
    let (status, health) = text(&rig, "/health").await;
    assert_eq!(status, 200, "{health}");
    assert!(health.contains("not open in this process"), "{health}");
    let (status, ready) = text(&rig, "/ready").await;
    assert_eq!(status, 200, "{ready}");
    let readiness: Value = serde_json::from_str(&ready).expect("JSON");
    assert_eq!(readiness["absent_shards"], json!([AWAY]), "{ready}");
    let (_, metrics) = text(&rig, "/metrics").await;
    assert!(
        metrics.contains("saga_runner_shards_open{shard=\"1\"} 0"),
        "{metrics}"
    );
    assert!(
        metrics.contains("saga_runner_shards_open{shard=\"0\"} 1"),
        "{metrics}"
    );
    let listed = told(&rig, &["list"]).await;
    for (shard, state) in [("0 ", "running"), ("1 ", "absent")] {
        let line = listed.lines().find(|line| line.trim_start().starts_with(shard));
        assert!(line.is_some_and(|line| line.contains(state)), "{listed}");
    }

    // Many rounds of trimming, behind what the others have read.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let state = broker.stream_state("WORKFLOW_COMMANDS").await.expect("there");
    assert!(state.first_sequence <= signal, "{state:?}");
    rig.kill();
    rig.start().await;
    rig.wait_for("patient", &patient, |view| view["phase"] == "completed")
        .await;
    completed_once(&rig, &away).await;
    completed_once(&rig, &here).await;

    // Now that all have read it, it goes.
    let begin = Instant::now();
    loop {
        let state = broker.stream_state("WORKFLOW_COMMANDS").await.expect("there");
        if state.first_sequence > signal {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{state:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

/// A shard is closed and opened again and again while orders come, and once the process dies while it is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_done_once_while_their_shard_is_closed_and_opened_under_them() {
    for dispatch in ["broker", "local"] {
        let server = NatsServer::start();
        let broker = connect(&server.url()).await;
        let mut rig = started(&server, dispatch, "1h").await;
        let away = AWAY.to_string();
        let (mut orders, mut others) = (keys("happy", AWAY, 24), keys("happy", 0, 8));
        for round in 0..4 {
            for order in orders[round * 6..][..3].iter().chain(&others[round * 2..][..1]) {
                place(&*broker, order).await;
            }
            told(&rig, &["close", &away]).await;
            for order in orders[round * 6 + 3..][..3]
                .iter()
                .chain(&others[round * 2 + 1..][..1])
            {
                place(&*broker, order).await;
            }
            completed_once(&rig, &others[round * 2 + 1..][..1]).await;
            if round == 2 {
                rig.kill();
                rig.start().await;
            } else {
                told(&rig, &["open", &away]).await;
            }
        }
        orders.append(&mut others);
        completed_once(&rig, &orders).await;
        let again = cli(&rig, &["open", &away]).await;
        assert!(!again.status.success(), "it is open");
        let none = cli(&rig, &["open", "3"]).await;
        assert!(String::from_utf8_lossy(&none.stderr).contains("no shard 3"));
        assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    }
}

/// The answer was 503 after 10 s, while the closing went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_calls_take_longer_than_a_request_may_is_waited_for() {
    let extra = json!({"shards": 1, "dispatch": "local", "http": {"request_timeout": "700ms"}});
    let mut rig = Rig::new(None, "30m", Duration::from_secs(3), extra).await;
    rig.start().await;
    rig.send("Order", "slow-1", "Placed", order_payload("slow-1"))
        .await;
    let begin = Instant::now();
    while !text(&rig, "/metrics")
        .await
        .1
        .contains("saga_runner_effect_commands_in_progress{effect=\"payments-charge\"} 1")
    {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(told(&rig, &["close", "0"]).await, "shard 0 is closed\n");
    let list = told(&rig, &["list"]).await;
    let line = list.lines().find(|line| line.trim_start().starts_with("0 "));
    assert!(line.is_some_and(|line| line.contains("absent")), "{list}");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
