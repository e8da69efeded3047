//! The side of the process that has no shards.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::stream;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::list::List;
use super::{AnswerHead, RequestHead, joined, may_be_stored, parted, waits};
use crate::api::audit::ProblemCode;
use crate::api::auth::Principal;
use crate::api::endpoints::{Endpoint, Kind, Role};
use crate::api::problem::Problem;
use crate::api::{ApiState, extract, requests, trace, watch};
use crate::kernel::ids::TenantId;
use crate::ports::forwarding::{Answer, Forwarding};

/// Headers that the answer depends on.
const CARRIED: [HeaderName; 2] = [requests::IDEMPOTENCY_KEY, watch::LAST_EVENT_ID];

/// A request that has passed the gate, and in whose name it is made.
pub struct Asking<'r> {
    pub endpoint: &'r Endpoint,
    pub principal: &'r Principal,
    pub tenant: Option<&'r TenantId>,
    pub request: Request,
}

/// Has the process answer that has the shards.
///
/// # Errors
/// [`Problem`] where there is no answer of it.
pub async fn ask(
    state: &ApiState,
    way: Arc<dyn Forwarding>,
    asking: Asking<'_>,
) -> Result<Response, Problem> {
    if let Some(list) = List::of(state, &way, &asking) {
        return Ok(list.answered().await);
    }
    answered(state, &*way, asking).await
}

async fn answered(state: &ApiState, way: &dyn Forwarding, asking: Asking<'_>) -> Result<Response, Problem> {
    let is_stream = asking.endpoint.kind == Kind::Stream;
    let waits = waits(asking.endpoint, &asking.request);
    let place = place(state, asking.endpoint, waits)?;
    let more = if waits {
        state.wait_max
    } else if asking.endpoint.starts_instance() {
        requests::START_WAIT
    } else if asking.endpoint.starts_job() {
        // Of a dry run, which looks at all that a filter may select.
        state.request_timeout
    } else {
        Duration::ZERO
    };
    let mut patience = state.forwarding.timeout + more;
    if may_be_stored(asking.endpoint, &asking.request) {
        // Time is left to store it from here.
        patience = patience.min(state.request_timeout * 4 / 5);
    }
    let message = message(asking, is_stream || waits).await?;
    let begun = begun(state, way, message, patience).await?;
    if is_stream && begun.status.is_success() {
        let body = streamed(begun.answer, begun.bytes, place, state.forwarding.timeout);
        let mut response = (begun.status, body).into_response();
        *response.headers_mut() = headers(&begun.head);
        return Ok(response);
    }
    let (status, head) = (begun.status, begun.head);
    let whole = whole(state, begun.answer, begun.bytes).await?;
    Ok(passed_on(status, &head, whole))
}

/// An answer that has begun.
pub(super) struct Begun {
    pub status: StatusCode,
    pub head: AnswerHead,
    /// Those that came with its head.
    pub bytes: Bytes,
    pub answer: Box<dyn Answer>,
}

/// Sends a request, and waits for the first part of the answer.
pub(super) async fn begun(
    state: &ApiState,
    way: &dyn Forwarding,
    message: Bytes,
    patience: Duration,
) -> Result<Begun, Problem> {
    let mut answer = way.forward(&state.forwarding.cluster, message).await?;
    let first = answer.part(patience).await?;
    let (head, bytes) = parted::<AnswerHead>(&first.unwrap_or_default()).map_err(|why| unreadable(&why))?;
    let status = StatusCode::from_u16(head.status).map_err(|error| unreadable(&error.to_string()))?;
    Ok(Begun {
        status,
        head,
        bytes,
        answer,
    })
}

/// A whole answer of another process.
pub(super) fn passed_on(status: StatusCode, head: &AnswerHead, whole: Bytes) -> Response {
    let code = (!status.is_success()).then(|| problem_code(&whole)).flatten();
    let mut response = (status, Body::from(whole)).into_response();
    if let Some(code) = code {
        response.extensions_mut().insert(code);
    }
    *response.headers_mut() = headers(head);
    response
}

/// The code of a problem that another process answers.
fn problem_code(body: &[u8]) -> Option<ProblemCode> {
    #[derive(Deserialize)]
    struct Told {
        code: String,
    }

    let told: Told = serde_json::from_slice(body).ok()?;
    Some(ProblemCode(Cow::Owned(told.code)))
}

pub(super) fn unreadable(why: &str) -> Problem {
    Problem::unanswered(format!(
        "the answer of the process that has the shards cannot be read, it may have another version: {why}"
    ))
}

/// A place among the requests that are forwarded, or among those that watch or wait.
fn place(state: &ApiState, endpoint: &Endpoint, waits: bool) -> Result<OwnedSemaphorePermit, Problem> {
    let (places, key) = if endpoint.kind == Kind::Stream {
        (&state.streams, "http.streams_max")
    } else if waits {
        (&state.waits, "http.waits_max")
    } else {
        (&state.forwarding.places, "http.forwards_max")
    };
    let place = Arc::clone(places).try_acquire_owned();
    place.map_err(|_| {
        Problem::unavailable(format!(
            "as many requests are forwarded as {key} says; retry later"
        ))
    })
}

/// The request as one message.
async fn message(asking: Asking<'_>, waits: bool) -> Result<Bytes, Problem> {
    let head = RequestHead {
        waits,
        ..head(&asking)
    };
    let body = extract::whole(asking.request.into_body()).await?;
    Ok(joined(&head, &body))
}

/// What is said of a request that does not wait.
pub(super) fn head(asking: &Asking<'_>) -> RequestHead {
    let Asking {
        endpoint,
        principal,
        tenant,
        request,
    } = asking;
    let target = request.uri().path_and_query();
    RequestHead {
        method: request.method().to_string(),
        target: target.map_or("/", |target| target.as_str()).to_owned(),
        principal: principal.name.clone(),
        role: principal.role(*tenant).unwrap_or(Role::Viewer),
        tenant: tenant.cloned(),
        traceparent: trace::traceparent().unwrap_or_default(),
        waits: false,
        audited: endpoint.is_mutation(),
        headers: carried(request.headers()),
    }
}

fn carried(headers: &HeaderMap) -> Vec<(String, String)> {
    let given = CARRIED.into_iter().filter_map(|name| {
        let value = headers.get(&name)?.to_str().ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    given.collect()
}

/// Those of the answer; a name that is none is left out.
fn headers(head: &AnswerHead) -> HeaderMap {
    let read = head.headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(name).ok()?;
        Some((name, HeaderValue::try_from(value).ok()?))
    });
    read.collect()
}

/// All of an answer, which is not begun to be sent on before its end is here.
pub(super) async fn whole(
    state: &ApiState,
    mut answer: Box<dyn Answer>,
    begin: Bytes,
) -> Result<Bytes, Problem> {
    let most = state.forwarding.bytes_max;
    let mut body = BytesMut::from(begin);
    loop {
        if body.len() > most {
            return Err(Problem::answer_too_large(format!(
                "the answer is longer than {most} bytes (http.forward_bytes_max): ask for less at a time, or ask the process that has the shards"
            )));
        }
        match answer.part(state.forwarding.timeout).await? {
            Some(part) => body.extend_from_slice(&part),
            None => return Ok(body.freeze()),
        }
    }
}

/// The events of an answer as they come. It ends where the other process ends it or is gone: a client comes back with the id of the
/// last event that it has.
fn streamed(answer: Box<dyn Answer>, begin: Bytes, place: OwnedSemaphorePermit, timeout: Duration) -> Body {
    let parts = stream::unfold(
        (answer, Some(begin), place),
        move |(mut answer, begin, place)| async move {
            let part = match begin {
                Some(begin) => begin,
                // The other process says now and then that the stream lives.
                None => answer.part(watch::HEARTBEAT + timeout).await.ok()??,
            };
            Some((Ok::<_, std::convert::Infallible>(part), (answer, None, place)))
        },
    );
    Body::from_stream(parts)
}

/// What the forwarding of requests may take.
#[derive(Clone)]
pub struct Bounds {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// Longest time until an answer begins, or goes on; that of a wait comes on top.
    pub timeout: Duration,
    /// Longest answer, in bytes.
    pub bytes_max: usize,
    /// Places of the requests that are forwarded.
    pub places: Arc<Semaphore>,
}
