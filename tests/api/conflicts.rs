//! Starts of a key whose instance runs: what becomes of each is decided in the order of the inputs, and told to whoever asked.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::api::caller::{Answer, get, instance, post, runner, until};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

pub(super) const STARTS: &str = "/v1/tenants/acme/sagas/patient/instances";

/// Waits for a signal, then pays.
pub(super) const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
input: {type: object}
reuse: {after: [cancelled]}
state: {init: {n: "${has(input.n) ? input.n : 0}"}}
steps:
  ask: {wait: {signal: go, timeout: 1h}}
  pay: {needs: [ask], effect: divide, with: {by: 2}, compensate: {effect: divide, with: {by: 1}}}
  rest: {needs: [pay], wait: {signal: rest, timeout: 1h}}
"#;

pub(super) const DIVIDE: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: divide
transform: {}
result: {share: "${100 / input.by}"}
"#;

/// A runner on nats-server with the saga.
pub(super) async fn on_nats(server: &NatsServer, extra: Value) -> Rig {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.add_effect("divide", DIVIDE);
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    rig
}

pub(super) async fn start(rig: &Rig, body: &Value) -> Answer {
    post(rig, STARTS, body.to_string()).await
}

async fn until_waiting(rig: &Rig, key: &str, step: usize) {
    let path = instance("acme", "patient", key);
    until(rig, &path, |view| view["steps"][step]["status"] == "waiting").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_instance_runs_is_refused_with_who_holds_the_key_or_gets_that_one() {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_effect("divide", DIVIDE);
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    let first = start(
        &rig,
        &json!({"key": "p-1", "input": {"n": 1}, "request_id": "r-1"}),
    )
    .await;
    assert_eq!(first.status, 201, "{first:?}");
    let told = first.json();
    assert_eq!(
        (
            &told["outcome"]["state"],
            &told["outcome"]["instance"]["generation"]
        ),
        (&json!("applied"), &json!(1)),
        "{told}"
    );

    let second = start(
        &rig,
        &json!({"key": "p-1", "input": {"n": 2}, "request_id": "r-2"}),
    )
    .await;
    let problem = second.is_problem(409, "SR0515");
    let holder = &problem["outcome"]["instance"];
    assert_eq!(
        (&holder["started_by"], &holder["phase"], &holder["generation"]),
        (&json!("r-1"), &json!("running"), &json!(1)),
        "{problem}"
    );

    let same = json!({"key": "p-1", "input": {"n": 3}, "request_id": "r-3", "on_conflict": "use_existing"});
    let third = start(&rig, &same).await;
    assert_eq!(third.status, 200, "{third:?}");
    assert_eq!(third.json()["outcome"]["instance"]["started_by"], "r-1");
    let view = get(&rig, &instance("acme", "patient", "p-1")).await.json();
    assert_eq!((&view["state"]["n"], &view["generation"]), (&json!(1), &json!(1)));
    // What was refused is in the history, whoever asked for the one that runs is not.
    let history = view["history"].as_array().expect("a history");
    let of = |id: &str| {
        history
            .iter()
            .find(|row| row["input"] == id)
            .map(|row| &row["outcome"])
    };
    assert_eq!((of("r-2"), of("r-3")), (Some(&json!("exists")), None), "{view}");

    // The same request again answers the same; another one of its id is told as that.
    for (body, status) in [
        (json!({"key": "p-1", "input": {"n": 1}, "request_id": "r-1"}), 201),
        (json!({"key": "p-1", "input": {"n": 2}, "request_id": "r-2"}), 409),
        (same, 200),
    ] {
        let again = start(&rig, &body).await;
        assert_eq!(again.status, status, "{again:?}");
    }
    for id in ["r-1", "r-2", "r-3"] {
        let other = start(&rig, &json!({"key": "p-1", "input": {"n": 9}, "request_id": id})).await;
        assert_eq!(other.is_problem(409, "SR0514")["title"], "input_mismatch");
    }
    for wrong in [
        json!({"key": "p-1", "on_conflict": "overwrite"}),
        json!({"key": "p-1", "on_conflict": "terminate_existing"}),
        json!({"key": "p-1", "reason": 7}),
    ] {
        start(&rig, &wrong).await.is_problem(400, "SR0501");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_terminates_replaces_what_has_done_nothing_and_is_refused_otherwise() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({})).await;
    let path = instance("acme", "patient", "t-1");
    assert_eq!(
        start(
            &rig,
            &json!({"key": "t-1", "input": {"n": 1}, "request_id": "r-1"})
        )
        .await
        .status,
        201
    );
    let body = json!({
        "key": "t-1", "input": {"n": 2}, "request_id": "r-2",
        "on_conflict": "terminate_existing", "reason": "wrong number", "by": "ada",
    });
    let replaced = start(&rig, &body).await;
    assert_eq!(replaced.status, 201, "{replaced:?}");
    assert_eq!(
        replaced.json()["outcome"]["instance"]["generation"],
        2,
        "{replaced:?}"
    );
    let view = get(&rig, &path).await.json();
    assert_eq!((&view["generation"], &view["state"]["n"]), (&json!(2), &json!(2)));
    // Over a kill of the process, the answer to the same request is the same.
    rig.kill();
    rig.start().await;
    let again = start(&rig, &body).await;
    assert_eq!(
        (again.status, &again.json()["outcome"]["generation"]),
        (201, &json!(2)),
        "{again:?}"
    );
    assert_eq!(get(&rig, &path).await.json()["generation"], 2);

    // It pays: from here on it is not replaced.
    let go = post(&rig, &format!("{path}/signals/go?wait=10s"), "{}").await;
    assert_eq!(go.status, 200, "{go:?}");
    until_waiting(&rig, "t-1", 2).await;
    let body = json!({
        "key": "t-1", "input": {"n": 3}, "request_id": "r-3",
        "on_conflict": "terminate_existing", "reason": "again",
    });
    let problem = start(&rig, &body).await.is_problem(409, "SR0503");
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|text| text.contains("what pay did, or may have done")),
        "{problem}"
    );
    let view = get(&rig, &path).await.json();
    assert_eq!(
        (&view["generation"], &view["phase"]),
        (&json!(2), &json!("running"))
    );
    let refused = view["history"]
        .as_array()
        .expect("a history")
        .iter()
        .find(|row| row["input"] == "r-3");
    let refused = refused.expect("it is told");
    assert_eq!(refused["outcome"], "refused");
    assert!(refused["notes"][0]["refused"]["message"].is_string(), "{refused}");

    // Undone, its key is free.
    let cancelled = post(&rig, &format!("{path}/cancel?wait=10s"), "{}").await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    until(&rig, &path, |view| view["phase"] == "cancelled").await;
    let body = json!({
        "key": "t-1", "input": {"n": 4}, "request_id": "r-4",
        "on_conflict": "terminate_existing", "reason": "again",
    });
    assert_eq!(start(&rig, &body).await.status, 201);
    assert_eq!(get(&rig, &path).await.json()["generation"], 3);
}

/// Whoever looked first and then asked would let several win.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_starts_at_once_through_two_processes_one_wins_and_the_others_name_it() {
    let server = NatsServer::start();
    let rig = on_nats(&server, json!({})).await;
    let mut other = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    other.add_effect("divide", DIVIDE);
    other.add_saga("patient", PATIENT);
    other.start_as("effect").await;
    let ask = async |n: usize| {
        let body = json!({"key": "race", "input": {"n": n}, "request_id": format!("r-{n}")}).to_string();
        // Every fourth goes to the process that works on no shard.
        let at = if n.is_multiple_of(4) { &other } else { &rig };
        post(at, STARTS, body).await
    };
    let answers = join_all((0..40).map(ask)).await;
    until_waiting(&rig, "race", 0).await;
    let view = get(&rig, &instance("acme", "patient", "race")).await.json();
    let winner = view["start_event"]
        .as_str()
        .expect("who has started it")
        .to_owned();
    for (n, answer) in answers.iter().enumerate() {
        let id = format!("r-{n}");
        match answer.status {
            201 => assert_eq!(id, winner),
            409 => assert_eq!(
                answer.json()["outcome"]["instance"]["started_by"],
                winner.as_str(),
                "{id}"
            ),
            _ => panic!("{id}: {answer:?}"),
        }
    }
    // Its outcome is told there as well.
    let there = post(
        &other,
        &format!("{STARTS}?wait=5s"),
        json!({"key": "elsewhere"}).to_string(),
    )
    .await;
    assert_eq!(there.status, 201, "{there:?}");
    let started = get(&rig, &instance("acme", "patient", "elsewhere")).await;
    assert_eq!(started.status, 200);
}
