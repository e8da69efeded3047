//! Reads: of an instance, of many, and of what belongs to them.

use serde_json::{Value, json};

use crate::api::caller::items;
use crate::operations::case::{Case, Turn, cases};
use crate::operations::scene::{PATIENCE, TENANT};

pub const CASES: &[Case] = cases! {
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}" => show,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/history" => history,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/inputs" => inputs,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/why" => why,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/actions" => actions,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/graph" => graph,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/wait" => wait,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/events" => events,
    "GET /v1/tenants/{tenant}/sagas/{saga}/instances" => of_saga,
    "GET /v1/tenants/{tenant}/instances" => list,
    "GET /v1/tenants/{tenant}/instances/count" => count,
    "GET /v1/tenants/{tenant}/timers" => timers,
    "GET /v1/tenants/{tenant}/outbox" => outbox,
    "GET /v1/tenants/{tenant}/sagas/{saga}/aliases/{name}/{value}" => alias,
    "GET /v1/tenants/{tenant}/audit" => audit,
};

async fn show(turn: Turn<'_>) {
    turn.scene.begin("visit", "show").await;
    let view = turn.ask_about("visit", "show").gives(200).await;
    assert_eq!(
        (&view["phase"], &view["start_event"], &view["state"]),
        (
            &json!("running"),
            &json!("start-show"),
            &json!({"reminded": false})
        ),
        "{view}"
    );
    let short = turn
        .ask_about("visit", "show")
        .query("history=0")
        .gives(200)
        .await;
    assert_eq!(short["history"], json!([]), "{short}");
}

async fn history(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "history").await;
    let signal = json!({"request_id": "history-go", "by": "ann"});
    turn.scene.request(&path, "signals/go", signal).await;
    let page = turn
        .ask_about("visit", "history")
        .query("limit=500")
        .gives(200)
        .await;
    let mut entries = items(&page).iter().rev();
    let [first, second] = [entries.next(), entries.next()].map(|entry| entry.expect("an entry"));
    assert_eq!(
        (&first["input"], &first["kind"]),
        (&json!("start-history"), &json!("start")),
        "{page}"
    );
    assert_eq!(
        (&second["input"], &second["kind"], &second["outcome"]),
        (&json!("history-go"), &json!("signal go"), &json!("applied")),
        "{page}"
    );
}

async fn inputs(turn: Turn<'_>) {
    turn.scene.begin("visit", "inputs").await;
    let page = turn.ask_about("visit", "inputs").gives(200).await;
    let first = &page["inputs"][0];
    assert_eq!(
        (&first["id"], &first["input"], &first["outcome"]),
        (
            &json!("start-inputs"),
            &json!({"start": {"input": {}}}),
            &json!("applied")
        ),
        "{page}"
    );
}

async fn why(turn: Turn<'_>) {
    turn.scene.begin("visit", "why").await;
    let told = turn.ask_about("visit", "why").gives(200).await;
    assert_eq!(
        (&told["cause"], &told["pending"][0]["messages"]),
        (&json!("message"), &json!(["signal go"])),
        "{told}"
    );
    let sentence = told["why"].as_str().expect("a sentence");
    assert!(
        sentence.starts_with("step ask waits for signal go, at most until "),
        "{sentence}"
    );
}

async fn actions(turn: Turn<'_>) {
    turn.scene.begin("visit", "actions").await;
    let told = turn.ask_about("visit", "actions").gives(200).await;
    let possible = told["possible"].as_array().expect("a list");
    for action in [
        json!({"action": "pause"}),
        json!({"action": "signals/{name}", "name": "go"}),
        json!({"action": "skip", "step": "ask", "needs_reason": true}),
    ] {
        assert!(possible.contains(&action), "{action}: {told}");
    }
    let refused = told["refused"].as_array().expect("a list");
    let of_resume = refused.iter().find(|row| row["action"] == "resume");
    assert_eq!(
        of_resume.expect("it is not paused")["reason"],
        "instance actions is not paused"
    );
}

async fn graph(turn: Turn<'_>) {
    turn.scene.begin("visit", "graph").await;
    let told = turn.ask_about("visit", "graph").gives(200).await;
    let nodes = told["nodes"].as_array().expect("nodes");
    let state = |id: &str| {
        let node = nodes.iter().find(|node| node["id"] == id);
        &node.expect("a node")["state"]
    };
    assert_eq!(
        (state("step:ask"), state("step:book")),
        (&json!("waiting"), &json!("pending")),
        "{told}"
    );
    let edge = json!({"from": "step:ask", "to": "step:book", "kind": "next"});
    assert!(
        told["edges"]
            .as_array()
            .is_some_and(|edges| edges.contains(&edge)),
        "{told}"
    );
}

/// The request is there before what it waits for.
async fn wait(turn: Turn<'_>) {
    let path = turn.scene.begin("visit", "wait").await;
    let ask = turn.ask_about("visit", "wait").query("for=end&wait=60s");
    let kill = async {
        // It does not matter which of the two comes first.
        let body = json!({"by": "ann", "reason": "enough"});
        turn.scene.request(&path, "kill", body).await;
    };
    let (told, ()) = tokio::join!(ask.gives(200), kill);
    assert_eq!(
        (&told["reached"], &told["ended"], &told["instance"]["phase"]),
        (&json!(true), &json!(true), &json!("cancelled")),
        "{told}"
    );
}

/// The first event of a watch comes from another process, while the instance goes on.
async fn events(turn: Turn<'_>) {
    turn.scene.begin("visit", "events").await;
    let event = tokio::time::timeout(PATIENCE, turn.ask_about("visit", "events").first_event()).await;
    let event = event.expect("in time");
    let lines: Vec<&str> = event.lines().collect();
    let [id, kind, data] = lines[..] else {
        panic!("three lines: {event:?}");
    };
    let id: u64 = id.strip_prefix("id: ").expect("an id").parse().expect("a number");
    assert_eq!(kind, "event: entry");
    let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
    assert_eq!(
        (&data["id"], &data["input"], &data["kind"]),
        (&json!(id), &json!("start-events"), &json!("start")),
        "{data}"
    );
}

async fn of_saga(turn: Turn<'_>) {
    turn.scene.begin("patience", "of-saga").await;
    let page = turn
        .ask(&[("saga", "patience")])
        .query("limit=500")
        .gives(200)
        .await;
    let found = items(&page).iter().find(|view| view["key"] == "of-saga");
    assert_eq!(found.expect("listed")["saga"], "patience", "{page}");
    assert!(
        items(&page).iter().all(|view| view["saga"] == "patience"),
        "{page}"
    );
}

async fn list(turn: Turn<'_>) {
    for key in ["list-1", "list-2"] {
        turn.scene.begin("visit", key).await;
    }
    let first = turn.ask(&[]).query("key_prefix=list-&limit=1").gives(200).await;
    let next = first["next"].as_str().expect("a cursor");
    let second = turn
        .ask(&[])
        .query(&format!("key_prefix=list-&limit=1&after={next}"))
        .gives(200)
        .await;
    let mut keys: Vec<&str> = [&first, &second]
        .into_iter()
        .flat_map(items)
        .map(|found| found["key"].as_str().expect("a key"))
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["list-1", "list-2"], "{first} {second}");
}

async fn count(turn: Turn<'_>) {
    turn.scene.stuck("count").await;
    let counted = turn
        .ask(&[])
        .query("saga=repair&blocked_by=operator")
        .gives(200)
        .await;
    let statuses = counted["statuses"].as_array().expect("statuses");
    assert!(
        counted["instances"].as_u64() >= Some(1)
            && statuses
                .iter()
                .all(|status| status["saga"] == "repair" && status["blocked_by"] == "operator"),
        "{counted}"
    );
    let looked = turn
        .ask(&[])
        .query("key_prefix=count&saga=repair")
        .gives(200)
        .await;
    assert!(
        looked["instances"].as_u64() >= Some(1) && looked["looked_at"].as_u64() >= Some(1),
        "{looked}"
    );
    let grouped = turn
        .ask(&[])
        .query("saga=repair&blocked_by=operator&by=phase")
        .gives(200)
        .await;
    let groups = grouped["groups"].as_array().expect("groups");
    assert!(
        groups.iter().any(|group| group["value"] == "compensation_failed"),
        "{grouped}"
    );
}

async fn timers(turn: Turn<'_>) {
    turn.scene.begin("visit", "timers").await;
    let page = turn.ask(&[]).query("saga=visit&limit=500").gives(200).await;
    let mut names: Vec<&str> = items(&page)
        .iter()
        .filter(|timer| timer["key"] == "timers" && timer["overdue"] == false)
        .map(|timer| timer["name"].as_str().expect("a name"))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["remind", "wait:ask"], "{page}");
}

async fn outbox(turn: Turn<'_>) {
    turn.scene.begin("poll", "outbox").await;
    // Whether it was sent is seen a moment later.
    let path = format!("/v1/tenants/{TENANT}/outbox?saga=poll&limit=500");
    let is_sent = |page: &Value| {
        let of_this = items(page).iter().find(|item| item["key"] == "outbox");
        of_this.is_some_and(|item| item["sent"] == true)
    };
    turn.scene.until(&path, is_sent).await;
    let page = turn.ask(&[]).query("saga=poll&limit=500").gives(200).await;
    let item = items(&page).iter().find(|item| item["key"] == "outbox");
    let item = item.expect("listed");
    assert_eq!(
        (&item["kind"], &item["name"], &item["path"], &item["awaited"]),
        (
            &json!("effect"),
            &json!("survey"),
            &json!("steps.answer"),
            &json!(true)
        ),
        "{page}"
    );
}

async fn alias(turn: Turn<'_>) {
    let packed = json!({"id": "alias", "no": "T-alias"});
    turn.scene.publish("Parcel.Packed", "alias", &packed).await;
    let has_owner = |told: &Value| told["owners"][0]["key"] == "alias";
    let path = format!("/v1/tenants/{TENANT}/sagas/parcel/aliases/tracking/T-alias");
    turn.scene.until(&path, has_owner).await;
    let names = [("saga", "parcel"), ("name", "tracking"), ("value", "T-alias")];
    let told = turn.ask(&names).gives(200).await;
    assert_eq!(
        (&told["owners"], &told["waiting"]),
        (&json!([{"key": "alias", "generation": 1}]), &json!(0)),
        "{told}"
    );
}

async fn audit(turn: Turn<'_>) {
    let filter = turn.scene.audited("audit").await;
    let page = turn.ask(&[]).query(&filter).gives(200).await;
    let [record] = items(&page) else {
        panic!("one record: {page}");
    };
    assert_eq!(
        (
            &record["by"],
            &record["reason"],
            &record["outcome"],
            &record["status"]
        ),
        (&json!("ann"), &json!("a look"), &json!("done"), &json!(200)),
        "{record}"
    );
    assert_eq!(
        record["target"],
        json!({"saga": "visit", "key": "audit"}),
        "{record}"
    );
}
