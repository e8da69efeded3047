//! What is sent to a collector of traces, received over HTTP and decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::phase_is;
use crate::api::caller::get;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

async fn send(rig: &Rig, order: &str) {
    let url = rig.url(&format!("/v1/tenants/{TENANT}/events"));
    let request = rig.client.post(url).header("content-type", "application/json");
    let request = request.header("traceparent", format!("00-{TRACE}-{CALLER}-01"));
    let body = event_body("Order", order, "Placed", &order_payload(order));
    let answer = request.body(body).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.status());
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        other => panic!("{name}: {other:?}"),
    }
}

async fn spans(collector: &MockServer) -> Vec<Span> {
    let requests = collector.received_requests().await.expect("recorded");
    let decoded = requests.iter().map(|request| {
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        ExportTraceServiceRequest::decode(request.body.as_slice()).expect("the request of the protocol")
    });
    let of_resources = decoded.flat_map(|request| request.resource_spans);
    let of_scopes = of_resources.flat_map(|resource| resource.scope_spans);
    of_scopes.flat_map(|scope| scope.spans).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_leads_from_the_event_over_calls_and_results_to_the_compensation() {
    let collector = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/traces"))
        .and(header("authorization", "Bearer s3cr3t"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&collector)
        .await;
    let otlp = json!({"endpoint": collector.uri(), "headers_file": "otlp-headers"});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"telemetry": {"otlp": otlp}})).await;
    rig.add_file("otlp-headers", b"Authorization: Bearer s3cr3t\n");
    rig.start().await;
    send(&rig, "declined-1").await;
    rig.wait_for("order", "declined-1", |view| view["ended"].is_string())
        .await;
    // What has not been sent yet is sent at the end.
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let spans = spans(&collector).await;
    let of_trace: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let ids: BTreeSet<&[u8]> = of_trace.iter().map(|span| span.span_id.as_slice()).collect();
    assert_eq!(ids.len(), of_trace.len());
    let mut by_name: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in &of_trace {
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
        by_name.entry(&span.name).or_default().push(span);
    }
    let request = by_name["request"].first().expect("the request");
    assert_eq!(hex(&request.parent_span_id), CALLER);
    // All that the instance does has the request as its parent.
    for span in of_trace.iter().filter(|span| span.name != "request") {
        assert_eq!(hex(&span.parent_span_id), hex(&request.span_id), "{span:?}");
        if attribute(span, "saga_runner.saga").as_deref() == Some("order") {
            let key = attribute(span, "saga_runner.key");
            assert_eq!(key.as_deref(), Some("declined-1"), "{span:?}");
        }
    }
    let inputs: Vec<String> = by_name["apply"]
        .iter()
        .filter_map(|span| attribute(span, "saga_runner.input"))
        .collect();
    assert_eq!(inputs[0], "event Order.Placed", "{inputs:?}");
    assert!(
        inputs.iter().any(|input| input.starts_with("result of ")),
        "{inputs:?}"
    );
    let failed = by_name["call"].iter().filter(|span| span.status.is_some());
    let failed: Vec<_> = failed.filter_map(|span| attribute(span, "error.type")).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(!by_name["compensate"].is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_does_not_answer_changes_nothing_but_a_counter() {
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let otlp = json!({"endpoint": format!("http://127.0.0.1:{port}"), "queue_max": 4});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"telemetry": {"otlp": otlp}})).await;
    rig.start().await;
    for number in 0..5 {
        let order = format!("happy-{number}");
        send(&rig, &order).await;
        rig.wait_for("order", &order, phase_is("completed")).await;
    }
    let dropped = async |reason: &str| {
        let text = get(&rig, "/metrics").await.text;
        let series = format!("saga_runner_spans_dropped_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("the series").parse::<u64>().expect("a number")
    };
    for reason in ["queue", "export"] {
        let mut asked = 0;
        while dropped(reason).await == 0 {
            asked += 1;
            assert!(asked < 200, "{reason}\n{}", rig.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let answer = get(&rig, "/ready").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_for_the_collector_that_cannot_be_read_refuse_the_start() {
    let otlp = json!({"endpoint": "http://127.0.0.1:9", "headers_file": "absent"});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"telemetry": {"otlp": otlp}})).await;
    rig.launch();
    assert_eq!(rig.exit().await, Some(78), "{}", rig.log_tail());
    assert!(rig.log_tail().contains("SR0420"), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_for_the_collector_that_every_user_may_read_refuse_the_start() {
    let otlp = json!({"endpoint": "http://127.0.0.1:9", "headers_file": "otlp-headers"});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({"telemetry": {"otlp": otlp}})).await;
    rig.add_file("otlp-headers", b"Authorization: Bearer s3cr3t\n");
    let file = rig.folder().join("otlp-headers");
    let open = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
    for mode in [0o644, 0o602] {
        open(mode);
        rig.launch();
        assert_eq!(rig.exit().await, Some(78), "{}", rig.log_tail());
        let told = rig.log_tail();
        assert!(
            told.contains("SR0416")
                && told.contains("telemetry.otlp.headers_file")
                && !told.contains("s3cr3t"),
            "{told}"
        );
    }
    open(0o640);
    rig.start().await;
}
