//! Dead letters: who sees them, what they hold up, and what an operator's decision does.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, items, letters, post, runner, send, until};
use crate::support::rig::Rig;

async fn divide(rig: &Rig, tenant: &str, id: &str, key: &str, by: i64) {
    let payload = json!({"ratio": key, "by": by});
    send(rig, tenant, id, "Ratio.Divided", payload).await;
}

async fn one_letter(rig: &Rig, tenant: &str) -> Value {
    let page = until(rig, &letters(tenant), |page| !items(page).is_empty()).await;
    assert_eq!(items(&page).len(), 1, "{page}");
    items(&page)[0].clone()
}

async fn decide(rig: &Rig, tenant: &str, letter: &Value, verb: &str) -> crate::api::caller::Answer {
    let id = letter["id"].as_str().expect("an id");
    post(rig, &format!("{}/{id}/{verb}", letters(tenant)), "").await
}

fn shares(view: &Value) -> Vec<i64> {
    let shares = view["state"]["shares"].as_array().expect("shares");
    shares.iter().filter_map(Value::as_i64).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_without_key_is_a_dead_letter_of_its_tenant_alone() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratoi": "r-1"})).await;
    let letter = one_letter(&rig, "acme").await;
    assert_eq!(letter["reason"], "correlation.missing", "{letter}");
    assert!(
        letter["subject"]
            .as_str()
            .is_some_and(|text| text.starts_with("tenant.acme.")),
        "{letter}"
    );
    assert!(
        letter["excerpt"]
            .as_str()
            .is_some_and(|text| text.contains("ratoi")),
        "{letter}"
    );
    assert!(items(&get(&rig, &letters("globex")).await.json()).is_empty());

    for verb in ["retry", "discard"] {
        decide(&rig, "globex", &letter, verb)
            .await
            .is_problem(404, "SR0502");
    }
    decide(&rig, "acme", &letter, "retry")
        .await
        .is_problem(409, "SR0503");
    assert_eq!(decide(&rig, "acme", &letter, "discard").await.status, 204);
    decide(&rig, "acme", &letter, "discard")
        .await
        .is_problem(404, "SR0502");
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_input_holds_up_its_own_instance_until_someone_decides() {
    let rig = runner(Duration::ZERO).await;
    for (tenant, key) in [("acme", "r-1"), ("acme", "r-2"), ("globex", "r-1")] {
        send(
            &rig,
            tenant,
            &format!("open-{key}"),
            "Ratio.Opened",
            json!({"ratio": key}),
        )
        .await;
    }
    let poisoned = instance("acme", "ratio", "r-1");
    divide(&rig, "acme", "d-1", "r-1", 1).await;
    divide(&rig, "acme", "d-2", "r-1", 0).await;
    divide(&rig, "acme", "d-3", "r-1", 2).await;
    divide(&rig, "acme", "d-4", "r-1", 4).await;
    // Behind them, for others.
    divide(&rig, "acme", "o-1", "r-2", 5).await;
    divide(&rig, "globex", "d-1", "r-1", 10).await;
    until(&rig, &instance("acme", "ratio", "r-2"), |view| {
        shares(view) == [20]
    })
    .await;
    until(&rig, &instance("globex", "ratio", "r-1"), |view| {
        shares(view) == [10]
    })
    .await;

    let letter = one_letter(&rig, "acme").await;
    assert_eq!(
        (&letter["saga"], &letter["key"]),
        (&json!("ratio"), &json!("r-1")),
        "{letter}"
    );
    assert!(items(&get(&rig, &letters("globex")).await.json()).is_empty());
    let view = get(&rig, &poisoned).await.json();
    assert_eq!(shares(&view), [100], "{view}");

    // A retry finds the same mistake, and everything still waits.
    assert_eq!(decide(&rig, "acme", &letter, "retry").await.status, 204);
    let again = one_letter(&rig, "acme").await;
    assert!(
        again["attempts"].as_u64() > letter["attempts"].as_u64(),
        "{letter} {again}"
    );
    let view = get(&rig, &poisoned).await.json();
    assert_eq!(shares(&view), [100], "{view}");

    assert_eq!(decide(&rig, "acme", &again, "discard").await.status, 204);
    until(&rig, &poisoned, |view| shares(view) == [100, 50, 25]).await;
    divide(&rig, "acme", "d-5", "r-1", 5).await;
    until(&rig, &poisoned, |view| shares(view) == [100, 50, 25, 20]).await;
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());
}
