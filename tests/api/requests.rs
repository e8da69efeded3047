//! Probes, the drain, and what becomes of requests that are wrong.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use saga_runner::kernel::subject::Tenancy;
use serde_json::{Value, json};

use crate::api::caller::{event, get, instance, letters, post, runner, send, until};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, order_payload};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_tell_what_operators_need() {
    let mut rig = runner(Duration::ZERO).await;
    let live = get(&rig, "/live").await;
    assert_eq!((live.status, live.json()), (200, json!({"live": true})));
    let ready = get(&rig, "/ready").await;
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({"ready": true, "reasons": [], "revision": 1}))
    );

    let health = get(&rig, "/health").await;
    assert_eq!(health.status, 200, "{health:?}");
    let body = health.json();
    assert_eq!(body["healthy"], true);
    let checks = body["checks"].as_array().expect("checks");
    for name in [
        "broker",
        "AGGREGATE_EVENTS",
        "WORKFLOW_COMMANDS",
        "WORKFLOW_EVENTS",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}: {body}");
    }
    assert!(checks.len() >= 4 + 2, "a check for each shard too: {body}");
    let told = |check: &Value| check["ok"] == true && check["detail"].is_string();
    assert!(checks.iter().all(told), "{body}");

    let info = get(&rig, "/info").await.json();
    assert_eq!(info["name"], "saga-runner");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&info["mode"], &info["broker"], &info["shards"]),
        (&json!("combined"), &json!("embedded"), &json!(2))
    );
    let sagas = info["sagas"].as_array().expect("sagas");
    let ratio = sagas.iter().find(|saga| saga["name"] == "ratio").expect("ratio");
    assert!(
        ratio["hash"]
            .as_str()
            .is_some_and(|hash| hash.starts_with("sha256:")),
        "{info}"
    );

    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    until(&rig, &instance("acme", "ratio", "r-1"), |_| true).await;
    // What a commit brought is counted a moment after it can be read.
    let started = "saga_runner_instances_started_total{saga=\"ratio\"} 1";
    let begin = Instant::now();
    loop {
        let metrics = get(&rig, "/metrics").await;
        assert_eq!(metrics.status, 200);
        assert!(
            metrics.kind.starts_with("text/plain; version=0.0.4"),
            "{metrics:?}"
        );
        if metrics.text.lines().any(|line| line == started) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", metrics.text);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breakers_are_listed_and_set_by_operators() {
    let mut rig = runner(Duration::ZERO).await;
    let list = until(&rig, "/admin/breakers", |list| list["items"][0].is_object()).await;
    let first = &list["items"][0];
    let upstream = first["upstream"]
        .as_str()
        .expect("the effects call one")
        .to_owned();
    assert_eq!(
        (first["state"].as_str(), &first["forced"]),
        (Some("closed"), &Value::Null)
    );
    assert_eq!(get(&rig, "/info").await.json()["breakers"], json!([]));

    let path = format!("/admin/breakers/{upstream}");
    for (body, code) in [
        ("{}", "SR0501"),
        (r#"{"state":"ajar"}"#, "SR0501"),
        (r#"{"state":"open","tenant":"No Name"}"#, "SR0501"),
        (r#"{"state":"open","because":"x"}"#, "SR0501"),
    ] {
        post(&rig, &path, body).await.is_problem(400, code);
    }
    post(&rig, "/admin/breakers/nowhere:1", r#"{"state":"open"}"#)
        .await
        .is_problem(404, "SR0502");

    let set = post(&rig, &path, r#"{"state":"open","tenant":"acme"}"#).await;
    assert_eq!(set.status, 204, "{set:?}");
    let again = post(&rig, &path, r#"{"state":"open","tenant":"acme"}"#).await;
    again.is_problem(409, "SR0503");
    let told = get(&rig, "/info").await.json();
    assert_eq!(
        told["breakers"],
        json!([{"upstream": upstream, "names": ["shop"], "tenant": "acme", "state": "open", "forced": "open"}])
    );

    // A reload brings other breakers, to which the same was said.
    rig.add_effect(
        "elsewhere",
        "apiVersion: sagas/v1\nkind: Effect\nname: elsewhere\nhttp: {method: POST, url: \"http://127.0.0.1:9/\"}\n",
    );
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    assert_eq!(get(&rig, "/info").await.json()["breakers"], told["breakers"]);
    let list = get(&rig, "/admin/breakers").await.json();
    let listed = list["items"].as_array().expect("a list");
    assert!(
        listed.iter().any(|breaker| breaker["upstream"] == "127.0.0.1:9"),
        "{list}"
    );
    assert_eq!(post(&rig, &path, r#"{"state":"auto"}"#).await.status, 204);
    post(&rig, &path, r#"{"state":"auto"}"#)
        .await
        .is_problem(409, "SR0503");
    // Its name in the manifest says the same.
    let by_name = "/admin/breakers/shop";
    assert_eq!(post(&rig, by_name, r#"{"state":"open"}"#).await.status, 204);
    let told = get(&rig, "/info").await.json();
    assert_eq!(
        told["breakers"],
        json!([{"upstream": upstream, "names": ["shop"], "state": "open", "forced": "open"}])
    );
    assert_eq!(post(&rig, by_name, r#"{"state":"auto"}"#).await.status, 204);
    assert_eq!(get(&rig, "/info").await.json()["breakers"], json!([]));

    let gauge = "saga_runner_breakers{";
    assert!(get(&rig, "/metrics").await.text.contains(gauge));
    rig.clear_definitions();
    rig.add_saga(
        "quiet",
        "apiVersion: sagas/v1\nkind: Saga\nname: quiet\nstart: Quiet.Began\nkey: {\"Quiet.*\": event.data.id}\n\
         handlers:\n  Quiet.Began: {set: {status: began}}\nstate: {init: {status: new}}\n",
    );
    let reloaded = post(&rig, "/admin/reload", "").await;
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    let metrics = get(&rig, "/metrics").await.text;
    assert!(!metrics.contains(gauge), "{metrics}");
    assert_eq!(rig.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_request_is_told_what_is_wrong() {
    let rig = runner(Duration::ZERO).await;
    for path in [
        "/nothing",
        "/v1",
        "/v1/tenants/acme/nothing",
        "/v2/tenants/acme/events",
    ] {
        get(&rig, path).await.is_problem(404, "SR0502");
    }
    post(&rig, "/live", "").await.is_problem(405, "SR0511");
    get(&rig, "/admin/drain").await.is_problem(405, "SR0511");
    get(&rig, "/v1/tenants/acme/events")
        .await
        .is_problem(405, "SR0511");

    let events = "/v1/tenants/acme/events";
    let good = event("acme", "e-1", "Ratio.Opened", &json!({"ratio": "r-1"}));
    for kind in [Some("text/plain"), None] {
        let mut request = rig.client.post(rig.url(events)).body(good.clone());
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 415, "{kind:?}");
    }
    for body in ["", "{", "[]", "null", "\u{0}", "{\"event_type\": 5}"] {
        post(&rig, events, body).await.is_problem(400, "SR0501");
    }
    let nameless = good.replace("\"event_id\":\"e-1\",", "");
    post(&rig, events, nameless).await.is_problem(400, "SR0501");

    for tenant in ["a.b", "a%20b", "%2A", "%3E", "a%00b", "%C3%A4", &"a".repeat(300)] {
        get(&rig, &letters(tenant)).await.is_problem(400, "SR0501");
        let events = format!("/v1/tenants/{tenant}/events");
        post(&rig, &events, good.clone()).await.is_problem(400, "SR0501");
    }
    get(&rig, "/v1/tenants/acme/sagas/No.Saga/instances")
        .await
        .is_problem(400, "SR0501");
    get(&rig, &instance("acme", "ratio", &"k".repeat(257)))
        .await
        .is_problem(400, "SR0501");

    for query in [
        "limit=0",
        "limit=-1",
        "limit=many",
        "after=forged",
        "after=0.x00",
        "after=0.l0g",
        "after=0.l%C3%A41",
    ] {
        let path = format!("/v1/tenants/acme/sagas/ratio/instances?{query}");
        get(&rig, &path).await.is_problem(400, "SR0501");
    }
    for query in ["limit=0", "after=forged", "after=-", "after=1-x"] {
        let path = format!("{}?{query}", letters("acme"));
        get(&rig, &path).await.is_problem(400, "SR0501");
    }
    for id in ["forged", "0-999", "99-1", "0--1"] {
        for verb in ["retry", "discard"] {
            let path = format!("{}/{id}/{verb}", letters("acme"));
            post(&rig, &path, "").await.is_problem(404, "SR0502");
        }
    }
    for verb in ["cancel", "retry", "skip", "resolve", "signals/go"] {
        let path = format!("{}/{verb}", instance("acme", "ratio", "absent"));
        let body = if verb == "skip" {
            r#"{"reason": "why"}"#
        } else {
            ""
        };
        post(&rig, &path, body).await.is_problem(404, "SR0502");
        post(&rig, &path, "{\"reson\": \"x\"}")
            .await
            .is_problem(400, "SR0501");
    }
    assert_eq!(get(&rig, "/ready").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_that_a_page_does_not_know_is_told_and_never_ignored() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    let found = instance("acme", "ratio", "r-1");
    until(&rig, &found, |_| true).await;
    for path in [
        "/v1/tenants/acme/sagas/ratio/instances?phase=failed".to_owned(),
        "/v1/tenants/acme/sagas/ratio/instances?limit=1&limit=2".to_owned(),
        format!("{}?cause=expression", letters("acme")),
        format!("{found}?histroy=1"),
        format!("{found}/inputs?histroy=1"),
        "/v1/definitions?name=ratio".to_owned(),
        "/v1/tenants/acme/schedules?saga=ratio".to_owned(),
        "/info?verbose=true".to_owned(),
    ] {
        get(&rig, &path).await.is_problem(400, "SR0501");
    }
    for path in [
        format!("{found}/cancel?mode=abandon"),
        "/admin/reload?dry_run=true".to_owned(),
    ] {
        post(&rig, &path, "").await.is_problem(400, "SR0501");
    }
    assert_eq!(
        get(&rig, &found).await.json()["phase"],
        "running",
        "nothing was done"
    );
}

/// Probes and metrics ignored them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_ignores_a_parameter_that_it_does_not_know() {
    let rig = runner(Duration::ZERO).await;
    for path in saga_runner::api::paths(Tenancy::Multi) {
        let named = path
            .split('/')
            .map(|part| match part {
                "{tenant}" => "acme",
                "{saga}" => "ratio",
                "{shard}" => "0",
                part if part.starts_with('{') => "some",
                part => part,
            })
            .collect::<Vec<_>>()
            .join("/");
        let asked = format!("{named}?histroy=1");
        let answers = [get(&rig, &asked).await, post(&rig, &asked, "{}").await];
        let refused = answers.iter().filter(|answer| answer.status == 400).count();
        let other = answers.iter().filter(|answer| answer.status == 405).count();
        assert!(refused >= 1 && refused + other == 2, "{path}: {answers:?}");
    }
    assert_eq!(get(&rig, "/ready").await.status, 200, "nothing was done");
}

/// Only the head of a request whose body has `length` bytes, and the answer.
fn without_body(rig: &Rig, length: usize) -> String {
    let mut stream = std::net::TcpStream::connect(rig.address()).expect("connected");
    let head = format!(
        "POST /v1/tenants/acme/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .expect("a timeout");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_deep_bodies_harm_nobody() {
    let rig = runner(Duration::ZERO).await;
    // Refused before anyone sends the body.
    let answer = without_body(&rig, 2 * 1024 * 1024);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("SR0505"), "{answer}");
    // Waited for, but not for ever.
    let answer = without_body(&rig, 10);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("application/problem+json") && answer.contains("SR0504"),
        "{answer}"
    );

    let depth = 100_000;
    let deep = format!(
        r#"{{"tenant_id":"acme","event_id":"deep","event_type":"Opened","aggregate_type":"Ratio","aggregate_id":"r","payload":{}{}}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    let answer = post(&rig, "/v1/tenants/acme/events", deep).await;
    answer.is_problem(400, "SR0501");
    assert!(answer.text.contains("nested deeper than"), "{answer:?}");
    // That is the reason of a dead letter, and this is none.
    assert!(!answer.text.contains("payload.depth"), "{answer:?}");
    let foreign = event("initech", "e-1", "Ratio.Opened", &json!({"ratio": "r-1"}));
    let answer = post(&rig, "/v1/tenants/initech/events", foreign).await;
    answer.is_problem(404, "SR0502");
    assert!(answer.text.contains("no such tenant"), "{answer:?}");

    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    until(&rig, &instance("acme", "ratio", "r-1"), |_| true).await;
}

const RENT: &str = r"
apiVersion: sagas/v1
kind: Saga
name: rent
input: {type: object}
steps: {wait: {wait: {signal: paid, timeout: 1h}}}
";

/// Such requests were taken, and then there was a dead letter, or the last of the values counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_nested_too_deep_or_names_a_key_twice_is_refused_before_it_is_stored() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("rent", RENT);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let starts = "/v1/tenants/acme/sagas/rent/instances";
    let flat = instance("acme", "rent", "flat-1");
    let begun = post(&rig, starts, r#"{"key": "flat-1"}"#).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    until(&rig, &flat, |view| view["phase"] == "running").await;
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let event = |payload: &str| {
        format!(
            r#"{{"event_id":"e-1","event_type":"Opened","aggregate_type":"Ratio","aggregate_id":"r","payload":{payload}}}"#
        )
    };
    let signal = format!("{flat}/signals/paid");
    for bad in [
        format!(r#"{{"n":{}}}"#, nested(100)),
        r#"{"n":{"a":1,"a":2}}"#.to_owned(),
    ] {
        for (path, body) in [
            (starts, format!(r#"{{"key":"flat-2","input":{bad}}}"#)),
            (&*signal, format!(r#"{{"data":{bad}}}"#)),
            (
                &*format!("{flat}/resolve"),
                format!(r#"{{"step":"wait","as":"done","result":{bad}}}"#),
            ),
            ("/v1/callbacks/x", format!(r#"{{"ok":{bad}}}"#)),
            ("/v1/tenants/acme/events", event(&bad)),
        ] {
            post(&rig, path, body).await.is_problem(400, "SR0501");
        }
    }
    for (path, body) in [
        (starts, r#"{"key":"flat-2","key":"flat-3"}"#),
        (&*signal, r#"{"by":"a","by":"b"}"#),
        (&*format!("{flat}/cancel"), r#"{"reason":"a","reason":"b"}"#),
        (&*format!("{flat}/pause"), r#"{"reason":"a","reason":"b"}"#),
    ] {
        post(&rig, path, body).await.is_problem(400, "SR0501");
    }
    // All 64 levels of a body may be used: two are around these.
    let deep = post(&rig, &signal, format!(r#"{{"data":{{"n":{}}}}}"#, nested(62))).await;
    assert_eq!(deep.status, 202, "{deep:?}");
    until(&rig, &flat, |view| view["phase"] == "completed").await;
    assert_eq!(get(&rig, &letters("acme")).await.json()["items"], json!([]));
    get(&rig, &instance("acme", "rent", "flat-2"))
        .await
        .is_problem(404, "SR0502");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_begun_once_and_lets_running_effects_finish() {
    let mut rig = runner(Duration::from_secs(3)).await;
    send(&rig, "acme", "e-1", "Order.Placed", order_payload("slow-1")).await;
    until(&rig, &instance("acme", "order", "slow-1"), |view| {
        let steps = view["steps"].as_array().expect("steps");
        steps
            .iter()
            .any(|step| step["name"] == "charge" && step["status"] == "running")
    })
    .await;
    // The charge is in the hands of the worker once its upstream was called.
    until_metric(
        &rig,
        "saga_runner_effect_commands_in_progress{effect=\"payments-charge\"} 1",
    )
    .await;

    let first = post(&rig, "/admin/drain", "").await;
    assert_eq!(
        (first.status, first.json()),
        (202, json!({"draining": true, "began_now": true}))
    );
    let second = post(&rig, "/admin/drain", "").await;
    assert_eq!(
        (second.status, second.json()),
        (202, json!({"draining": true, "began_now": false}))
    );
    let ready = get(&rig, "/ready").await;
    assert_eq!(ready.status, 503, "{ready:?}");
    let reasons = ready.json()["reasons"].clone();
    assert!(
        reasons
            .as_array()
            .is_some_and(|reasons| reasons.contains(&json!("draining"))),
        "{reasons}"
    );
    assert_eq!(rig.exit().await, Some(0), "{}", rig.log_tail());
    let charges = rig
        .upstream
        .deeds()
        .into_iter()
        .filter(|deed| deed.kind == "charges");
    assert_eq!(charges.count(), 1);
    rig.start().await;
    until(&rig, &instance("acme", "order", "slow-1"), |view| {
        view["phase"] == "completed"
    })
    .await;
}

pub async fn until_metric(rig: &Rig, line: &str) {
    for _ in 0..1_000 {
        if get(rig, "/metrics").await.text.lines().any(|found| found == line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never saw {line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_versions_of_sagas_are_told_with_their_instances() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    until(&rig, &instance("acme", "ratio", "r-1"), |_| true).await;
    let list = get(&rig, "/v1/definitions?saga=ratio").await.json();
    let [ratio] = list["items"].as_array().expect("items").as_slice() else {
        panic!("one version, not {list}");
    };
    assert_eq!((&ratio["active"], &ratio["loaded"]), (&json!(true), &json!(true)));
    assert_eq!((&ratio["live"], &ratio["ended"]), (&json!(1), &json!(0)));
    let hash = ratio["hash"].as_str().expect("a hash");
    for name in [hash, &hash[..20], &hash[7..15]] {
        let shown = get(&rig, &format!("/v1/definitions/{name}")).await.json();
        assert_eq!(shown["hash"], hash);
        assert!(
            shown["source"]
                .as_str()
                .is_some_and(|text| text.contains("name: ratio"))
        );
    }
    get(&rig, "/v1/definitions/sha256:")
        .await
        .is_problem(400, "SR0501");
    get(&rig, "/v1/definitions/00000000")
        .await
        .is_problem(404, "SR0502");

    let definition = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command
            .arg("definition")
            .args(arguments)
            .args(["--url", &rig.url("")]);
        command.output().expect("the binary starts")
    };
    let listed = definition(&["list"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(text.contains(hash) && text.contains("active"), "{text}");
    let shown = definition(&["show", hash]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("name: ratio"));
    assert_eq!(definition(&["show", "00000000"]).status.code(), Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_event_under_a_known_id_is_refused() {
    let server = NatsServer::start();
    for url in [None, Some(server.url())] {
        let mut rig = Rig::new(url, "30m", Duration::ZERO, json!({})).await;
        rig.add_saga("ratio", crate::api::caller::RATIO);
        rig.start().await;
        let path = "/v1/tenants/acme/events";
        let first = event("acme", "same", "Ratio.Opened", &json!({"ratio": "r-1"}));
        let stored = post(&rig, path, first.clone()).await;
        assert_eq!(
            (stored.status, &stored.json()["duplicate"]),
            (202, &json!(false)),
            "{stored:?}"
        );
        let mut again: Value = serde_json::from_str(&first).expect("JSON");
        again["metadata"] = json!({"correlation_id": "c-2"});
        for same in [first.clone(), again.to_string()] {
            let repeated = post(&rig, path, same).await;
            assert_eq!(
                (repeated.status, &repeated.json()["duplicate"]),
                (202, &json!(true)),
                "{repeated:?}"
            );
        }
        let mut elsewhere: Value = serde_json::from_str(&first).expect("JSON");
        elsewhere["aggregate_id"] = json!("another");
        for other in [
            event("acme", "same", "Ratio.Opened", &json!({"ratio": "r-2"})),
            event("acme", "same", "Ratio.Divided", &json!({"ratio": "r-1"})),
            elsewhere.to_string(),
        ] {
            let refused = post(&rig, path, other).await;
            let problem = refused.is_problem(409, "SR0514");
            assert_eq!(
                problem["detail"],
                "event_id same was used before, for another event"
            );
        }
        // Of another tenant it is another id.
        send(&rig, "globex", "same", "Ratio.Opened", json!({"ratio": "r-2"})).await;
        until(&rig, &instance("acme", "ratio", "r-1"), |_| true).await;
        let listed = get(&rig, &letters("acme")).await.json();
        assert_eq!(listed["items"], json!([]), "{listed}");
        assert_eq!(rig.terminate().await, Some(0));
    }
}
