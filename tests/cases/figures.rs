//! Series that tell of a state survive a restart, and are there before anything happens.

use std::time::Duration;

use serde_json::json;

use super::phase_is;
use crate::api::caller::{get, items, post};
use crate::support::rig::Rig;

const PARTS: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parts
start: Part.Made
key: {"Part.*": event.data.part}
state: {init: {half: 0}}
handlers:
  Part.Cut: {set: {half: "${10 / event.data.pieces}"}}
"#;

/// The sum of a series over its labels; none where it is not exported.
async fn sum(rig: &Rig, series: &str) -> Option<f64> {
    let text = get(rig, "/metrics").await.text;
    let of_series = |line: &&str| {
        line.strip_prefix(series)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
    };
    let values = text.lines().filter(of_series).map(|line| {
        let (_, value) = line.rsplit_once(' ').expect("a value");
        value.parse::<f64>().expect("a number")
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

async fn until(rig: &Rig, series: &str, wanted: f64) {
    for _ in 0..600 {
        if sum(rig, series)
            .await
            .is_some_and(|found| (found - wanted).abs() < 0.5)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{series} is {:?}\n{}", sum(rig, series).await, rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_and_the_size_of_the_storage_are_told_after_a_restart_and_jobs_are_counted() {
    let extra = json!({"shard": {"sweep_every": "100ms"}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.add_saga("parts", PARTS);
    rig.start().await;
    for series in [
        "saga_runner_jobs_ended_total",
        "saga_runner_steps_stuck_total",
        "saga_runner_task_panics_total",
        "saga_runner_effect_commands_returned_total",
        "saga_runner_storage_full",
    ] {
        assert_eq!(sum(&rig, series).await, Some(0.0), "{series}");
    }
    assert_eq!(sum(&rig, "saga_runner_build_info").await, Some(1.0));
    rig.send("Part", "p-1", "Made", json!({"part": "p-1"})).await;
    rig.wait_for("parts", "p-1", phase_is("running")).await;
    rig.send("Part", "p-1", "Cut", json!({"part": "p-1", "pieces": 0}))
        .await;
    until(&rig, "saga_runner_dead_letters_present", 1.0).await;
    rig.kill();
    rig.start().await;
    until(&rig, "saga_runner_dead_letters_present", 1.0).await;
    assert!(sum(&rig, "saga_runner_storage_bytes").await > Some(4_096.0));
    assert!(
        sum(&rig, "saga_runner_storage_limit_bytes").await > sum(&rig, "saga_runner_storage_bytes").await
    );
    let order = json!({"verb": "kill", "filter": {"saga": "parts"}, "reason": "scrap", "by": "ada"});
    let started = post(&rig, "/v1/tenants/acme/jobs", order.to_string()).await;
    assert_eq!(started.status, 202, "{started:?}");
    until(&rig, "saga_runner_jobs_ended_total", 1.0).await;
    assert_eq!(sum(&rig, "saga_runner_job_instances_total").await, Some(1.0));
    // The job is counted as ended a moment before it is let go.
    until(&rig, "saga_runner_jobs_running", 0.0).await;
    let letters = get(&rig, "/v1/tenants/acme/dead-letters").await.json();
    let id = items(&letters)[0]["id"].as_str().expect("an id").to_owned();
    let discarded = post(&rig, &format!("/v1/tenants/acme/dead-letters/{id}/discard"), "{}").await;
    assert_eq!(discarded.status, 204, "{discarded:?}");
    until(&rig, "saga_runner_dead_letters_present", 0.0).await;
}
