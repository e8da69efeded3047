//! Requests to instances: under which id they are made, how long their outcome is waited for, and how it is answered.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::ApiState;
use super::problem::Problem;
use crate::kernel::duration::Millis;
use crate::kernel::envelope::ConflictPolicy;
use crate::kernel::ids::EventId;
use crate::kernel::patch::IgnoreReason;
use crate::ports::control::{Patience, RequestOutcome, RequestState, Requested};

/// Names a request, so that a repetition of it gets the same answer.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// How long a start is waited for that does not say: whoever starts wants to know whether it was the one.
pub const START_WAIT: Duration = Duration::from_secs(5);

tokio::task_local! {
    static KEY: Option<String>;
}

/// Runs what answers a request under its idempotency key, if it has one.
pub async fn within<F: Future>(key: Option<String>, answering: F) -> F::Output {
    KEY.scope(key, answering).await
}

/// The idempotency key of a request, with or without the quotes of a structured header.
pub fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let wrong = |detail: &str| Problem::invalid(detail).of("header", IDEMPOTENCY_KEY.as_str());
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    if given.next().is_some() {
        return Err(wrong("Idempotency-Key is there twice"));
    }
    let text = value
        .to_str()
        .map_err(|_| wrong("Idempotency-Key is not visible ASCII"))?;
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let text = quoted.unwrap_or(text);
    EventId::parse(text).map_err(|error| wrong(&format!("Idempotency-Key: {error}")))?;
    Ok(Some(text.to_owned()))
}

/// The idempotency key of the request that is being answered, if it has one.
pub fn given() -> Option<String> {
    KEY.try_with(Clone::clone).ok().flatten()
}

/// Under which id a request is made: that of the header, or of the body, or one of its own.
pub fn request_id(in_body: Option<String>) -> Result<String, Problem> {
    let key = given();
    if let (Some(key), Some(in_body)) = (&key, &in_body)
        && key != in_body
    {
        let detail = "Idempotency-Key and request_id name different requests: send one of them";
        return Err(Problem::invalid(detail).of("header", IDEMPOTENCY_KEY.as_str()));
    }
    let id = key.or(in_body).unwrap_or_else(fresh);
    EventId::parse(&id)
        .map_err(|error| Problem::invalid(format!("request_id: {error}")).of("body", "request_id"))?;
    Ok(id)
}

/// An id for a request that has none.
pub fn fresh() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// `?wait=...&wait_for=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitParameters {
    wait: Option<String>,
    wait_for: Option<String>,
}

/// A wait, and its place among those that there may be.
pub struct Waiting {
    pub patience: Option<Patience>,
    _place: Option<OwnedSemaphorePermit>,
}

impl WaitParameters {
    /// Of a command to an instance.
    pub fn of_command(self, state: &ApiState) -> Result<Waiting, Problem> {
        if self.wait_for.is_some() {
            return Err(Problem::invalid("only a start has wait_for").of("query", "wait_for"));
        }
        self.waiting(state, None)
    }

    /// Of a start.
    pub fn of_start(self, state: &ApiState) -> Result<Waiting, Problem> {
        let unasked = Patience {
            time: START_WAIT.min(state.request_timeout / 2),
            is_asked_for: false,
            until_end: false,
        };
        self.waiting(state, Some(unasked))
    }

    fn waiting(self, state: &ApiState, unasked: Option<Patience>) -> Result<Waiting, Problem> {
        let until_end = match self.wait_for.as_deref() {
            None | Some("start") => false,
            Some("end") => true,
            Some(_) => {
                return Err(Problem::invalid("wait_for must be start or end").of("query", "wait_for"));
            }
        };
        let time = self.wait.map(|text| wait_time(state, &text)).transpose()?;
        let patience = match time {
            None if until_end => {
                return Err(Problem::invalid("wait_for needs wait, e.g. wait=30s").of("query", "wait"));
            }
            None => unasked,
            Some(Duration::ZERO) => None,
            Some(time) => Some(Patience {
                time,
                is_asked_for: true,
                until_end,
            }),
        };
        let place = match patience {
            Some(Patience {
                is_asked_for: true, ..
            }) => Some(place(state)?),
            _ => None,
        };
        Ok(Waiting {
            patience,
            _place: place,
        })
    }
}

/// A place among the requests that wait.
pub fn place(state: &ApiState) -> Result<OwnedSemaphorePermit, Problem> {
    let place = std::sync::Arc::clone(&state.waits).try_acquire_owned();
    place.map_err(|_| Problem::unavailable("as many requests wait as http.waits_max says; retry later"))
}

/// How long somebody waits, at most `http.wait_max`.
pub fn wait_time(state: &ApiState, text: &str) -> Result<Duration, Problem> {
    let time = Millis::parse(text)
        .map_err(|error| Problem::invalid(format!("wait: {error}")).of("query", "wait"))?;
    Ok(time.duration().min(state.wait_max))
}

/// How long a request may take that may wait.
pub async fn limit(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    // Whoever asks for an instance waits without saying so.
    let waits =
        request.method() == Method::GET || request.uri().query().is_some_and(|query| query.contains("wait"));
    let more = if waits { state.wait_max } else { Duration::ZERO };
    match tokio::time::timeout(state.request_timeout + more, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable("the request took longer than http.request_timeout").into_response(),
    }
}

/// Answers a command to an instance.
pub fn commanded(requested: Requested) -> Result<Response, Problem> {
    let status = match &requested.outcome {
        None => StatusCode::ACCEPTED,
        Some(outcome) => status(outcome, StatusCode::OK, None)?,
    };
    Ok((status, Json(requested)).into_response())
}

/// What was asked to start.
#[derive(Debug, Serialize)]
pub struct Started {
    pub key: String,
    pub request_id: String,
    #[serde(flatten)]
    pub requested: Requested,
}

/// Answers a start.
pub fn started(
    started: Started,
    policy: ConflictPolicy,
    patience: Option<Patience>,
) -> Result<Response, Problem> {
    let status = match &started.requested.outcome {
        None => StatusCode::ACCEPTED,
        Some(outcome) => {
            let status = status(outcome, StatusCode::CREATED, Some(policy))?;
            let has_ended = outcome
                .instance
                .as_ref()
                .is_some_and(|found| found.ended.is_some());
            let is_waited_for = patience.is_some_and(|patience| patience.until_end);
            if is_waited_for && !has_ended {
                StatusCode::ACCEPTED
            } else {
                status
            }
        }
    };
    Ok((status, Json(started)).into_response())
}

/// The status of an outcome, or the problem that it is.
fn status(
    outcome: &RequestOutcome,
    done: StatusCode,
    start: Option<ConflictPolicy>,
) -> Result<StatusCode, Problem> {
    let reason = outcome.reason.as_deref().unwrap_or_default();
    let is = |wanted: IgnoreReason| reason == wanted.as_str();
    let told = || outcome.message.clone().unwrap_or_else(|| reason.to_owned());
    let problem = match outcome.state {
        RequestState::Applied => return Ok(done),
        RequestState::Pending => return Ok(StatusCode::ACCEPTED),
        RequestState::DeadLetter => {
            let letter = outcome.dead_letter.as_deref().unwrap_or_default();
            Problem::conflict(format!(
                "it could not be applied, and is dead letter {letter}: {}",
                told()
            ))
        }
        RequestState::Ignored if is(IgnoreReason::Exists) => {
            if start == Some(ConflictPolicy::UseExisting) {
                return Ok(StatusCode::OK);
            }
            let held = outcome.instance.as_ref().map(|found| {
                format!(
                    ": generation {} of it is {}, and request or event {} has started it",
                    found.generation, found.phase, found.started_by
                )
            });
            let held = held.unwrap_or_default();
            Problem::exists(format!("the instance is there{held}"))
        }
        RequestState::Ignored if is(IgnoreReason::Mismatch) => {
            Problem::mismatch("the id of the request was used before, for another request")
        }
        RequestState::Ignored if is(IgnoreReason::NoInstance) => Problem::not_found("no such instance"),
        RequestState::Ignored if is(IgnoreReason::Ended) => {
            let phase = outcome.instance.as_ref().map_or("over", |found| found.phase);
            let why = if start.is_some() {
                ", and its saga does not let its key be used again then (`reuse`)"
            } else {
                ""
            };
            Problem::conflict(format!("the instance has ended, it is {phase}{why}"))
        }
        RequestState::Ignored => Problem::conflict(format!("it has changed nothing: {}", told())),
    };
    Err(problem.with_outcome(serde_json::to_value(outcome).expect("plain data")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_is_one_header_with_or_without_quotes() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, value.parse().expect("a value"));
            }
            key(&headers).map_err(|problem| problem.status)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["r-1"]), Ok(Some("r-1".to_owned())));
        assert_eq!(read(&["\"r-1\""]), Ok(Some("r-1".to_owned())));
        for wrong in [&["a", "a"][..], &[""], &["\"\""]] {
            assert_eq!(read(wrong), Err(400), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn the_key_of_the_header_and_that_of_the_body_must_agree() {
        let id = |key: Option<&str>, body: Option<&str>| {
            let (key, body) = (key.map(str::to_owned), body.map(str::to_owned));
            within(
                key,
                async move { request_id(body).map_err(|problem| problem.status) },
            )
        };
        assert_eq!(id(Some("a"), None).await, Ok("a".to_owned()));
        assert_eq!(id(Some("a"), Some("a")).await, Ok("a".to_owned()));
        assert_eq!(id(None, Some("b")).await, Ok("b".to_owned()));
        assert_eq!(id(Some("a"), Some("b")).await, Err(400));
        assert!(id(None, None).await.is_ok_and(|id| !id.is_empty()));
    }
}
