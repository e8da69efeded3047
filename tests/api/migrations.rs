//! One instance migrates to another version of its saga.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::actions::shell;
use crate::api::caller::{Answer, get, instance, items, post, send, until};
use crate::api::forwarding::{pair, unavailable};
use crate::api::letters::cli;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// Carries out a command as it is listed, which leads to the runner by itself.
async fn carried_out(command: &str) -> String {
    let output = shell(&format!("saga-runner {command}")).await;
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

const DEAL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: deal
start: Deal.Opened
key: {"Deal.*": event.data.deal}
state: {init: {}}
steps:
  sign: {wait: {signal: sign, timeout: 30d}}
"#;

/// Has something in addition.
const MORE: &str = "  tell: {publish: {type: deal.told}}\n";

/// Has no place for the step that waits.
fn other() -> String {
    DEAL.replace("sign:", "seal:")
}

async fn hash(rig: &Rig, saga: &str) -> String {
    let versions = get(rig, &format!("/v1/definitions?saga={saga}")).await.json();
    let active = items(&versions).iter().find(|version| version["active"] == true);
    active.expect("an active version")["hash"]
        .as_str()
        .expect("a hash")
        .to_owned()
}

/// Makes a version the active one, and tells its hash.
async fn activate(rig: &Rig, text: &str) -> String {
    rig.add_saga("deal", text);
    let answer = post(rig, "/admin/reload", "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    hash(rig, "deal").await
}

async fn opened(rig: &Rig, key: &str) -> String {
    let path = instance("acme", "deal", key);
    send(rig, "acme", key, "Deal.Opened", json!({"deal": key})).await;
    until(rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    path
}

/// A runner whose instances run under the first of three versions; their hashes.
async fn running(keys: &[&str]) -> (Rig, [String; 3]) {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("deal", DEAL);
    rig.start().await;
    let first = hash(&rig, "deal").await;
    for key in keys {
        opened(&rig, key).await;
    }
    // One that keeps each version in use.
    let misfit = activate(&rig, &other()).await;
    send(&rig, "acme", "keep", "Deal.Opened", json!({"deal": "keep"})).await;
    until(&rig, &instance("acme", "deal", "keep"), |view| {
        view["definition"] == misfit.as_str()
    })
    .await;
    let second = activate(&rig, &format!("{DEAL}{MORE}")).await;
    (rig, [first, second, misfit])
}

async fn migrate(rig: &Rig, path: &str, mut body: Value) -> Answer {
    if body["reason"].is_null() {
        body["reason"] = json!("a test");
    }
    post(rig, &format!("{path}/migrate"), body.to_string()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_comes_to_another_version_and_no_other_does() {
    let (rig, [first, second, _]) = running(&["d-1", "d-2"]).await;
    let path = instance("acme", "deal", "d-1");
    let dry = migrate(&rig, &path, json!({"to": second, "dry_run": true, "reason": ""})).await;
    let expected = json!({
        "saga": "deal", "key": "d-1", "from": first, "to": second, "dry_run": true, "starts": ["steps.tell: fact deal.told"],
    });
    assert_eq!((dry.status, dry.json()), (200, expected.clone()), "{dry:?}");
    assert_eq!(get(&rig, &path).await.json()["definition"], first.as_str());

    let body = json!({"to": second, "by": "ada", "reason": "ticket 7"});
    let done = migrate(&rig, &path, body).await;
    let mut expected = expected;
    expected["dry_run"] = json!(false);
    assert_eq!((done.status, done.json()), (200, expected), "{done:?}");
    let view = get(&rig, &path).await.json();
    assert_eq!(view["definition"], second.as_str(), "{view}");
    let steps: Vec<&Value> = view["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| &step["status"])
        .collect();
    assert_eq!(steps, ["waiting", "done"], "{view}");
    let history = get(&rig, &format!("{path}/history")).await.json();
    let migrated = items(&history)
        .iter()
        .filter(|row| row.to_string().contains("migrated"));
    assert_eq!(migrated.count(), 1, "{history}");
    let other = get(&rig, &instance("acme", "deal", "d-2")).await.json();
    assert_eq!(other["definition"], first.as_str(), "{other}");
    let audit = until(&rig, "/v1/tenants/acme/audit?action=instances.migrate", |page| {
        items(page).len() == 2
    })
    .await;
    let record = &items(&audit)[0];
    assert_eq!(
        (&record["by"], &record["reason"]),
        (&json!("ada"), &json!("ticket 7")),
        "{audit}"
    );

    // And it goes on under that.
    let answer = post(&rig, &format!("{path}/signals/sign"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(&rig, &path, |view| view["phase"] == "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_goes_back_to_the_version_that_it_came_from_and_no_other_does() {
    let (rig, [first, ..]) = running(&["d-1", "d-2"]).await;
    let second = activate(&rig, &DEAL.replace("30d", "40d")).await;
    for key in ["d-1", "d-2"] {
        let answer = migrate(&rig, &instance("acme", "deal", key), json!({"to": second})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let path = instance("acme", "deal", "d-1");
    let listed = get(&rig, &format!("{path}/actions")).await.json();
    let back = json!({"action": "migrate", "undo": true, "needs_reason": true});
    assert!(
        listed["possible"]
            .as_array()
            .is_some_and(|all| all.contains(&back)),
        "{listed}"
    );
    let told = cli(&rig, &["instance", "actions", "deal", "d-1", "--tenant", "acme"]).await;
    let line = told.lines().find(|line| line.contains("--undo")).expect("listed");
    let (_, command) = line.split_once("saga-runner ").expect("a command");
    let printed = carried_out(command).await;
    assert!(printed.contains(&first), "{printed}");
    let view = get(&rig, &path).await.json();
    assert_eq!(view["definition"], first.as_str(), "{view}");
    let other = get(&rig, &instance("acme", "deal", "d-2")).await.json();
    assert_eq!(other["definition"], second.as_str(), "{other}");
    // There is nothing to go back to now.
    migrate(&rig, &path, json!({"undo": true}))
        .await
        .is_problem(409, "SR0503");
    let answer = post(&rig, &format!("{path}/signals/sign"), "{}").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    until(&rig, &path, |view| view["phase"] == "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_cannot_be_is_refused_with_the_reasons_and_changes_nothing() {
    let (rig, [first, second, misfit]) = running(&["d-1", "d-2"]).await;
    let path = instance("acme", "deal", "d-1");
    for dry_run in [true, false] {
        let answer = migrate(&rig, &path, json!({"to": misfit, "dry_run": dry_run})).await;
        let problem = answer.is_problem(409, "SR0503");
        assert!(
            problem["errors"][0]["detail"]
                .as_str()
                .is_some_and(|told| told.contains("sign")),
            "{problem}"
        );
    }
    for (body, status, code) in [
        (json!({"to": first}), 409, "SR0503"),
        (json!({"to": hash(&rig, "order").await}), 400, "SR0501"),
        (json!({"to": "sha256:00000000"}), 404, "SR0502"),
        (json!({"to": "12"}), 400, "SR0501"),
        (json!({}), 400, "SR0501"),
        (json!({"to": second, "undo": true}), 400, "SR0501"),
        (json!({"undo": true}), 409, "SR0503"),
        (json!({"to": second, "reason": "x".repeat(2_000)}), 400, "SR0501"),
        (json!({"to": second, "reason": " "}), 400, "SR0501"),
    ] {
        migrate(&rig, &path, body).await.is_problem(status, code);
    }
    let view = get(&rig, &path).await.json();
    assert_eq!(view["definition"], first.as_str(), "{view}");
    for missing in [instance("acme", "deal", "d-9"), instance("globex", "deal", "d-1")] {
        migrate(&rig, &missing, json!({"to": second}))
            .await
            .is_problem(404, "SR0502");
    }
    let ended = instance("acme", "deal", "d-2");
    let answer = post(&rig, &format!("{ended}/cancel?wait=20s"), "{}").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = migrate(&rig, &ended, json!({"to": second})).await;
    let problem = answer.is_problem(409, "SR0503");
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|told| told.contains("cancelled")),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_to_which_an_instance_may_migrate_is_listed_as_the_command_that_does_it() {
    let (rig, [_, second, misfit]) = running(&["d-1"]).await;
    let path = instance("acme", "deal", "d-1");
    let listed = get(&rig, &format!("{path}/actions")).await.json();
    let possible = listed["possible"].as_array().expect("a list").iter();
    let migrations: Vec<&Value> = possible.filter(|action| action["action"] == "migrate").collect();
    assert_eq!(
        migrations,
        [&json!({"action": "migrate", "to": second, "needs_reason": true})],
        "{listed}"
    );
    assert!(!listed.to_string().contains(&misfit), "{listed}");
    let told = cli(&rig, &["instance", "actions", "deal", "d-1", "--tenant", "acme"]).await;
    let line = told
        .lines()
        .find(|line| line.contains("instance migrate"))
        .expect("listed");
    let (_, command) = line.split_once("saga-runner ").expect("a command");
    assert!(command.ends_with("--reason TEXT"), "{told}");
    let printed = carried_out(command).await;
    assert!(printed.contains(&second), "{printed}");
    assert_eq!(get(&rig, &path).await.json()["definition"], second.as_str());
    let listed = get(&rig, &format!("{path}/actions")).await.json();
    assert!(!listed["possible"].to_string().contains(&second), "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_shards_has_an_instance_migrated_by_the_one_that_has_them() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    owner.add_saga("deal", DEAL);
    assert_eq!(post(&owner, "/admin/reload", "").await.status, 200);
    let path = opened(&owner, "d-1").await;
    let second = activate(&owner, &format!("{DEAL}{MORE}")).await;
    let done = migrate(&asked, &path, json!({"to": second[..20]})).await;
    assert_eq!(
        (done.status, &done.json()["to"]),
        (200, &json!(second)),
        "{done:?}"
    );
    assert_eq!(get(&owner, &path).await.json()["definition"], second.as_str());
    migrate(&asked, &path, json!({"to": second}))
        .await
        .is_problem(409, "SR0503");
}
