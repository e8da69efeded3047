//! Commands about a process: its breakers, rates and effects, what it needs, and how it is configured.

use std::collections::HashMap;

use async_nats::jetstream::consumer;
use serde_json::{Value, json};

use crate::api::caller::items;
use crate::operations::case::{Case, Turn, cases, text};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "breaker list" => breakers,
    "breaker open" => open_breaker,
    "breaker close" => close_breaker,
    "breaker auto" => free_breaker,
    "rates" => rates,
    "effect list" => effects,
    "effect conformance" => conformance,
    "doctor" => doctor,
    "consumers list" => consumers,
    "consumers delete" => delete_consumer,
    "config show" => show_config,
    "config check" => check_config,
    "profile list" => profiles,
    "profile use" => use_profile,
};

async fn breakers(turn: Turn<'_>) {
    turn.owner(&[])
        .await
        .shows(&turn.scene.upstream())
        .shows("closed");
}

/// What an operator has forced the breaker of the upstream to.
async fn forced(turn: Turn<'_>) -> Value {
    let told = turn.scene.shown("/admin/breakers").await;
    let upstream = turn.scene.upstream();
    let mut found = items(&told).iter();
    let desk = found.find(|breaker| breaker["upstream"] == upstream.as_str());
    desk.expect("it is listed")["forced"].clone()
}

/// Sets the breaker without the command of the case.
async fn force(turn: Turn<'_>, state: &str) {
    let path = format!("/admin/breakers/{}", turn.scene.upstream());
    turn.scene
        .post(&turn.scene.other, &path, json!({"state": state}))
        .await;
}

async fn open_breaker(turn: Turn<'_>) {
    let upstream = turn.scene.upstream();
    let words = [
        upstream.as_str(),
        "--by",
        "ann",
        "--reason",
        "it is being repaired",
    ];
    turn.other(&words).await.notes("are held back");
    assert_eq!(forced(turn).await, "open");
    turn.other(&words).await.exits(5);
    turn.other(&["nowhere:1"]).await.exits(4);
    force(turn, "auto").await;
}

async fn close_breaker(turn: Turn<'_>) {
    let upstream = turn.scene.upstream();
    let words = [upstream.as_str(), "--by", "ann", "--reason", "it is well"];
    turn.other(&words).await.notes("are made");
    assert_eq!(forced(turn).await, "closed");
    force(turn, "auto").await;
}

async fn free_breaker(turn: Turn<'_>) {
    force(turn, "open").await;
    let upstream = turn.scene.upstream();
    turn.other(&[upstream.as_str(), "--by", "ann"])
        .await
        .notes("decides");
    assert_eq!(forced(turn).await, Value::Null);
}

async fn rates(turn: Turn<'_>) {
    turn.scene.begin("visit", "c-rates").await;
    turn.owner(&["--minutes", "5"]).await.shows("APPLIED");
    let told = turn.owner(&["-o", "json"]).await.json();
    assert!(told["total"]["transitions"].as_u64() > Some(0), "{told}");
}

async fn effects(turn: Turn<'_>) {
    let page = turn.other(&["-o", "json"]).await.json();
    let found: Vec<_> = items(&page)
        .iter()
        .map(|effect| (&effect["name"], &effect["external"]))
        .collect();
    assert_eq!(
        found,
        [
            (&json!("call"), &json!(false)),
            (&json!("divide"), &json!(false)),
            (&json!("sign"), &json!(false)),
            (&json!("survey"), &json!(true))
        ],
        "{page}"
    );
}

/// A worker that is not there passes no check.
async fn conformance(turn: Turn<'_>) {
    let url = turn.scene.server.url();
    let words = ["--effect", "survey", "--nats-url", &url, "--timeout", "1s"];
    let said = turn.run(&[&words[..], &["-o", "json"]].concat()).await.exits(1);
    let report: Value = serde_json::from_str(&said.out).expect("JSON");
    let check = &report["checks"][0];
    assert_eq!(
        (&report["passed"], &check["check"], &check["status"]),
        (&json!(false), &json!("consumer"), &json!("failed")),
        "{report}"
    );
}

async fn doctor(turn: Turn<'_>) {
    turn.owner(&[])
        .await
        .shows("ok    shard 1: ")
        .notes("0 failed, 0 warning(s)");
    // What a process with this manifest would find.
    turn.manifest(&[]).await.shows("ok    stream WORKFLOW_COMMANDS: ");
}

async fn consumers(turn: Turn<'_>) {
    let page = turn.manifest(&["-o", "json"]).await.json();
    let name = format!("effect-crash-divide@{TENANT}");
    let of_divide = items(&page)
        .iter()
        .find(|consumer| consumer["name"] == name.as_str());
    assert_eq!(of_divide.expect("listed")["exists"], true, "{page}");
}

async fn delete_consumer(turn: Turn<'_>) {
    const NAME: &str = "effect-crash-old";
    let streams = turn.scene.jetstream().await;
    let commands = streams.get_stream("WORKFLOW_COMMANDS").await;
    // As a runner has made it for an effect that is gone.
    let left = consumer::pull::Config {
        durable_name: Some(NAME.to_owned()),
        filter_subject: "tenant.*.effect.old.>".to_owned(),
        metadata: HashMap::from([("saga_runner_group".to_owned(), "crash".to_owned())]),
        ..Default::default()
    };
    let created = commands.expect("it is there").create_consumer(left).await;
    created.expect("created");
    let used = format!("effect-crash-divide@{TENANT}");
    let refused = turn.manifest(&[used.as_str(), "--yes"]).await;
    assert!(
        refused.code != Some(0) && refused.err.contains("is not an orphaned consumer"),
        "{refused:?}"
    );
    let said = turn.manifest(&[NAME, "--yes", "-o", "json"]).await.json();
    assert_eq!(said, json!({"name": NAME, "deleted": true}));
    let again = turn.manifest(&[NAME, "--yes"]).await;
    assert!(again.err.contains("orphaned: none"), "{again:?}");
}

async fn show_config(turn: Turn<'_>) {
    let said = turn
        .manifest(&["--origin", "--set", "relay.retry_max=3s"])
        .await
        .exits(0);
    let line = said.out.lines().find(|line| line.starts_with("relay.retry_max"));
    let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
    assert_eq!(words, ["relay.retry_max", "3s", "--set", "relay.retry_max"]);
}

async fn check_config(turn: Turn<'_>) {
    let findings = turn.manifest(&["-o", "json"]).await.json();
    assert_eq!(findings, json!([]));
    let wrong = ["-o", "json", "--set", "relay.retry_max=soon"];
    let said = turn.manifest(&wrong).await.exits(1);
    let findings: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(findings[0]["code"], "SR0402", "{findings}");
}

/// A folder with two profiles, of which none is chosen.
fn home(turn: Turn<'_>, name: &str) -> String {
    let folder = turn.scene.path(name);
    std::fs::create_dir(&folder).expect("created");
    let profiles = format!(
        "profiles:\n  here: {{url: \"{}\", tenant: {TENANT}}}\n  there: {{url: \"{}\"}}\n",
        turn.scene.other.url, turn.scene.owner.url
    );
    std::fs::write(folder.join("config.yaml"), profiles).expect("written");
    text(&folder).to_owned()
}

async fn profiles(turn: Turn<'_>) {
    let home = home(turn, "profiles-listed");
    let variables = [("SAGA_RUNNER_HOME", home.as_str())];
    let page = turn.run_with(&["-o", "json"], &variables).await.json();
    let found: Vec<_> = items(&page)
        .iter()
        .map(|profile| (&profile["name"], &profile["tenant"], &profile["chosen"]))
        .collect();
    assert_eq!(
        found,
        [
            (&json!("here"), &json!(TENANT), &json!(false)),
            (&json!("there"), &Value::Null, &json!(false))
        ],
        "{page}"
    );
}

async fn use_profile(turn: Turn<'_>) {
    let home = home(turn, "profiles-used");
    let variables = [("SAGA_RUNNER_HOME", home.as_str())];
    let said = turn.run_with(&["here", "-o", "json"], &variables).await.json();
    assert_eq!(said, json!({"name": "here", "chosen": true}));
    // Another command finds address and tenant there.
    let list = Turn {
        name: "schedule list",
        ..turn
    };
    list.run_with(&[], &variables).await.shows("leap");
    turn.run_with(&["nowhere"], &variables).await.exits(64);
}
