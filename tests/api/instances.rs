//! Lists, cancellation, and tenants side by side.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::api::caller::{event, get, instance, items, letters, post, runner, send, until};
use crate::support::rig::{Rig, order_payload};

/// More than the largest page.
const MANY: usize = 510;

async fn pages(rig: &Rig, limit: usize) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/tenants/acme/sagas/ratio/instances?limit={limit}{after}");
        let page = get(rig, &path).await.json();
        pages.push(items(&page).to_vec());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return pages,
        }
        assert!(pages.len() <= MANY + 3, "the pages never end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_show_every_live_and_ended_instance_exactly_once() {
    let rig = runner(Duration::ZERO).await;
    let keys: Vec<String> = (0..MANY).map(|number| format!("r-{number:04}")).collect();
    for part in keys.chunks(30) {
        join_all(part.iter().map(|key| {
            let opened = format!("{key}-opened");
            let rig = &rig;
            async move { send(rig, "acme", &opened, "Ratio.Opened", json!({"ratio": key})).await }
        }))
        .await;
    }
    for key in keys.iter().step_by(3) {
        let id = format!("{key}-closed");
        send(&rig, "acme", &id, "Ratio.Closed", json!({"ratio": key})).await;
    }
    // Another tenant's do not count.
    send(
        &rig,
        "globex",
        "other",
        "Ratio.Opened",
        json!({"ratio": "r-other"}),
    )
    .await;
    until(&rig, &instance("globex", "ratio", "r-other"), |_| true).await;
    for (number, key) in keys.iter().enumerate() {
        let ended = number % 3 == 0;
        until(&rig, &instance("acme", "ratio", key), |view| {
            (view["phase"] == "completed") == ended
        })
        .await;
    }
    for limit in [7, 170, 500, 1_000_000] {
        let pages = pages(&rig, limit).await;
        assert!(pages.iter().all(|page| page.len() <= limit.min(500)), "{limit}");
        assert!(pages.len() > 1, "no page holds more than 500");
        let mut seen = BTreeMap::new();
        for item in pages.iter().flatten() {
            *seen.entry(item["key"].as_str().expect("a key")).or_insert(0) += 1;
        }
        let expected: BTreeMap<&str, i32> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        assert_eq!(seen, expected, "limit {limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_order_is_undone() {
    let rig = runner(Duration::from_secs(4)).await;
    let order = instance("acme", "order", "slow-1");
    send(&rig, "acme", "e-1", "Order.Placed", order_payload("slow-1")).await;
    until(&rig, &order, |view| {
        let steps = view["steps"].as_array().expect("steps");
        steps
            .iter()
            .any(|step| step["name"] == "charge" && step["status"] == "running")
    })
    .await;
    let cancel = format!("{order}/cancel");
    let request = json!({"reason": "second thoughts", "request_id": "q-1"}).to_string();
    let first = post(&rig, &cancel, request.clone()).await;
    assert_eq!(first.status, 202, "{first:?}");
    assert_eq!(first.json()["duplicate"], false);
    let again = post(&rig, &cancel, request).await;
    assert_eq!((again.status, &again.json()["duplicate"]), (202, &json!(true)));

    // The charge succeeds after the cancellation, and is refunded too.
    let view = until(&rig, &order, |view| view["ended"].is_string()).await;
    assert_eq!(view["phase"], "cancelled", "{view}");
    let done = |kind: &str| {
        let deeds = rig.upstream.deeds();
        deeds
            .iter()
            .filter(|deed| deed.kind == kind && deed.order == "slow-1")
            .count()
    };
    assert_eq!(done("releases"), 1);
    assert_eq!(done("shipments"), 0);
    assert_eq!((done("charges"), done("refunds")), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_with_the_same_keys_neither_see_nor_disturb_each_other() {
    let rig = runner(Duration::ZERO).await;
    let foreign = instance("globex", "order", "twin");
    let absent = get(&rig, &foreign).await;
    absent.is_problem(404, "SR0502");

    send(&rig, "acme", "e-1", "Order.Placed", order_payload("twin")).await;
    let own = instance("acme", "order", "twin");
    until(&rig, &own, |view| view["phase"] == "completed").await;
    let hidden = get(&rig, &foreign).await;
    let untraced = |answer: &crate::api::caller::Answer| {
        let mut told = answer.is_problem(404, "SR0502");
        told["trace_id"] = json!(null);
        told
    };
    assert_eq!(untraced(&hidden), untraced(&absent));
    let cancel = post(&rig, &format!("{foreign}/cancel"), "").await;
    cancel.is_problem(404, "SR0502");
    let list = get(&rig, "/v1/tenants/globex/sagas/order/instances").await.json();
    assert_eq!(items(&list).len(), 0, "{list}");

    // The same event id, order and aggregate: it is another tenant's.
    send(&rig, "globex", "e-1", "Order.Placed", order_payload("twin")).await;
    let view = until(&rig, &foreign, |view| view["phase"] == "completed").await;
    assert_eq!(view["tenant"], "globex");
    let charges: Vec<String> = rig
        .upstream
        .deeds()
        .into_iter()
        .filter(|deed| deed.kind == "charges" && deed.order == "twin")
        .map(|deed| deed.idempotency_key)
        .collect();
    assert_eq!(charges.len(), 2, "{charges:?}");
    assert_ne!(charges[0], charges[1]);

    let lying = event("globex", "e-2", "Ratio.Opened", &json!({"ratio": "r-1"}));
    post(&rig, "/v1/tenants/acme/events", lying)
        .await
        .is_problem(400, "SR0501");
    for tenant in ["acme", "globex"] {
        let answer = get(&rig, &instance(tenant, "ratio", "r-1")).await;
        answer.is_problem(404, "SR0502");
        assert!(items(&get(&rig, &letters(tenant)).await.json()).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inputs_of_an_instance_are_read_back_in_order() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "i-opened", "Ratio.Opened", json!({"ratio": "r-i"})).await;
    send(&rig, "acme", "i-closed", "Ratio.Closed", json!({"ratio": "r-i"})).await;
    let path = instance("acme", "ratio", "r-i");
    let shown = until(&rig, &path, |view| view["phase"] == "completed").await;
    let answer = get(&rig, &format!("{path}/inputs")).await.json();
    let inputs = answer["inputs"].as_array().expect("a list").clone();
    let told: Vec<(&Value, &Value)> = inputs
        .iter()
        .map(|input| (&input["id"], &input["input"]["event"]["event_type"]))
        .collect();
    assert_eq!(
        told,
        [
            (&json!("i-opened"), &json!("Ratio.Opened")),
            (&json!("i-closed"), &json!("Ratio.Closed"))
        ]
    );
    assert_eq!(inputs[0]["input"]["event"]["payload"], json!({"ratio": "r-i"}));
    assert_eq!(inputs[0]["definition"], shown["definition"]);
    assert!(
        inputs[1]["notes"].to_string().contains("ended"),
        "{}",
        inputs[1]["notes"]
    );
    let none = get(&rig, &format!("{}/inputs", instance("acme", "ratio", "nobody"))).await;
    assert_eq!(none.status, 404);
}
