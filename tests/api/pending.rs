//! Lists of timers and of the outbox, over HTTP and by the command line.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use crate::api::caller::{add_call, event, get, instance, items, post, service, until};
use crate::api::letters::cli;
use crate::api::why::{PAY, RETRIES};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// One timer that is due soon, and one that is not.
const ALARM: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: alarm
input: {type: object}
state: {init: {rung: 0}}
timers:
  soon: {after: 1s, set: {rung: "${state.rung + 1}"}}
  late: {after: 10h, set: {rung: 100}}
steps:
  wait: {wait: {signal: go}}
"#;

const TIMERS: &str = "/v1/tenants/acme/timers";
const OUTBOX: &str = "/v1/tenants/acme/outbox";

async fn rig(server: &NatsServer) -> Rig {
    Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await
}

async fn alarm(rig: &Rig, key: &str) -> String {
    let body = json!({"key": key}).to_string();
    let answer = post(rig, "/v1/tenants/acme/sagas/alarm/instances?wait=30s", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    instance("acme", "alarm", key)
}

fn keys(page: &Value) -> BTreeSet<String> {
    let named = items(page).iter().filter_map(|item| item["key"].as_str());
    named.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_are_listed_by_when_they_are_due_and_pages_go_on_over_a_restart() {
    let server = NatsServer::start();
    let mut rig = rig(&server).await;
    rig.add_saga("alarm", ALARM);
    rig.start().await;
    let mut expected = BTreeSet::new();
    for number in 0..5 {
        let key = format!("a-{number}");
        let path = alarm(&rig, &key).await;
        until(&rig, &path, |view| view["state"]["rung"] == 1).await;
        expected.insert(key);
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    for page in 0.. {
        assert!(page < 10, "the list does not end");
        let answer = get(&rig, &format!("{TIMERS}?saga=alarm&limit=2{after}"))
            .await
            .json();
        assert!(items(&answer).len() <= 2, "{answer}");
        found.extend(items(&answer).to_vec());
        let Some(next) = answer["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
        if page == 0 {
            rig.kill();
            rig.start().await;
        }
    }
    assert_eq!(found.len(), 5, "each once: {found:?}");
    assert_eq!(keys(&json!({"items": found})), expected);
    assert!(
        found
            .iter()
            .all(|timer| timer["name"] == "late" && timer["overdue"] == false),
        "{found:?}"
    );

    for (query, count) in [
        ("due_within=11h", 5),
        ("due_within=1h", 0),
        ("overdue=true", 0),
        ("overdue=false", 5),
        ("saga=order", 0),
    ] {
        let page = get(&rig, &format!("{TIMERS}?{query}")).await.json();
        assert_eq!(items(&page).len(), count, "{query}: {page}");
    }
    let foreign = get(&rig, &TIMERS.replace("acme", "globex")).await.json();
    assert_eq!(items(&foreign).len(), 0, "{foreign}");
    for wrong in [
        "color=red",
        "after=x",
        "due_within=soon",
        "overdue=yes",
        "overdue=true&due_within=1h",
        "saga=a/b",
    ] {
        get(&rig, &format!("{TIMERS}?{wrong}"))
            .await
            .is_problem(400, "SR0501");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_that_is_due_while_the_broker_is_away_is_listed_as_overdue() {
    let mut server = NatsServer::start();
    let mut rig = rig(&server).await;
    rig.add_saga("alarm", &ALARM.replace("after: 1s", "after: 8s"));
    rig.start().await;
    alarm(&rig, "a-1").await;
    // It fires behind what the streams held when it was due, which nobody can tell now.
    server.kill();
    let page = until(&rig, &format!("{TIMERS}?overdue=true"), |page| {
        !items(page).is_empty()
    })
    .await;
    let timer = &items(&page)[0];
    assert_eq!(
        (&timer["saga"], &timer["key"], &timer["name"], &timer["overdue"]),
        (&json!("alarm"), &json!("a-1"), &json!("soon"), &json!(true))
    );
    let printed = cli(&rig, &["timer", "list", "--overdue", "--tenant", "acme"]).await;
    assert!(printed.contains("soon") && !printed.contains("late"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_shows_the_commands_that_have_no_result_yet() {
    let (server, upstream) = (NatsServer::start(), service(ResponseTemplate::new(503)).await);
    let mut rig = rig(&server).await;
    rig.add_saga("pay", PAY);
    add_call(&rig, "charge", &upstream, RETRIES);
    rig.start().await;
    let open = event("acme", "e-1", "Pay.Opened", &json!({"pay": "p-1"}));
    assert_eq!(post(&rig, "/v1/tenants/acme/events", open).await.status, 202);
    // It is taken by the broker, and no result is applied.
    let page = until(&rig, &format!("{OUTBOX}?kind=effect&sent=true"), |page| {
        !items(page).is_empty()
    })
    .await;
    let row = &items(&page)[0];
    for (member, value) in [
        ("kind", "effect"),
        ("name", "charge"),
        ("saga", "pay"),
        ("key", "p-1"),
        ("path", "steps.charge"),
    ] {
        assert_eq!(row[member], value, "{row}");
    }
    assert_eq!(
        (&row["attempt"], &row["awaited"]),
        (&json!(1), &json!(true)),
        "{row}"
    );
    assert_eq!(row["idempotency_key"].as_str().map(str::len), Some(32), "{row}");
    assert!(row["deadline"].is_string(), "{row}");
    for (query, count) in [
        ("name=charge", 1),
        ("name=refund", 0),
        ("saga=pay&kind=effect", 1),
        ("kind=fact&name=charge", 0),
        ("name=charge&sent=false", 0),
        ("name=charge&older_than=1h", 0),
    ] {
        let page = get(&rig, &format!("{OUTBOX}?{query}")).await.json();
        assert_eq!(items(&page).len(), count, "{query}: {page}");
    }
    let foreign = get(&rig, &OUTBOX.replace("acme", "globex")).await.json();
    assert_eq!(items(&foreign).len(), 0, "{foreign}");
    for wrong in [
        "color=red",
        "after=x",
        "kind=letter",
        "sent=yes",
        "older_than=old",
    ] {
        get(&rig, &format!("{OUTBOX}?{wrong}"))
            .await
            .is_problem(400, "SR0501");
    }
    let printed = cli(&rig, &["outbox", "list", "--name", "charge", "--tenant", "acme"]).await;
    assert!(printed.contains("charge") && printed.contains("p-1"), "{printed}");
}
