//! Jobs: started, shown, paused, resumed and stopped by a process that does not carry them on.

use serde_json::{Value, json};

use crate::api::caller::{instance, items};
use crate::operations::case::{Case, Turn, cases};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "POST /v1/tenants/{tenant}/jobs" => start,
    "GET /v1/tenants/{tenant}/jobs" => list,
    "GET /v1/tenants/{tenant}/jobs/{id}" => show,
    "POST /v1/tenants/{tenant}/jobs/{id}/pause" => pause,
    "POST /v1/tenants/{tenant}/jobs/{id}/resume" => resume,
    "POST /v1/tenants/{tenant}/jobs/{id}/stop" => stop,
};

fn job(id: &str) -> String {
    format!("/v1/tenants/{TENANT}/jobs/{id}")
}

/// How many instances have had their part.
fn handled(job: &Value) -> u64 {
    job["handled"].as_u64().expect("a number")
}

async fn start(turn: Turn<'_>) {
    let keys = ["job-1", "job-2", "job-3"];
    for key in keys {
        turn.scene.begin("visit", key).await;
    }
    let order = |dry_run: bool| {
        json!({
            "verb": "pause", "filter": {"saga": "visit", "key_prefix": "job-"}, "by": "ann", "reason": "a look",
            "dry_run": dry_run,
        })
    };
    let plan = turn.ask(&[]).body(order(true)).gives(200).await;
    assert_eq!(plan["selected"], 3, "{plan}");
    let started = turn.ask(&[]).body(order(false)).gives(202).await;
    let path = job(started["id"].as_str().expect("an id"));
    let ended = turn.scene.ended(&path).await;
    assert_eq!(
        (
            &ended["state"],
            &ended["selected"],
            &ended["applied"],
            &ended["failed"]
        ),
        (&json!("completed"), &json!(3), &json!(3), &json!(0)),
        "{ended}"
    );
    for key in keys {
        let view = turn.scene.shown(&instance(TENANT, "visit", key)).await;
        let paused = &view["blocked_by"]["paused"];
        assert_eq!(
            (&paused["by"], &paused["reason"]),
            (&json!("ann"), &json!("a look")),
            "{view}"
        );
    }
}

async fn list(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let page = turn.ask(&[]).gives(200).await;
    // The newest comes first.
    assert_eq!(
        (&items(&page)[0]["id"], &items(&page)[0]["verb"]),
        (&json!(id), &json!("pause")),
        "{page}"
    );
    turn.scene.stop_job(&id).await;
}

async fn show(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let shown = turn.ask(&[("id", id.as_str())]).gives(200).await;
    assert_eq!(
        (&shown["filter"], &shown["rate"], &shown["principal"]["who"]),
        (
            &json!({"saga": "ratio", "key_prefix": "many-"}),
            &json!(1),
            &json!("ann")
        ),
        "{shown}"
    );
    turn.scene.stop_job(&id).await;
}

async fn pause(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let body = json!({"by": "bob", "reason": "not now"});
    let ask = || turn.ask(&[("id", id.as_str())]).body(body.clone());
    let paused = ask().gives(200).await;
    assert_eq!(
        (&paused["state"], &paused["message"]),
        (&json!("paused"), &json!("paused by bob: not now")),
        "{paused}"
    );
    let again = ask().gives(409).await;
    assert_eq!(again["code"], "SR0503", "{again}");
    assert_eq!(turn.scene.shown(&job(&id)).await["state"], "paused");
    turn.scene.stop_job(&id).await;
}

async fn resume(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let pause = format!("{}/pause", job(&id));
    turn.scene.post(&turn.scene.other, &pause, json!({})).await;
    let body = json!({"by": "bob", "reason": "now"});
    let resumed = turn.ask(&[("id", id.as_str())]).body(body).gives(200).await;
    assert_ne!(resumed["state"], "paused", "{resumed}");
    turn.scene.until(&job(&id), |job| handled(job) > 0).await;
    turn.scene.stop_job(&id).await;
}

async fn stop(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let body = json!({"by": "bob", "reason": "enough"});
    let stopped = turn.ask(&[("id", id.as_str())]).body(body).gives(200).await;
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    let shown = turn.scene.shown(&job(&id)).await;
    assert!(
        shown["ended"].is_string() && handled(&shown) < 20,
        "it was not at its end: {shown}"
    );
}
