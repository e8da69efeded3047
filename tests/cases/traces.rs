//! One W3C trace from the message that began an instance, over commands, calls, results, retries and compensations.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{connect, phase_is};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body};

const BEGUN_BY: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const LATER: &str = "11112222333344445555666677778888";

const TRIP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.aggregate_id}
steps:
  book: {effect: book, with: {}, compensate: {effect: unbook, with: {}}}
  paid: {needs: [book], wait: {event: Trip.Paid, timeout: 1h}}
  pay: {needs: [paid], effect: pay, with: {}}
"#;

fn effect(name: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Effect
name: {name}
http: {{method: POST, url: "${{upstreams.travel}}/{name}", body: {{key: "${{command.key}}"}}}}
retry: {{attempts: 3, errors: [throttled], backoff: {{initial: 100ms}}}}
"#
    )
}

struct World {
    rig: Rig,
    travel: MockServer,
    server: NatsServer,
}

impl World {
    async fn new() -> Self {
        let server = NatsServer::start();
        let travel = MockServer::start().await;
        let answer = |at: &str, status| Mock::given(path(at)).respond_with(ResponseTemplate::new(status));
        // The first call is made once more.
        answer("/book", 429)
            .up_to_n_times(1)
            .with_priority(1)
            .mount(&travel)
            .await;
        answer("/book", 200).mount(&travel).await;
        answer("/unbook", 200).mount(&travel).await;
        answer("/pay", 402).mount(&travel).await;
        let extra = json!({"upstreams": {"travel": travel.uri()}});
        let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
        rig.clear_definitions();
        rig.add_saga("trip", TRIP);
        for name in ["book", "unbook", "pay"] {
            rig.add_effect(name, &effect(name));
        }
        rig.start().await;
        Self { rig, travel, server }
    }

    /// Sends an event with a `traceparent` header over HTTP; not with one of its own in the body.
    async fn send(&self, key: &str, event: &str, traceparent: Option<&str>) {
        let url = self.rig.url(&format!("/v1/tenants/{TENANT}/events"));
        let body = event_body("Trip", key, event, &json!({}));
        let request = self
            .rig
            .client
            .post(url)
            .header("content-type", "application/json");
        let request = match traceparent {
            Some(text) => request.header("traceparent", text),
            None => request,
        };
        let answer = request.body(body).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    /// Path and `traceparent` of each call for an instance.
    async fn calls(&self, key: &str) -> Vec<(String, String)> {
        let calls = self.travel.received_requests().await.expect("recorded");
        let calls = calls.iter().filter(|call| {
            let body: Value = serde_json::from_slice(&call.body).expect("JSON");
            body["key"] == key
        });
        let header = |call: &wiremock::Request| {
            let value = call.headers.get("traceparent").expect("a traceparent");
            value.to_str().expect("text").to_owned()
        };
        calls
            .map(|call| (call.url.path().to_owned(), header(call)))
            .collect()
    }

    async fn run(&self, key: &str, begun_by: Option<&str>) -> Vec<(String, String)> {
        self.send(key, "Booked", begun_by).await;
        self.rig
            .wait_for("trip", key, |view| view["steps"][0]["status"] == "done")
            .await;
        self.send(key, "Paid", Some(&format!("00-{LATER}-00f067aa0ba902b7-01")))
            .await;
        self.rig.wait_for("trip", key, phase_is("failed")).await;
        let calls = self.calls(key).await;
        let paths: Vec<&str> = calls.iter().map(|(path, _)| path.as_str()).collect();
        assert!(paths.ends_with(&["/book", "/pay", "/unbook"]), "{paths:?}");
        calls
    }
}

/// The trace of each, all of whose spans differ.
fn traces(calls: &[(String, String)]) -> BTreeSet<&str> {
    let spans: BTreeSet<&str> = calls.iter().map(|(_, text)| &text[36..52]).collect();
    assert_eq!(spans.len(), calls.len(), "{calls:?}");
    calls.iter().map(|(_, text)| &text[3..35]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_compensations_and_work_after_later_events_are_in_the_trace_that_began_the_instance() {
    let world = World::new().await;
    let parent = format!("00-{BEGUN_BY}-00f067aa0ba902b7-01");
    let calls = world.run("t-1", Some(&parent)).await;
    assert_eq!(traces(&calls), BTreeSet::from([BEGUN_BY]), "{calls:?}");
    assert_eq!(calls.len(), 4, "the first call is repeated: {calls:?}");
    // The same in the headers of every command and result.
    let broker = connect(&world.server.url()).await;
    for stream in ["WORKFLOW_COMMANDS", "WORKFLOW_EVENTS"] {
        let state = broker.stream_state(stream).await.expect("a stream");
        let mut told = 0;
        for sequence in state.first_sequence..=state.last_sequence {
            let Some(message) = broker.message_at(stream, sequence).await.expect("asked") else {
                continue;
            };
            // Notes of workers about a command are not work.
            if !message.subject.contains(".effect.") && !message.subject.contains(".effect_result.") {
                continue;
            }
            let header = message.headers.iter().find(|(name, _)| name == "traceparent");
            let (_, text) = header.unwrap_or_else(|| panic!("{stream}: {} has no trace", message.subject));
            assert_eq!(&text[3..35], BEGUN_BY, "{stream}: {}", message.subject);
            told += 1;
        }
        assert!(told >= 3, "{stream}: {told}");
    }
    // Where nobody traces, the instance has a trace of its own; that is the request's.
    let calls = world.run("t-2", None).await;
    let own = traces(&calls);
    assert_eq!(own.len(), 1, "{calls:?}");
    assert!(!own.contains(BEGUN_BY) && !own.contains(LATER), "{calls:?}");
    // What is no traceparent is as good as none.
    let calls = world.run("t-3", Some("00-xyz-1-01")).await;
    assert_eq!(traces(&calls).len(), 1, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_a_request_starts_is_in_the_trace_of_the_request_and_a_repetition_with_another_is_the_same()
 {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    let saga = TRIP.replace("start: Trip.Booked\n", "input: {type: object}\n");
    let travel = MockServer::start().await;
    Mock::given(path("/book"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&travel)
        .await;
    rig.clear_definitions();
    rig.add_saga("trip", &saga);
    for name in ["book", "unbook", "pay"] {
        rig.add_effect(name, &effect(name).replace("${upstreams.travel}", &travel.uri()));
    }
    rig.start().await;
    let start = async |trace: &str| {
        let url = rig.url(&format!("/v1/tenants/{TENANT}/sagas/trip/instances"));
        let request = rig.client.post(url).header("content-type", "application/json");
        let request = request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
        let body = json!({"key": "t-1", "input": {}, "request_id": "r-1"}).to_string();
        let answer = request.body(body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    let (status, body) = start(BEGUN_BY).await;
    assert_eq!(status, 201, "{body}");
    rig.wait_for("trip", "t-1", |view| view["steps"][0]["status"] == "done")
        .await;
    let (status, body) = start(LATER).await;
    assert_eq!(status, 201, "{body}");
    let calls = travel.received_requests().await.expect("recorded");
    let told = calls[0].headers.get("traceparent").expect("a traceparent");
    assert_eq!(&told.to_str().expect("text")[3..35], BEGUN_BY);
}
