//! One folder works with a shard: others are refused, and whoever does not know any more whether it is the owner sends
//! nothing.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use saga_runner::ports::broker::{Broker, Expect, Publication};
use serde_json::{Value, json};

use super::{connect, held};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};

const BUCKET: &str = "WORKFLOW_CLUSTER";

/// Orders are carried out at home, where nothing but the fence stands before a call.
pub fn extra(renew: &str, send: &str, take_over: &str) -> Value {
    json!({
        "dispatch": "local",
        "ownership": {"renew_every": renew, "send_within": send, "take_over_after": take_over},
    })
}

pub async fn rig(server: &NatsServer, extra: Value) -> Rig {
    Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await
}

pub async fn place(broker: &dyn Broker, order: &str) {
    let message = Publication {
        stream: "AGGREGATE_EVENTS".to_owned(),
        subject: format!("tenant.{TENANT}.aggregate.Order.{order}"),
        headers: Vec::new(),
        payload: event_body("Order", order, "Placed", &order_payload(order)).into(),
        expect: Expect::MessageId(format!("placed-{order}")),
    };
    broker.publish(message).await.expect("stored");
}

pub async fn completed(rig: &Rig, order: &str) {
    rig.wait_for("order", order, |view| view["phase"] == "completed")
        .await;
}

/// How often the card of an order was charged.
pub fn charged(rig: &Rig, order: &str) -> usize {
    let deeds = rig.upstream.deeds();
    let charges = deeds
        .iter()
        .filter(|deed| deed.kind == "charges" && deed.order == order);
    charges.count()
}

/// The exit code of a start that is refused, and what it says.
pub async fn refused(rig: &mut Rig) -> (Option<i32>, String) {
    rig.launch();
    let code = tokio::time::timeout(Duration::from_mins(1), rig.exit()).await;
    (code.expect("it ends"), rig.log_tail())
}

async fn run(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(["run", "--config"])
        .arg(rig.manifest())
        .args(arguments);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("readable").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).expect("copied");
        }
    }
}

pub async fn ready(rig: &Rig) -> (bool, String) {
    let answer = rig.client.get(rig.url("/ready")).send().await.expect("an answer");
    (answer.status().is_success(), answer.text().await.expect("text"))
}

/// The volume was not mounted: running sagas were forgotten, events of the meantime skipped, and the process was ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_not_mounted_is_refused_until_its_loss_is_adopted_by_name() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    place(&*broker, "happy-1").await;
    completed(&rig, "happy-1").await;
    rig.kill();
    let (data, away) = (rig.folder().join("data"), rig.folder().join("away"));
    std::fs::rename(&data, &away).expect("unmounted");
    let (code, said) = refused(&mut rig).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("SR0205") && said.contains("--adopt-loss 0@1,1@1"),
        "{said}"
    );
    assert!(!data.join("shard-0000").exists(), "a refusal changes nothing");

    std::fs::rename(&away, &data).expect("mounted");
    rig.start().await;
    completed(&rig, "happy-1").await;
    rig.kill();
    std::fs::rename(&data, &away).expect("unmounted for good");
    let stale = ["--adopt-loss", "0@1,1@1", "--reason", "an older incident"];
    let output = run(&rig, &stale).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("--adopt-loss 0@2,1@2"), "{said}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest()).args([
        "--adopt-loss",
        "0@2",
        "--adopt-loss",
        "1@2",
        "--reason",
        "the disk broke",
    ]);
    rig.launch_as(command);
    rig.wait_until_ready().await;
    assert_eq!(rig.instance("order", "happy-1").await, None, "it begins anew");
    place(&*broker, "happy-2").await;
    completed(&rig, "happy-2").await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let log = std::fs::read_to_string(rig.log()).expect("readable");
    let audited = |line: &&str| line.contains("\"target\":\"audit\"") && line.contains("the disk broke");
    assert_eq!(log.lines().filter(audited).count(), 2, "one line for each shard");
}

/// Two processes with a folder each were both ready, and orders were charged twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_with_a_folder_of_its_own_is_refused_and_the_first_one_is_named() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    let second = rig.folder().join("second");
    let listen = format!(
        "127.0.0.1:{}",
        saga_runner::app::nats_server::free_port().expect("a free port")
    );
    let second = second.to_str().expect("text");
    for order in 0..5 {
        place(&*broker, &format!("happy-{order}")).await;
    }
    let output = run(
        &rig,
        &[
            "--data-dir",
            second,
            "--listen",
            &listen,
            "--admin-listen",
            &listen,
        ],
    )
    .await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert!(
        said.contains("SR0205") && said.contains(&format!("host {} since", host.trim())),
        "{said}"
    );
    for order in 0..5 {
        let order = format!("happy-{order}");
        completed(&rig, &order).await;
        assert_eq!(charged(&rig, &order), 1);
    }

    // A copy of the folder, while the first one works.
    copy(&rig.folder().join("data"), Path::new(second));
    let output = run(
        &rig,
        &[
            "--data-dir",
            second,
            "--listen",
            &listen,
            "--admin-listen",
            &listen,
        ],
    )
    .await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("SR0209") || said.contains("SR0210"), "{said}");
    assert!(ready(&rig).await.0, "the first one goes on");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

/// A process that stood still went on to call where it had stopped, although another one had its shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_stood_still_sends_nothing_but_goes_on_to_commit() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    rig.signal(Signal::SIGSTOP);
    for shard in 0..2 {
        let key = format!("crash.shard.{shard}");
        let entry = broker
            .entry(BUCKET, &key)
            .await
            .expect("the bucket")
            .expect("there");
        let mut record: Value = serde_json::from_slice(&entry.value).expect("JSON");
        record["epoch"] = json!(record["epoch"].as_u64().expect("a number") + 1);
        record["place"]["host"] = json!("elsewhere");
        let value = Bytes::from(record.to_string());
        broker
            .put_entry(BUCKET, &key, value, Some(entry.revision))
            .await
            .expect("nobody renews it");
    }
    place(&*broker, "happy-1").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    rig.signal(Signal::SIGCONT);
    rig.wait_for("order", "happy-1", |view| view["phase"] == "running")
        .await;
    let begin = Instant::now();
    let said = loop {
        let (ready, said) = ready(&rig).await;
        if said.contains("another process owns it") {
            assert!(!ready, "{said}");
            break said;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{said}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(said.contains("host elsewhere"), "the other one is named: {said}");
    let metrics = rig
        .client
        .get(rig.url("/metrics"))
        .send()
        .await
        .expect("an answer");
    let metrics = metrics.text().await.expect("text");
    assert!(
        metrics.contains("saga_runner_shards_fenced{reason=\"taken\",shard=\"0\"} 1"),
        "{metrics}"
    );
    // Three ticks of the relay.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(rig.upstream.deeds().is_empty(), "{:?}", rig.upstream.deeds());
    assert!(rig.upstream.commands().is_empty());
    let commands = broker.stream_state("WORKFLOW_COMMANDS").await.expect("there");
    assert_eq!(commands.messages, 0, "no command left");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let entry = broker.entry(BUCKET, "crash.shard.0").await.expect("the bucket");
    let record: Value = serde_json::from_slice(&entry.expect("there").value).expect("JSON");
    assert_eq!(record["place"]["host"], "elsewhere", "it is not written over");
}

/// Renewals stay out while the broker stands still, and then come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_sends_again_once_it_has_renewed_its_record() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    rig.signal(Signal::SIGSTOP);
    place(&*broker, "happy-1").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    rig.signal(Signal::SIGCONT);
    completed(&rig, "happy-1").await;
    assert_eq!(charged(&rig, "happy-1"), 1);
    // Somebody has removed the records, and the bucket with them.
    let raw = async_nats::jetstream::new(async_nats::connect(server.url()).await.expect("connects"));
    raw.delete_stream(format!("KV_{BUCKET}")).await.expect("deleted");
    let begin = Instant::now();
    while !matches!(broker.entry(BUCKET, "crash.shard.1").await, Ok(Some(_))) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    place(&*broker, "happy-2").await;
    completed(&rig, "happy-2").await;
    // The next start knows its cluster by its folder.
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    rig.start().await;
    completed(&rig, "happy-2").await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

/// A copy that was brought back ran the past again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_the_folder_is_refused_until_it_is_adopted_and_then_does_nothing_twice() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut extra = extra("100ms", "300ms", "500ms");
    // What is read waits for room in the outbox, which nothing leaves at first.
    extra["shard"] = json!({"outbox_soft": 1});
    let mut rig = rig(&server, extra).await;
    rig.start().await;
    place(&*broker, "happy-1").await;
    completed(&rig, "happy-1").await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let (data, backup) = (rig.folder().join("data"), rig.folder().join("backup"));
    copy(&data, &backup);
    rig.start().await;
    place(&*broker, "happy-2").await;
    completed(&rig, "happy-2").await;
    // So that all results are in the stream: of what is not, nobody can know.
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&backup, &data);
    let (code, said) = refused(&mut rig).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("SR0210") && said.contains("--adopt-loss 0@2,1@2"),
        "{said}"
    );

    // Adopted by name, it reads what was done since before it sends anything.
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest()).args([
        "--adopt-loss",
        "0@2,1@2",
        "--reason",
        "the copy of Sunday",
    ]);
    rig.launch_as(command);
    for shard in 0..2 {
        held::release(&rig, shard).await;
    }
    rig.wait_until_ready().await;
    completed(&rig, "happy-1").await;
    completed(&rig, "happy-2").await;
    place(&*broker, "happy-3").await;
    completed(&rig, "happy-3").await;
    // What began before is not called again; what followed from parallel steps may be, under the same key.
    let deeds = rig.upstream.deeds();
    let keys: std::collections::BTreeSet<_> = deeds.iter().map(|deed| (&deed.kind, &deed.order)).collect();
    assert_eq!(keys.len(), deeds.len(), "a second key: {deeds:?}");
    for deed in deeds
        .iter()
        .filter(|deed| ["reservations", "scores"].contains(&&*deed.kind))
    {
        assert_eq!(deed.calls, 1, "{deed:?}");
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let log = std::fs::read_to_string(rig.log()).expect("readable");
    let audited = |line: &&str| line.contains("\"target\":\"audit\"") && line.contains("the copy of Sunday");
    assert_eq!(log.lines().filter(audited).count(), 2, "one line for each shard");
    // The next life is one as any other.
    rig.start().await;
    completed(&rig, "happy-2").await;
}

/// Streams that were purged looked like those of a new cluster: another id was drawn, and with it all idempotency keys, with
/// nobody asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_folder_and_record_is_no_new_one_as_long_as_its_consumers_are_there() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    place(&*broker, "happy-1").await;
    completed(&rig, "happy-1").await;
    rig.kill();
    std::fs::remove_dir_all(rig.folder().join("data")).expect("lost");
    let client = async_nats::connect(server.url()).await.expect("connects");
    let context = async_nats::jetstream::new(client);
    context.delete_key_value(BUCKET).await.expect("lost as well");
    for stream in ["WORKFLOW_COMMANDS", "WORKFLOW_EVENTS"] {
        let stream = context.get_stream(stream).await.expect("there");
        stream.purge().await.expect("purged");
    }
    let (code, said) = refused(&mut rig).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("SR0411") && said.contains("consumer(s) (effect-crash-"),
        "{said}"
    );
    for stream in ["WORKFLOW_COMMANDS", "WORKFLOW_EVENTS"] {
        context.delete_stream(stream).await.expect("deleted");
    }
    rig.start().await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
