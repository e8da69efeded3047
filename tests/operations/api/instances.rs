//! Starts, and what is asked of an instance: that it goes on, rests, ends, begins again or is deleted.

use serde_json::json;

use crate::api::caller::instance;
use crate::operations::case::{Case, Turn, cases};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances" => start,
    "POST /v1/tenants/{tenant}/events" => publish,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/signals/{name}" => signal,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/pause" => pause,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/resume" => resume,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/timers/{name}/fire" => fire_timer,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/timers/{name}/cancel" => cancel_timer,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/cancel" => cancel,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/kill" => kill,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/restart" => restart,
    "DELETE /v1/tenants/{tenant}/sagas/{saga}/instances/{key}" => delete,
    "POST /v1/callbacks/{token}" => callback,
};

async fn start(turn: Turn<'_>) {
    let body = json!({"key": "start", "input": {"n": 1}, "request_id": "start-1", "by": "ann"});
    let ask = || turn.ask(&[("saga", "visit")]).query("wait=60s");
    let started = ask().body(body).gives(201).await;
    assert_eq!(
        (&started["key"], &started["outcome"]["state"], &started["checked"]),
        (&json!("start"), &json!("applied"), &json!(true)),
        "{started}"
    );
    let path = instance(TENANT, "visit", "start");
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (&view["phase"], &view["input"]),
        (&json!("running"), &json!({"n": 1})),
        "{view}"
    );
    // The process that has no shards is told whose the key is.
    let second = json!({"key": "start", "input": {"n": 2}, "request_id": "start-2"});
    let refused = ask().body(second).gives(409).await;
    assert_eq!(
        (&refused["code"], &refused["outcome"]["instance"]["started_by"]),
        (&json!("SR0515"), &json!("start-1")),
        "{refused}"
    );
}

async fn publish(turn: Turn<'_>) {
    let body = json!({
        "tenant_id": TENANT, "event_id": "publish-1", "event_type": "Opened", "aggregate_type": "Ratio",
        "aggregate_id": "publish", "payload": {"ratio": "publish"},
    });
    let first = turn.ask(&[]).body(body.clone()).gives(202).await;
    assert_eq!(
        (&first["stream"], &first["duplicate"]),
        (&json!("AGGREGATE_EVENTS"), &json!(false)),
        "{first}"
    );
    let again = turn.ask(&[]).body(body).gives(202).await;
    assert_eq!(
        (&again["sequence"], &again["duplicate"]),
        (&first["sequence"], &json!(true)),
        "{again}"
    );
    let path = instance(TENANT, "ratio", "publish");
    let view = turn.scene.until(&path, |_| true).await;
    assert_eq!(view["start_event"], "publish-1", "{view}");
}

async fn signal(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "signal").await;
    let names = [("saga", "visit"), ("key", "signal"), ("name", "go")];
    let body = json!({"data": {"room": 7}, "by": "ann"});
    turn.ask(&names).body(body).applied().await;
    let view = turn
        .scene
        .until(&path, |view| view["steps"][2]["status"] == "waiting")
        .await;
    assert_eq!(view["steps"][0]["status"], "done", "{view}");
    let history = view["history"].to_string();
    assert!(
        history.contains(r#""signal":"go""#) && history.contains(r#""by":"ann""#),
        "{history}"
    );
}

async fn pause(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "pause").await;
    let body = || json!({"by": "ann", "reason": "a look"});
    let ask = || turn.ask_about("visit", "pause");
    ask().body(body()).applied().await;
    let view = turn.scene.shown(&path).await;
    let paused = &view["blocked_by"]["paused"];
    assert_eq!(
        (&paused["by"], &paused["reason"]),
        (&json!("ann"), &json!("a look")),
        "{view}"
    );
    let again = ask().body(body()).gives(409).await;
    assert_eq!(again["detail"], "instance pause is paused already");
}

async fn resume(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "resume").await;
    turn.scene.request(&path, "pause", json!({"by": "ann"})).await;
    // It waits behind the pause.
    let go = format!("{path}/signals/go");
    turn.scene.post(&turn.scene.other, &go, json!({})).await;
    turn.scene
        .until(&path, |view| view["blocked_by"]["inputs"] == 1)
        .await;
    let body = json!({"by": "bob", "reason": "seen"});
    turn.ask_about("visit", "resume").body(body).applied().await;
    let view = turn
        .scene
        .until(&path, |view| view["steps"][2]["status"] == "waiting")
        .await;
    assert_eq!(view["blocked_by"], json!(null), "{view}");
}

async fn fire_timer(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "fire").await;
    let names = [("saga", "visit"), ("key", "fire"), ("name", "remind")];
    let body = json!({"by": "ann", "reason": "sooner"});
    turn.ask(&names).body(body).applied().await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(view["state"], json!({"reminded": true}), "{view}");
}

async fn cancel_timer(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "cancel-timer").await;
    let names = [("saga", "visit"), ("key", "cancel-timer"), ("name", "remind")];
    let body = json!({"by": "ann", "reason": "never"});
    turn.ask(&names).body(body).applied().await;
    let view = turn.scene.shown(&path).await;
    let timers = view["timers"].as_array().expect("timers");
    let names: Vec<_> = timers.iter().map(|timer| &timer["name"]).collect();
    assert_eq!(names, ["wait:ask"], "{view}");
    assert_eq!(view["state"], json!({"reminded": false}), "{view}");
}

async fn cancel(turn: Turn<'_>) {
    let path = turn.scene.booked("cancel").await;
    let body = json!({"by": "ann", "reason": "second thoughts"});
    turn.ask_about("visit", "cancel").body(body).applied().await;
    let view = turn.scene.ended(&path).await;
    assert_eq!(
        (
            &view["phase"],
            &view["failure"]["message"],
            &view["ledger"][0]["status"]
        ),
        (&json!("cancelled"), &json!("second thoughts"), &json!("undone")),
        "{view}"
    );
}

async fn kill(turn: Turn<'_>) {
    let path = turn.scene.booked("kill").await;
    let body = json!({"by": "ann", "reason": "enough"});
    turn.ask_about("visit", "kill").body(body).applied().await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (
            &view["phase"],
            &view["failure"]["code"],
            &view["ledger"][0]["status"]
        ),
        (&json!("cancelled"), &json!("killed"), &json!("held")),
        "nothing is compensated: {view}"
    );
    let silent = turn.ask_about("visit", "kill").body(json!({})).gives(400).await;
    assert_eq!(silent["code"], "SR0501", "{silent}");
}

async fn restart(turn: Turn<'_>) {
    let end = json!({"by": "ann", "reason": "enough"});
    let body = json!({"by": "ann", "reason": "once more"});
    let booked = turn.scene.booked("booked").await;
    turn.scene.request(&booked, "kill", end.clone()).await;
    let refused = turn
        .ask_about("visit", "booked")
        .body(body.clone())
        .gives(409)
        .await;
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|why| why.contains("what book did")),
        "{refused}"
    );

    let path = turn.scene.begin("visit", "restart").await;
    turn.scene.request(&path, "kill", end).await;
    turn.ask_about("visit", "restart").body(body).applied().await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (
            &view["generation"],
            &view["phase"],
            &view["steps"][0]["status"],
            &view["ledger"]
        ),
        (&json!(2), &json!("running"), &json!("waiting"), &json!([])),
        "{view}"
    );
}

async fn delete(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "delete").await;
    let body = json!({"by": "ann", "reason": "erasure request 4711"});
    let running = turn
        .ask_about("visit", "delete")
        .body(body.clone())
        .gives(409)
        .await;
    assert_eq!(running["code"], "SR0503", "{running}");
    let end = json!({"by": "ann", "reason": "enough"});
    turn.scene.request(&path, "kill", end).await;
    turn.ask_about("visit", "delete").body(body).applied().await;
    let gone = turn
        .scene
        .send(&turn.scene.other, reqwest::Method::GET, &path, None)
        .await;
    assert_eq!(gone.status, 404);
}

async fn callback(turn: Turn<'_>) {
    let path = turn.scene.begin("contract", "callback").await;
    turn.scene
        .until(&path, |view| view["steps"][0]["status"] == "waiting")
        .await;
    let requests = turn.scene.desk.received_requests().await.expect("kept");
    let mut bodies = requests
        .iter()
        .filter_map(|request| serde_json::from_slice::<serde_json::Value>(&request.body).ok());
    let body = bodies.find(|body| body["contract"] == "callback");
    let body = body.expect("the service was asked");
    let token = body["answer"].as_str().expect("a token");
    let done = json!({"ok": {"name": "ada"}});
    turn.ask(&[("token", token)]).body(done).gives(202).await;
    let view = turn.scene.ended(&path).await;
    assert_eq!(
        (&view["phase"], &view["state"]["signed"]),
        (&json!("completed"), &json!("ada")),
        "{view}"
    );
    // Of work that is over nothing more is to be told. Only the process that has the shards sees that.
    let alive = json!({"heartbeat": true});
    let late = turn.ask_owner(&[("token", token)]).body(alive).gives(410).await;
    assert_eq!(late["code"], "SR0510", "{late}");
    let forged = turn
        .ask(&[("token", "nonsense")])
        .body(json!({"ok": {}}))
        .gives(404)
        .await;
    assert_eq!(forged["code"], "SR0502", "{forged}");
}
