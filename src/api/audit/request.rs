//! What is recorded of one request for a change.
//!
//! A body is only looked into for who asks, why, and what it is about; nothing else of it is kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::auth::Principal;
use super::super::connections::Peer;
use super::super::endpoints::{Access, Endpoint, Kind};
use super::super::extract::{self, Names};
use super::super::problem::Problem;
use super::super::{ApiState, requests, trace};
use crate::kernel::ids::TenantId;
use crate::ports::control::{AuditOutcome, AuditRecord};

/// Longest text of a record but the reason, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Longest reason of a record, in bytes.
const REASON_BYTES_MAX: usize = 1_024;
/// Longest filter of a record, in bytes.
const FILTER_BYTES_MAX: usize = 1_024;

/// The code of the problem that a response tells of.
#[derive(Debug, Clone)]
pub struct ProblemCode(pub Cow<'static, str>);

/// Id of what was made, where the answer names it: of a job.
#[derive(Debug, Clone)]
pub struct MadeId(pub String);

/// A request for a change that is being answered. It is recorded when it is dropped without an answer, too: whoever asked went
/// away then, or it took too long.
pub struct Audited {
    state: ApiState,
    record: Option<AuditRecord>,
}

/// What is read of a body. Each member is a text, a number or a flag where it is of use; `filter` has texts by name.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said<'b> {
    #[serde(borrow)]
    by: Option<&'b RawValue>,
    #[serde(borrow)]
    reason: Option<&'b RawValue>,
    #[serde(borrow)]
    request_id: Option<&'b RawValue>,
    #[serde(borrow)]
    event_id: Option<&'b RawValue>,
    #[serde(borrow)]
    dry_run: Option<&'b RawValue>,
    #[serde(borrow)]
    key: Option<&'b RawValue>,
    #[serde(borrow)]
    verb: Option<&'b RawValue>,
    #[serde(borrow)]
    state: Option<&'b RawValue>,
    #[serde(borrow)]
    step: Option<&'b RawValue>,
    #[serde(borrow)]
    mode: Option<&'b RawValue>,
    #[serde(borrow)]
    filter: Option<&'b RawValue>,
    #[serde(borrow)]
    rate: Option<&'b RawValue>,
    #[serde(borrow)]
    ended: Option<&'b RawValue>,
    #[serde(borrow)]
    all: Option<&'b RawValue>,
    #[serde(borrow)]
    undo: Option<&'b RawValue>,
    #[serde(borrow)]
    to: Option<&'b RawValue>,
    #[serde(borrow, rename = "as")]
    found: Option<&'b RawValue>,
    #[serde(borrow)]
    stream: Option<&'b RawValue>,
    #[serde(borrow)]
    position: Option<&'b RawValue>,
    #[serde(borrow)]
    tenant: Option<&'b RawValue>,
    #[serde(borrow)]
    on_conflict: Option<&'b RawValue>,
}

impl Audited {
    /// A request that has just come.
    pub fn new(state: &ApiState, endpoint: &Endpoint, request: &Request, names: &Names) -> Self {
        let peer = request.extensions().get::<Peer>();
        let query = request.uri().query().unwrap_or("");
        let asks = |wanted: &str| query.split('&').any(|part| part == wanted);
        let mut record = AuditRecord {
            id: requests::fresh(),
            time: state.clock.now().rfc3339(),
            principal: None,
            by: None,
            role: endpoint.access.as_str().to_owned(),
            peer: peer.map(|Peer(address)| address.to_string()),
            method: endpoint.method.to_string(),
            endpoint: endpoint.path.clone(),
            action: endpoint.action(),
            tenant: names
                .get("tenant")
                .filter(|tenant| TenantId::parse(tenant).is_ok_and(|tenant| !tenant.is_none()))
                .cloned(),
            target: target(names),
            reason: None,
            dry_run: asks("dry_run=true"),
            request_id: requests::key(request.headers()).ok().flatten(),
            trace_id: trace::current(),
            status: None,
            outcome: AuditOutcome::Unanswered,
            code: None,
            process: String::new(),
        };
        if asks("undo=true") {
            record.about("undo", "true");
        }
        if let Some(callback) = names.get("token").and_then(|token| state.control.callback(token)) {
            let instance = callback.instance;
            record.tenant = Some(instance.tenant.to_string()).filter(|tenant| !tenant.is_empty());
            record.about("saga", instance.saga.as_str());
            record.about("key", instance.key.as_str());
        }
        Self {
            state: state.clone(),
            record: Some(record),
        }
    }

    /// Who asks.
    pub fn by(&mut self, principal: &Principal) {
        if let Some(record) = &mut self.record {
            record.principal = principal.name.as_deref().map(|name| cut(name, TEXT_BYTES_MAX));
        }
    }

    /// Looks into the body. A request to an instance that has no id gets one, so that it is recorded under that by which the
    /// instance knows it.
    ///
    /// # Errors
    /// [`Problem`] for a body that is too large, or breaks off.
    pub async fn read(&mut self, endpoint: &Endpoint, request: Request) -> Result<Request, Problem> {
        let Some(record) = self.record.as_mut().filter(|_| is_told_of(endpoint)) else {
            return Ok(request);
        };
        let (mut parts, body) = request.into_parts();
        let body = extract::whole(body).await?;
        let said: Said<'_> = serde_json::from_slice(&body).unwrap_or_default();
        record.take(&said);
        if endpoint.starts_job() {
            record.take_filter(said.filter);
        }
        if endpoint.kind == Kind::Request && record.request_id.is_none() && said.request_id.is_none() {
            let id = requests::fresh();
            let value = HeaderValue::try_from(&id).expect("a UUID is ASCII");
            parts.headers.insert(requests::IDEMPOTENCY_KEY, value);
            record.request_id = Some(id);
        }
        if endpoint.starts_instance() && !record.target.contains_key("key") {
            // It is the key of the instance, too.
            let key = record.request_id.clone().unwrap_or_default();
            record.about("key", &key);
        }
        Ok(Request::from_parts(parts, Body::from(body)))
    }

    /// It was answered.
    pub fn answered(mut self, response: &Response) {
        if let Some(mut record) = self.record.take() {
            record.status = Some(response.status().as_u16());
            let code = response.extensions().get::<ProblemCode>();
            record.code = code.map(|ProblemCode(code)| code.to_string());
            if let Some(MadeId(id)) = response.extensions().get() {
                record.about("id", id);
            }
            self.hand_over(record);
        }
    }

    /// Says in the log who changed what, or tried to, and hands the record over. Of requests without valid credentials the log has
    /// a line now and then with their number.
    fn hand_over(&self, mut record: AuditRecord) {
        record.outcome = AuditOutcome::of(record.status);
        if record.status != Some(StatusCode::UNAUTHORIZED.as_u16()) {
            let things = record.target.iter();
            let things: Vec<String> = things.map(|(name, value)| format!("{name}={value:?}")).collect();
            tracing::info!(
                target: "audit",
                id = record.id,
                principal = record.principal.as_deref().unwrap_or("-"),
                role = record.role,
                peer = record.peer,
                method = record.method,
                endpoint = record.endpoint,
                action = record.action,
                tenant = record.tenant,
                things = things.join(" "),
                reason = record.reason,
                request_id = record.request_id,
                status = record.status,
                outcome = record.outcome.as_str(),
                trace_id = record.trace_id,
                "a request for a change was answered"
            );
        }
        self.state.control.audit(record);
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            self.hand_over(record);
        }
    }
}

/// Whether the body of a request may be looked into. That of a callback has what somebody outside says to an instance.
fn is_told_of(endpoint: &Endpoint) -> bool {
    endpoint.has_body && endpoint.access != Access::Open
}

/// The parts of the path, without tenant and tokens: these are credentials.
fn target(names: &Names) -> BTreeMap<String, String> {
    let shown = names
        .iter()
        .filter(|(name, _)| !["tenant", "token"].contains(&name.as_str()));
    shown
        .map(|(name, value)| (name.clone(), cut(value, TEXT_BYTES_MAX)))
        .collect()
}

/// The beginning of a text, without a character that is cut in two.
fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

fn text(value: Option<&RawValue>, bytes_max: usize) -> Option<String> {
    let text: Cow<'_, str> = serde_json::from_str(value?.get()).ok()?;
    (!text.is_empty()).then(|| cut(&text, bytes_max))
}

/// A text, a number or `true`. A flag that is not set says nothing.
fn word(value: Option<&RawValue>) -> Option<String> {
    let raw = value?.get();
    match raw.as_bytes().first()? {
        b'"' => text(value, TEXT_BYTES_MAX),
        b't' | b'-' | b'0'..=b'9' => Some(cut(raw, TEXT_BYTES_MAX)),
        _ => None,
    }
}

/// What a body adds to a record.
trait Taking {
    fn take(&mut self, said: &Said<'_>);
    /// Which instances or dead letters a job is about; the saga and the key of the filter are those of the record, too.
    fn take_filter(&mut self, filter: Option<&RawValue>);
    fn about(&mut self, name: &str, value: &str);
}

impl Taking for AuditRecord {
    fn take(&mut self, said: &Said<'_>) {
        if self.principal.is_none() {
            self.by = text(said.by, TEXT_BYTES_MAX);
        }
        self.reason = text(said.reason, REASON_BYTES_MAX);
        self.dry_run |= said.dry_run.is_some_and(|value| value.get() == "true");
        let id = text(said.request_id, TEXT_BYTES_MAX).or_else(|| text(said.event_id, TEXT_BYTES_MAX));
        self.request_id = self.request_id.take().or(id);
        let things = [
            ("key", said.key),
            ("verb", said.verb),
            ("state", said.state),
            ("step", said.step),
            ("mode", said.mode),
            ("rate", said.rate),
            ("ended", said.ended),
            ("all", said.all),
            ("undo", said.undo),
            ("to", said.to),
            ("as", said.found),
            ("stream", said.stream),
            ("position", said.position),
            ("tenant", said.tenant),
            ("on_conflict", said.on_conflict),
        ];
        for (name, value) in things {
            if let Some(value) = word(value).filter(|_| !self.target.contains_key(name)) {
                self.about(name, &value);
            }
        }
    }

    fn take_filter(&mut self, filter: Option<&RawValue>) {
        let Some(Ok(filter)) =
            filter.map(|filter| serde_json::from_str::<BTreeMap<String, String>>(filter.get()))
        else {
            return;
        };
        for name in ["saga", "key"] {
            if let Some(value) = filter.get(name) {
                self.about(name, value);
            }
        }
        let all = serde_json::to_string(&filter).expect("texts by name are plain data");
        self.target
            .insert("filter".to_owned(), cut(&all, FILTER_BYTES_MAX));
    }

    fn about(&mut self, name: &str, value: &str) {
        self.target.insert(name.to_owned(), cut(value, TEXT_BYTES_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(action: &str, body: &str) -> AuditRecord {
        let mut record = AuditRecord {
            id: "1".to_owned(),
            time: "2026-11-26T03:00:00Z".to_owned(),
            principal: None,
            by: None,
            role: "operator".to_owned(),
            peer: None,
            method: "POST".to_owned(),
            endpoint: "/v1/jobs".to_owned(),
            action: action.to_owned(),
            tenant: None,
            target: BTreeMap::new(),
            reason: None,
            dry_run: false,
            request_id: None,
            trace_id: None,
            status: None,
            outcome: AuditOutcome::Unanswered,
            code: None,
            process: String::new(),
        };
        let said: Said<'_> = serde_json::from_str(body).expect("an object");
        record.take(&said);
        record.take_filter(said.filter);
        record
    }

    #[test]
    fn a_record_says_which_job_was_asked_for_and_bounds_its_filter() {
        let body = r#"{"verb": "delete", "filter": {"phase": "failed", "saga": "order"}, "rate": 5, "ended": false,
            "dry_run": true, "by": "ann", "reason": "space", "all": true, "to": null}"#;
        let record = told("jobs.start", body);
        let target: Vec<_> = record
            .target
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            target,
            [
                "all=true",
                r#"filter={"phase":"failed","saga":"order"}"#,
                "rate=5",
                "saga=order",
                "verb=delete"
            ]
        );
        assert!(record.dry_run);
        assert_eq!(
            (record.by.as_deref(), record.reason.as_deref()),
            (Some("ann"), Some("space"))
        );
        let long = format!(r#"{{"filter": {{"where": "{}"}}}}"#, "\u{e4}".repeat(4_000));
        let filter = &told("jobs.start", &long).target["filter"];
        assert!(
            (FILTER_BYTES_MAX - 3..=FILTER_BYTES_MAX).contains(&filter.len()),
            "{}",
            filter.len()
        );
    }

    #[test]
    fn a_member_that_is_no_text_is_not_recorded() {
        let body = r#"{"verb": {"a": 1}, "step": ["x"], "mode": false, "state": null, "filter": {"a": 1}, "position": -7}"#;
        let target = told("shards.rebind", body).target;
        assert_eq!(target, BTreeMap::from([("position".to_owned(), "-7".to_owned())]));
    }
}
