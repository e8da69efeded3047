//! Why an instance does not go on, asked where its sagas run while its effects run in another process, on nats-server.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::{MockServer, ResponseTemplate};

use crate::api::caller::{add_call, get, instance, letters, post, runner, send, service, until};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

pub(super) const PAY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {"Pay.*": event.data.pay}
state: {init: {}}
steps:
  charge: {effect: charge, with: {}, timeout: 10m}
"#;

const CONFIRM: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: confirm
start: Confirm.Opened
key: {"Confirm.*": event.data.confirm}
state: {init: {}}
steps:
  approve: {wait: {signal: approve, timeout: 30d}}
"#;

const OUTER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: outer
start: Outer.Opened
key: {"Outer.*": event.data.outer}
state: {init: {}}
steps:
  inner: {saga: {name: inner, key: "in-${key}", input: {}}}
"#;

const INNER: &str = r"
apiVersion: sagas/v1
kind: Saga
name: inner
input: {type: object}
state: {init: {}}
steps:
  approve: {wait: {signal: approve}}
";

pub(super) const RETRIES: &str = "retry: {attempts: 20, backoff: {initial: 1s, max: 10s}}\n";

/// No call ends while a test runs.
const LONG: &str = "timeout: {total: 9m}\n";

fn add_sagas(rig: &Rig) {
    for (name, text) in [
        ("pay", PAY),
        ("confirm", CONFIRM),
        ("outer", OUTER),
        ("inner", INNER),
    ] {
        rig.add_saga(name, text);
    }
}

async fn refusing() -> MockServer {
    service(ResponseTemplate::new(503).set_body_string("out of order")).await
}

/// Answers no call while a test runs.
async fn slow() -> MockServer {
    service(ResponseTemplate::new(200).set_delay(Duration::from_mins(10))).await
}

fn why(saga: &str, key: &str) -> String {
    format!("{}/why", instance("acme", saga, key))
}

/// What a command prints that must succeed.
fn printed(rig: &Rig, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let url = rig.url("");
    command.args(arguments).args(["--tenant", "acme", "--url", &url]);
    let output = command.output().expect("the binary starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn cause(told: &Value) -> &str {
    told["cause"].as_str().unwrap_or_default()
}

/// Two processes over one broker: sagas in the first, effects in the second.
async fn apart(server: &NatsServer, upstream: &MockServer, more: &str) -> (Rig, Rig) {
    let url = Some(server.url());
    let mut sagas = Rig::new(url.clone(), "30m", Duration::ZERO, json!({})).await;
    let mut effects = Rig::new(url, "30m", Duration::ZERO, json!({})).await;
    for rig in [&sagas, &effects] {
        add_sagas(rig);
        add_call(rig, "charge", upstream, more);
    }
    sagas.start_as("saga").await;
    effects.start_as("effect").await;
    (sagas, effects)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_fail_in_another_process_are_told_with_class_message_and_next_attempt() {
    let (server, upstream) = (NatsServer::start(), refusing().await);
    let (sagas, _effects) = apart(&server, &upstream, RETRIES).await;
    send(&sagas, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    let told = until(&sagas, &why("pay", "p-1"), |told| cause(told) == "failing").await;
    let work = &told["pending"][0];
    assert_eq!(
        (&work["step"], &work["effect"]),
        (&json!("charge"), &json!("charge"))
    );
    assert!(
        work["idempotency_key"].is_string() && work["deadline"].is_string(),
        "{work}"
    );
    let calls = &work["calls"];
    assert!(
        calls["made"].as_u64() >= Some(1) && calls["next"].is_string(),
        "{calls}"
    );
    assert!(
        calls["worker"].as_str().is_some_and(|worker| !worker.is_empty()),
        "{calls}"
    );
    let class = calls["error"]["class"].as_str().expect("a class");
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(sentence.contains(class) && sentence.contains("503"), "{sentence}");
    let shown = printed(&sagas, &["instance", "show", "pay", "p-1"]);
    let key = work["idempotency_key"].as_str().expect("a key");
    assert!(
        shown.contains("the result of effect charge") && shown.contains(key) && shown.contains("DEADLINE"),
        "{shown}"
    );
    // The command line says the same.
    let printed = printed(&sagas, &["instance", "why", "pay", "p-1"]);
    assert!(printed.contains("of effect charge"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_a_worker_holds_back_is_not_made_by_request_and_the_refusal_says_when_it_is() {
    let later = ResponseTemplate::new(503).insert_header("retry-after", "300");
    let (server, upstream) = (NatsServer::start(), service(later).await);
    let (sagas, effects) = apart(&server, &upstream, RETRIES).await;
    send(&sagas, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    let told = until(&sagas, &why("pay", "p-1"), |told| cause(told) == "failing").await;
    let next = told["pending"][0]["calls"]["next"].as_str().expect("a time");
    let path = format!("{}/try-now", instance("acme", "pay", "p-1"));
    for (rig, body) in [(&sagas, "{}"), (&effects, r#"{"step": "charge"}"#)] {
        let problem = post(rig, &path, body).await.is_problem(409, "SR0503");
        let detail = problem["detail"].as_str().expect("a text");
        for part in [
            "503",
            next,
            "1 call(s) were made",
            "instance skip pay p-1 --step charge --as not_done",
        ] {
            assert!(detail.contains(part), "{part}: {detail}");
        }
    }
    let other = post(&sagas, &path, r#"{"step": "ship"}"#)
        .await
        .is_problem(409, "SR0503");
    let detail = other["detail"].as_str().expect("a text");
    assert!(detail.contains("has no step ship"), "{detail}");
    assert_eq!(
        upstream.received_requests().await.map(|calls| calls.len()),
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_that_is_open_in_another_process_is_told_with_its_upstream() {
    let (server, upstream) = (NatsServer::start(), refusing().await);
    let breaker = format!("{RETRIES}breaker: {{window: 30s, min_calls: 1, failure_rate: 0.1, open: 60s}}\n");
    let (sagas, _effects) = apart(&server, &upstream, &breaker).await;
    for number in 1..=3 {
        let (id, key) = (format!("e-{number}"), format!("p-{number}"));
        send(&sagas, "acme", &id, "Pay.Opened", json!({"pay": key})).await;
    }
    let told = until(&sagas, &why("pay", "p-1"), |told| cause(told) == "breaker").await;
    let calls = &told["pending"][0]["calls"];
    let held = calls["upstream"].as_str().expect("an upstream");
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(sentence.contains(&format!("the breaker of {held}")), "{sentence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_that_an_operator_holds_open_is_told_with_the_way_out_and_without_a_time() {
    let (server, upstream) = (NatsServer::start(), refusing().await);
    let (sagas, effects) = apart(&server, &upstream, RETRIES).await;
    let held = upstream.address().to_string();
    let path = format!("/admin/breakers/{held}");
    let set = post(&effects, &path, r#"{"state":"open"}"#).await;
    assert_eq!(set.status, 204, "{set:?}");
    send(&sagas, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    let told = until(&sagas, &why("pay", "p-1"), |told| cause(told) == "breaker").await;
    assert_eq!(told["pending"][0]["calls"]["held_by"], "breaker_forced", "{told}");
    let sentence = told["why"].as_str().expect("a sentence");
    let way_out = format!("an operator holds the breaker of {held} open; `saga-runner breaker auto {held}`");
    assert!(
        sentence.contains(&way_out) && !sentence.contains("the next one"),
        "{sentence}"
    );
}

/// The command of the first thing that is waited for.
fn command(told: &Value) -> &Value {
    &told["pending"][0]["command"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_for_a_worker_until_one_runs_and_its_first_call_is_then_in_progress() {
    let (server, upstream) = (NatsServer::start(), slow().await);
    let (sagas, mut effects) = apart(&server, &upstream, LONG).await;
    effects.kill();
    send(&sagas, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    let told = until(&sagas, &why("pay", "p-1"), |told| cause(told) == "no_worker").await;
    assert_eq!(command(&told)["state"], "queued", "{told}");
    assert_eq!(command(&told)["workers_ask"], false, "{told}");
    let consumer = command(&told)["consumer"].as_str().expect("a consumer");
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(
        sentence.contains(&format!("no worker takes commands from consumer {consumer}")),
        "{sentence}"
    );

    effects.start_as("effect").await;
    let is_with_worker = |told: &Value| command(told)["state"] == "with_worker";
    let told = until(&sagas, &why("pay", "p-1"), is_with_worker).await;
    assert_eq!(cause(&told), "effect", "{told}");
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(sentence.contains("the call is in progress"), "{sentence}");
    // The process that has no shard says the same.
    let elsewhere = get(&effects, &why("pay", "p-1")).await.json();
    assert_eq!(cause(&elsewhere), "effect", "{elsewhere}");
    assert_eq!(command(&elsewhere)["state"], "with_worker", "{elsewhere}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_behind_others_is_told_with_their_number() {
    let (server, upstream) = (NatsServer::start(), slow().await);
    let one = format!("{LONG}limits: {{concurrency: 1}}\n");
    let (sagas, _effects) = apart(&server, &upstream, &one).await;
    for number in 1..=6 {
        let (id, key) = (format!("e-{number}"), format!("p-{number}"));
        send(&sagas, "acme", &id, "Pay.Opened", json!({"pay": key})).await;
    }
    let mut ahead = Vec::new();
    for number in 1..=6 {
        let settled = |told: &Value| {
            let has_begun = command(told)["unacknowledged"].as_u64() >= Some(1);
            has_begun && ["queued", "effect"].contains(&cause(told))
        };
        let told = until(&sagas, &why("pay", &format!("p-{number}")), settled).await;
        if cause(&told) == "queued" {
            let sentence = told["why"].as_str().expect("a sentence");
            assert!(sentence.contains("come before it"), "{sentence}");
            ahead.push(command(&told)["ahead"].as_u64().expect("a number"));
        }
    }
    ahead.sort_unstable();
    assert!(ahead.len() >= 3, "{ahead:?}");
    assert!(ahead.iter().copied().eq(0..ahead.len() as u64), "{ahead:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_made_in_the_process_of_its_saga_is_told_as_in_progress() {
    let upstream = slow().await;
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"dispatch": "local"})).await;
    add_sagas(&rig);
    add_call(&rig, "charge", &upstream, LONG);
    rig.start().await;
    send(&rig, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    let is_with_worker = |told: &Value| command(told)["state"] == "with_worker";
    let told = until(&rig, &why("pay", "p-1"), is_with_worker).await;
    assert_eq!(cause(&told), "effect", "{told}");
    assert_eq!(command(&told)["consumer"], Value::Null, "{told}");
}

/// A runner with all sagas, whose effect is carried out by nobody.
async fn without_calls() -> Rig {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_effect(
        "charge",
        "apiVersion: sagas/v1\nkind: Effect\nname: charge\nexternal: {}\n",
    );
    add_sagas(&rig);
    rig.start().await;
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_children_are_named() {
    let rig = without_calls().await;
    send(&rig, "acme", "e-0", "Pay.Opened", json!({"pay": "p-1"})).await;
    until(&rig, &why("pay", "p-1"), |told| cause(told) == "no_worker").await;
    send(&rig, "acme", "e-1", "Confirm.Opened", json!({"confirm": "c-1"})).await;
    let told = until(&rig, &why("confirm", "c-1"), |told| cause(told) == "message").await;
    assert_eq!(told["pending"][0]["messages"], json!(["signal approve"]));
    assert!(
        told["pending"][0]["due"].is_string() && told["timer"]["due"].is_string(),
        "{told}"
    );

    send(&rig, "acme", "e-2", "Outer.Opened", json!({"outer": "o-1"})).await;
    let told = until(&rig, &why("outer", "o-1"), |told| {
        told["child"]["cause"] == "message"
    })
    .await;
    assert_eq!(
        told["pending"][0]["child"],
        json!({"saga": "inner", "key": "in-o-1"})
    );
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(
        sentence.contains("in-o-1") && sentence.contains("signal approve"),
        "{sentence}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_blocks_an_instance_is_named_until_it_is_decided() {
    let rig = without_calls().await;
    send(&rig, "acme", "e-3", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    send(
        &rig,
        "acme",
        "e-4",
        "Ratio.Divided",
        json!({"ratio": "r-1", "by": 0}),
    )
    .await;
    send(
        &rig,
        "acme",
        "e-5",
        "Ratio.Divided",
        json!({"ratio": "r-1", "by": 1}),
    )
    .await;
    let told = until(&rig, &why("ratio", "r-1"), |told| {
        told["blocked_by"]["inputs"] == 1
    })
    .await;
    let letter = told["blocked_by"]["dead_letter"]["id"].as_str().expect("an id");
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(
        sentence.contains(letter) && sentence.contains("1 input(s)"),
        "{sentence}"
    );
    let one = get(&rig, &format!("{}/{letter}", letters("acme"))).await.json();
    assert_eq!(
        (&one["key"], &one["reason"]),
        (&json!("r-1"), &json!("expression"))
    );
    assert_eq!(
        get(&rig, &format!("{}/{letter}", letters("globex"))).await.status,
        404
    );
    for (filter, count) in [
        ("saga=ratio&key=r-1", 1),
        ("reason=expression", 1),
        ("key=r-2", 0),
        ("saga=pay", 0),
    ] {
        let page = get(&rig, &format!("{}?{filter}", letters("acme"))).await.json();
        assert_eq!(page["items"].as_array().map(Vec::len), Some(count), "{filter}");
    }
    let listed = printed(&rig, &["dead-letter", "list", "--saga", "ratio"]);
    assert!(
        listed.contains(letter) && listed.contains("expression"),
        "{listed}"
    );
    assert!(printed(&rig, &["dead-letter", "show", letter, "--json"]).contains("\"key\": \"r-1\""));
    let history = printed(&rig, &["instance", "history", "ratio", "r-1"]);
    assert!(
        history.contains(&format!("dead letter {letter} expression")),
        "{history}"
    );
    let discard = [
        "dead-letter",
        "discard",
        letter,
        "--by",
        "ann",
        "--reason",
        "ticket 5",
    ];
    printed(&rig, &[&discard[..], &["--yes"]].concat());
    let history = printed(&rig, &["instance", "history", "ratio", "r-1"]);
    assert!(history.contains("decided by ann: ticket 5"), "{history}");
    assert!(!history.contains(&format!("dead letter {letter}")), "{history}");
    let told = until(&rig, &why("ratio", "r-1"), |told| cause(told) == "handlers").await;
    assert!(
        told["hears"]
            .as_array()
            .expect("a list")
            .contains(&json!("event Ratio.Closed"))
    );
    send(&rig, "acme", "e-6", "Ratio.Closed", json!({"ratio": "r-1"})).await;
    until(&rig, &why("ratio", "r-1"), |told| cause(told) == "ended").await;

    get(&rig, &why("ratio", "nobody")).await.is_problem(404, "SR0502");
    let unknown = format!("{}?verbose=1", why("ratio", "r-1"));
    assert_eq!(get(&rig, &unknown).await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_goes_on_in_pages_across_a_restart_and_takes_no_foreign_cursor() {
    let mut rig = runner(Duration::ZERO).await;
    for key in ["r-1", "r-2"] {
        send(
            &rig,
            "acme",
            &format!("{key}-opened"),
            "Ratio.Opened",
            json!({"ratio": key}),
        )
        .await;
        for by in 1..=4 {
            let id = format!("{key}-{by}");
            send(
                &rig,
                "acme",
                &id,
                "Ratio.Divided",
                json!({"ratio": key, "by": by}),
            )
            .await;
        }
        until(&rig, &instance("acme", "ratio", key), |view| view["version"] == 5).await;
    }
    let history = |key: &str, more: &str| format!("{}/history?limit=2{more}", instance("acme", "ratio", key));
    let mut inputs = Vec::new();
    let mut page = get(&rig, &history("r-1", "")).await.json();
    let first = page["next"].as_str().expect("more").to_owned();
    rig.kill();
    rig.start().await;
    loop {
        for item in page["items"].as_array().expect("items") {
            inputs.push(item["input"].as_str().expect("an id").to_owned());
        }
        let Some(next) = page["next"].as_str() else { break };
        page = get(&rig, &history("r-1", &format!("&after={next}"))).await.json();
    }
    assert_eq!(inputs.len(), 5, "{inputs:?}");
    assert!(
        inputs[0].contains("r-1-4") && inputs[4].contains("r-1-opened"),
        "newest first: {inputs:?}"
    );
    let foreign = history("r-2", &format!("&after={first}"));
    assert_eq!(get(&rig, &foreign).await.status, 400);
    assert_eq!(get(&rig, &history("r-1", "&after=x")).await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_no_file_declares_and_that_an_instance_needs_is_named() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: charge\nexternal: {}\n";
    rig.add_effect("charge", effect);
    rig.add_saga("pay", PAY);
    rig.start().await;
    send(&rig, "acme", "e-1", "Pay.Opened", json!({"pay": "p-1"})).await;
    until(&rig, &why("pay", "p-1"), |told| cause(told) == "no_worker").await;
    let check = |health: &Value| {
        let checks = health["checks"].as_array().expect("checks");
        let check = checks.iter().find(|check| check["name"] == "effects");
        check.expect("a check of the effects").clone()
    };
    assert_eq!(check(&get(&rig, "/health").await.json())["ok"], true);

    rig.remove_file("sagas/pay.yaml");
    rig.remove_file("effects/charge.yaml");
    let reloaded = post(&rig, "/admin/reload", "").await;
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    let warnings = reloaded.json()["warnings"].clone();
    let warning = warnings[0].as_str().expect("a warning").to_owned();
    assert!(
        warning.starts_with(
            "no file declares effect charge, which may be called for 1 live instance(s) of pay sha256:"
        ),
        "{warning}"
    );
    for restarted in [false, true] {
        if restarted {
            assert_eq!(rig.terminate().await, Some(0));
            rig.start().await;
        }
        let health = get(&rig, "/health").await;
        let told = check(&health.json());
        assert_eq!(
            (health.status, &told["ok"], &told["detail"]),
            (503, &json!(false), &json!(warning)),
            "{health:?}"
        );
        assert_eq!(get(&rig, "/ready").await.status, 200);
        let told = until(&rig, &why("pay", "p-1"), |told| cause(told) == "no_effect").await;
        assert_eq!(told["pending"][0]["undeclared"], true, "{told}");
        let sentence = told["why"].as_str().expect("a sentence");
        assert!(
            sentence.contains("no file declares this effect any more"),
            "{sentence}"
        );
    }
    rig.add_effect("charge", effect);
    let reloaded = post(&rig, "/admin/reload", "").await;
    assert_eq!(reloaded.json()["warnings"], json!([]), "{reloaded:?}");
    assert_eq!(check(&get(&rig, "/health").await.json())["ok"], true);
    assert_eq!(rig.terminate().await, Some(0));
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert_eq!(log.matches("no file declares effect charge").count(), 2, "{log}");
}
