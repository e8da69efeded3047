//! Requests named by an idempotency key, and waiting for what becomes of them.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::api::caller::{Answer, get, instance, post, until};
use crate::api::conflicts::{STARTS, on_nats, start};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

async fn keyed(rig: &Rig, path: &str, key: &str, body: &Value) -> Answer {
    let request = rig
        .client
        .post(rig.url(path))
        .header("content-type", "application/json");
    Answer::of(request.header("idempotency-key", key).body(body.to_string())).await
}

fn cli(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(arguments)
        .args(["--tenant", "acme", "--url", &rig.url("")]);
    command.output().expect("the binary starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_repeated_under_its_idempotency_key_is_answered_as_the_first_time() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({})).await;
    let path = instance("acme", "patient", "k-1");
    let begun = keyed(&rig, STARTS, "\"i-1\"", &json!({"key": "k-1", "input": {"n": 1}})).await;
    assert_eq!(
        (begun.status, &begun.json()["request_id"]),
        (201, &json!("i-1")),
        "{begun:?}"
    );
    let again = keyed(&rig, STARTS, "i-1", &json!({"key": "k-1", "input": {"n": 1}})).await;
    assert_eq!(
        (again.status, &again.json()["duplicate"]),
        (201, &json!(true)),
        "{again:?}"
    );
    let other = keyed(&rig, STARTS, "i-1", &json!({"key": "k-1", "input": {"n": 2}})).await;
    other.is_problem(409, "SR0514");
    let both = json!({"key": "k-1", "request_id": "i-2"});
    keyed(&rig, STARTS, "i-1", &both).await.is_problem(400, "SR0501");

    // A kill whose answer was lost: the second one finds that it was done, over a restart as well.
    let kill = json!({"reason": "by hand"});
    let killed = keyed(&rig, &format!("{path}/kill?wait=10s"), "i-3", &kill).await;
    assert_eq!(
        (killed.status, &killed.json()["outcome"]["state"]),
        (200, &json!("applied")),
        "{killed:?}"
    );
    rig.kill();
    rig.start().await;
    let again = keyed(&rig, &format!("{path}/kill?wait=10s"), "i-3", &kill).await;
    assert_eq!(
        (again.status, &again.json()["outcome"]["state"]),
        (200, &json!("applied")),
        "{again:?}"
    );
    let other = keyed(
        &rig,
        &format!("{path}/kill"),
        "i-3",
        &json!({"reason": "another"}),
    )
    .await;
    other.is_problem(409, "SR0514");
    // Without the key it is another kill, of an instance that has ended.
    post(&rig, &format!("{path}/kill"), kill.to_string())
        .await
        .is_problem(409, "SR0503");
    // What is no request to an instance does not pretend to keep keys.
    keyed(&rig, "/admin/reload", "i-4", &json!({}))
        .await
        .is_problem(400, "SR0501");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_started_again_under_its_key_is_the_same_job_also_after_a_restart() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({})).await;
    let jobs = "/v1/tenants/acme/jobs";
    let order =
        |reason: &str| json!({"verb": "pause", "filter": {"saga": "patient"}, "reason": reason, "by": "ann"});
    let first = keyed(&rig, jobs, "j-1", &order("inventory")).await;
    assert_eq!(first.status, 202, "{first:?}");
    let id = first.json()["id"].clone();
    // Many at a time, too.
    let body = order("inventory");
    let again = (0..5).map(|_| keyed(&rig, jobs, "\"j-1\"", &body));
    for again in join_all(again).await {
        assert_eq!((again.status, &again.json()["id"]), (202, &id), "{again:?}");
    }
    keyed(&rig, jobs, "j-1", &order("another"))
        .await
        .is_problem(409, "SR0514");
    let other = keyed(&rig, "/v1/tenants/globex/jobs", "j-1", &order("inventory")).await;
    assert_eq!(other.status, 202, "{other:?}");
    assert_ne!(other.json()["id"], id);
    rig.kill();
    rig.start().await;
    let again = keyed(&rig, jobs, "j-1", &order("inventory")).await;
    assert_eq!((again.status, &again.json()["id"]), (202, &id), "{again:?}");
    let all = crate::api::caller::get(&rig, jobs).await.json();
    assert_eq!(all["items"].as_array().map(Vec::len), Some(1), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_tells_the_outcome_of_a_request_or_why_it_is_pending() {
    let server = NatsServer::start();
    let rig = on_nats(&server, json!({"http": {"wait_max": "2s"}})).await;
    let path = instance("acme", "patient", "w-1");
    start(&rig, &json!({"key": "w-1"})).await;
    let paused = post(&rig, &format!("{path}/pause?wait=10s"), "{}").await;
    assert_eq!(
        (paused.status, &paused.json()["outcome"]["state"]),
        (200, &json!("applied")),
        "{paused:?}"
    );
    // It is cut to wait_max.
    let begun = Instant::now();
    let pending = post(
        &rig,
        &format!("{path}/signals/go?wait=1h"),
        json!({"request_id": "s-1"}).to_string(),
    )
    .await;
    assert!(begun.elapsed() < Duration::from_secs(20));
    let outcome = &pending.json()["outcome"];
    assert_eq!(
        (pending.status, &outcome["state"], &outcome["reason"]),
        (202, &json!("pending"), &json!("paused")),
        "{pending:?}"
    );
    // Whoever waits hears of it when it is applied.
    let signal = format!("{path}/signals/go?wait=2s");
    let waiting = post(&rig, &signal, json!({"request_id": "s-1"}).to_string());
    let resumed = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        post(&rig, &format!("{path}/resume?wait=2s"), "{}").await
    };
    let (signalled, resumed) = tokio::join!(waiting, resumed);
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(
        (signalled.status, &signalled.json()["outcome"]["state"]),
        (200, &json!("applied")),
        "{signalled:?}"
    );

    for (path, query) in [
        ("/cancel", "wait=soon"),
        ("/cancel", "wait_for=end"),
        ("/pause", "wait=1s&x=1"),
    ] {
        let path = format!("{}{path}?{query}", instance("acme", "patient", "w-1"));
        post(&rig, &path, "{}").await.is_problem(400, "SR0501");
    }
    // The command line: done, pending, and refused.
    let done = cli(&rig, &["instance", "pause", "patient", "w-1", "--wait"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        String::from_utf8_lossy(&done.stdout).contains("applied"),
        "{done:?}"
    );
    let pending = cli(
        &rig,
        &[
            "instance",
            "wait",
            "patient",
            "w-1",
            "--for",
            "phase=completed",
            "--timeout",
            "300ms",
        ],
    );
    assert_eq!(pending.status.code(), Some(6), "{pending:?}");
    let held = cli(&rig, &["instance", "pause", "patient", "w-1", "--wait"]);
    assert_eq!(held.status.code(), Some(5), "{held:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_can_wait_for_the_end_and_a_wait_for_an_instance_tells_how_it_went() {
    let server = NatsServer::start();
    let rig = on_nats(&server, json!({})).await;
    let path = instance("acme", "patient", "e-1");
    let to_the_end = format!("{STARTS}?wait=20s&wait_for=end");
    let waits = post(&rig, &to_the_end, json!({"key": "e-1"}).to_string());
    let ends = async {
        until(&rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
        post(
            &rig,
            &format!("{path}/kill"),
            json!({"reason": "over"}).to_string(),
        )
        .await
    };
    let (waited, _) = tokio::join!(waits, ends);
    assert_eq!(waited.status, 201, "{waited:?}");
    assert_eq!(
        waited.json()["outcome"]["instance"]["phase"],
        "cancelled",
        "{waited:?}"
    );
    // Ended already: at once.
    let reached = get(&rig, &format!("{path}/wait?for=end&wait=20s")).await.json();
    assert_eq!(
        (&reached["reached"], &reached["ended"]),
        (&json!(true), &json!(true))
    );
    let other = cli(
        &rig,
        &["instance", "wait", "patient", "e-1", "--for", "phase=completed"],
    );
    assert_eq!(other.status.code(), Some(7), "{other:?}");
    assert_eq!(
        cli(&rig, &["instance", "wait", "patient", "e-1"]).status.code(),
        Some(0)
    );
    assert_eq!(
        cli(&rig, &["instance", "wait", "patient", "nobody"])
            .status
            .code(),
        Some(4)
    );
    for wrong in [
        "for=over",
        "for=phase%3Dhappy",
        "for=step%3Dnope",
        "for=end&wait=x",
    ] {
        get(&rig, &format!("{path}/wait?{wrong}"))
            .await
            .is_problem(400, "SR0501");
    }
    let path = instance("acme", "patient", "e-2");
    start(&rig, &json!({"key": "e-2"})).await;
    let step = get(&rig, &format!("{path}/wait?for=step%3Dask:waiting&wait=20s"))
        .await
        .json();
    assert_eq!(step["reached"], true, "{step}");
    // The next generation is another instance: whoever waits for the first learns that it is over.
    let body = json!({"key": "e-2", "on_conflict": "terminate_existing", "reason": "anew"});
    let wait = format!("{path}/wait?for=phase%3Dcompleted&wait=20s&generation=1");
    let next = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        start(&rig, &body).await
    };
    let (reached, replaced) = tokio::join!(get(&rig, &wait), next);
    assert_eq!(replaced.status, 201, "{replaced:?}");
    let reached = reached.json();
    assert_eq!(
        (
            &reached["reached"],
            &reached["ended"],
            &reached["instance"]["generation"]
        ),
        (&json!(false), &json!(true), &json!(1)),
        "{reached}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_of_the_command_line_goes_on_over_a_restart_of_the_runner() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({"http": {"waits_max": 1}})).await;
    start(&rig, &json!({"key": "r-1"})).await;
    let url = rig.url("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args([
        "instance",
        "wait",
        "patient",
        "r-1",
        "--tenant",
        "acme",
        "--url",
        &url,
        "--timeout",
        "60s",
    ]);
    let waits = tokio::task::spawn_blocking(move || command.output().expect("the binary starts"));
    let full = format!("{}/wait?for=end&wait=1ms", instance("acme", "patient", "r-1"));
    let takes_the_place = async {
        while get(&rig, &full).await.status != 503 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let begun = tokio::time::timeout(Duration::from_secs(30), takes_the_place).await;
    begun.expect("the command waits");
    rig.kill();
    rig.start().await;
    let path = instance("acme", "patient", "r-1");
    let killed = post(
        &rig,
        &format!("{path}/kill"),
        json!({"reason": "over"}).to_string(),
    )
    .await;
    assert_eq!(killed.status, 202, "{killed:?}");
    let output = waits.await.expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("cancelled"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_wait_at_once_and_all_hear_of_the_end_and_no_more_wait_than_may() {
    const WAITERS: usize = 1_000;
    let server = NatsServer::start();
    let bounds = json!({"http": {"connections_max": 1_200, "waits_max": WAITERS}});
    let rig = on_nats(&server, bounds).await;
    start(&rig, &json!({"key": "m-1"})).await;
    let path = instance("acme", "patient", "m-1");
    let wait = format!("{path}/wait?for=end&wait=50s");
    let waits = join_all((0..WAITERS).map(|_| async {
        // The one more below may have the last place for a moment.
        loop {
            let answer = get(&rig, &wait).await;
            if answer.status != 503 {
                return answer;
            }
        }
    }));
    let ends = async {
        // Until all wait, one more finds a place; then it does not.
        let looked = Instant::now();
        loop {
            assert!(looked.elapsed() < Duration::from_secs(45), "not all wait at once");
            let more = get(&rig, &format!("{path}/wait?for=end&wait=1ms")).await;
            match more.status {
                503 => break,
                200 => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => panic!("{more:?}"),
            }
        }
        let begun = Instant::now();
        let killed = post(
            &rig,
            &format!("{path}/kill"),
            json!({"reason": "over"}).to_string(),
        )
        .await;
        assert_eq!(killed.status, 202, "{killed:?}");
        begun
    };
    let (answers, begun) = tokio::join!(waits, ends);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for answer in answers {
        assert_eq!(
            (answer.status, &answer.json()["reached"]),
            (200, &json!(true)),
            "{answer:?}"
        );
    }
}
