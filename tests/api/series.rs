//! The series of a process to which nothing has happened yet.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::api::caller::get;
use crate::api::schedules::LEAP;
use crate::support::rig::Rig;

/// Each row of docs/metrics.md of a counter with labels.
fn labelled_counters() -> BTreeSet<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/metrics.md")).expect("readable");
    let rows = page.lines().filter_map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [name, "counter", labels, _] = cells[..] else {
            return None;
        };
        let name = name.trim_start_matches("| ").trim_matches('`');
        (labels != "—").then(|| name.to_owned())
    });
    rows.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_labelled_counter_is_there_with_0_before_anything_has_happened() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("leap", LEAP);
    rig.start().await;
    let text = get(&rig, "/metrics").await.text;
    let expected = labelled_counters();
    assert!(expected.len() > 20, "{expected:?}");
    let found: BTreeSet<String> = text
        .lines()
        .filter_map(|line| Some(line.split_once('{')?.0.to_owned()))
        .collect();
    let missing: Vec<&String> = expected.difference(&found).collect();
    assert_eq!(missing, [""; 0], "{text}");
    for series in [
        "dead_letters_total{reason=\"payload.syntax\"}",
        "effect_calls_total{class=\"ambiguous\",effect=\"charge\"}",
        "effect_calls_total{class=\"succeeded\",effect=\"charge\"}",
        "effect_commands_exhausted_total{class=\"transient\",effect=\"charge\"}",
        "job_instances_total{outcome=\"failed\",verb=\"migrate\"}",
        "messages_read_total{stream=\"WORKFLOW_RESULTS\"}",
        "readers_rebuilt_total{reason=\"broken\",stream=\"AGGREGATE_EVENTS\"}",
        "schedule_runs_total{outcome=\"skipped_overlap\",saga=\"leap\"}",
        "tenant_inputs_total{tenant=\"globex\"}",
        "tenant_inputs_total{tenant=\"other\"}",
    ] {
        let line = format!("saga_runner_{series} 0");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}
