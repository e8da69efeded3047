//! What operators do to one instance: pause and resume, kill, timers, another go at an ended one.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, ResponseTemplate};

use crate::api::caller::{add_call, get, instance, post, runner, send, service, until};
use crate::support::rig::Rig;

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Patient.Opened
key: {"Patient.*": event.data.patient}
state: {init: {heard: []}}
handlers:
  Patient.Noted: {set: {heard: "${state.heard + [event.data.n]}"}}
timers:
  remind: {after: 1h, set: {heard: "${state.heard + [0]}"}}
steps:
  first: {effect: divide, with: {by: 1}, compensate: {effect: divide, with: {by: 2}}}
  second: {needs: [first], wait: {signal: go, timeout: 1h}}
"#;

const DIVIDE: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: divide
transform: {}
result: {share: "${100 / input.by}"}
"#;

const SHOP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: shop
start: Shop.Opened
key: {"Shop.*": event.data.shop}
state: {init: {}}
steps:
  look: {effect: divide, with: {by: 4}}
  pay: {needs: [look], effect: charge, with: {share: "${steps.look.result.share}"}, retry: {attempts: 1}}
"#;

async fn running() -> Rig {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_effect("divide", DIVIDE);
    rig.add_saga("patient", PATIENT);
    rig.start().await;
    rig
}

/// Carries out `saga-runner instance VERB SAGA KEY ...`.
fn cli(rig: &Rig, verb: &str, saga: &str, key: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let url = rig.url("");
    command.args(["instance", verb, saga, key, "--tenant", "acme", "--url", &url]);
    command.args(more).output().expect("the binary starts")
}

fn done(rig: &Rig, verb: &str, saga: &str, key: &str, more: &[&str]) {
    let output = cli(rig, verb, saga, key, more);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
}

/// It exits with this code, and says so.
fn refused(rig: &Rig, verb: &str, saga: &str, key: &str, more: &[&str], code: i32) -> String {
    let output = cli(rig, verb, saga, key, more);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{told}");
    told
}

async fn open(rig: &Rig, key: &str) -> String {
    let path = instance("acme", "patient", key);
    let id = format!("e-{key}");
    send(rig, "acme", &id, "Patient.Opened", json!({"patient": key})).await;
    until(rig, &path, |view| view["steps"][1]["status"] == "waiting").await;
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_instance_keeps_its_inputs_over_a_kill_and_applies_them_in_order() {
    let mut rig = running().await;
    let path = open(&rig, "p-1").await;
    done(
        &rig,
        "pause",
        "patient",
        "p-1",
        &["--by", "ada", "--reason", "a look"],
    );
    let paused = |view: &Value| view["blocked_by"]["paused"]["by"] == "ada";
    let view = until(&rig, &path, paused).await;
    assert_eq!(view["blocked_by"]["paused"]["reason"], "a look");
    let told = refused(&rig, "pause", "patient", "p-1", &[], 5);
    assert!(told.contains("is paused already"), "{told}");

    for n in 1..=3 {
        let id = format!("n-{n}");
        send(
            &rig,
            "acme",
            &id,
            "Patient.Noted",
            json!({"patient": "p-1", "n": n}),
        )
        .await;
    }
    let answer = post(&rig, &format!("{path}/signals/go"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(&rig, &path, |view| view["blocked_by"]["inputs"] == 4).await;
    rig.kill();
    rig.start().await;
    let view = until(&rig, &path, paused).await;
    assert_eq!(view["blocked_by"]["inputs"], 4, "{view}");
    assert_eq!(
        (&view["state"], &view["phase"]),
        (&json!({"heard": []}), &json!("running"))
    );

    done(&rig, "resume", "patient", "p-1", &["--by", "ada"]);
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    assert_eq!(view["state"], json!({"heard": [1, 2, 3]}));
    let told = view["history"].to_string();
    assert!(
        told.contains(r#""verb":"pause""#) && told.contains(r#""verb":"resume""#),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_needs_a_reason_and_a_confirmation_and_leaves_what_was_done() {
    let rig = running().await;
    let path = open(&rig, "k-1").await;
    refused(&rig, "kill", "patient", "k-1", &["--reason", "x"], 64);
    refused(&rig, "kill", "patient", "k-1", &["--yes"], 64);
    let answer = post(&rig, &format!("{path}/kill"), "{}").await;
    assert_eq!(
        answer.is_problem(400, "SR0501")["detail"],
        "`kill` needs a `reason`"
    );
    done(
        &rig,
        "kill",
        "patient",
        "k-1",
        &["--yes", "--reason", "by hand", "--by", "ada"],
    );
    let view = until(&rig, &path, |view| view["ended"].is_string()).await;
    assert_eq!(
        (
            &view["phase"],
            &view["failure"]["code"],
            &view["failure"]["message"]
        ),
        (&json!("cancelled"), &json!("killed"), &json!("by hand"))
    );
    assert_eq!(view["ledger"][0]["status"], "held", "it was not undone");
    let told = refused(&rig, "kill", "patient", "k-1", &["--yes", "--reason", "x"], 5);
    assert!(told.contains("has ended"), "{told}");
    // What it has done is kept, and what it waited for begins again.
    done(
        &rig,
        "retry",
        "patient",
        "k-1",
        &["--ended", "--yes", "--by", "ada"],
    );
    let view = until(&rig, &path, |view| view["generation"] == 2).await;
    assert_eq!(
        (&view["steps"][0]["status"], &view["steps"][1]["status"]),
        (&json!("done"), &json!("waiting"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_is_fired_or_cancelled_by_its_name() {
    let rig = running().await;
    let path = open(&rig, "t-1").await;
    let told = refused(&rig, "fire-timer", "patient", "t-1", &["--timer", "nope"], 5);
    assert!(told.contains("set are: remind, wait:second"), "{told}");
    done(&rig, "fire-timer", "patient", "t-1", &["--timer", "remind"]);
    until(&rig, &path, |view| view["state"] == json!({"heard": [0]})).await;
    done(
        &rig,
        "cancel-timer",
        "patient",
        "t-1",
        &["--timer", "wait:second"],
    );
    let view = until(&rig, &path, |view| view["timers"] == json!([])).await;
    assert_eq!(view["steps"][1]["status"], "waiting");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_instance_goes_on_from_the_step_that_failed_once_its_upstream_is_well() {
    let mut rig = running().await;
    let bank = service(ResponseTemplate::new(422).set_body_json(json!({"no": true}))).await;
    rig.kill();
    add_call(&rig, "charge", &bank, "");
    rig.add_saga("shop", SHOP);
    rig.start().await;
    let path = instance("acme", "shop", "s-1");
    send(&rig, "acme", "e-s", "Shop.Opened", json!({"shop": "s-1"})).await;
    until(&rig, &path, |view| view["phase"] == "failed").await;
    let told = refused(&rig, "retry", "shop", "s-1", &[], 5);
    assert!(told.contains("retry it with `ended`"), "{told}");
    refused(&rig, "retry", "shop", "s-1", &["--ended"], 64);

    let first = key_of_last(&bank).await;
    bank.reset().await;
    let well = ResponseTemplate::new(200).set_body_json(json!({"id": 1}));
    Mock::given(any()).respond_with(well).mount(&bank).await;
    done(
        &rig,
        "retry",
        "shop",
        "s-1",
        &["--ended", "--yes", "--by", "ada", "--reason", "it is back"],
    );
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    assert_eq!(view["generation"], 2);
    assert_ne!(key_of_last(&bank).await, first, "other work, another key");
    let told = view["history"].to_string();
    assert!(
        told.contains("it is back") && told.contains(r#""verb":"retry""#),
        "{told}"
    );
    assert!(
        !told.contains("result of divide"),
        "look was not done again: {told}"
    );
    let answer = get(&rig, &path).await;
    assert_eq!(answer.status, 200);
}

async fn key_of_last(bank: &wiremock::MockServer) -> String {
    let requests = bank.received_requests().await.expect("they are recorded");
    let last = requests.last().expect("a request");
    let key = last.headers.get("idempotency-key").expect("the header");
    key.to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_an_event_has_started_is_restarted_with_it_and_the_event_starts_no_third() {
    const SALE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: sale
start: Sale.Opened
reuse: always
key: {"Sale.*": event.data.sale}
state: {init: {amount: 0}}
handlers:
  Sale.Opened: {set: {amount: "${event.data.amount}"}}
steps:
  charge: {effect: charge, with: {amount: "${state.amount}"}, compensate: none}
"#;
    let mut rig = running().await;
    let bank = service(ResponseTemplate::new(422).set_body_json(json!({"no": true}))).await;
    rig.kill();
    add_call(&rig, "charge", &bank, "");
    rig.add_saga("sale", SALE);
    rig.start().await;
    let path = instance("acme", "sale", "s-1");
    let opened = json!({"sale": "s-1", "amount": 12.5});
    send(&rig, "acme", "e-1", "Sale.Opened", opened.clone()).await;
    until(&rig, &path, |view| view["phase"] == "failed").await;
    let first = key_of_last(&bank).await;
    done(
        &rig,
        "restart",
        "sale",
        "s-1",
        &["--yes", "--reason", "once more"],
    );
    let view = until(&rig, &path, |view| {
        view["generation"] == 2 && view["phase"] == "failed"
    })
    .await;
    assert_eq!(view["state"]["amount"], 12.5, "{view}");
    assert_eq!(view["start_event"], "e-1", "{view}");
    assert_ne!(key_of_last(&bank).await, first, "other work, another key");

    // A second one finds the event in the message of the first, also after a restart of the process.
    bank.reset().await;
    let well = ResponseTemplate::new(200).set_body_json(json!({"id": 1}));
    Mock::given(any()).respond_with(well).mount(&bank).await;
    rig.kill();
    rig.start().await;
    done(
        &rig,
        "restart",
        "sale",
        "s-1",
        &["--yes", "--reason", "it is back"],
    );
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    assert_eq!(
        (&view["generation"], &view["state"]["amount"]),
        (&json!(3), &json!(12.5)),
        "{view}"
    );
    // The producer sends the event again, and another one.
    send(&rig, "acme", "e-1", "Sale.Opened", opened).await;
    send(
        &rig,
        "acme",
        "e-2",
        "Sale.Opened",
        json!({"sale": "s-1", "amount": 1}),
    )
    .await;
    let view = until(&rig, &path, |view| view["state"]["amount"] == 1).await;
    assert_eq!(view["generation"], 4, "only the other one has begun one: {view}");
    let told = refused(&rig, "restart", "sale", "s-2", &["--yes"], 4);
    assert!(told.contains("no instance"), "{told}");
}
