//! Operations and commands about shards, in turns: each does for one of the two shards what the other does for the other one. Both
//! shards are closed and lose messages, then their stream is created again, then their folder is lost; at the end the processes drain.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::case::{Case, Turn, cases, text};
use super::scene::{PATIENCE, Scene, TENANT};
use crate::api::caller::{instance, items};

/// They stand in the order in which they can be.
pub const CASES: &[Case] = cases! {
    "shard list" => list,
    "POST /admin/shards/{shard}/close" => close,
    "shard close" => close_by_command,
    "POST /admin/shards/{shard}/open" => open,
    "shard open" => open_by_command,
    "POST /admin/shards/{shard}/accept-gap" => accept_gap,
    "shard accept-gap" => accept_gap_by_command,
    "streams check" => check_streams,
    "streams apply" => apply_streams,
    "POST /admin/shards/{shard}/rebind" => rebind,
    "shard rebind" => rebind_by_command,
    "POST /admin/shards/{shard}/backup" => back_up,
    "shard backup" => back_up_by_command,
    "shard restore" => restore,
    "run" => run,
    "GET /admin/shards/{shard}/pending" => pending,
    "shard pending" => pending_by_command,
    "POST /admin/shards/{shard}/discard" => discard,
    "shard discard" => discard_by_command,
    "POST /admin/shards/{shard}/release" => release,
    "shard release" => release_by_command,
    "POST /admin/drain" => drain,
    "drain" => drain_by_command,
};

const EVENTS: &str = "AGGREGATE_EVENTS";
const WHY: [&str; 4] = ["--by", "ann", "--reason", "INC-4711"];

fn why() -> Value {
    json!({"by": "ann", "reason": "INC-4711"})
}

/// What the process that has the shards says of one.
async fn shard(scene: &Scene, number: usize) -> Value {
    let page = scene
        .until_at(&scene.owner, "/admin/shards", |page| items(page).len() == 2)
        .await;
    items(&page)[number].clone()
}

/// Waits until a shard is in a state.
async fn until_state(scene: &Scene, number: usize, state: &str) -> Value {
    let is_there = |page: &Value| items(page)[number]["state"] == state;
    let page = scene.until_at(&scene.owner, "/admin/shards", is_there).await;
    items(&page)[number].clone()
}

/// Waits until the process that has the shards is ready.
async fn until_ready(scene: &Scene) {
    scene.until_at(&scene.owner, "/ready", |_| true).await;
}

async fn list(turn: Turn<'_>) {
    let page = turn.owner(&["-o", "json"]).await.json();
    let states: Vec<&Value> = items(&page).iter().map(|shard| &shard["state"]).collect();
    assert_eq!(states, ["running", "running"], "{page}");
    let none = turn.other(&[]).await.exits(69);
    assert!(none.err.contains("[SR0504]"), "{none:?}");
}

async fn close(turn: Turn<'_>) {
    let closed = turn.ask_owner(&[("shard", "0")]).body(why()).gives(200).await;
    assert_eq!(closed, json!({"shard": 0, "open": false}));
    let shown = shard(turn.scene, 0).await;
    assert_eq!(
        (&shown["open"], &shown["state"]),
        (&json!(false), &json!("absent")),
        "{shown}"
    );
    // What a list lacks now is said, by every process.
    let page = turn.scene.shown(&format!("/v1/tenants/{TENANT}/instances")).await;
    assert_eq!(page["absent_shards"], json!([0]), "{page}");
    let again = turn.ask_owner(&[("shard", "0")]).body(why()).gives(409).await;
    assert_eq!(again["detail"], "shard 0 is not open");
}

async fn close_by_command(turn: Turn<'_>) {
    turn.owner(&[&["1"][..], &WHY].concat()).await.exits(0);
    assert_eq!(shard(turn.scene, 1).await["state"], "absent");
    turn.owner(&["1"]).await.exits(5);
}

/// Before the shards are opened again, messages that they have not read are gone.
async fn open(turn: Turn<'_>) {
    let sent = turn
        .scene
        .publish("Ratio.Opened", "purged", &json!({"ratio": "purged"}))
        .await;
    let sequence = sent["sequence"].as_u64().expect("a number");
    let streams = turn.scene.jetstream().await;
    let events = streams.get_stream(EVENTS).await.expect("it is there");
    events.purge().sequence(sequence + 1).await.expect("purged");
    let opened = turn.ask_owner(&[("shard", "0")]).body(why()).gives(200).await;
    assert_eq!(opened, json!({"shard": 0, "open": true}));
    let shown = until_state(turn.scene, 0, "halted").await;
    let reason = shown["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("stream.gap: "), "{reason}");
}

async fn open_by_command(turn: Turn<'_>) {
    turn.owner(&[&["1"][..], &WHY].concat()).await.exits(0);
    let shown = until_state(turn.scene, 1, "halted").await;
    assert_eq!(shown["open"], true, "{shown}");
}

async fn accept_gap(turn: Turn<'_>) {
    let ask = |body: Value| turn.ask_owner(&[("shard", "0")]).body(body);
    let plan = ask(json!({"stream": EVENTS, "dry_run": true})).gives(200).await;
    assert_eq!(
        (&plan["found"], &plan["done"]),
        (&json!("stream.gap"), &json!(false)),
        "{plan}"
    );
    assert_eq!(
        shard(turn.scene, 0).await["state"],
        "halted",
        "nothing was changed"
    );
    let body = json!({"stream": EVENTS, "by": "ann", "reason": "INC-4711"});
    let done = ask(body.clone()).gives(200).await;
    assert_eq!(
        (&done["done"], &done["new_position"], &done["skipped"]),
        (&json!(true), &plan["new_position"], &plan["skipped"]),
        "{done}"
    );
    until_state(turn.scene, 0, "running").await;
    let again = ask(body).gives(409).await;
    assert_eq!(again["code"], "SR0503", "{again}");
}

/// Without a number it finds the shard that needs it.
async fn accept_gap_by_command(turn: Turn<'_>) {
    let words = [&["--stream", EVENTS][..], &WHY].concat();
    turn.owner(&words).await.exits(64);
    let said = turn.owner(&[&words[..], &["--yes", "-o", "json"]].concat()).await;
    let done = said.json();
    assert_eq!(
        (&done["shard"], &done["done"]),
        (&json!(1), &json!(true)),
        "{done}"
    );
    until_state(turn.scene, 1, "running").await;
    until_ready(turn.scene).await;
}

/// The stream of events is deleted while both shards are closed.
async fn check_streams(turn: Turn<'_>) {
    turn.manifest(&[]).await.shows("AGGREGATE_EVENTS");
    for number in 0..2 {
        let path = format!("/admin/shards/{number}/close");
        turn.scene.post(&turn.scene.owner, &path, why()).await;
    }
    let streams = turn.scene.jetstream().await;
    streams.delete_stream(EVENTS).await.expect("deleted");
    let said = turn.manifest(&[]).await.exits(1);
    assert!(
        said.err.contains("AGGREGATE_EVENTS: the stream does not exist"),
        "{said:?}"
    );
}

async fn apply_streams(turn: Turn<'_>) {
    let said = turn.manifest(&["-o", "json"]).await.json();
    let stream = items(&said).iter().find(|stream| stream["name"] == EVENTS);
    assert_eq!(stream.expect("it is there")["state"], "exists", "{said}");
    let streams = turn.scene.jetstream().await;
    streams.get_stream(EVENTS).await.expect("it was created");
}

async fn rebind(turn: Turn<'_>) {
    for number in 0..2 {
        let path = format!("/admin/shards/{number}/open");
        turn.scene.post(&turn.scene.owner, &path, why()).await;
        let shown = until_state(turn.scene, number, "halted").await;
        let reason = shown["reason"].as_str().expect("a reason");
        assert!(reason.starts_with("stream.identity: "), "{reason}");
    }
    let body = json!({"stream": EVENTS, "by": "ann", "reason": "INC-4711"});
    let done = turn.ask_owner(&[("shard", "0")]).body(body).gives(200).await;
    assert_eq!(
        (&done["found"], &done["done"], &done["new_position"]),
        (&json!("stream.identity"), &json!(true), &json!(0)),
        "{done}"
    );
    let earlier = done["earlier"].as_array().expect("a list");
    assert_eq!(earlier.len(), 1, "the gap: {done}");
    until_state(turn.scene, 0, "running").await;
}

async fn rebind_by_command(turn: Turn<'_>) {
    let words = [&["1", "--stream", EVENTS][..], &WHY, &["--yes", "-o", "json"]].concat();
    let done = turn.owner(&words).await.json();
    assert_eq!(
        (&done["shard"], &done["done"]),
        (&json!(1), &json!(true)),
        "{done}"
    );
    until_ready(turn.scene).await;
    // What comes into the new stream is read.
    for key in ["new-1", "new-2", "new-3", "new-4"] {
        turn.scene
            .publish("Ratio.Opened", key, &json!({"ratio": key}))
            .await;
        turn.scene.until(&instance(TENANT, "ratio", key), |_| true).await;
    }
}

fn backup(scene: &Scene, shard: usize) -> PathBuf {
    scene.path(&format!("{shard}.backup"))
}

/// Commands that no worker takes are in the backup of each shard, and an instance that starts later is not.
async fn back_up(turn: Turn<'_>) {
    turn.scene.poll().await;
    let answer = turn.ask_owner(&[("shard", "0")]).body(why()).answered(200).await;
    let name = answer.header("content-disposition").expect("a name");
    assert!(
        name.starts_with("attachment; filename=\"crash-shard-0000-"),
        "{name}"
    );
    std::fs::write(backup(turn.scene, 0), &answer.body).expect("written");
}

async fn back_up_by_command(turn: Turn<'_>) {
    let file = backup(turn.scene, 1);
    let words = [&["1", "--to", text(&file)][..], &WHY, &["-o", "json"]].concat();
    let told = turn.owner(&words).await.json();
    assert_eq!(
        (&told["shard"], &told["bytes"]),
        (&json!(1), &json!(file.metadata().expect("written").len())),
        "{told}"
    );
    turn.owner(&words).await.exits(73);
}

/// The process ends, and the folders of its shards are lost.
async fn restore(turn: Turn<'_>) {
    turn.scene.begin("visit", "after-the-backup").await;
    let mut rig = turn.scene.owner.rig.lock().await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let data = rig.folder().join("data");
    drop(rig);
    for number in 0..2 {
        std::fs::remove_dir_all(data.join(format!("shard-000{number}"))).expect("lost");
        let file = backup(turn.scene, number);
        let looked = turn.run(&[text(&file), "--dry-run", "-o", "json"]).await.json();
        assert_eq!(
            (&looked["shard"], &looked["shards"], &looked["cluster"]),
            (&json!(number), &json!(2), &json!("crash")),
            "{looked}"
        );
        turn.manifest(&[text(&file), "--reason", "INC-4711"])
            .await
            .notes("is restored");
        assert!(data.join(format!("shard-000{number}")).exists());
    }
}

/// A restored folder is not taken for the one that was lost, before an operator says so by its epoch.
async fn run(turn: Turn<'_>) {
    let refused = turn.manifest(&[]).await.exits(78);
    assert!(refused.err.contains("[SR0209]"), "{refused:?}");
    let (_, adopt) = refused.err.split_once("run --adopt-loss ").expect("it says how");
    let epochs = adopt.split(' ').next().expect("the epochs").to_owned();
    let mut rig = turn.scene.owner.rig.lock().await;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest());
    command.args(["--adopt-loss", &epochs, "--reason", "INC-4711"]);
    rig.launch_as(command);
    drop(rig);
    until_answered(turn.scene).await;
    for number in 0..2 {
        until_held(turn.scene, number).await;
    }
    // What was stored behind the backup is read again.
    let path = instance(TENANT, "visit", "after-the-backup");
    turn.scene.until(&path, |view| view["phase"] == "running").await;
}

/// Waits until the process that was started takes connections.
async fn until_answered(scene: &Scene) {
    let begin = Instant::now();
    while !scene.is_listening(&scene.owner).await {
        assert!(begin.elapsed() < PATIENCE, "it does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a shard holds what it would send, and gives that.
async fn until_held(scene: &Scene, number: usize) -> Value {
    let path = format!("/admin/shards/{number}/pending");
    scene
        .until_at(&scene.owner, &path, |told| told["state"] == "held")
        .await
}

/// Id and key of the first held command of `poll`.
fn held(told: &Value) -> [String; 2] {
    let mut items = items(told).iter();
    let command = items.find(|item| item["saga"] == "poll" && item["kind"] == "effect");
    let command = command.expect("a command of poll");
    ["id", "key"].map(|name| command[name].as_str().expect("text").to_owned())
}

async fn pending(turn: Turn<'_>) {
    let told = turn
        .ask_owner(&[("shard", "0")])
        .query("limit=1")
        .gives(200)
        .await;
    assert_eq!(
        (&told["state"], items(&told).len()),
        (&json!("held"), 1),
        "{told}"
    );
    let sagas = told["sagas"].as_array().expect("sagas");
    let of_poll = sagas.iter().find(|saga| saga["saga"] == "poll");
    assert!(
        of_poll.expect("its commands")["effects"].as_u64() >= Some(2),
        "{told}"
    );
    assert_eq!(items(&told)[0]["may_be_done"], true, "{told}");
}

async fn pending_by_command(turn: Turn<'_>) {
    let told = until_held(turn.scene, 1).await;
    let [id, key] = held(&told);
    let shown = turn.owner(&["1"]).await.exits(0).out;
    let row = shown.lines().find(|line| line.starts_with(&id));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert!(
        words[1..].starts_with(&["effect", "survey", TENANT, "poll", &key, "steps.answer"]),
        "{shown}"
    );
}

/// The step that waited for a command that was discarded goes on with an unknown outcome.
async fn until_discarded(scene: &Scene, key: &str) {
    let view = scene.ended(&instance(TENANT, "poll", key)).await;
    assert_eq!(
        (
            &view["phase"],
            &view["steps"][0]["error"],
            &view["failure"]["code"]
        ),
        (&json!("failed"), &json!("timeout"), &json!("timeout")),
        "{view}"
    );
}

async fn discard(turn: Turn<'_>) {
    let [id, key] = held(&until_held(turn.scene, 0).await);
    let ask = |more: Value| {
        let mut body = why();
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        turn.ask_owner(&[("shard", "0")]).body(body)
    };
    let silent = ask(json!({})).gives(400).await;
    assert_eq!(silent["code"], "SR0501", "{silent}");
    let done = ask(json!({"commands": [id]})).gives(200).await;
    assert_eq!(
        (&done["done"], &done["rows"], &done["unknown"]),
        (&json!(true), &json!(1), &json!(1)),
        "{done}"
    );
    until_discarded(turn.scene, &key).await;
}

async fn discard_by_command(turn: Turn<'_>) {
    let [id, key] = held(&until_held(turn.scene, 1).await);
    let words = [&["1", "--command", id.as_str()][..], &WHY].concat();
    turn.owner(&words).await.exits(64);
    turn.owner(&[&words[..], &["--yes"]].concat()).await.exits(0);
    until_discarded(turn.scene, &key).await;
}

/// Waits until the commands of a shard that were held are sent.
async fn until_sent(scene: &Scene, number: usize) {
    let path = format!("/admin/shards/{number}/pending?limit=200");
    let told = scene
        .until_at(&scene.owner, &path, |told| told["state"] == "released")
        .await;
    let [_, key] = held(&told);
    let path = format!("/v1/tenants/{TENANT}/outbox?saga=poll&kind=effect&limit=500");
    let is_sent = |page: &Value| {
        let found = items(page).iter().find(|item| item["key"] == key.as_str());
        found.is_some_and(|item| item["sent"] == true)
    };
    scene.until(&path, is_sent).await;
}

async fn release(turn: Turn<'_>) {
    let ask = || turn.ask_owner(&[("shard", "0")]).body(why());
    let done = ask().gives(200).await;
    assert_eq!(
        (&done["verb"], &done["done"], &done["sends"]),
        (&json!("release"), &json!(true), &json!(true)),
        "{done}"
    );
    until_sent(turn.scene, 0).await;
    let again = ask().gives(409).await;
    assert_eq!(again["detail"], "it holds nothing back");
}

async fn release_by_command(turn: Turn<'_>) {
    let words = [&["1"][..], &WHY].concat();
    turn.owner(&words).await.exits(0);
    until_sent(turn.scene, 1).await;
    turn.owner(&words).await.exits(5);
    until_ready(turn.scene).await;
}

/// The process without shards ends.
async fn drain(turn: Turn<'_>) {
    let begun = turn.ask(&[]).body(why()).gives(202).await;
    assert_eq!(begun, json!({"draining": true, "began_now": true}));
    let mut rig = turn.scene.other.rig.lock().await;
    assert_eq!(rig.exit().await, Some(0), "{}", rig.log_tail());
}

/// The other one ends as well, and the command waits for that.
async fn drain_by_command(turn: Turn<'_>) {
    let words = [&WHY[..], &["--wait", "--timeout", "60s", "-o", "json"]].concat();
    let told = turn.owner(&words).await.json();
    assert_eq!(told, json!({"draining": true, "began_now": true, "ended": true}));
    let mut rig = turn.scene.owner.rig.lock().await;
    assert_eq!(rig.exit().await, Some(0), "{}", rig.log_tail());
    drop(rig);
    turn.owner(&[]).await.exits(69);
}
