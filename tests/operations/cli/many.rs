//! Commands about many instances and what belongs to them: jobs, dead letters, versions, schedules, timers, the outbox, the audit.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::api::caller::{instance, items};
use crate::operations::case::{Case, Turn, cases, text};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "job start" => start_job,
    "job list" => list_jobs,
    "job show" => show_job,
    "job pause" => pause_job,
    "job resume" => resume_job,
    "job stop" => stop_job,
    "dead-letter list" => letters,
    "dead-letter count" => count_letters,
    "dead-letter show" => show_letter,
    "dead-letter retry" => retry_letter,
    "dead-letter edit" => edit_letter,
    "dead-letter discard" => discard_letter,
    "definition list" => versions,
    "definition show" => show_version,
    "definition diff" => diff,
    "definition reload" => reload_definitions,
    "definition migrate" => migrate,
    "reload" => reload,
    "replay" => replay,
    "schedule list" => schedules,
    "schedule pause" => pause_schedule,
    "schedule resume" => resume_schedule,
    "timer list" => timers,
    "outbox list" => outbox,
    "audit list" => audit,
};

fn job(id: &str) -> String {
    format!("/v1/tenants/{TENANT}/jobs/{id}")
}

async fn start_job(turn: Turn<'_>) {
    for key in ["c-job-1", "c-job-2"] {
        turn.scene.begin("visit", key).await;
    }
    let words = ["pause", "--saga", "visit", "--key-prefix", "c-job-"];
    let order = [&words[..], &["--by", "ann", "--reason", "a look"]].concat();
    let asked = turn.tenant(&order).await;
    assert_ne!(asked.code, Some(0), "nobody has agreed: {asked:?}");
    let confirmed = [&order[..], &["--yes", "-o", "json"]].concat();
    let job_started = turn.tenant(&confirmed).await.json();
    let id = job_started["id"].as_str().expect("an id");
    let ended = turn.scene.ended(&job(id)).await;
    assert_eq!(
        (&ended["state"], &ended["applied"]),
        (&json!("completed"), &json!(2)),
        "{ended}"
    );
    let view = turn.scene.shown(&instance(TENANT, "visit", "c-job-2")).await;
    assert_eq!(view["blocked_by"]["paused"]["by"], "ann", "{view}");
}

async fn list_jobs(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    turn.tenant(&[]).await.shows(&id);
    turn.scene.stop_job(&id).await;
}

async fn show_job(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    turn.tenant(&[&id]).await.shows(&id).shows("slowly");
    turn.scene.stop_job(&id).await;
}

async fn pause_job(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let words = [id.as_str(), "--by", "bob", "--reason", "not now"];
    turn.tenant(&words).await.shows("paused by bob: not now");
    assert_eq!(turn.scene.shown(&job(&id)).await["state"], "paused");
    turn.scene.stop_job(&id).await;
}

async fn resume_job(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    let pause = format!("{}/pause", job(&id));
    turn.scene.post(&turn.scene.other, &pause, json!({})).await;
    turn.tenant(&[&id, "--by", "bob"]).await.shows("resumed by bob");
    turn.scene
        .until(&job(&id), |job| job["handled"].as_u64() > Some(0))
        .await;
    turn.scene.stop_job(&id).await;
}

async fn stop_job(turn: Turn<'_>) {
    let id = turn.scene.slow_job().await;
    turn.tenant(&[&id, "--by", "bob"]).await.shows("stopped by bob");
    assert_eq!(turn.scene.shown(&job(&id)).await["state"], "stopped");
}

async fn letters(turn: Turn<'_>) {
    let id = turn.scene.letter("c-letters").await;
    let words = ["--saga", "ratio", "--key", "c-letters"];
    turn.tenant(&words).await.shows(&id).shows("expression");
}

async fn count_letters(turn: Turn<'_>) {
    turn.scene.letter("c-count-letters").await;
    let words = ["--key", "c-count-letters", "--by", "saga", "-o", "json"];
    let counted = turn.tenant(&words).await.json();
    assert_eq!(
        counted["groups"],
        json!([{"value": "ratio", "letters": 1}]),
        "{counted}"
    );
}

async fn show_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("c-show-letter").await;
    let said = turn.tenant(&[&id]).await;
    said.shows("event Ratio.Divided")
        .shows("dead_letter: expression")
        .shows("\"ratio\": \"c-show-letter\"");
}

/// What an instance of `ratio` has divided.
async fn shares(turn: Turn<'_>, key: &str) -> Value {
    let view = turn.scene.shown(&instance(TENANT, "ratio", key)).await;
    assert_eq!(view["blocked_by"], Value::Null, "{view}");
    view["state"]["shares"].clone()
}

async fn retry_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("c-retry-letter").await;
    let data = r#"{"ratio": "c-retry-letter", "by": 4}"#;
    let words = [
        id.as_str(),
        "--data",
        data,
        "--by",
        "ann",
        "--reason",
        "a typing error",
    ];
    let said = turn.tenant(&words).await;
    said.notes("is applied again with other data");
    assert_eq!(shares(turn, "c-retry-letter").await, json!([25]));
}

async fn edit_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("c-edit-letter").await;
    let editor = turn.scene.path("editor");
    let script = "#!/bin/sh\nexec sed -i 's/\"by\": 0/\"by\": 10/' \"$1\"\n";
    std::fs::write(&editor, script).expect("written");
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o700)).expect("its permissions");
    let path = std::env::var("PATH").expect("a path");
    let words = [
        id.as_str(),
        "--by",
        "ann",
        "--reason",
        "a typing error",
        "--tenant",
        TENANT,
        "--url",
        &turn.scene.other.url,
    ];
    let variables = [("EDITOR", text(&editor)), ("PATH", path.as_str())];
    let said = turn.run_with(&words, &variables).await;
    said.notes("is applied again with other data");
    assert_eq!(shares(turn, "c-edit-letter").await, json!([10]));
}

async fn discard_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("c-discard-letter").await;
    let words = [id.as_str(), "--by", "ann", "--reason", "sent by a test"];
    let asked = turn.tenant(&words).await.exits(64);
    assert!(asked.err.contains("--yes"), "{asked:?}");
    let confirmed = [&words[..], &["--yes"]].concat();
    turn.tenant(&confirmed).await.exits(0);
    assert_eq!(shares(turn, "c-discard-letter").await, json!([]));
    turn.tenant(&confirmed).await.exits(4);
}

async fn versions(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("c-listed").await;
    let page = turn.other(&["--saga", "c-listed", "-o", "json"]).await.json();
    let hashes: Vec<&Value> = items(&page).iter().map(|version| &version["hash"]).collect();
    assert_eq!(hashes, [second.as_str(), first.as_str()], "{page}");
}

async fn show_version(turn: Turn<'_>) {
    let [first, _] = turn.scene.deal("c-shown").await;
    let said = turn.other(&[&first]).await;
    said.shows("name: c-shown\n")
        .notes("2 live and 0 ended instance(s)");
}

async fn diff(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("c-compared").await;
    let said = turn.other(&[&first, &second]).await.exits(1);
    assert!(
        said.out.contains("+  tell: {publish: {type: deal.told}}"),
        "{said:?}"
    );
    let same = turn.other(&[&first, &first]).await.exits(0);
    assert_eq!(same.out, "", "{same:?}");
}

/// Puts the second version of a saga in force by the command of the case.
async fn reloaded(turn: Turn<'_>, saga: &str) {
    let [first, second] = crate::operations::definitions::deal(saga);
    let hash = turn.scene.in_force(saga, &first).await;
    turn.scene.owner.rig.lock().await.add_saga(saga, &second);
    let words = ["--by", "ann", "--reason", "tell it"];
    let said = turn.owner(&words).await.shows(saga).shows(&hash);
    let active = turn.scene.active(saga).await;
    assert_ne!(active, hash);
    assert!(said.out.contains(&active), "{said:?}");
    turn.owner(&words).await.notes("nothing changed");
}

async fn reload_definitions(turn: Turn<'_>) {
    reloaded(turn, "c-definitions").await;
}

async fn reload(turn: Turn<'_>) {
    reloaded(turn, "c-process").await;
}

async fn migrate(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("c-migrated").await;
    let path = instance(TENANT, "c-migrated", "two");
    let said = turn.other(&["c-migrated", "--dry-run"]).await;
    said.shows("2 instance(s) would be migrated");
    assert_eq!(turn.scene.shown(&path).await["definition"], first.as_str());
    let words = ["c-migrated", "--by", "ann", "--reason", "all of them"];
    turn.other(&words).await.shows("2 instance(s) migrated");
    assert_eq!(turn.scene.shown(&path).await["definition"], second.as_str());
}

/// The definitions of the runner give the same as the runner did.
async fn replay(turn: Turn<'_>) {
    let path = turn.scene.booked("c-replay").await;
    let folder = turn.scene.owner.rig.lock().await.folder().to_owned();
    let inputs = format!("{}{path}/inputs", turn.scene.other.url);
    let said = turn.run(&[text(&folder), "--from", &inputs]).await;
    said.shows("visit/c-replay: 3 input(s)");
}

async fn schedules(turn: Turn<'_>) {
    turn.tenant(&[])
        .await
        .shows("leap")
        .shows("-02-29T00:00:00+01:00");
}

fn schedule(verb: &str) -> String {
    format!("/v1/tenants/{TENANT}/sagas/leap/schedule{verb}")
}

async fn pause_schedule(turn: Turn<'_>) {
    let words = ["leap", "--by", "ann", "--reason", "a holiday"];
    turn.tenant(&words).await.exits(0);
    assert_eq!(turn.scene.shown(&schedule("")).await["paused"], true);
    turn.tenant(&words).await.exits(5);
    turn.scene
        .post(&turn.scene.other, &schedule("/resume"), json!({}))
        .await;
}

async fn resume_schedule(turn: Turn<'_>) {
    turn.scene
        .post(&turn.scene.other, &schedule("/pause"), json!({}))
        .await;
    turn.tenant(&["leap", "--by", "ann"]).await.exits(0);
    assert_eq!(turn.scene.shown(&schedule("")).await["paused"], false);
}

async fn timers(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-timers").await;
    let words = ["--saga", "visit", "--limit", "500", "-o", "json"];
    let page = turn.tenant(&words).await.json();
    let of_this = items(&page).iter().filter(|timer| timer["key"] == "c-timers");
    assert_eq!(of_this.count(), 2, "{page}");
}

async fn outbox(turn: Turn<'_>) {
    turn.scene.begin("poll", "c-outbox").await;
    let words = ["--saga", "poll", "--kind", "effect", "-o", "json"];
    let page = turn.tenant(&words).await.json();
    let item = items(&page).iter().find(|item| item["key"] == "c-outbox");
    assert_eq!(item.expect("listed")["name"], "survey", "{page}");
}

async fn audit(turn: Turn<'_>) {
    turn.scene.audited("c-audit").await;
    let words = ["--action", "instances.pause", "--key", "c-audit"];
    let said = turn.tenant(&words).await;
    said.shows("ann").shows("instances.pause").shows("a look");
}
