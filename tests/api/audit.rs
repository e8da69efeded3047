//! The audit: who has changed what, or tried to, as the stream of the broker keeps it and the API shows it.

use std::process::Command;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::api::auth::{ask, drawn};
use crate::api::caller::{get, instance, items, letters, post};
use crate::api::conflicts::{PATIENT, STARTS};
use crate::api::forwarding::{pair, unavailable};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

pub(super) const OF_ALL: &str = "/admin/audit?limit=500";
pub(super) const OF_ACME: &str = "/v1/tenants/acme/audit?limit=500";

/// Principals by name, with their tokens.
struct Tokens {
    root: String,
    chief: String,
    ann: String,
    vic: String,
    gus: String,
}

impl Tokens {
    fn all(&self) -> [&str; 5] {
        [&self.root, &self.chief, &self.ann, &self.vic, &self.gus]
    }
}

async fn guarded() -> (Rig, Tokens) {
    let http = json!({"authentication": "tokens", "tokens_file": "tokens"});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"http": http})).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    let drawn = [
        drawn("root", "admin@*"),
        drawn("chief", "admin@acme"),
        drawn("ann", "operator@acme"),
        drawn("vic", "viewer@acme"),
        drawn("gus", "admin@globex"),
    ];
    let lines = drawn.each_ref().map(|(_, line)| line.as_str());
    rig.add_file("tokens", lines.join("\n").as_bytes());
    rig.add_effect("divide", crate::api::conflicts::DIVIDE);
    rig.start().await;
    let [root, chief, ann, vic, gus] = drawn.map(|(token, _)| token);
    let tokens = Tokens {
        root,
        chief,
        ann,
        vic,
        gus,
    };
    (rig, tokens)
}

/// The records once there are so many.
pub(super) async fn records(rig: &Rig, token: &str, path: &str, count: usize) -> Vec<Value> {
    let begin = Instant::now();
    loop {
        let answer = ask(rig, token, "GET", path, "").await;
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        let page = answer.json();
        let found = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if found.len() >= count {
            return found.to_vec();
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{page}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a record says in short.
fn brief(record: &Value) -> (String, String, u64, String) {
    let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
    let status = record["status"].as_u64().unwrap_or_default();
    (text("principal"), text("action"), status, text("outcome"))
}

#[allow(clippy::too_many_lines, reason = "one table of requests and records")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_leaves_one_record_and_a_refused_one_too() {
    let (rig, tokens) = guarded().await;
    let Tokens { root, ann, vic, .. } = &tokens;
    let start = json!({"key": "p-1", "input": {}, "request_id": "start-1"}).to_string();
    let kill = json!({"reason": "no more", "by": "mallory"}).to_string();
    let of = |rest: &str| format!("{}{rest}", instance("acme", "patient", "p-1"));
    let requests = [
        (
            ann,
            STARTS.to_owned(),
            start.as_str(),
            "instances.start",
            "ann",
            201,
            "done",
        ),
        (
            vic,
            of("/kill"),
            kill.as_str(),
            "instances.kill",
            "vic",
            403,
            "refused",
        ),
        (
            ann,
            of("/kill"),
            kill.as_str(),
            "instances.kill",
            "ann",
            202,
            "accepted",
        ),
        (ann, of("/kill"), "{", "instances.kill", "ann", 400, "refused"),
        (
            ann,
            of("/kill?color=red"),
            "{}",
            "instances.kill",
            "ann",
            400,
            "refused",
        ),
        (
            ann,
            format!("{}/0-1/retry", letters("acme")),
            "",
            "dead-letters.retry",
            "ann",
            404,
            "refused",
        ),
        (
            ann,
            "/v1/tenants/globex/sagas/patient/instances".to_owned(),
            "{}",
            "instances.start",
            "ann",
            404,
            "refused",
        ),
        (ann, "/admin/drain".to_owned(), "", "drain", "ann", 403, "refused"),
        (
            root,
            "/admin/reload".to_owned(),
            "",
            "reload",
            "root",
            200,
            "done",
        ),
        (
            root,
            "/admin/breakers/nobody".to_owned(),
            "{\"state\": \"open\"}",
            "breakers",
            "root",
            404,
            "refused",
        ),
        (
            root,
            "/admin/shards/9/close".to_owned(),
            "",
            "shards.close",
            "root",
            404,
            "refused",
        ),
        (
            root,
            "/v1/callbacks/cb1.AAAAsecretAAAA".to_owned(),
            "{\"ok\": {}}",
            "callbacks",
            "-",
            404,
            "refused",
        ),
    ];
    let mut wanted = Vec::new();
    for (token, path, body, action, principal, status, outcome) in requests {
        let answer = ask(&rig, token, "POST", &path, body).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let (principal, action) = (principal.to_owned(), action.to_owned());
        wanted.push((principal, action, u64::from(status), outcome.to_owned()));
    }
    let unknown = ask(&rig, "sagarunner_00", "POST", "/admin/drain", "").await;
    assert_eq!(unknown.status, 401);
    wanted.push(("-".to_owned(), "drain".to_owned(), 401, "refused".to_owned()));
    // Who only asks leaves none.
    assert_eq!(ask(&rig, vic, "GET", &of(""), "").await.status, 200);

    let found = records(&rig, root, OF_ALL, wanted.len()).await;
    let mut briefs: Vec<_> = found.iter().map(brief).collect();
    // The newest first.
    briefs.reverse();
    assert_eq!(briefs, wanted);
    let text = json!(found).to_string();
    for secret in tokens
        .all()
        .into_iter()
        .chain(["AAAAsecretAAAA", "sagarunner_00", "mallory"])
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let killed = &found[found.len() - 3];
    assert_eq!(
        killed["target"],
        json!({"saga": "patient", "key": "p-1"}),
        "{killed}"
    );
    assert_eq!(
        (&killed["tenant"], &killed["reason"]),
        (&json!("acme"), &json!("no more"))
    );
    assert_eq!(killed["role"], "operator", "{killed}");
    assert!(
        killed["peer"]
            .as_str()
            .is_some_and(|peer| peer.starts_with("127.0.0.1:")),
        "{killed}"
    );
    let id = killed["request_id"].as_str().expect("an id").to_owned();
    // The history knows the request by the same id.
    let begin = Instant::now();
    while !ask(&rig, vic, "GET", &of("/inputs"), "").await.text.contains(&id) {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let started = &found[found.len() - 1];
    assert_eq!(started["request_id"], "start-1", "{started}");
    assert_eq!(found[found.len() - 2]["code"], "SR0513", "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_sees_its_own_records_only_and_only_with_the_role_for_it() {
    let (rig, tokens) = guarded().await;
    let of_globex = "/v1/tenants/globex/audit";
    for (token, path) in [
        (&tokens.ann, "/v1/tenants/acme/sagas/patient/instances"),
        (&tokens.gus, "/v1/tenants/globex/sagas/patient/instances"),
    ] {
        assert_eq!(ask(&rig, token, "POST", path, "{}").await.status, 201, "{path}");
    }
    assert_eq!(
        ask(&rig, &tokens.root, "POST", "/admin/reload", "").await.status,
        200
    );
    assert_eq!(records(&rig, &tokens.root, OF_ALL, 3).await.len(), 3);
    for (token, path, tenant) in [
        (&tokens.chief, OF_ACME, "acme"),
        (&tokens.gus, of_globex, "globex"),
        (&tokens.root, "/admin/audit?tenant=globex", "globex"),
    ] {
        let found = records(&rig, token, path, 1).await;
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert_eq!(found[0]["tenant"], tenant, "{found:?}");
    }
    for (token, path, status, code) in [
        (&tokens.chief, of_globex, 404, "SR0502"),
        (&tokens.chief, "/admin/audit", 403, "SR0513"),
        (&tokens.ann, OF_ACME, 403, "SR0513"),
        (&tokens.vic, OF_ACME, 403, "SR0513"),
    ] {
        ask(&rig, token, "GET", path, "").await.is_problem(status, code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_there_after_a_restart_that_of_the_drain_too() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    assert_eq!(post(&rig, "/admin/drain", "").await.status, 202);
    assert_eq!(rig.exit().await, Some(0), "{}", rig.log_tail());
    rig.start().await;
    let found = records(&rig, "", OF_ALL, 2).await;
    let actions: Vec<_> = found.iter().map(|record| record["action"].as_str()).collect();
    assert_eq!(actions, [Some("drain"), Some("reload")]);
    // A restart by a crash loses nothing that was stored.
    rig.kill();
    rig.start().await;
    assert_eq!(records(&rig, "", OF_ALL, 2).await, found);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_filters_lead_to_each_record_once_and_wrong_parameters_are_refused() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    rig.add_effect("divide", crate::api::conflicts::DIVIDE);
    rig.start().await;
    for number in 0..7 {
        let body = json!({"key": format!("p-{number}"), "input": {}}).to_string();
        assert_eq!(post(&rig, STARTS, body).await.status, 201);
    }
    let body = json!({"by": "bob", "reason": "wait a little"}).to_string();
    let pause = format!("{}/pause", instance("acme", "patient", "p-3"));
    assert_eq!(post(&rig, &pause, body).await.status, 202);
    let all = records(&rig, "", OF_ACME, 8).await;
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&rig, &format!("/v1/tenants/acme/audit?limit=3{cursor}"))
            .await
            .json();
        assert!(items(&page).len() <= 3, "{page}");
        paged.extend(items(&page).to_vec());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(paged, all);
    for (filter, count) in [
        ("key=p-3", 2),
        ("key=p-3&action=instances.pause", 1),
        ("action=instances", 8),
        ("action=instance", 0),
        ("principal=bob", 1),
        ("saga=patient&outcome=done", 7),
        ("outcome=accepted&status=202", 1),
        ("outcome=failed", 0),
        ("since=1h", 8),
        ("until=1h", 0),
        ("since=2999-01-01T00:00:00Z", 0),
    ] {
        let page = get(&rig, &format!("{OF_ACME}&{filter}")).await.json();
        assert_eq!(items(&page).len(), count, "{filter}: {page}");
    }
    assert_eq!(all[0]["by"], "bob", "{}", all[0]);
    for wrong in [
        "color=red",
        "outcome=maybe",
        "status=many",
        "since=yesterday",
        "until=",
        "saga=No%20Name",
        "tenant=globex",
        "after=forged",
        "limit=0",
    ] {
        let path = format!("/v1/tenants/acme/audit?{wrong}");
        get(&rig, &path).await.is_problem(400, "SR0501");
    }
    let command = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args([
            "audit",
            "list",
            "--all-tenants",
            "--all",
            "-o",
            "jsonl",
            "--url",
            &rig.url(""),
        ])
        .output()
        .expect("it runs");
    let told = String::from_utf8(command.stdout).expect("text");
    assert!(command.status.success(), "{told}");
    let lines: Vec<Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(lines, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_while_the_broker_is_away_is_recorded_when_it_is_back_and_those_who_subscribe_get_it() {
    let mut server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let before = records(&rig, "", OF_ALL, 1).await;
    let raw = async_nats::connect(server.url()).await.expect("connected");
    let mut heard = raw
        .subscribe("runner.crash.audit.acme.>")
        .await
        .expect("subscribed");
    raw.flush().await.expect("flushed");
    let retry = format!("{}/0-1/retry", letters("acme"));
    post(&rig, &retry, "").await.is_problem(404, "SR0502");
    let message = heard.next().await.expect("a message");
    assert_eq!(
        message.subject.as_str(),
        "runner.crash.audit.acme.dead-letters.retry"
    );
    let record: Value = serde_json::from_slice(&message.payload).expect("JSON");
    assert_eq!(
        (&record["status"], &record["target"]["id"]),
        (&json!(404), &json!("0-1"))
    );

    server.kill();
    let body = "{\"state\": \"open\"}";
    post(&rig, "/admin/breakers/nobody", body)
        .await
        .is_problem(404, "SR0502");
    let begin = Instant::now();
    loop {
        let health = get(&rig, "/health").await.json();
        let checks = health["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
        if checks
            .iter()
            .any(|check| check["name"] == "audit" && check["ok"] == false)
        {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{health}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.launch();
    let found = records(&rig, "", OF_ALL, 3).await;
    let actions: Vec<_> = found.iter().map(|record| record["action"].as_str()).collect();
    assert_eq!(
        actions,
        [Some("breakers"), Some("dead-letters.retry"), Some("reload")]
    );
    assert_eq!(found[2], before[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_answered_has_its_record_although_the_process_is_killed_right_behind_the_answer() {
    let server = NatsServer::start();
    let patient = json!({"streams": {"audit": {"wait_max": "1m"}}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, patient).await;
    rig.start().await;
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    records(&rig, "", OF_ALL, 1).await;
    // The broker holds its connections and stores nothing.
    server.signal(nix::sys::signal::Signal::SIGSTOP);
    let change = rig.client.post(rig.url("/admin/breakers/nobody"));
    let change = change
        .header("content-type", "application/json")
        .body("{\"state\": \"open\"}");
    let mut asking = tokio::spawn(change.send());
    let early = tokio::time::timeout(Duration::from_millis(500), &mut asking).await;
    assert!(early.is_err(), "there is no record, and so no answer");
    server.signal(nix::sys::signal::Signal::SIGCONT);
    let answer = asking.await.expect("asked").expect("answered");
    assert_eq!(answer.status().as_u16(), 404);
    rig.kill();
    rig.start().await;
    let found = records(&rig, "", OF_ALL, 2).await;
    assert_eq!(found[0]["action"], "breakers", "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_request_leaves_one_record_and_every_process_shows_it() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let pause = "/v1/tenants/acme/sagas/leap/schedule/pause";
    let begin = Instant::now();
    // The owner hears of forwarded requests a moment after it is ready.
    while post(&asked, pause, "").await.status != 200 {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", asked.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let body = json!({"key": "p-1", "input": {}, "request_id": "r-1"}).to_string();
    assert_eq!(
        post(&asked, &format!("{STARTS}?wait=30s"), body).await.status,
        201
    );
    let done = format!("{OF_ACME}&outcome=done");
    let found = records(&asked, "", &done, 2).await;
    let briefs: Vec<_> = found.iter().map(|record| record["action"].as_str()).collect();
    assert_eq!(briefs, [Some("instances.start"), Some("schedule.pause")]);
    assert_eq!(found[0]["process"], found[1]["process"]);
    assert_eq!(records(&owner, "", &done, 2).await, found);
    let log = std::fs::read_to_string(owner.log()).expect("a log");
    assert!(!log.contains("a request for a change was answered"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_client_goes_away_before_the_answer_is_recorded_as_unanswered() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    rig.add_effect("divide", crate::api::conflicts::DIVIDE);
    rig.start().await;
    let request = rig
        .client
        .post(rig.url(&format!("{STARTS}?wait=10m&wait_for=end")))
        .header("content-type", "application/json")
        .body(json!({"key": "p-1", "input": {}}).to_string())
        .timeout(Duration::from_secs(1));
    assert!(request.send().await.is_err_and(|error| error.is_timeout()));
    let found = records(&rig, "", &format!("{OF_ACME}&outcome=unanswered"), 1).await;
    assert_eq!(found[0]["target"]["key"], "p-1", "{found:?}");
    assert_eq!(found[0]["status"], Value::Null, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_too_many_or_too_old_are_deleted_by_the_next_start() {
    let server = NatsServer::start();
    let most = 1_048_576;
    let bounds = json!({"streams": {"audit": {"max_bytes": most}}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, bounds).await;
    rig.start().await;
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    records(&rig, "", OF_ALL, 1).await;
    rig.kill();
    let client = async_nats::connect(server.url()).await.expect("connected");
    let context = async_nats::jetstream::new(client);
    for _ in 0..200 {
        let sent = context.publish("runner.crash.audit._.drain", "x".repeat(8_000).into());
        sent.await.expect("sent").await.expect("stored");
    }
    let held = async || {
        let mut stream = context.get_stream("WORKFLOW_AUDIT").await.expect("a stream");
        let state = stream.info().await.expect("its state").state.clone();
        (state.messages, state.bytes)
    };
    assert!(held().await.1 > most);
    rig.start().await;
    let begin = Instant::now();
    while held().await.1 > most {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(held().await.0 > 100, "no more than needed is deleted");

    for (bound, left) in [("max_records=40", 40), ("max_age=1ms", 0)] {
        rig.kill();
        let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command.args(["run", "--config"]).arg(rig.manifest());
        command.args(["--set", &format!("streams.audit.{bound}")]);
        rig.launch_as(command);
        rig.wait_until_ready().await;
        let begin = Instant::now();
        while held().await.0 > left {
            assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(held().await.0, left, "no more than needed is deleted");
    }
}
