//! The series of a process to which nothing has happened yet.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::api::caller::{Answer, event, get, post, until};
use crate::api::schedules::LEAP;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};

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
        "effect_calls_total{class=\"ambiguous\",effect=\"payments-charge\"}",
        "effect_calls_total{class=\"succeeded\",effect=\"payments-charge\"}",
        "effect_commands_exhausted_total{class=\"transient\",effect=\"payments-charge\"}",
        "job_instances_total{outcome=\"applied\",verb=\"delete\"}",
        "job_instances_total{outcome=\"failed\",verb=\"migrate\"}",
        "job_instances_total{outcome=\"failed\",verb=\"retry_letters\"}",
        "job_instances_total{outcome=\"ignored\",verb=\"discard_letters\"}",
        "readers_rebuilt_total{reason=\"broken\",stream=\"AGGREGATE_EVENTS\"}",
        "schedule_runs_total{outcome=\"skipped_overlap\",saga=\"leap\"}",
        "effect_commands_redelivered_total{effect=\"payments-charge\"}",
        "tenant_dead_letters_total{tenant=\"globex\"}",
        "tenant_effect_calls_total{outcome=\"failed\",tenant=\"globex\"}",
        "tenant_inputs_total{tenant=\"globex\"}",
        "tenant_instances_ended_total{phase=\"failed\",tenant=\"globex\"}",
        "tenant_instances_started_total{tenant=\"other\"}",
        "tenant_inputs_total{tenant=\"other\"}",
    ] {
        let line = format!("saga_runner_{series} 0");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_for_an_event_with_a_trace_leaves_the_trace_on_the_bucket_of_its_duration() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    let url = rig.url(&format!("/v1/tenants/{TENANT}/events"));
    let request = rig.client.post(url).header("content-type", "application/json");
    let request = request.header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    let body = event_body("Order", "happy-1", "Placed", &order_payload("happy-1"));
    let answer = Answer::of(request.body(body)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    rig.wait_for("order", "happy-1", |view| view["phase"] == "completed")
        .await;

    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let request = rig.client.get(rig.url("/metrics")).header("accept", accept);
    let open = Answer::of(request).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((open.status, open.kind.as_str()), (200, kind), "{}", open.text);
    assert!(open.text.ends_with("\n# EOF\n"), "{}", open.text);
    let bucket = "saga_runner_effect_call_seconds_bucket{effect=\"payments-charge\",le=\"";
    let marked = format!(" # {{trace_id=\"{TRACE}\"}} ");
    let found = open.text.lines().find_map(|line| {
        let (sample, exemplar) = line.strip_prefix(bucket)?.split_once(&marked)?;
        let (bound, _) = sample.split_once('"')?;
        let (value, time) = exemplar.split_once(' ')?;
        Some([bound, value, time].map(|number| number.parse::<f64>().expect("a number")))
    });
    let [bound, value, time] = found.unwrap_or_else(|| panic!("no exemplar\n{}", open.text));
    assert!(
        value > 0.0 && value <= bound,
        "{value} in the bucket up to {bound}"
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    assert!((now.as_secs_f64() - time).abs() < 600.0, "{time}");

    let classic = get(&rig, "/metrics").await;
    assert_eq!(classic.kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(
        classic.text.contains("le=\"1\"") && !classic.text.contains(TRACE) && !classic.text.contains("# EOF"),
        "{}",
        classic.text
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_minute_under_way_shows_what_an_order_did() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    let before = get(&rig, "/admin/rates").await.json();
    assert_eq!(before["total"]["inputs"]["event"], 0, "{before}");
    assert_eq!(before["total"]["effects"], json!([]), "{before}");
    assert_eq!(before["total"]["upstreams"], json!([]), "{before}");
    rig.send("Order", "happy-1", "Placed", order_payload("happy-1"))
        .await;
    rig.wait_for("order", "happy-1", |view| view["phase"] == "completed")
        .await;
    let poison = event("acme", "e-1", "Order.Placed", &json!("no payload of an order"));
    assert_eq!(post(&rig, "/v1/tenants/acme/events", poison).await.status, 202);
    let of = |rates: &Value, pointer: &str| {
        rates["total"]
            .pointer(pointer)
            .and_then(Value::as_u64)
            .expect("a number")
    };
    let rates = until(&rig, "/admin/rates", |rates| {
        of(rates, "/dead_letters") == 1 && of(rates, "/instances_ended") >= 1
    })
    .await;
    let minute = rates["items"]
        .as_array()
        .and_then(|items| items.last())
        .expect("the one under way");
    for pointer in [
        "/inputs/event",
        "/inputs/result",
        "/transitions",
        "/instances_started",
        "/calls/count",
    ] {
        assert!(of(&rates, pointer) >= 1, "{pointer}: {rates}");
        assert!(minute.pointer(pointer).is_some(), "{pointer}: {rates}");
    }
    let effects = rates["total"]["effects"].as_array().expect("effects");
    let charge = effects
        .iter()
        .find(|effect| effect["effect"] == "payments-charge")
        .expect("it was called");
    assert_eq!(
        (&charge["count"], &charge["failed"]),
        (&json!(1), &json!(0)),
        "{rates}"
    );
    assert!(
        charge["p99_seconds"].as_f64() >= charge["p50_seconds"].as_f64(),
        "{rates}"
    );
    let upstreams = rates["total"]["upstreams"].as_array().expect("upstreams");
    let calls: u64 = upstreams
        .iter()
        .filter_map(|upstream| upstream["count"].as_u64())
        .sum();
    assert_eq!(calls, of(&rates, "/calls/count"), "{rates}");
    // All effects of an order call the same service.
    let [upstream] = &upstreams[..] else {
        panic!("{rates}");
    };
    let host = upstream["upstream"].as_str().expect("a name");
    assert!(host.starts_with("127.0.0.1:") && effects.len() > 1, "{rates}");
    for (arguments, shown) in [
        (&["rates"][..], "APPLIED"),
        (&["rates", "--upstreams"], host),
        (&["rates", "--effects"], "payments-charge"),
        (&["rates", "-o", "json", "--minutes", "1"], "\"total\""),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
            .args(arguments)
            .args(["--url", &rig.url("")])
            .output()
            .expect("the binary starts");
        let (told, printed) = (
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout),
        );
        assert!(
            output.status.success() && printed.contains(shown),
            "{printed}{told}"
        );
    }
}
