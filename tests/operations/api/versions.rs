//! Versions of sagas, their migrations, and schedules.

use serde_json::json;

use crate::api::caller::{instance, items};
use crate::operations::case::{Case, Turn, cases};
use crate::operations::definitions;
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "POST /admin/reload" => reload,
    "GET /v1/definitions" => list,
    "GET /v1/definitions/{hash}" => show,
    "POST /v1/definitions/{hash}/migrate" => migrate,
    "GET /v1/migrations/{id}" => show_migration,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/migrate" => migrate_one,
    "GET /v1/tenants/{tenant}/schedules" => schedules,
    "GET /v1/tenants/{tenant}/sagas/{saga}/schedule" => show_schedule,
    "POST /v1/tenants/{tenant}/sagas/{saga}/schedule/pause" => pause_schedule,
    "POST /v1/tenants/{tenant}/sagas/{saga}/schedule/resume" => resume_schedule,
};

async fn reload(turn: Turn<'_>) {
    let [first, second] = definitions::deal("reloaded");
    let hash = turn.scene.in_force("reloaded", &first).await;
    turn.scene.owner.rig.lock().await.add_saga("reloaded", &second);
    let body = || json!({"by": "ann", "reason": "tell it"});
    let ask = || turn.ask_owner(&[]).body(body());
    let reloaded = ask().gives(200).await;
    let active = turn.scene.active("reloaded").await;
    assert_ne!(active, hash);
    assert_eq!(
        reloaded["sagas"],
        json!([{"saga": "reloaded", "from": hash, "to": active}]),
        "{reloaded}"
    );
    // A mistake is refused, and what is in force stays so.
    let broken = second.replace("steps:", "stepps:");
    turn.scene.owner.rig.lock().await.add_saga("reloaded", &broken);
    let refused = ask().gives(422).await;
    let mut findings = refused["errors"].as_array().expect("findings").iter();
    assert!(findings.any(|finding| finding["code"] == "SR0105"), "{refused}");
    assert_eq!(turn.scene.active("reloaded").await, active);
    turn.scene.in_force("reloaded", &second).await;
}

async fn list(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("listed").await;
    let page = turn.ask(&[]).query("saga=listed").gives(200).await;
    let found: Vec<_> = items(&page)
        .iter()
        .map(|version| (&version["hash"], &version["active"], &version["live"]))
        .collect();
    assert_eq!(
        found,
        [
            (&json!(second), &json!(true), &json!(0)),
            (&json!(first), &json!(false), &json!(2))
        ],
        "{page}"
    );
}

async fn show(turn: Turn<'_>) {
    let [first, _] = turn.scene.deal("shown").await;
    let version = turn.ask(&[("hash", first.as_str())]).gives(200).await;
    let [text, _] = definitions::deal("shown");
    assert_eq!(
        (&version["saga"], &version["source"], &version["active"]),
        (&json!("shown"), &json!(text), &json!(false)),
        "{version}"
    );
}

async fn migrate(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("migrated").await;
    let ask = || turn.ask(&[("hash", second.as_str())]);
    let path = instance(TENANT, "migrated", "two");
    let plan = ask().query("dry_run=true").body(json!({})).gives(200).await;
    assert_eq!(
        (&plan["total"], &plan["moved"], &plan["dry_run"]),
        (&json!(2), &json!(2), &json!(true)),
        "{plan}"
    );
    assert_eq!(turn.scene.shown(&path).await["definition"], first.as_str());
    let body = json!({"by": "ann", "reason": "all of them"});
    let begun = ask().body(body).gives(200).await;
    assert_eq!(begun["version"], second.as_str(), "{begun}");
    for key in ["one", "two"] {
        let path = instance(TENANT, "migrated", key);
        turn.scene
            .until(&path, |view| view["definition"] == second.as_str())
            .await;
    }
}

async fn show_migration(turn: Turn<'_>) {
    let [_, second] = turn.scene.deal("watched").await;
    let migrate = format!("/v1/definitions/{second}/migrate");
    let begun = turn.scene.post(&turn.scene.other, &migrate, json!({})).await;
    let id = begun["id"].as_str().expect("an id");
    turn.scene
        .until(&format!("/v1/migrations/{id}"), |told| told["finished"] == true)
        .await;
    let told = turn.ask(&[("id", id)]).gives(200).await;
    assert_eq!(
        (&told["saga"], &told["moved"], &told["refused"], &told["starts"]),
        (
            &json!("watched"),
            &json!(2),
            &json!(0),
            &json!({"steps.tell: fact deal.told": 2})
        ),
        "{told}"
    );
}

async fn migrate_one(turn: Turn<'_>) {
    let [first, second] = turn.scene.deal("moved").await;
    let body = json!({"to": second, "by": "ann", "reason": "ticket 4711"});
    let done = turn.ask_about("moved", "one").body(body).gives(200).await;
    assert_eq!(
        (&done["from"], &done["to"], &done["dry_run"]),
        (&json!(first), &json!(second), &json!(false)),
        "{done}"
    );
    let version = async |key: &str| {
        let path = instance(TENANT, "moved", key);
        turn.scene.shown(&path).await["definition"].clone()
    };
    assert_eq!(version("one").await, second.as_str());
    assert_eq!(version("two").await, first.as_str(), "the other one stays");
}

async fn schedules(turn: Turn<'_>) {
    let page = turn.ask(&[]).gives(200).await;
    let [schedule] = items(&page) else {
        panic!("one schedule: {page}");
    };
    assert_eq!(
        (&schedule["saga"], &schedule["cron"], &schedule["zone"]),
        (&json!("leap"), &json!("0 0 29 FEB *"), &json!("Europe/Berlin")),
        "{page}"
    );
}

async fn show_schedule(turn: Turn<'_>) {
    let schedule = turn.ask(&[("saga", "leap")]).gives(200).await;
    let next = schedule["next_local"].as_str().expect("a time");
    assert!(next.ends_with("-02-29T00:00:00+01:00"), "{schedule}");
    assert_eq!(schedule["paused"], false, "{schedule}");
}

fn schedule(verb: &str) -> String {
    format!("/v1/tenants/{TENANT}/sagas/leap/schedule{verb}")
}

async fn pause_schedule(turn: Turn<'_>) {
    let body = || json!({"by": "ann", "reason": "a holiday"});
    let ask = || turn.ask(&[("saga", "leap")]).body(body());
    let paused = ask().gives(200).await;
    assert_eq!(paused["paused"], true, "{paused}");
    let again = ask().gives(409).await;
    assert_eq!(again["code"], "SR0503", "{again}");
    assert_eq!(turn.scene.shown(&schedule("")).await["paused"], true);
    turn.scene
        .post(&turn.scene.other, &schedule("/resume"), json!({}))
        .await;
}

async fn resume_schedule(turn: Turn<'_>) {
    turn.scene
        .post(&turn.scene.other, &schedule("/pause"), json!({}))
        .await;
    let body = json!({"by": "ann", "reason": "it is over"});
    let resumed = turn.ask(&[("saga", "leap")]).body(body).gives(200).await;
    assert_eq!(resumed["paused"], false, "{resumed}");
    assert_eq!(turn.scene.shown(&schedule("")).await["paused"], false);
}
