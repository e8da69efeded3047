//! Requests, answers, and a saga that an event can poison.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::rig::Rig;

/// Divides 100 by what its events carry, so a zero cannot be applied.
pub const RATIO: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ratio
start: Ratio.Opened
key: {"Ratio.*": event.data.ratio}
state: {init: {shares: []}}
handlers:
  Ratio.Divided:
    set: {shares: "${state.shares + [100 / event.data.by]}"}
machine:
  initial: open
  states:
    open:
      handlers:
        Ratio.Closed: {to: closed}
    closed: {final: true}
"#;

/// A running runner that knows the shipped sagas and `ratio`.
pub async fn runner(slow: Duration) -> Rig {
    let mut rig = Rig::new(None, "30m", slow, json!({})).await;
    rig.add_saga("ratio", RATIO);
    rig.start().await;
    rig
}

/// A service that answers every call in the same way.
pub async fn service(answer: ResponseTemplate) -> MockServer {
    let service = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&service).await;
    service
}

/// Adds an effect that calls the service; `more` are members of `http`, and keys behind it.
pub fn add_call(rig: &Rig, name: &str, service: &MockServer, more: &str) {
    let text = format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: {name}\nhttp:\n  method: POST\n  url: \"{}/ask\"\n{more}",
        service.uri()
    );
    rig.add_effect(name, &text);
}

/// What the API answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub kind: String,
    pub text: String,
}

impl Answer {
    /// Sends a request that was put together by hand.
    pub async fn of(request: reqwest::RequestBuilder) -> Self {
        answer(request).await
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that this is problem+json with these.
    pub fn is_problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.kind, "application/problem+json", "{self:?}");
        let body = self.json();
        assert_eq!(body["code"], code, "{self:?}");
        assert_eq!(body["status"], status, "{self:?}");
        let told = |member: &str| body[member].as_str().is_some_and(|text| !text.is_empty());
        assert!(told("title") && told("detail") && told("trace_id"), "{self:?}");
        assert_eq!(body["type"], format!("/errors/{code}"), "{self:?}");
        assert!(body["errors"].is_array(), "{self:?}");
        body
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let kind = response
        .headers()
        .get("content-type")
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    Answer {
        status: response.status().as_u16(),
        kind: kind.to_owned(),
        text: response.text().await.expect("a whole answer"),
    }
}

pub async fn get(rig: &Rig, path: &str) -> Answer {
    answer(rig.client.get(rig.url(path))).await
}

pub async fn post(rig: &Rig, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = rig.client.post(rig.url(path));
    answer(request.header("content-type", "application/json").body(body)).await
}

/// The body of an event; `id` names it for good.
pub fn event(tenant: &str, id: &str, kind: &str, payload: &Value) -> String {
    let (aggregate, kind) = kind.split_once('.').expect("Aggregate.Event");
    json!({
        "tenant_id": tenant,
        "event_id": id,
        "event_type": kind,
        "aggregate_type": aggregate,
        "aggregate_id": id,
        "payload": payload,
    })
    .to_string()
}

/// Sends an event that must be taken.
pub async fn send(rig: &Rig, tenant: &str, id: &str, kind: &str, payload: Value) {
    let path = format!("/v1/tenants/{tenant}/events");
    let answer = post(rig, &path, event(tenant, id, kind, &payload)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
}

/// Asks until `wanted` holds of the body.
pub async fn until(rig: &Rig, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let answer = get(rig, path).await;
        if answer.status == 200 {
            let body = answer.json();
            if wanted(&body) {
                return body;
            }
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{path} did not get there: {answer:?}\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn instance(tenant: &str, saga: &str, key: &str) -> String {
    format!("/v1/tenants/{tenant}/sagas/{saga}/instances/{key}")
}

pub fn letters(tenant: &str) -> String {
    format!("/v1/tenants/{tenant}/dead-letters")
}

/// The items of a page.
pub fn items(page: &Value) -> &[Value] {
    page["items"].as_array().expect("items")
}
