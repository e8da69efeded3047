//! What a process says of itself, and what it is told.

use serde_json::{Value, json};

use crate::api::caller::items;
use crate::operations::case::{Case, Turn, cases};
use crate::operations::scene::text_of;

pub const CASES: &[Case] = cases! {
    "GET /live" => live,
    "GET /ready" => ready,
    "GET /health" => health,
    "GET /info" => info,
    "GET /metrics" => metrics,
    "GET /openapi.json" => openapi,
    "GET /errors/{code}" => error_page,
    "GET /admin/rates" => rates,
    "GET /admin/audit" => audit,
    "GET /admin/breakers" => breakers,
    "POST /admin/breakers/{upstream}" => force_breaker,
    "GET /admin/shards" => shards,
};

async fn live(turn: Turn<'_>) {
    assert_eq!(turn.ask(&[]).gives(200).await, json!({"live": true}));
}

async fn ready(turn: Turn<'_>) {
    for ask in [turn.ask(&[]), turn.ask_owner(&[])] {
        let told = ask.gives(200).await;
        assert_eq!(
            (&told["ready"], &told["reasons"]),
            (&json!(true), &json!([])),
            "{told}"
        );
    }
}

/// The names of the checks of a process that is well.
fn checks(told: &Value) -> Vec<String> {
    assert_eq!(told["healthy"], true, "{told}");
    let checks = told["checks"].as_array().expect("checks").iter();
    checks
        .map(|check| check["name"].as_str().expect("a name").to_owned())
        .collect()
}

async fn health(turn: Turn<'_>) {
    let owner = checks(&turn.ask_owner(&[]).gives(200).await);
    let other = checks(&turn.ask(&[]).gives(200).await);
    let has = |checks: &[String], name: &str| checks.iter().any(|check| check == name);
    for name in ["broker", "clock", "audit", "consumers"] {
        assert!(
            has(&owner, name) && has(&other, name),
            "{name}: {owner:?} {other:?}"
        );
    }
    for name in ["AGGREGATE_EVENTS", "shard 0", "shard 1"] {
        assert!(
            has(&owner, name) && !has(&other, name),
            "{name}: {owner:?} {other:?}"
        );
    }
}

async fn info(turn: Turn<'_>) {
    for (ask, mode) in [(turn.ask(&[]), "effect"), (turn.ask_owner(&[]), "combined")] {
        let told = ask.gives(200).await;
        assert_eq!(
            (&told["mode"], &told["broker"], &told["version"]),
            (&json!(mode), &json!("nats"), &json!(env!("CARGO_PKG_VERSION"))),
            "{told}"
        );
        let sagas = told["sagas"].as_array().expect("sagas");
        assert!(sagas.iter().any(|saga| saga["name"] == "visit"), "{told}");
    }
}

async fn metrics(turn: Turn<'_>) {
    turn.scene.begin("visit", "metrics").await;
    let text = text_of(&turn.ask_owner(&[]).answered(200).await);
    let value = |series: &str| {
        let line = text.lines().find(|line| line.starts_with(series));
        let (_, value) = line.expect("a series").rsplit_once(' ').expect("a value");
        value.parse::<f64>().expect("a number")
    };
    assert!(value("saga_runner_shards_open{shard=\"1\"}") > 0.0, "{text}");
    assert!(
        value("saga_runner_instances_started_total{saga=\"visit\"}") > 0.0,
        "{text}"
    );
}

async fn openapi(turn: Turn<'_>) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let published = std::fs::read_to_string(root.join("docs/openapi.json")).expect("readable");
    let published: Value = serde_json::from_str(&published).expect("JSON");
    let told = turn.ask(&[]).gives(200).await;
    assert!(told == published, "it is not docs/openapi.json");
}

async fn error_page(turn: Turn<'_>) {
    let page = text_of(&turn.ask(&[("code", "SR0502")]).answered(200).await);
    assert!(page.starts_with("# SR0502: not found\n"), "{page}");
    let unknown = turn.ask(&[("code", "SR9999")]).gives(404).await;
    assert_eq!(unknown["code"], "SR0502", "{unknown}");
}

async fn rates(turn: Turn<'_>) {
    turn.scene.booked("rates").await;
    let told = turn.ask_owner(&[]).gives(200).await;
    let of = |pointer: &str| told["total"].pointer(pointer).and_then(Value::as_u64);
    for pointer in [
        "/inputs/control",
        "/inputs/result",
        "/instances_started",
        "/transitions",
    ] {
        assert!(of(pointer) > Some(0), "{pointer}: {told}");
    }
    // An effect that calls nothing has no upstream.
    for told in [told, turn.ask(&[]).gives(200).await] {
        let upstreams = told["total"]["upstreams"].as_array().expect("upstreams");
        assert!(
            upstreams
                .iter()
                .all(|upstream| upstream["upstream"] == turn.scene.upstream().as_str()),
            "{told}"
        );
    }
}

/// The record of a reload with this reason.
fn reloaded<'p>(page: &'p Value, reason: &str) -> Option<&'p Value> {
    items(page).iter().find(|record| record["reason"] == reason)
}

async fn audit(turn: Turn<'_>) {
    let body = json!({"by": "ann", "reason": "told to"});
    turn.scene.post(&turn.scene.owner, "/admin/reload", body).await;
    let path = "/admin/audit?action=reload";
    turn.scene
        .until(path, |page| reloaded(page, "told to").is_some())
        .await;
    let page = turn.ask(&[]).query("action=reload").gives(200).await;
    let record = reloaded(&page, "told to").expect("it is there");
    assert_eq!(
        (
            &record["endpoint"],
            &record["role"],
            &record["status"],
            &record["outcome"]
        ),
        (
            &json!("/admin/reload"),
            &json!("admin"),
            &json!(200),
            &json!("done")
        ),
        "{record}"
    );
}

async fn breakers(turn: Turn<'_>) {
    for ask in [turn.ask(&[]), turn.ask_owner(&[])] {
        let told = ask.gives(200).await;
        let desk = json!({"upstream": turn.scene.upstream(), "names": ["desk"], "state": "closed"});
        assert!(items(&told).contains(&desk), "{told}");
    }
}

/// Of the process without shards: its worker is one of two, so calls are made by the other one.
async fn force_breaker(turn: Turn<'_>) {
    let upstream = turn.scene.upstream();
    let ask = |state: &str| {
        let body = json!({"state": state, "by": "ann", "reason": "it is being repaired"});
        turn.ask(&[("upstream", upstream.as_str())]).body(body)
    };
    let listed = async |state: &str| {
        let told = turn.scene.shown("/admin/breakers").await;
        let desk = items(&told)
            .iter()
            .find(|found| found["upstream"] == upstream.as_str());
        let desk = desk.expect("it is listed");
        assert_eq!(desk["state"], state, "{told}");
        desk["forced"].clone()
    };
    ask("open").answered(204).await;
    assert_eq!(listed("open").await, "open");
    let again = ask("open").gives(409).await;
    assert_eq!(again["code"], "SR0503", "{again}");
    ask("auto").answered(204).await;
    assert_eq!(listed("closed").await, Value::Null);
    let unknown = turn
        .ask(&[("upstream", "nowhere:1")])
        .body(json!({"state": "open"}))
        .gives(404)
        .await;
    assert_eq!(unknown["code"], "SR0502", "{unknown}");
}

async fn shards(turn: Turn<'_>) {
    let page = turn.ask_owner(&[]).gives(200).await;
    let found: Vec<_> = items(&page)
        .iter()
        .map(|shard| (&shard["shard"], &shard["open"], &shard["state"]))
        .collect();
    assert_eq!(
        found,
        [
            (&json!(0), &json!(true), &json!("running")),
            (&json!(1), &json!(true), &json!("running"))
        ],
        "{page}"
    );
    let none = turn.ask(&[]).gives(503).await;
    assert_eq!(none["code"], "SR0504", "it has none: {none}");
}
