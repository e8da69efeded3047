//! Calls that an upstream swallows: the instance asks an operator, and goes on by what he has found out.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::api::caller::{get, instance, items, post, runner, send, until};
use crate::support::rig::Rig;

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {"Pay.*": event.data.pay}
state: {init: {}}
steps:
  charge:
    effect: charge
    with: {cents: 5}
    set: {charge: "${result.charge_id}"}
    on_error: {timeout: {fail: {code: unpaid}}}
"#;

/// An upstream that takes requests and never answers, and each request's idempotency key.
async fn swallowing() -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte.to_ascii_lowercase()),
                    Err(_) => break,
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let key = head
                .lines()
                .find_map(|line| line.strip_prefix("idempotency-key: "));
            if let Some(key) = key {
                let _ = sender.send(key.to_owned());
            }
            open.push(stream);
        }
    });
    (address, receiver)
}

fn charge(upstream: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Effect
name: charge
output: {{type: object, required: [charge_id], properties: {{charge_id: {{type: string}}, iban: {{type: string}}}}}}
http: {{method: POST, url: "{upstream}/charges", body: {{cents: "${{input.cents}}"}}}}
timeout: {{total: 1s}}
on_ambiguous: ask
redact: [result.iban]
"#
    )
}

async fn running() -> (Rig, mpsc::UnboundedReceiver<String>) {
    let (upstream, calls) = swallowing().await;
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_effect("charge", &charge(&upstream));
    rig.add_saga("pay", SAGA);
    rig.start().await;
    (rig, calls)
}

fn decide(rig: &Rig, verb: &str, key: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let url = rig.url("");
    command.args(["instance", verb, "pay", key, "--tenant", "acme", "--url", &url]);
    command.args(more).output().expect("the binary starts")
}

fn decided(rig: &Rig, verb: &str, key: &str, more: &[&str]) {
    let output = decide(rig, verb, key, more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

fn is_stuck(view: &Value) -> bool {
    view["steps"][0]["status"] == "stuck"
}

async fn asked(rig: &Rig, key: &str) -> Value {
    let id = format!("e-{key}");
    send(rig, "acme", &id, "Pay.Opened", json!({"pay": key})).await;
    until(rig, &instance("acme", "pay", key), is_stuck).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_states_the_outcome_of_a_swallowed_call() {
    let (rig, mut calls) = running().await;
    let view = asked(&rig, "o-1").await;
    assert_eq!(view["phase"], "running");
    let stuck = &view["stuck"];
    assert_eq!(
        (&stuck[0]["step"], &stuck[0]["what"], &stuck[1]),
        (&json!("charge"), &json!("step"), &Value::Null)
    );
    let message = stuck[0]["message"].as_str().expect("why");
    assert!(message.contains("no answer"), "{message}");
    assert!(stuck[0]["since"].is_string() && stuck[0]["command_id"].is_string());
    let told = stuck[0]["idempotency_key"].as_str().expect("a key").to_owned();
    let list = get(&rig, "/v1/tenants/acme/sagas/pay/instances").await.json();
    assert_eq!(
        items(&list)[0]["stuck"][0]["step"],
        "charge",
        "lists tell as well"
    );
    let blocked_by = &view["blocked_by"];
    assert_eq!(
        (&blocked_by["questions"], &blocked_by["since"]),
        (&json!(1), &stuck[0]["since"])
    );
    let blocked = "/v1/tenants/acme/sagas/pay/instances?blocked=true";
    assert_eq!(items(&get(&rig, blocked).await.json())[0]["key"], "o-1");
    let series = r#"saga_runner_steps_stuck_total{saga="pay",what="step"} 1"#;
    until_text(&rig, series).await;

    let id = r#"{"charge_id":"ch-1","iban":"DE44"}"#;
    let why = ["--by", "ada", "--reason", "the bank has it"];
    let found = ["--step", "charge", "--as", "done", "--result", id];
    decided(&rig, "resolve", "o-1", &[&found[..], &why[..]].concat());
    let done = until(&rig, &instance("acme", "pay", "o-1"), |view| {
        view["ended"].is_string()
    })
    .await;
    assert_eq!(
        (
            &done["phase"],
            &done["state"],
            &done["stuck"],
            &done["blocked_by"]
        ),
        (
            &json!("completed"),
            &json!({"charge": "ch-1"}),
            &Value::Null,
            &Value::Null
        )
    );
    assert_eq!(items(&get(&rig, blocked).await.json()).len(), 0);
    let history = done["history"].to_string();
    assert!(
        history.contains(r#""verdict":"done""#) && history.contains("the bank has it"),
        "{history}"
    );

    asked(&rig, "o-2").await;
    decided(&rig, "resolve", "o-2", &["--step", "charge", "--as", "not_done"]);
    let failed = until(&rig, &instance("acme", "pay", "o-2"), |view| {
        view["ended"].is_string()
    })
    .await;
    assert_eq!(
        (&failed["phase"], &failed["failure"]["code"]),
        (&json!("failed"), &json!("unpaid"))
    );

    let first = asked(&rig, "o-3").await["stuck"][0]["command_id"].clone();
    decided(&rig, "retry", "o-3", &[]);
    let again = |view: &Value| is_stuck(view) && view["stuck"][0]["command_id"] != first;
    until(&rig, &instance("acme", "pay", "o-3"), again).await;
    let mut keys = Vec::new();
    for _ in 0..4 {
        keys.push(calls.recv().await.expect("a call"));
    }
    assert!(
        calls.try_recv().is_err(),
        "nothing is called that nobody asked for"
    );
    assert_eq!(keys[0], told, "what an operator looks for at the upstream");
    assert_eq!(keys[2], keys[3], "the retry is the same work");
    assert_ne!(keys[0], keys[1]);
    let inputs = get(&rig, &format!("{}/inputs", instance("acme", "pay", "o-1"))).await;
    assert!(
        inputs.text.contains("ch-1") && !inputs.text.contains("DE44"),
        "what the effect redacts is masked, whoever tells it: {inputs:?}"
    );
    assert_replays(&rig, "o-1", ["resolve: charge", "as: done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_unknown_outcome_is_skipped_once_an_operator_says_whether_it_was_done() {
    let (rig, _calls) = running().await;
    asked(&rig, "o-1").await;
    let why = ["--step", "charge", "--by", "ada", "--reason", "paid in cash"];
    let silent = decide(&rig, "skip", "o-1", &why);
    let errors = String::from_utf8_lossy(&silent.stderr).into_owned();
    assert_eq!(silent.status.code(), Some(5), "{errors}");
    assert!(
        errors.contains("say whether there is something to undo"),
        "{errors}"
    );
    let result = r#"{"charge_id":"cash-1","iban":"DE44"}"#;
    let found = ["--as", "not_done", "--result", result];
    decided(&rig, "skip", "o-1", &[&found[..], &why[..]].concat());
    let path = instance("acme", "pay", "o-1");
    let done = until(&rig, &path, |view| view["ended"].is_string()).await;
    assert_eq!(
        (&done["phase"], &done["state"], &done["steps"][0]["status"]),
        (
            &json!("completed"),
            &json!({"charge": "cash-1"}),
            &json!("skipped")
        )
    );
    let history = done["history"].to_string();
    for told in [r#""verdict":"skip""#, "paid in cash", "ada", "step_skipped"] {
        assert!(history.contains(told), "{told}: {history}");
    }
    let inputs = get(&rig, &format!("{path}/inputs")).await;
    assert!(
        inputs.text.contains("cash-1") && !inputs.text.contains("DE44"),
        "{inputs:?}"
    );
    assert_replays(&rig, "o-1", ["skip: charge", "as: not_done"]);
    let again = decide(&rig, "skip", "o-1", &why);
    assert_eq!(again.status.code(), Some(5), "it has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_one_is_refused_at_once() {
    let (rig, _calls) = running().await;
    asked(&rig, "o-1").await;
    let path = |verb: &str| format!("{}/{verb}", instance("acme", "pay", "o-1"));
    let cases = [
        ("resolve", json!({}), 409),
        ("skip", json!({"step": "charge", "reason": "not needed"}), 409),
        ("skip", json!({"step": "charge", "as": "not_done"}), 400),
        ("skip", json!({"as": "done", "reason": "not needed"}), 400),
        ("resolve", json!({"step": "ship", "as": "not_done"}), 409),
        ("resolve", json!({"as": "done", "result": {}}), 400),
        (
            "resolve",
            json!({"step": "charge", "as": "done", "result": {"id": 1}}),
            400,
        ),
        (
            "resolve",
            json!({"step": "charge", "as": "not_done", "result": {}}),
            400,
        ),
        ("resolve", json!({"step": "charge", "as": "perhaps"}), 400),
        ("retry", json!({"step": "charge", "as": "not_done"}), 400),
        (
            "skip",
            json!({"step": "charge", "as": "done", "result": {"id": 1}, "reason": "not needed"}),
            400,
        ),
    ];
    for (verb, body, status) in cases {
        let answer = post(&rig, &path(verb), body.to_string()).await;
        assert_eq!(answer.status, status, "{verb} {body}: {answer:?}");
    }
    let missing = decide(&rig, "resolve", "o-1", &["--as", "done"]);
    assert!(!missing.status.success(), "--as needs --step");
    let view = get(&rig, &instance("acme", "pay", "o-1")).await.json();
    assert!(is_stuck(&view), "{view}");
}

async fn until_text(rig: &Rig, wanted: &str) {
    let begin = std::time::Instant::now();
    loop {
        let text = get(rig, "/metrics").await.text;
        if text.contains(wanted) {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{wanted} is not in\n{text}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What is recorded of an instance plays again, and makes a case that holds.
fn assert_replays(rig: &Rig, key: &str, said: [&str; 2]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(path, text).expect("written");
    };
    write("sagas/pay.yaml", SAGA);
    // Where it calls is no matter of the saga.
    write("effects/charge.yaml", &charge("http://127.0.0.1:1"));
    let inputs = rig.url(&format!("{}/inputs", instance("acme", "pay", key)));
    let root = dir.path().display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        let output = command.args(arguments).output().expect("the binary starts");
        let (out, error) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert!(output.status.success(), "{arguments:?}: {out}{error}");
        out
    };
    run(&["replay", &root, "--from", &inputs]);
    let case = run(&["test", &root, "--from-history", &inputs]);
    for told in said {
        assert!(case.contains(told), "{told}: {case}");
    }
    write("sagas/pay.test.yaml", &case);
    run(&["test", &root]);
}
