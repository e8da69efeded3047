//! Who may say what to an instance over the broker: a real nats-server, processes that own nothing, and users with the documented
//! permissions.

use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, HeaderMap};
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::api::caller::{get, instance, items, letters, post, until};
use crate::broker::secure::secret;
use crate::support::nats_server::{NatsServer, Options};
use crate::support::rig::Rig;

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
input: {type: object}
state: {init: {reminded: 0}}
timers:
  remind: {after: 1h, set: {reminded: "${state.reminded + 1}"}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
  share: {needs: [wait], effect: divide, with: {by: 4}}
"#;

const DIVIDE: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: divide
transform: {}
result: {share: "${100 / input.by}"}
"#;

/// All verbs but start, signal and cancel, with what they need.
fn others() -> Vec<Value> {
    let command = "00000000-0000-0000-0000-000000000007";
    let parent = json!({"saga": "patient", "key": "p", "command_id": command});
    vec![
        json!({"control": "retry"}),
        json!({"control": "skip", "step": "wait"}),
        json!({"control": "resolve", "step": "wait", "as": "done", "result": {}}),
        json!({"control": "pause"}),
        json!({"control": "resume"}),
        json!({"control": "kill"}),
        json!({"control": "fire_timer", "timer": "remind"}),
        json!({"control": "cancel_timer", "timer": "remind"}),
        json!({"control": "try_now"}),
        json!({"control": "rerun"}),
        json!({"control": "restart"}),
        json!({"control": "delete"}),
        json!({"control": "start", "parent": parent}),
        json!({"control": "cancel_child", "parent": parent}),
        json!({"control": "outcome", "command_id": command, "result_type": "Succeeded", "payload": {}}),
        json!({"control": "callback", "work": "w", "ok": {}}),
        json!({"control": "heartbeat", "work": "w"}),
        json!({"control": "register_alias", "key": "o-1", "generation": 1}),
        json!({"control": "release_alias", "key": "o-1", "generation": 1}),
        json!({"control": "ask_alias", "key": "o-1", "due_ms": 1, "number": 1, "slot": 0}),
        json!({"control": "alias_read", "due_ms": 1, "number": 1, "slot": 0}),
        json!({"control": "alias_answered", "alias": {"name": "a", "value": "b"}, "generation": 1, "refused": true}),
        json!({"control": "forward", "generation": 1, "time_ms": 1, "event": {}}),
    ]
}

async fn rig(server: &NatsServer, extra: Value) -> Rig {
    let mut manifest = json!({"broker": {"kind": "nats", "nats": {"urls": [server.url()]}}, "shards": 2});
    for (key, value) in extra.as_object().expect("an object") {
        manifest[key] = value.clone();
    }
    let rig = Rig::new(None, "30m", Duration::ZERO, manifest).await;
    rig.clear_definitions();
    rig.add_saga("patient", PATIENT);
    rig.add_effect("divide", DIVIDE);
    rig
}

async fn started(server: &NatsServer, extra: Value) -> Rig {
    let mut rig = rig(server, extra).await;
    rig.start().await;
    rig
}

const INSTANCES: &str = "/v1/tenants/acme/sagas/patient/instances";

/// Starts an instance by one process and waits until another one shows that it waits.
async fn waiting(asked: &Rig, owner: &Rig, key: &str) -> String {
    let answer = post(asked, INSTANCES, json!({"key": key}).to_string()).await;
    // Who does not work on the shard stores it.
    assert!([201, 202].contains(&answer.status), "{answer:?}");
    let path = instance("acme", "patient", key);
    until(owner, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

async fn client(url: &str) -> Client {
    async_nats::connect(url).await.expect("connected")
}

/// Publishes as a stream wants it: the sequence under which the message is stored, none where nobody has taken it.
async fn store(client: &Client, subject: &str, body: &Value) -> Option<u64> {
    let sent = client.request(subject.to_owned(), body.to_string().into());
    let answer = tokio::time::timeout(Duration::from_secs(1), sent)
        .await
        .ok()?
        .ok()?;
    let answer: Value = serde_json::from_slice(&answer.payload).expect("JSON");
    answer["seq"].as_u64()
}

/// What the history has about requests, newest first: kind and outcome.
fn requests(view: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, member: &str| row[member].as_str().expect("text").to_owned();
    let rows = view["history"].as_array().expect("a history").iter();
    rows.map(|row| (text(row, "kind"), text(row, "outcome")))
        .collect()
}

async fn metric(rig: &Rig, name: &str) -> u64 {
    let text = get(rig, "/metrics").await.text;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next();
    value.expect("a value").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_the_subject_of_the_tenant_no_verb_of_an_operator_takes_effect_and_each_is_told() {
    let server = NatsServer::start();
    let rig = started(&server, json!({})).await;
    let path = waiting(&rig, &rig, "p-1").await;
    let before = get(&rig, &path).await.json();
    let raw = client(&server.url()).await;
    let subject = "tenant.acme.workflow.patient.p-1";
    let refused = "saga_runner_controls_refused_total{reason=\"control.subject\"}";
    assert_eq!(metric(&rig, refused).await, 0);
    for (number, mut body) in others().into_iter().enumerate() {
        body["request_id"] = json!(format!("forged-{number}"));
        body["principal"] = json!({"who": "ann", "role": "admin", "reason": "why not"});
        assert!(store(&raw, subject, &body).await.is_some(), "{body}");
    }
    let count = u64::try_from(others().len()).expect("few");
    let signal = json!({"request_id": "s-1", "control": "signal", "name": "go", "by": "ann"});
    store(&raw, subject, &signal).await.expect("stored");

    // The signal comes behind all of them, and is all that has come.
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    let since = requests(&view).len() - requests(&before).len();
    assert_eq!(
        requests(&view)[..since]
            .iter()
            .filter(|(kind, _)| kind != "result of divide")
            .count(),
        1,
        "{view}"
    );
    assert_eq!(view["state"], json!({"reminded": 0}));
    let dead = get(&rig, &letters("acme")).await.json();
    let dead = dead["items"].as_array().expect("a list");
    assert_eq!(dead.len() as u64, count, "{dead:?}");
    for letter in dead {
        assert_eq!(letter["reason"], "control.subject", "{letter}");
        let retried = format!(
            "{}/{}/retry",
            letters("acme"),
            letter["id"].as_str().expect("an id")
        );
        post(&rig, &retried, "").await.is_problem(409, "SR0503");
    }
    assert_eq!(metric(&rig, refused).await, count);
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    let told = log
        .lines()
        .filter(|line| line.contains("a control message was refused"));
    let told: Vec<&str> = told.collect();
    assert!(!told.is_empty(), "{log}");
    for line in told {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(
            (&line["level"], &line["target"], &line["subject"]),
            (&json!("WARN"), &json!("audit"), &json!(subject)),
            "{line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_owns_nothing_takes_verbs_for_those_that_do() {
    let server = NatsServer::start();
    let owner = started(&server, json!({"mode": "saga"})).await;
    let asked = started(&server, json!({"mode": "effect"})).await;
    let path = waiting(&asked, &owner, "p-1").await;
    let ask = async |verb: &str, body: Value| {
        let answer = post(&asked, &format!("{path}/{verb}"), body.to_string()).await;
        assert_eq!(answer.status, 202, "{verb}: {answer:?}");
        assert_eq!(answer.json()["checked"], true, "{verb}");
    };
    // What would change nothing is refused as by the owner.
    post(
        &asked,
        &format!("{path}/resume"),
        json!({"by": "ann"}).to_string(),
    )
    .await
    .is_problem(409, "SR0503");
    ask("pause", json!({"by": "ann", "reason": "a look"})).await;
    let view = until(&owner, &path, |view| view["blocked_by"]["paused"]["by"] == "ann").await;
    assert_eq!(view["blocked_by"]["paused"]["reason"], "a look");
    ask("resume", json!({"by": "ann"})).await;
    until(&owner, &path, |view| view["blocked_by"]["paused"].is_null()).await;
    ask("timers/remind/fire", json!({"by": "ann"})).await;
    until(&owner, &path, |view| view["state"]["reminded"] == 1).await;
    ask("signals/go", json!({"by": "ann"})).await;
    until(&owner, &path, |view| view["phase"] == "completed").await;

    let killed = waiting(&asked, &owner, "p-2").await;
    let kill = format!("{killed}/kill");
    // What is wrong whatever the instance is, is told at once.
    post(&asked, &kill, json!({"by": "ann"}).to_string())
        .await
        .is_problem(400, "SR0501");
    let body = json!({"by": "ann", "reason": "enough", "request_id": "k-1"});
    let first = post(&asked, &kill, body.to_string()).await;
    assert_eq!(
        (first.status, &first.json()["duplicate"]),
        (202, &json!(false)),
        "{first:?}"
    );
    let view = until(&owner, &killed, |view| view["phase"] == "cancelled").await;
    assert_eq!(view["failure"]["code"], "killed", "{view}");
    let again = post(&asked, &kill, body.to_string()).await;
    assert_eq!(
        (again.status, &again.json()["duplicate"]),
        (202, &json!(true)),
        "{again:?}"
    );
    // The same id for something else is no repetition.
    let other = json!({"by": "ann", "reason": "another reason", "request_id": "k-1"});
    post(&asked, &kill, other.to_string())
        .await
        .is_problem(409, "SR0514");
    // The owner compares before it stores.
    post(
        &owner,
        &kill,
        json!({"by": "ann", "reason": "enough"}).to_string(),
    )
    .await
    .is_problem(409, "SR0503");
    // What would have to be read from a shard the owner tells.
    let view = get(&asked, &killed).await.json();
    assert_eq!(view["phase"], "cancelled", "{view}");
    post(&asked, INSTANCES, json!({"key": "p-3", "input": []}).to_string())
        .await
        .is_problem(400, "SR0501");
    let absent = "/v1/tenants/acme/sagas/nothing/instances";
    post(&asked, absent, "{}").await.is_problem(404, "SR0502");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_request_is_stored_although_its_message_id_was_taken() {
    let server = NatsServer::start();
    let rig = started(&server, json!({})).await;
    let path = waiting(&rig, &rig, "p-1").await;
    let raw = client(&server.url()).await;
    // A tenant that guesses the ids of requests stores something else under the first one.
    let id = blake3::hash(b"acme/patient/p-1/k-1/0").to_hex().to_string();
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id.as_str());
    let subject = "tenant.acme.workflow.patient.p-1";
    let stored = raw
        .request_with_headers(subject.to_owned(), headers, "{}".into())
        .await
        .expect("stored");
    assert!(stored.payload.starts_with(b"{\"stream\""), "{stored:?}");
    let body = json!({"by": "ann", "reason": "enough", "request_id": "k-1"}).to_string();
    let answer = post(&rig, &format!("{path}/kill"), body).await;
    assert_eq!(
        (answer.status, &answer.json()["duplicate"]),
        (202, &json!(false)),
        "{answer:?}"
    );
    let view = until(&rig, &path, |view| view["phase"] == "cancelled").await;
    assert_eq!(view["failure"]["code"], "killed", "{view}");
}

/// The block of docs/security.md, with these passwords.
fn permissions() -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md"));
    let page = page.expect("readable");
    let (_, block) = page.split_once("```nats\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    block
        .replace("$RUNNER_PASSWORD", "runner-1")
        .replace("$EFFECTS_PASSWORD", "effects-1")
        .replace("$ACME_PASSWORD", "acme-1")
}

async fn tenant(server: &NatsServer) -> Client {
    let options = ConnectOptions::with_user_and_password("acme".to_owned(), "acme-1".to_owned());
    let options = options.custom_inbox_prefix("_INBOX_acme");
    options.connect(server.url()).await.expect("connected")
}

fn violations(server: &NatsServer) -> Vec<String> {
    let log = server.log();
    let told = log.lines().filter(|line| line.contains("Violation"));
    told.map(str::to_owned).collect()
}

/// Waits until the server has refused something that contains this.
async fn is_refused(server: &NatsServer, what: &str) {
    let begin = Instant::now();
    while !violations(server).iter().any(|line| line.contains(what)) {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{what}: {:?}",
            violations(server)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Both processes store what they were asked for, and show it; the tenant hears of its own.
async fn audit_is_shown(owner: &Rig, asked: &Rig, acme: &Client) {
    let mut heard = acme
        .subscribe("runner.shop.audit.acme.>")
        .await
        .expect("asked for");
    acme.flush().await.expect("flushed");
    let letter = format!("{}/0-9/discard", letters("acme"));
    post(asked, &letter, "").await.is_problem(404, "SR0502");
    let record = tokio::time::timeout(Duration::from_mins(1), heard.next()).await;
    let record = record.expect("in time").expect("a record").payload;
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    assert_eq!(record["action"], "dead-letters.discard", "{record}");
    let audit = "/v1/tenants/acme/audit";
    let told = until(asked, audit, |page| items(page).len() == 2).await;
    assert_eq!(get(owner, audit).await.json()["items"], told["items"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_documented_permissions_a_tenant_starts_signals_and_cancels_and_cannot_kill() {
    let server = NatsServer::start_with(&Options {
        config: permissions(),
        ..Options::default()
    });
    let user = |name: &str| {
        let password = secret(server.folder(), name, &format!("{name}-1"));
        json!({"kind": "nats", "nats": {"urls": [server.url()], "user": name, "password_file": password}})
    };
    let shop = |mode: &str, name: &str| json!({"cluster": "shop", "mode": mode, "broker": user(name)});
    let owner = started(&server, shop("saga", "runner")).await;
    let asked = started(&server, shop("effect", "effects")).await;
    let acme = tenant(&server).await;
    let of = |key: &str| format!("tenant.acme.workflow.patient.{key}");
    for (request, key) in [("r-1", "p-1"), ("r-2", "p-2"), ("r-3", "p-3")] {
        let start = json!({"request_id": request, "control": "start", "input": {}});
        store(&acme, &of(key), &start).await.expect("stored");
    }
    let paths = ["p-1", "p-2", "p-3"].map(|key| instance("acme", "patient", key));
    for path in &paths {
        until(&owner, path, |view| view["steps"][0]["status"] == "waiting").await;
    }
    let signal = json!({"request_id": "r-4", "control": "signal", "name": "go"});
    store(&acme, &of("p-1"), &signal).await.expect("stored");
    // The effect is done in the other process.
    until(&owner, &paths[0], |view| view["phase"] == "completed").await;
    let cancel = json!({"request_id": "r-5", "control": "cancel", "reason": "no more"});
    store(&acme, &of("p-2"), &cancel).await.expect("stored");
    until(&owner, &paths[1], |view| view["phase"] == "cancelled").await;
    // What it cannot answer itself the owner does, and what only the owner can do.
    let list = "/v1/tenants/acme/instances?saga=patient";
    let (theirs, ours) = (get(&owner, list).await.json(), get(&asked, list).await.json());
    assert_eq!(ours["items"].as_array().map(Vec::len), Some(3), "{ours}");
    assert_eq!(theirs, ours);
    let letter = format!("{}/0-9/discard", letters("acme"));
    post(&asked, &letter, "").await.is_problem(404, "SR0502");
    audit_is_shown(&owner, &asked, &acme).await;
    assert_eq!(violations(&server), [""; 0]);

    // Nothing that would speak for an operator, for another instance, tenant or worker gets into a stream.
    let kill = json!({
        "request_id": "r-6", "control": "kill", "principal": {"who": "ann", "role": "admin", "reason": "why not"},
    });
    for subject in [
        "runner.shop.control.acme.patient.p-3",
        "runner.shop.query.all",
        "runner.shop.answer.x",
        "runner.shop.audit.acme.drain",
        "tenant.globex.workflow.patient.p-3",
        "tenant.acme.effect_result.divide.00000000-0000-0000-0000-000000000007",
        "tenant.acme.workflow_event.patient.p-3",
        "$JS.API.STREAM.PURGE.WORKFLOW_COMMANDS",
        "$JS.API.CONSUMER.CREATE.WORKFLOW_COMMANDS",
    ] {
        assert_eq!(store(&acme, subject, &kill).await, None, "{subject}");
        is_refused(
            &server,
            &format!("user:acme\" - Publish Violation - Subject \"{subject}\""),
        )
        .await;
    }
    for subject in [
        "runner.shop.>",
        "runner.shop.query.all",
        "runner.shop.answer.>",
        "runner.shop.audit.globex.>",
        "tenant.globex.>",
        "_INBOX.>",
    ] {
        let _refused = acme.subscribe(subject).await.expect("asked for");
        is_refused(
            &server,
            &format!("user:acme\" - Subscription Violation - Subject \"{subject}\""),
        )
        .await;
    }
    // An acknowledgement goes where the publisher says: that is no request of an operator either.
    for (request, reply) in [
        ("r-7", "runner.shop.control.acme.patient.p-3"),
        ("r-8", "runner.shop.query.all"),
    ] {
        let signal = json!({"request_id": request, "control": "signal", "name": "nothing"});
        let sent = acme.publish_with_reply(of("p-3"), reply, signal.to_string().into());
        sent.await.expect("sent");
    }
    acme.flush().await.expect("flushed");
    // On its own subject it may say so, and it is refused there.
    store(&acme, &of("p-3"), &kill).await.expect("stored");
    let refused = "saga_runner_controls_refused_total{reason=\"control.subject\"}";
    let begin = Instant::now();
    while metric(&owner, refused).await == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", owner.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let view = get(&owner, &paths[2]).await.json();
    assert_eq!(
        (&view["phase"], &view["steps"][0]["status"]),
        (&json!("running"), &json!("waiting"))
    );

    // An operator does it, in a process whose user may.
    let body = json!({"by": "ann", "reason": "enough"}).to_string();
    let before = violations(&server).len();
    let answer = post(&asked, &format!("{}/kill", paths[2]), body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let view = until(&owner, &paths[2], |view| view["phase"] == "cancelled").await;
    assert_eq!(view["failure"]["code"], "killed");
    assert_eq!(violations(&server).len(), before, "{:?}", violations(&server));
}
