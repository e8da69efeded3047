//! Schedules as operators see them, pause them and let them go on.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, post, runner, until};
use crate::support::rig::Rig;

/// It starts on the next 29 February and not during a test.
pub(super) const LEAP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: leap
schedule: {cron: "0 0 29 FEB *", zone: Europe/Berlin, catch_up: none}
state: {init: {at: "${input.time}"}}
steps:
  wait: {wait: {signal: go, timeout: 1h}}
"#;

fn cli(rig: &Rig, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(arguments)
        .args(["--tenant", "acme", "--url", &rig.url("")])
        .output()
        .expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_schedules_and_let_them_rest() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("leap", LEAP);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    // The reload is answered when the schedules are in force.
    let listed = get(&rig, "/v1/tenants/acme/schedules").await.json();
    let items = listed["items"].as_array().expect("items");
    let names: Vec<&Value> = items.iter().map(|item| &item["saga"]).collect();
    assert_eq!(names, ["billing", "leap"]);
    let shown = items[1].clone();
    let next = shown["next"].as_str().expect("a time").to_owned();
    assert!(next.ends_with("-02-28T23:00:00.000Z"), "{next}");
    let local = shown["next_local"].as_str().expect("a time").to_owned();
    assert!(local.ends_with("-02-29T00:00:00+01:00"), "{local}");
    let said = json!({
        "saga": "leap", "cron": "0 0 29 FEB *", "zone": "Europe/Berlin", "catch_up": "none", "overlap": "skip",
        "paused": false, "next": next, "next_local": local, "running": [], "queued": [], "started": 0, "skipped": 0,
    });
    assert_eq!(shown, said);
    let path = "/v1/tenants/acme/sagas/leap/schedule";
    assert_eq!(get(&rig, path).await.json(), said);
    assert_eq!(
        get(&rig, &path.replace("acme", "globex")).await.json()["next"],
        json!(next)
    );

    let account = json!({"by": "ann", "reason": "INC-7"}).to_string();
    let paused = post(&rig, &format!("{path}/pause"), account).await.json();
    assert_eq!(paused["paused"], true);
    let shown = get(&rig, path).await.json();
    let pause = &shown["pause"];
    assert_eq!((&pause["by"], &pause["reason"]), (&json!("ann"), &json!("INC-7")));
    let since = pause["since"].as_str().expect("a time");
    assert_eq!(&paused["pause"], pause);
    post(&rig, &format!("{path}/pause"), "")
        .await
        .is_problem(409, "SR0503");
    assert_eq!(get(&rig, path).await.json()["paused"], true);
    let other = get(&rig, &path.replace("acme", "globex")).await.json();
    assert_eq!(other["paused"], false, "each tenant has its own");
    let table = cli(&rig, &["schedule", "list"]);
    let line = table.lines().find(|line| line.contains("leap")).expect("a line");
    assert!(line.contains("paused") && !line.contains(&local), "{table}");
    assert!(line.contains(&format!("{since} by ann: INC-7")), "{table}");
    let resumed: Value =
        serde_json::from_str(&cli(&rig, &["schedule", "resume", "leap", "--json"])).expect("JSON");
    assert_eq!(
        (&resumed["paused"], &resumed["pause"]),
        (&json!(false), &Value::Null)
    );
    post(&rig, &format!("{path}/resume"), "")
        .await
        .is_problem(409, "SR0503");
    assert!(cli(&rig, &["schedule", "list"]).contains(&local));

    for path in ["sagas/order/schedule", "sagas/nope/schedule"] {
        get(&rig, &format!("/v1/tenants/acme/{path}"))
            .await
            .is_problem(404, "SR0502");
        post(&rig, &format!("/v1/tenants/acme/{path}/pause"), "")
            .await
            .is_problem(404, "SR0502");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_may_be_made_by_hand_and_the_key_of_schedules_is_nobodys() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("leap", LEAP);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let path = "/v1/tenants/acme/sagas/leap/instances";
    let time = "2024-02-28T23:00:00Z";
    let body = |key: &str, input: Value| json!({"key": key, "input": input}).to_string();
    let made = post(&rig, path, body(time, json!({"time": time}))).await;
    assert_eq!(made.status, 201);
    let run = instance("acme", "leap", time);
    let view = until(&rig, &run, |view| view["phase"] == "running").await;
    assert_eq!(view["state"], json!({"at": time}));
    post(&rig, path, body("x", json!({})))
        .await
        .is_problem(400, "SR0501");
    let told = post(&rig, path, body("@schedule", json!({"time": time}))).await;
    told.is_problem(400, "SR0501");
    assert!(told.text.contains("@schedule"), "{}", told.text);
}
