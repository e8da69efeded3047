//! A shard whose folder is lost goes on from a backup that was taken while it worked.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use super::connect;
use super::held::release;
use super::owners::{charged, completed, extra, place, refused, rig};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

async fn shard(arguments: Vec<String>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.arg("shard").args(arguments);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}

/// Writes a backup of a shard to a file, and gives what the command prints.
async fn backup(rig: &Rig, number: u16, file: &Path) -> Value {
    let file = file.to_str().expect("text").to_owned();
    let number = number.to_string();
    let url = rig.url("");
    let arguments = ["backup", &number, "--to", &file, "--url", &url, "--json"];
    let output = shard(arguments.map(str::to_owned).to_vec()).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

async fn restore(rig: &Rig, file: &Path) -> Output {
    let file = file.to_str().expect("text").to_owned();
    let manifest = rig.manifest().to_str().expect("text").to_owned();
    let arguments = [
        "restore",
        &file,
        "--config",
        &manifest,
        "--reason",
        "the disk broke",
    ];
    shard(arguments.map(str::to_owned).to_vec()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_lost_goes_on_from_its_backup_and_repeats_no_call() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    place(&*broker, "happy-1").await;
    completed(&rig, "happy-1").await;

    let files = [0, 1].map(|number| rig.folder().join(format!("{number}.backup")));
    for (number, file) in (0..).zip(&files) {
        let told = backup(&rig, number, file).await;
        assert_eq!(
            (&told["shard"], &told["epoch"]),
            (&json!(number), &json!(1)),
            "{told}"
        );
        assert_eq!(told["bytes"], file.metadata().expect("written").len(), "{told}");
    }
    place(&*broker, "happy-2").await;
    completed(&rig, "happy-2").await;
    rig.kill();

    let data = rig.folder().join("data");
    let exists = restore(&rig, &files[0]).await;
    assert_eq!(exists.status.code(), Some(73), "its folder is there");
    for (number, file) in files.iter().enumerate() {
        std::fs::remove_dir_all(data.join(format!("shard-000{number}"))).expect("lost");
        let output = restore(&rig, file).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    let (code, said) = refused(&mut rig).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("SR0209") && said.contains("--adopt-loss 0@1,1@1"),
        "{said}"
    );

    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    let adopt = ["--adopt-loss", "0@1,1@1", "--reason", "the disk broke"];
    command.args(["run", "--config"]).arg(rig.manifest()).args(adopt);
    rig.launch_as(command);
    completed(&rig, "happy-1").await;
    let pending = rig.client.get(rig.url("/admin/shards/0/pending")).send().await;
    let pending = pending.expect("an answer").text().await.expect("text");
    let pending: Value = serde_json::from_str(&pending).expect("JSON");
    let decisions = pending["decisions"].as_array().expect("a list").iter();
    let what: Vec<&Value> = decisions.map(|decision| &decision["what"]).collect();
    assert_eq!(what, ["restored", "adopted"], "{pending}");
    for number in 0..2 {
        release(&rig, number).await;
    }
    // What was done behind the backup is read from the streams; what they do not tell was released.
    completed(&rig, "happy-2").await;
    place(&*broker, "happy-3").await;
    completed(&rig, "happy-3").await;
    for order in ["happy-1", "happy-2", "happy-3"] {
        assert_eq!(charged(&rig, order), 1, "{order}");
    }
}

/// The record that would refuse it is gone: only the folder itself can know that it was restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_shard_holds_back_what_it_would_send_also_where_the_broker_has_lost_its_record() {
    let server = NatsServer::start();
    let mut rig = rig(&server, extra("100ms", "300ms", "500ms")).await;
    rig.start().await;
    let file = rig.folder().join("0.backup");
    backup(&rig, 0, &file).await;
    rig.kill();
    std::fs::remove_dir_all(rig.folder().join("data/shard-0000")).expect("lost");
    let output = restore(&rig, &file).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    delete_record(&server, "crash.shard.0").await;

    rig.launch();
    let begin = std::time::Instant::now();
    let decisions = loop {
        let answer = rig.client.get(rig.url("/admin/shards/0/pending")).send().await;
        let told: Value = match answer {
            Ok(answer) => serde_json::from_str(&answer.text().await.expect("text")).expect("JSON"),
            Err(_) => Value::Null,
        };
        if told["decisions"].as_array().is_some_and(|all| !all.is_empty()) {
            break told;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{told}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let restored = &decisions["decisions"][0];
    assert_eq!(
        (&restored["what"], &restored["reason"]),
        (&json!("restored"), &json!("the disk broke")),
        "{decisions}"
    );
    assert_ne!(decisions["adopted"], Value::Null, "{decisions}");
}

async fn delete_record(server: &NatsServer, key: &str) {
    let client = async_nats::connect(server.url()).await.expect("connected");
    let bucket = async_nats::jetstream::new(client)
        .get_key_value("WORKFLOW_CLUSTER")
        .await
        .expect("the bucket");
    bucket.purge(key).await.expect("removed");
}
