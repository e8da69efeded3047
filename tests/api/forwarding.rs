//! A process without shards answers what it is asked through the one that has them, on a real nats-server.

use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::Client;
use futures::StreamExt as _;
use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use wiremock::{MockServer, ResponseTemplate};

use crate::api::auth::{ask, drawn};
use crate::api::caller::{add_call, event, get, instance, items, letters, post, service, until};
use crate::api::conflicts::{DIVIDE, PATIENT, STARTS};
use crate::api::large::{held, slow};
use crate::api::schedules::LEAP;
use crate::api::watches::{Stream, inputs};
use crate::api::why::{PAY, RETRIES};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// A process of the cluster in this mode, which has not started yet.
async fn process(server: &NatsServer, mode: &str, upstream: &MockServer, extra: Value) -> Rig {
    let mut manifest = json!({"mode": mode});
    for (key, value) in extra.as_object().expect("an object") {
        manifest[key] = value.clone();
    }
    let rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, manifest).await;
    rig.clear_definitions();
    for (name, text) in [("patient", PATIENT), ("pay", PAY), ("leap", LEAP)] {
        rig.add_saga(name, text);
    }
    rig.add_effect("divide", DIVIDE);
    add_call(&rig, "charge", upstream, RETRIES);
    rig
}

/// One that has the shards, and one that has none.
pub async fn pair(server: &NatsServer, upstream: &MockServer, extra: Value) -> (Rig, Rig) {
    let mut owner = process(server, "saga", upstream, json!({})).await;
    let mut asked = process(server, "effect", upstream, extra).await;
    owner.start().await;
    asked.start().await;
    (owner, asked)
}

pub async fn unavailable() -> MockServer {
    service(ResponseTemplate::new(503)).await
}

/// Starts an instance of `patient` by either process, and waits until it waits for `go`.
async fn waiting(rig: &Rig, key: &str, input: Value) -> String {
    let body = json!({"key": key, "input": input, "request_id": format!("start-{key}")});
    let answer = post(rig, &format!("{STARTS}?wait=30s"), body.to_string()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let path = instance("acme", "patient", key);
    until(rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

/// Asserts that both processes answer a request in the same way.
async fn same(owner: &Rig, asked: &Rig, path: &str) -> Value {
    let (theirs, ours) = (get(owner, path).await, get(asked, path).await);
    assert_eq!(
        (theirs.status, &theirs.kind),
        (ours.status, &ours.kind),
        "{path}: {ours:?}"
    );
    let (mut theirs, mut ours) = (theirs.json(), ours.json());
    for answer in [&mut theirs, &mut ours] {
        // Each request has its own.
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("trace_id");
        }
    }
    assert_eq!(theirs, ours, "{path}");
    ours
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_shards_answers_every_read_as_the_one_with_them_does() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let path = waiting(&asked, "p-1", json!({})).await;
    waiting(&owner, "p-2", json!({})).await;
    let poison = event("acme", "e-1", "Pay.Opened", &json!({"yap": "x"}));
    assert_eq!(post(&owner, "/v1/tenants/acme/events", poison).await.status, 202);
    let page = until(&asked, &letters("acme"), |page| !items(page).is_empty()).await;
    let letter = items(&page)[0]["id"].as_str().expect("an id").to_owned();

    let version = get(&asked, "/v1/definitions?saga=patient").await.json();
    let hash = version["items"][0]["hash"].as_str().expect("a hash").to_owned();
    let tenant = "/v1/tenants/acme";
    for path in [
        format!("{tenant}/instances"),
        format!("{tenant}/instances?phase=running&waits_for=message&where=state.n%20%3D%3D%200"),
        format!("{tenant}/instances/count"),
        format!("{tenant}/instances/count?by=step"),
        format!("{tenant}/instances/count?key_prefix=p-&older_than=0s"),
        STARTS.to_owned(),
        path.clone(),
        format!("{path}?history=1"),
        format!("{path}/why"),
        format!("{path}/graph"),
        format!("{path}/history"),
        format!("{path}/inputs"),
        format!("{tenant}/dead-letters"),
        format!("{tenant}/dead-letters/count?by=kind"),
        format!("{tenant}/dead-letters/{letter}"),
        format!("{tenant}/schedules"),
        format!("{tenant}/sagas/leap/schedule"),
        format!("{tenant}/sagas/patient/aliases/no/value"),
        "/v1/definitions".to_owned(),
        format!("/v1/definitions/{hash}"),
    ] {
        same(&owner, &asked, &path).await;
        assert_eq!(get(&asked, &path).await.status, 200, "{path}");
    }
    // Pages go on where the one before ended, whoever is asked for which of them.
    let first = get(&asked, &format!("{tenant}/instances?limit=1")).await.json();
    let next = first["next"].as_str().expect("a cursor");
    let second = same(
        &owner,
        &asked,
        &format!("{tenant}/instances?limit=1&after={next}"),
    )
    .await;
    assert_eq!(items(&second).len(), 1);
    assert_ne!(first["items"], second["items"]);
    // What is wrong is told in the same way, too.
    for (path, status) in [
        (instance("acme", "patient", "nobody"), 404),
        (format!("{}/why", instance("acme", "nothing", "p-1")), 404),
        (format!("{tenant}/dead-letters/9-9"), 404),
        ("/v1/tenants/initech/instances".to_owned(), 404),
        ("/v1/migrations/m-9".to_owned(), 404),
        (format!("{tenant}/instances?color=red"), 400),
        (format!("{tenant}/instances?after=forged"), 400),
        (format!("{path}/wait?for=phase%3Dnone&wait=1s"), 400),
    ] {
        let problem = same(&owner, &asked, &path).await;
        assert_eq!(problem["status"], status, "{path}: {problem}");
    }
    assert_eq!(
        items(&get(&asked, "/v1/tenants/globex/instances").await.json()).len(),
        0
    );
    let command = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args([
            "instance",
            "why",
            "patient",
            "p-1",
            "--tenant",
            "acme",
            "--url",
            &asked.url(""),
        ])
        .output()
        .expect("it runs");
    assert!(command.status.success(), "{command:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_an_effect_says_why_the_instance_waits_for_it() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let open = event("acme", "e-1", "Pay.Opened", &json!({"pay": "p-1"}));
    assert_eq!(post(&owner, "/v1/tenants/acme/events", open).await.status, 202);
    let path = format!("{}/why", instance("acme", "pay", "p-1"));
    let why = until(&asked, &path, |why| why["pending"][0]["calls"].is_object()).await;
    assert_eq!(why["pending"][0]["step"], "charge", "{why}");
    assert_eq!(why["pending"][0]["calls"]["error"]["class"], "transient", "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_of_a_job_is_answered_by_the_process_with_the_shards_and_the_job_stored_by_any() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (mut owner, asked) = pair(&server, &upstream, json!({})).await;
    for key in ["p-1", "p-2", "q-1"] {
        waiting(&asked, key, json!({})).await;
    }
    let jobs = "/v1/tenants/acme/jobs";
    let order = |dry_run: bool| {
        let filter = json!({"saga": "patient", "key_prefix": "p-"});
        json!({"verb": "pause", "filter": filter, "reason": "a look", "dry_run": dry_run}).to_string()
    };
    let (theirs, ours) = (
        post(&owner, jobs, order(true)).await,
        post(&asked, jobs, order(true)).await,
    );
    assert_eq!((ours.status, ours.json()), (200, theirs.json()), "{ours:?}");
    assert_eq!(ours.json()["selected"], 2, "{ours:?}");
    let wrong = json!({"verb": "pause", "filter": {"color": "red"}, "reason": "a look", "dry_run": true});
    post(&asked, jobs, wrong.to_string())
        .await
        .is_problem(400, "SR0501");
    assert!(items(&get(&asked, jobs).await.json()).is_empty());

    owner.kill();
    until_gone(&server).await;
    post(&asked, jobs, order(true)).await.is_problem(503, "SR0521");
    let started = post(&asked, jobs, order(false)).await;
    assert_eq!(started.status, 202, "{started:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_process_has_the_shards_that_is_said_and_no_timeout_passes() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    // Nobody waits that long here: a timeout would be another code.
    let patient = json!({"http": {"forward_timeout": "5m", "request_timeout": "5m"}});
    let mut owner = process(&server, "saga", &upstream, json!({})).await;
    let mut asked = process(&server, "effect", &upstream, patient).await;
    asked.start().await;
    let list = "/v1/tenants/acme/instances";
    get(&asked, list).await.is_problem(503, "SR0521");
    owner.start().await;
    // Who is ready hears what is forwarded.
    assert_eq!(get(&asked, list).await.status, 200);
    let path = waiting(&asked, "p-1", json!({})).await;

    owner.kill();
    until_gone(&server).await;
    get(&asked, list).await.is_problem(503, "SR0521");
    get(&asked, &path).await.is_problem(503, "SR0521");
    get(&asked, &format!("{path}/events"))
        .await
        .is_problem(503, "SR0521");
    get(&asked, &format!("{path}/wait?for=end&wait=30s"))
        .await
        .is_problem(503, "SR0521");
    let letter = format!("{}/0-1/retry", letters("acme"));
    post(&asked, &letter, "").await.is_problem(503, "SR0521");
    let body = json!({"request_id": "s-1"}).to_string();
    post(&asked, &format!("{path}/signals/go?wait=30s"), body.clone())
        .await
        .is_problem(503, "SR0521");
    // Without a wait it is stored, and applied when the owner is back.
    assert_eq!(
        post(&asked, &format!("{path}/signals/go"), body).await.status,
        202
    );
    owner.start().await;
    until(&asked, &path, |view| view["steps"][1]["status"] == "done").await;
}

/// Waits until the server knows that only one client is connected.
async fn until_gone(server: &NatsServer) {
    let raw = client(server).await;
    let begin = Instant::now();
    loop {
        // The answer comes over the subject where the owner listened.
        let answer = raw.request("runner.crash.query.all", "".into()).await;
        let is_gone = answer.is_err_and(|error| error.kind() == async_nats::RequestErrorKind::NoResponders);
        if is_gone {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "the owner is still there"
        );
    }
}

async fn client(server: &NatsServer) -> Client {
    let options = async_nats::ConnectOptions::new().request_timeout(Some(Duration::from_secs(2)));
    options.connect(server.url()).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_does_not_answer_is_given_up_after_the_timeout_of_the_manifest() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let brief = json!({"http": {"forward_timeout": "500ms"}});
    let (owner, asked) = pair(&server, &upstream, brief).await;
    owner.signal(nix::sys::signal::Signal::SIGSTOP);
    get(&asked, "/v1/tenants/acme/instances")
        .await
        .is_problem(504, "SR0522");
    owner.signal(nix::sys::signal::Signal::SIGCONT);
    until(&asked, "/v1/tenants/acme/instances", |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_larger_than_a_message_comes_whole_or_not_at_all() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let mut small = process(
        &server,
        "effect",
        &upstream,
        json!({"http": {"forward_bytes_max": 100_000}}),
    )
    .await;
    small.start().await;
    for number in 0..12 {
        let input = json!({"n": "x".repeat(100_000)});
        waiting(&asked, &format!("p-{number}"), input).await;
    }
    let page = same(&owner, &asked, STARTS).await;
    assert!(page.to_string().len() > 1_000_000, "{}", page.to_string().len());
    get(&small, STARTS).await.is_problem(502, "SR0523");
    assert_eq!(get(&small, "/v1/tenants/acme/instances").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_and_watches_go_through_and_end_with_their_instance() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (_owner, asked) = pair(&server, &upstream, json!({})).await;
    let path = waiting(&asked, "p-1", json!({})).await;
    let mut stream = Stream::open(&asked, &format!("{path}/events"), None).await;
    let seen = stream.until(|events| !events.is_empty()).await;
    assert_eq!(inputs(&seen), ["start-p-1"]);
    let end = format!("{path}/wait?for=end&wait=30s");
    let waited = async {
        let reached = get(&asked, &end).await;
        assert_eq!(
            (reached.status, &reached.json()["reached"]),
            (200, &json!(true)),
            "{reached:?}"
        );
    };
    let ended = async {
        let body = json!({"request_id": "c-1", "reason": "enough"}).to_string();
        let answer = post(&asked, &format!("{path}/cancel?wait=30s"), body).await;
        assert_eq!(
            (answer.status, &answer.json()["outcome"]["state"]),
            (200, &json!("applied")),
            "{answer:?}"
        );
    };
    tokio::join!(waited, ended);
    let seen = stream
        .until(|events| events.iter().any(|(id, _)| id.is_none()))
        .await;
    assert_eq!(inputs(&seen), ["start-p-1", "c-1"]);
    assert_eq!(
        stream.until(|_| false).await.len(),
        3,
        "nothing comes behind the end"
    );
    // Whoever comes back gets what came since.
    let last = seen[0].0.expect("an id").to_string();
    let mut stream = Stream::open(&asked, &format!("{path}/events"), Some(&last)).await;
    assert_eq!(inputs(&stream.until(|_| false).await), ["c-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_client_is_gone_gives_its_place_back_in_both_processes() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let one = json!({"http": {"streams_max": 1}});
    let mut owner = process(&server, "saga", &upstream, one.clone()).await;
    let mut asked = process(&server, "effect", &upstream, one).await;
    owner.start().await;
    asked.start().await;
    let path = waiting(&asked, "p-1", json!({})).await;
    let events = format!("{path}/events");
    let mut stream = Stream::open(&asked, &events, None).await;
    stream.until(|events| !events.is_empty()).await;
    get(&asked, &events).await.is_problem(503, "SR0504");
    get(&owner, &events).await.is_problem(503, "SR0504");
    drop(stream);
    // The owner hears that nobody reads when it has something to tell.
    let begin = Instant::now();
    for number in 0.. {
        let body = json!({"request_id": format!("s-{number}")}).to_string();
        let verb = if number % 2 == 0 { "pause" } else { "resume" };
        post(&owner, &format!("{path}/{verb}"), body).await;
        let answer = owner
            .client
            .get(owner.url(&events))
            .send()
            .await
            .expect("an answer");
        if answer.status().is_success() {
            break;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "the place is not given back"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_requests_are_forwarded_and_answered_as_the_manifest_says() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let none = json!({"http": {"forwards_max": 0}});
    let (mut owner, full) = pair(&server, &upstream, none.clone()).await;
    let list = "/v1/tenants/acme/instances";
    let told = get(&full, list).await.is_problem(503, "SR0504");
    assert!(told["detail"].to_string().contains("http.forwards_max"), "{told}");
    let path = waiting(&owner, "p-1", json!({})).await;
    owner.kill();
    let mut other = process(&server, "effect", &upstream, json!({})).await;
    other.start().await;
    drop(full);
    let manifest = std::fs::read_to_string(owner.manifest()).expect("readable");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    manifest["http"]["forwards_max"] = json!(0);
    std::fs::write(owner.manifest(), manifest.to_string()).expect("written");
    owner.start().await;
    let told = get(&other, list).await.is_problem(503, "SR0504");
    assert!(told["detail"].to_string().contains("http.forwards_max"), "{told}");
    // A wait has a place of its own.
    let reached = get(&other, &format!("{path}/wait?for=phase%3Drunning&wait=10s")).await;
    assert_eq!(reached.status, 200, "{reached:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_about_letters_schedules_and_versions_are_made_from_every_process() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let poison = event("acme", "e-1", "Pay.Opened", &json!({"yap": "x"}));
    assert_eq!(post(&owner, "/v1/tenants/acme/events", poison).await.status, 202);
    let page = until(&asked, &letters("acme"), |page| !items(page).is_empty()).await;
    let letter = format!(
        "{}/{}",
        letters("acme"),
        items(&page)[0]["id"].as_str().expect("an id")
    );
    post(&asked, &format!("{letter}/retry"), "")
        .await
        .is_problem(409, "SR0503");
    let foreign = letter.replace("acme", "globex");
    post(&asked, &format!("{foreign}/discard"), "")
        .await
        .is_problem(404, "SR0502");
    assert_eq!(post(&asked, &format!("{letter}/discard"), "").await.status, 204);
    post(&asked, &format!("{letter}/discard"), "")
        .await
        .is_problem(404, "SR0502");
    assert!(items(&get(&owner, &letters("acme")).await.json()).is_empty());

    let schedule = "/v1/tenants/acme/sagas/leap/schedule";
    for (verb, status, paused) in [("pause", 200, true), ("pause", 409, true), ("resume", 200, false)] {
        let answer = post(&asked, &format!("{schedule}/{verb}"), "").await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(get(&owner, schedule).await.json()["paused"], paused);
    }
    post(&asked, &schedule.replace("leap", "patient"), "")
        .await
        .is_problem(405, "SR0511");
    post(
        &asked,
        &format!("{}/pause", schedule.replace("leap", "patient")),
        "",
    )
    .await
    .is_problem(404, "SR0502");

    let version = get(&asked, "/v1/definitions?saga=patient").await.json();
    let hash = version["items"][0]["hash"].as_str().expect("a hash");
    let migrate = post(
        &asked,
        &format!("/v1/definitions/{hash}/migrate?dry_run=true"),
        "",
    )
    .await;
    assert_eq!(
        (migrate.status, &migrate.json()["finished"]),
        (200, &json!(true)),
        "{migrate:?}"
    );
    let id = migrate.json()["id"].as_str().expect("an id").to_owned();
    same(&owner, &asked, &format!("/v1/migrations/{id}")).await;
}

/// The process that had the shards went on to answer from its rows, although another one had them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_that_hold_the_shards_to_be_theirs_one_answers() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let brief =
        json!({"ownership": {"renew_every": "100ms", "send_within": "300ms", "take_over_after": "500ms"}});
    let mut owner = process(&server, "saga", &upstream, brief).await;
    let mut asked = process(
        &server,
        "effect",
        &upstream,
        json!({"http": {"forward_timeout": "2s"}}),
    )
    .await;
    owner.start().await;
    asked.start().await;
    let list = "/v1/tenants/acme/instances";
    let path = waiting(&asked, "p-1", json!({})).await;
    let mut stream = Stream::open(&asked, &format!("{path}/events"), None).await;
    stream.until(|events| !events.is_empty()).await;

    owner.signal(nix::sys::signal::Signal::SIGSTOP);
    let stopped = Instant::now();
    take_over(&server).await;
    // What the other process would answer.
    let raw = client(&server).await;
    let mut requests = raw.subscribe("runner.crash.query.all").await.expect("subscribed");
    raw.flush().await.expect("sent");
    let answering = raw.clone();
    let other = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let to = request.reply.expect("a way back");
            let answer = "{\"status\":200,\"headers\":[[\"content-type\",\"application/json\"]]}\n{\"items\":[\"theirs\"]}";
            answering.publish(to, answer.into()).await.expect("sent");
        }
    });
    // The other one has waited for this.
    while stopped.elapsed() < Duration::from_millis(500) {
        assert_eq!(get(&asked, "/live").await.status, 200);
    }
    owner.signal(nix::sys::signal::Signal::SIGCONT);
    let mut answers = 0;
    let begin = Instant::now();
    // From the first instant on, also before it knows that the shards are another's.
    while answers < 20
        || !get(&owner, "/ready")
            .await
            .text
            .contains("another process owns it")
    {
        let told = get(&asked, list).await;
        assert_eq!(told.json()["items"], json!(["theirs"]), "{told:?}");
        answers += 1;
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", owner.log_tail());
    }
    other.abort();
    drop(raw);
    // Alone it answers nobody, and the server tells who asks.
    until_gone(&server).await;
    get(&asked, list).await.is_problem(503, "SR0521");
    let ended = stream.until(|_| false).await;
    assert!(
        ended.iter().all(|(id, _)| id.is_some()),
        "its watch is cut off, the instance goes on: {ended:?}"
    );
}

/// Writes into the records of the shards that another process has them.
async fn take_over(server: &NatsServer) {
    let raw = client(server).await;
    let context = async_nats::jetstream::new(raw);
    let bucket = context
        .get_key_value("WORKFLOW_CLUSTER")
        .await
        .expect("the bucket");
    for shard in 0..2 {
        let key = format!("crash.shard.{shard}");
        let entry = bucket.entry(&key).await.expect("readable").expect("there");
        let mut record: Value = serde_json::from_slice(&entry.value).expect("JSON");
        record["epoch"] = json!(record["epoch"].as_u64().expect("a number") + 1);
        record["place"]["host"] = json!("elsewhere");
        bucket
            .update(&key, record.to_string().into(), entry.revision)
            .await
            .expect("nobody renews it");
    }
}

/// Sends a message as a process would, and gives the answer: its head and its body.
async fn forward(raw: &Client, head: &Value) -> (Value, Value) {
    let reply = format!("runner.crash.answer.{}", uuid::Uuid::new_v4().simple());
    let mut inbox = raw.subscribe(reply.clone()).await.expect("subscribed");
    let message = format!("{head}\n");
    raw.publish_with_reply("runner.crash.query.all", reply, message.into())
        .await
        .expect("sent");
    let answer = tokio::time::timeout(Duration::from_secs(30), inbox.next()).await;
    let answer = answer.expect("in time").expect("an answer").payload;
    let end = answer.iter().position(|byte| *byte == b'\n').expect("a head");
    let read = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or(Value::Null);
    (read(&answer[..end]), read(&answer[end + 1..]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_answers_checks_tenant_and_role_again() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let mut owner = process(&server, "saga", &upstream, json!({})).await;
    owner.start().await;
    waiting(&owner, "p-1", json!({})).await;
    let raw = client(&server).await;
    let head = |method: &str, target: &str, role: &str, tenant: Option<&str>| {
        json!({
            "method": method, "target": target, "principal": "vic", "role": role, "tenant": tenant,
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        })
    };
    let list = "/v1/tenants/acme/instances";
    let pause = "/v1/tenants/acme/sagas/leap/schedule/pause";
    for (method, target, role, tenant, status) in [
        ("GET", list, "viewer", Some("acme"), 200),
        ("GET", list, "admin", Some("globex"), 404),
        ("GET", "/v1/tenants/globex/instances", "viewer", Some("acme"), 404),
        ("POST", pause, "viewer", Some("acme"), 403),
        ("POST", pause, "operator", Some("acme"), 200),
        ("GET", "/v1/definitions", "viewer", Some("acme"), 403),
        ("GET", "/v1/definitions", "viewer", None, 200),
        // What is about the process is not for others.
        ("GET", "/info", "admin", None, 404),
        ("POST", "/admin/drain", "admin", None, 404),
        ("GET", "/v1/tenants/acme/../x", "admin", None, 400),
        ("BAD METHOD", list, "admin", None, 400),
    ] {
        let (answer, body) = forward(&raw, &head(method, target, role, tenant)).await;
        assert_eq!(
            answer["status"], status,
            "{method} {target} {role}: {answer} {body}"
        );
        if status >= 400 {
            assert_eq!(body["trace_id"].as_str().map(str::len), Some(32), "{body}");
        }
    }
    let (answer, body) = forward(&raw, &json!("no head")).await;
    assert_eq!(
        (&answer["status"], &body["code"]),
        (&json!(400), &json!("SR0501"))
    );
    // Nothing is published where a tenant could have it published.
    let elsewhere = "tenant.acme.workflow.patient.p-1";
    let mut received = raw.subscribe(elsewhere).await.expect("subscribed");
    let asked = format!("{}\n", head("GET", list, "viewer", Some("acme")));
    raw.publish_with_reply("runner.crash.query.all", elsewhere, asked.into())
        .await
        .expect("sent");
    // Requests are taken in their order, so this one would have been answered before.
    forward(&raw, &head("GET", list, "viewer", Some("acme"))).await;
    raw.publish(elsewhere, "end".into()).await.expect("sent");
    let first = received.next().await.expect("a message");
    assert_eq!(&first.payload[..], b"end");
    let log = std::fs::read_to_string(owner.log()).expect("a log");
    let audited = |status: u16| {
        let told = ["\"principal\":\"vic\"".to_owned(), format!("\"status\":{status}")];
        log.lines()
            .any(|line| told.iter().all(|told| line.contains(told)))
    };
    assert!(audited(403) && audited(200), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_one_tenant_sees_nothing_of_another_through_either_process() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let tokens = json!({"http": {"authentication": "tokens", "tokens_file": "tokens"}});
    let mut owner = process(&server, "saga", &upstream, json!({})).await;
    let mut asked = process(&server, "effect", &upstream, tokens).await;
    let (token, line) = drawn("vic", "viewer@acme");
    asked.add_file("tokens", line.as_bytes());
    owner.start().await;
    asked.start().await;
    let path = waiting(&owner, "p-1", json!({})).await;
    for (path, status) in [
        (path.clone(), 200),
        (path.replace("acme", "globex"), 404),
        ("/v1/definitions".to_owned(), 403),
    ] {
        let answer = ask(&asked, &token, "GET", &path, "").await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert_eq!(ask(&asked, "", "GET", &path, "").await.status, 401, "{path}");
    }
    let pause = "/v1/tenants/acme/sagas/leap/schedule/pause";
    ask(&asked, &token, "POST", pause, "")
        .await
        .is_problem(403, "SR0513");
}

/// Neither process holds a page, and what is broken does not look whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_another_process_reads_is_sent_in_portions_and_ends_with_it() {
    const INSTANCES: usize = 160;
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let large = json!({"http": {"page_bytes_max": 64 * 1_024 * 1_024, "forward_timeout": "2s"}});
    let mut owner = process(&server, "saga", &upstream, large.clone()).await;
    let mut asked = process(&server, "effect", &upstream, large).await;
    owner.start().await;
    asked.start().await;
    for number in 0..INSTANCES {
        let input = json!({"n": "x".repeat(100_000)});
        waiting(&owner, &format!("p-{number}"), input).await;
    }
    let path = format!("{STARTS}?limit=500");
    let page = same(&owner, &asked, &path).await;
    assert_eq!(items(&page).len(), INSTANCES);
    let page = same(&owner, &asked, &format!("{path}&blocked=false")).await;
    assert_eq!(page["looked_at"], INSTANCES);

    let (mut reader, status) = slow(&asked, &path).await;
    assert_eq!(status, "HTTP/1.1 200");
    // A portion is there, once it is: between two of them nothing is held.
    let begin = Instant::now();
    loop {
        let held = held(&asked).await;
        assert!(held < 400_000, "{held} bytes");
        if held > 100_000 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "nothing is sent");
    }
    owner.kill();
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ended = reader.read_to_end(&mut rest).await;
    assert!(rest.len() < INSTANCES * 100_000, "{} bytes came", rest.len());
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks whole");
    get(&asked, &path).await.is_problem(503, "SR0521");
}

/// Whoever stores a request for a process that does not answer says so, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_process_that_has_the_shards_a_request_is_stored_and_the_next_one_carries_it_out() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (mut owner, asked) = pair(&server, &upstream, json!({})).await;
    let path = waiting(&asked, "p-1", json!({})).await;
    owner.kill();
    let body = json!({"by": "ann", "reason": "a look"}).to_string();
    let answer = post(&asked, &format!("{path}/pause"), body).await;
    assert_eq!(
        (answer.status, &answer.json()["checked"]),
        (202, &json!(false)),
        "{answer:?}"
    );
    let body = json!({"key": "p-2", "input": {}}).to_string();
    let answer = post(&asked, STARTS, body).await;
    assert_eq!(
        (answer.status, &answer.json()["checked"]),
        (202, &json!(false)),
        "{answer:?}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(["instance", "start", "patient", "--key", "p-3", "--input", "{}"])
        .args(["--tenant", "acme", "--url", &asked.url("")])
        .output()
        .expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{told}");
    assert!(told.contains("another instance may have the key"), "{told}");
    owner.start().await;
    until(&owner, &path, |view| view["blocked_by"]["paused"]["by"] == "ann").await;
    for key in ["p-2", "p-3"] {
        let path = instance("acme", "patient", key);
        until(&asked, &path, |view| view["steps"][0]["status"] == "waiting").await;
    }
}

/// It hangs, so NATS takes requests for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_the_owner_does_not_answer_in_time_is_stored_and_carried_out_once() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let bounds = json!({"http": {"forward_timeout": "1s", "forwards_max": 1}});
    let (owner, asked) = pair(&server, &upstream, bounds).await;
    let path = waiting(&asked, "p-1", json!({})).await;
    owner.signal(Signal::SIGSTOP);
    // More than are forwarded at a time are stored at once.
    let start = async |n: usize| {
        let body = json!({"key": format!("s-{n}"), "input": {}, "request_id": format!("r-{n}")});
        let wait = if n == 0 { "?wait=0s" } else { "" };
        post(&asked, &format!("{STARTS}{wait}"), body.to_string()).await
    };
    for answer in join_all((0..5).map(start)).await {
        assert_eq!(
            (answer.status, &answer.json()["checked"]),
            (202, &json!(false)),
            "{answer:?}"
        );
    }
    let body = json!({"by": "ann", "reason": "a look"}).to_string();
    let answer = post(&asked, &format!("{path}/pause"), body).await;
    assert_eq!(
        (answer.status, &answer.json()["checked"]),
        (202, &json!(false)),
        "{answer:?}"
    );
    owner.signal(Signal::SIGCONT);
    until(&owner, &path, |view| view["blocked_by"]["paused"]["by"] == "ann").await;
    let history = get(&owner, &format!("{path}/history")).await.json();
    let pauses = items(&history).iter().filter(|entry| entry["kind"] == "pause");
    assert_eq!(pauses.count(), 1, "{history}");
    for n in 0..5 {
        let started = instance("acme", "patient", &format!("s-{n}"));
        let view = until(&owner, &started, |view| view["steps"][0]["status"] == "waiting").await;
        assert_eq!(
            (&view["generation"], &view["start_event"]),
            (&json!(1), &json!(format!("r-{n}"))),
            "{view}"
        );
    }
}
