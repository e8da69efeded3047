//! The real binary, killed with SIGKILL again and again around planned times of every minute.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const MINUTELY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: minutely
schedule: {cron: "* * * * *", overlap: allow, catch_up: all}
state: {init: {}}
steps:
  count: {effect: count, with: {at: "${input.time}"}}
"#;

const COUNT: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: count
input: {type: object}
transform: {}
result: {at: "${input.at}"}
"#;

/// Planned times that the runner is killed around.
const MINUTES: u64 = 2;
const TENANTS: [&str; 2] = ["acme", "globex"];

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("a time of this age")
}

async fn get(rig: &Rig, path: &str) -> Option<Value> {
    let answer = rig.client.get(rig.url(path)).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}

/// Kills and starts the runner until some planned times are over, then looks for one completed run of each.
async fn each_minute_runs_once_under_kills(nats: Option<String>) {
    let mut rig = Rig::new(nats, "30m", Duration::ZERO, json!({"worker": {"ack_wait": "2s"}})).await;
    rig.add_saga("minutely", MINUTELY);
    rig.add_effect("count", COUNT);
    rig.start().await;
    let schedule = "/v1/tenants/acme/sagas/minutely/schedule";
    let first = get(&rig, schedule).await.expect("it has a schedule")["next"].clone();
    let end = now_ms() / 60_000 * 60_000 + MINUTES * 60_000 + 3_000;
    let mut kills = 0;
    while now_ms() < end {
        // Often around the minute, seldom between.
        let to_minute = 60_000 - now_ms() % 60_000;
        let pause = match to_minute {
            2_000..58_000 => to_minute - 1_500,
            _ => 100 + kills * 7_919 % 400,
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        rig.kill();
        kills += 1;
        rig.launch();
    }
    rig.kill();
    rig.start().await;
    assert!(kills >= 4, "only {kills} kills");
    let first: jiff::Timestamp = first.as_str().expect("a time").parse().expect("RFC 3339");
    for tenant in TENANTS {
        until_complete(&rig, tenant, first).await;
    }
}

async fn until_complete(rig: &Rig, tenant: &str, first: jiff::Timestamp) {
    let list = format!("/v1/tenants/{tenant}/sagas/minutely/instances?limit=500");
    let begin = Instant::now();
    loop {
        let found = get(rig, &list).await.unwrap_or_default();
        let items = found["items"].as_array().cloned().unwrap_or_default();
        let keys: Vec<&str> = items.iter().filter_map(|item| item["key"].as_str()).collect();
        let completed = items.iter().filter(|item| item["phase"] == "completed").count();
        // Every minute from the first one on, as long as this takes.
        let wanted: BTreeSet<String> = (0..items.len())
            .filter_map(|minute| {
                let minutes = jiff::SignedDuration::from_mins(i64::try_from(minute).ok()?);
                Some((first + minutes).to_string())
            })
            .collect();
        let distinct: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let enough = u64::try_from(items.len()).is_ok_and(|runs| runs >= MINUTES);
        if enough && completed == items.len() {
            assert_eq!(distinct, wanted, "{tenant}");
            assert_eq!(keys.len(), distinct.len(), "{tenant}: a planned time ran twice");
            for item in &items {
                assert_eq!(item["input"]["time"], item["key"]);
            }
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(2),
            "{tenant}: {completed} of {keys:?} are completed\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_minute_runs_once_under_kills_on_the_embedded_broker() {
    each_minute_runs_once_under_kills(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_minute_runs_once_under_kills_on_nats() {
    let server = NatsServer::start();
    each_minute_runs_once_under_kills(Some(server.url())).await;
}
