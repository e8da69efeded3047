//! `instance` with all its verbs, against the process that has no shards.

use serde_json::{Value, json};

use crate::api::caller::{instance, items};
use crate::operations::case::{Case, Said, Turn, cases};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "instance start" => start,
    "instance list" => list,
    "instance count" => count,
    "instance show" => show,
    "instance why" => why,
    "instance actions" => actions,
    "instance graph" => graph,
    "instance history" => history,
    "instance inputs" => inputs,
    "instance wait" => wait,
    "instance watch" => watch,
    "instance signal" => signal,
    "instance pause" => pause,
    "instance resume" => resume,
    "instance fire-timer" => fire_timer,
    "instance cancel-timer" => cancel_timer,
    "instance cancel" => cancel,
    "instance kill" => kill,
    "instance restart" => restart,
    "instance delete" => delete,
    "instance retry" => retry,
    "instance skip" => skip,
    "instance resolve" => resolve,
    "instance try-now" => try_now,
    "instance migrate" => migrate,
};

/// Runs the command for an instance of a saga; its outcome is waited for, and it is applied.
async fn applied(turn: Turn<'_>, saga: &str, key: &str, more: &[&str]) {
    let common = ["--by", "ann", "--wait=60s", "-o", "json"];
    let said = turn
        .tenant(&[&[saga, key][..], more, &common[..]].concat())
        .await
        .json();
    assert_eq!(
        (&said["outcome"]["state"], &said["checked"]),
        (&json!("applied"), &json!(true)),
        "{said}"
    );
}

/// Runs it for an instance, with nothing else.
async fn about(turn: Turn<'_>, saga: &str, key: &str, more: &[&str]) -> Said {
    turn.tenant(&[&[saga, key][..], more].concat()).await
}

async fn start(turn: Turn<'_>) {
    let words = ["visit", "--key", "c-start", "--input", r#"{"n": 1}"#];
    turn.tenant(&words).await.shows("c-start");
    let view = turn.scene.shown(&instance(TENANT, "visit", "c-start")).await;
    assert_eq!(
        (&view["phase"], &view["input"]),
        (&json!("running"), &json!({"n": 1})),
        "{view}"
    );
    let taken = turn.tenant(&words).await.exits(5);
    assert!(taken.err.contains("[SR0515]"), "{taken:?}");
}

async fn list(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-list").await;
    let words = ["visit", "--key-prefix", "c-list", "--waits-for", "message"];
    let said = turn.tenant(&words).await.shows("c-list");
    let lines: Vec<&str> = said.out.lines().collect();
    let [head, line] = lines[..] else {
        panic!("one instance: {said:?}");
    };
    assert!(head.starts_with("SAGA") && line.contains("running"), "{said:?}");
}

async fn count(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-count").await;
    let words = ["visit", "--by", "step", "-o", "json"];
    let counted = turn.tenant(&words).await.json();
    let groups = counted["groups"].as_array().expect("groups");
    assert!(
        groups
            .iter()
            .any(|group| group["value"] == "ask" && group["instances"].as_u64() >= Some(1)),
        "{counted}"
    );
}

async fn show(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-show").await;
    let shown = about(turn, "visit", "c-show", &["-o", "json"]).await.json();
    assert_eq!(shown, turn.scene.shown(&path).await);
    about(turn, "visit", "c-show", &[])
        .await
        .shows("signal go")
        .shows("remind");
    about(turn, "visit", "c-none", &[]).await.exits(4);
}

async fn why(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-why").await;
    let said = about(turn, "visit", "c-why", &[]).await;
    said.shows("step ask waits for signal go, at most until ");
}

async fn actions(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-actions").await;
    let said = about(turn, "visit", "c-actions", &[]).await;
    said.shows("saga-runner instance signal visit c-actions go --tenant acme")
        .shows("instance c-actions is not paused");
}

async fn graph(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-graph").await;
    let said = about(turn, "visit", "c-graph", &["--format", "mermaid"]).await;
    said.shows("title: visit c-graph: running")
        .shows("ask<br/>waits for signal go<br/>waiting");
}

async fn history(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-history").await;
    let page = about(turn, "visit", "c-history", &["-o", "json"]).await.json();
    assert_eq!(items(&page)[0]["input"], "start-c-history", "{page}");
}

async fn inputs(turn: Turn<'_>) {
    turn.scene.booked("c-inputs").await;
    let shown = about(turn, "visit", "c-inputs", &[]).await.exits(0).out;
    assert!(
        shown.contains("  sent effect divide (steps.book, attempt 1, idempotency key "),
        "{shown}"
    );
    assert!(shown.contains("  received "), "{shown}");
}

async fn wait(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-wait").await;
    let waiting = ["--for", "step=ask:waiting", "--timeout", "60s", "-o", "json"];
    let reached = about(turn, "visit", "c-wait", &waiting).await.json();
    assert_eq!(reached["reached"], true, "{reached}");
    let end = ["--for", "end", "--timeout", "0s"];
    about(turn, "visit", "c-wait", &end).await.exits(6);
}

async fn watch(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-watch").await;
    let end = json!({"by": "ann", "reason": "enough"});
    turn.scene.request(&path, "kill", end).await;
    // It ends with the instance.
    let said = about(turn, "visit", "c-watch", &["-o", "jsonl"]).await.exits(0);
    let lines: Vec<Value> = said
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&lines[0]["kind"], &lines[1]["kind"]),
        (&json!("start"), &json!("kill")),
        "{said:?}"
    );
}

async fn signal(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-signal").await;
    applied(turn, "visit", "c-signal", &["go", "--data", r#"{"room": 7}"#]).await;
    turn.scene
        .until(&path, |view| view["steps"][2]["status"] == "waiting")
        .await;
}

async fn pause(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-pause").await;
    applied(turn, "visit", "c-pause", &["--reason", "a look"]).await;
    let view = turn.scene.shown(&path).await;
    let paused = &view["blocked_by"]["paused"];
    assert_eq!(
        (&paused["by"], &paused["reason"]),
        (&json!("ann"), &json!("a look")),
        "{view}"
    );
    let again = about(turn, "visit", "c-pause", &[]).await.exits(5);
    assert!(again.err.contains("is paused already [SR0503]"), "{again:?}");
}

async fn resume(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-resume").await;
    turn.scene.request(&path, "pause", json!({})).await;
    applied(turn, "visit", "c-resume", &[]).await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(view["blocked_by"], Value::Null, "{view}");
}

async fn fire_timer(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-fire").await;
    applied(turn, "visit", "c-fire", &["--timer", "remind"]).await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(view["state"]["reminded"], true, "{view}");
}

async fn cancel_timer(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "c-cancel-timer").await;
    applied(turn, "visit", "c-cancel-timer", &["--timer", "remind"]).await;
    let view = turn.scene.shown(&path).await;
    let timers = view["timers"].as_array().expect("timers");
    assert!(timers.len() == 1 && timers[0]["name"] == "wait:ask", "{view}");
}

async fn cancel(turn: Turn<'_>) {
    let path = turn.scene.booked("c-cancel").await;
    applied(turn, "visit", "c-cancel", &["--reason", "second thoughts"]).await;
    let view = turn.scene.ended(&path).await;
    assert_eq!(
        (&view["phase"], &view["ledger"][0]["status"]),
        (&json!("cancelled"), &json!("undone")),
        "{view}"
    );
}

async fn kill(turn: Turn<'_>) {
    let path = turn.scene.booked("c-kill").await;
    // Nobody agrees.
    let asked = about(turn, "visit", "c-kill", &["--reason", "enough"])
        .await
        .exits(64);
    assert!(asked.err.contains("--yes"), "{asked:?}");
    applied(turn, "visit", "c-kill", &["--reason", "enough", "--yes"]).await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (&view["failure"]["code"], &view["ledger"][0]["status"]),
        (&json!("killed"), &json!("held")),
        "{view}"
    );
}

/// An instance of `visit` that has ended.
async fn killed(turn: Turn<'_>, key: &str) -> String {
    let path = turn.scene.begin("visit", key).await;
    let end = json!({"by": "ann", "reason": "enough"});
    turn.scene.request(&path, "kill", end).await;
    path
}

async fn restart(turn: Turn<'_>) {
    let path = killed(turn, "c-restart").await;
    applied(turn, "visit", "c-restart", &["--reason", "once more", "--yes"]).await;
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (&view["generation"], &view["phase"]),
        (&json!(2), &json!("running")),
        "{view}"
    );
}

async fn delete(turn: Turn<'_>) {
    killed(turn, "c-delete").await;
    applied(
        turn,
        "visit",
        "c-delete",
        &["--reason", "erasure request 4711", "--yes"],
    )
    .await;
    // It is not there any more.
    let again = ["--reason", "erasure request 4711", "--yes"];
    about(turn, "visit", "c-delete", &again).await.exits(4);
}

/// Decides about the stuck compensation of an instance: what becomes of it.
async fn decided(turn: Turn<'_>, key: &str) -> Value {
    let path = turn.scene.stuck(key).await;
    applied(turn, "repair", key, &["--step", "first", "--reason", "by phone"]).await;
    let view = turn.scene.ended(&path).await;
    let history = view["history"].to_string();
    assert!(history.contains(r#""reason":"by phone""#), "{history}");
    view["ledger"][0]["status"].clone()
}

async fn retry(turn: Turn<'_>) {
    assert_eq!(decided(turn, "c-retry").await, "undone");
}

async fn resolve(turn: Turn<'_>) {
    assert_eq!(decided(turn, "c-resolve").await, "undone");
}

/// A compensation is left out, and so is a step in progress.
async fn skip(turn: Turn<'_>) {
    assert_eq!(decided(turn, "c-skip").await, "kept");
    let path = turn.scene.begin("visit", "c-skip-step").await;
    applied(
        turn,
        "visit",
        "c-skip-step",
        &["--step", "ask", "--reason", "by phone"],
    )
    .await;
    let view = turn
        .scene
        .until(&path, |view| view["steps"][2]["status"] == "waiting")
        .await;
    assert_eq!(view["steps"][0]["status"], "skipped", "{view}");
}

async fn try_now(turn: Turn<'_>) {
    let path = turn.scene.backing_off("c-try-now").await;
    applied(turn, "patience", "c-try-now", &["--step", "call"]).await;
    let view = turn.scene.ended(&path).await;
    assert_eq!(view["phase"], "completed", "{view}");
}

async fn migrate(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("c-moved").await;
    let words = ["--to", &second[..15], "--by", "ann", "--reason", "ticket 4711"];
    about(turn, "c-moved", "one", &words).await.shows(&second);
    for (key, hash) in [("one", second), ("two", first)] {
        let view = turn.scene.shown(&instance(TENANT, "c-moved", key)).await;
        assert_eq!(view["definition"], hash.as_str(), "{view}");
    }
}
