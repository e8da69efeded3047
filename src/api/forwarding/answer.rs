//! The side of the process that has the shards.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{ANSWERED, AnswerHead, RequestHead, Vouched, joined, parted};
use crate::api::Settings;
use crate::api::auth::Principal;
use crate::api::problem::Problem;
use crate::api::trace::{self, RequestTrace};
use crate::ports::forwarding::{Forwarding, ForwardingError, Listener, Reply};

/// How long it takes until listening is tried again, and whether it should go on is looked at.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Whether this process may answer for the cluster. Where two processes hold the same shards to be theirs, at most one of them may.
pub trait Owner: Send + Sync + 'static {
    /// Whether it has shards, and the time of none is over for which it may send.
    fn may_answer(&self) -> bool;

    /// Tells whether requests are heard.
    fn hears(&self, hears: bool);
}

/// Answers the requests that other processes of the cluster forward, through the router of this one, until it is told to stop.
pub async fn serve(
    (way, owner): (Arc<dyn Forwarding>, Arc<dyn Owner>),
    cluster: String,
    router: Router,
    settings: Settings,
    stop: CancellationToken,
) {
    let answering = Answering {
        router,
        places: Arc::new(Semaphore::new(settings.forwards_max.min(Semaphore::MAX_PERMITS))),
        patience: settings.answer_timeout.duration(),
        owner: Arc::clone(&owner),
    };
    // What is under way ends with this.
    let mut tasks = JoinSet::new();
    let listening = async {
        loop {
            if owner.may_answer() {
                match way.listen(&cluster).await {
                    Ok(listener) => {
                        owner.hears(true);
                        answering.listen(listener, &mut tasks).await;
                        owner.hears(false);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot listen for forwarded requests; trying again");
                    }
                }
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    };
    tokio::select! {
        () = listening => {}
        () = stop.cancelled() => {}
    }
}

struct Answering {
    router: Router,
    /// Of the requests that do not wait; the others have places of their own, as those over HTTP do.
    places: Arc<Semaphore>,
    /// How long a part may take to be read.
    patience: Duration,
    owner: Arc<dyn Owner>,
}

impl Answering {
    /// Takes requests for as long as this process may answer them. After that the broker tells those who ask that nobody listens.
    async fn listen(&self, mut listener: Box<dyn Listener>, tasks: &mut JoinSet<()>) {
        let mut look = tokio::time::interval(LISTEN_AGAIN);
        loop {
            let taken = tokio::select! {
                taken = listener.request() => taken,
                _ = look.tick() => {
                    if self.owner.may_answer() {
                        continue;
                    }
                    tracing::info!("forwarded requests are no more answered: the shards may be those of another process");
                    return;
                }
            };
            let Some((message, reply)) = taken else { return };
            while tasks.try_join_next().is_some() {}
            // Another process has the shards, and answers it; or none has.
            if !self.owner.may_answer() {
                continue;
            }
            let (head, body) = match parted::<RequestHead>(&message) {
                Ok(read) => read,
                Err(why) => {
                    let problem = Problem::invalid(format!("not a forwarded request: {why}"));
                    self.refuse("", problem, reply).await;
                    continue;
                }
            };
            let Ok(place) = self.place(&head) else {
                let problem = Problem::unavailable(
                    "the process that has the shards answers as many forwarded requests as its http.forwards_max says; retry later",
                );
                self.refuse(&head.traceparent, problem, reply).await;
                continue;
            };
            let (router, patience, owner) = (self.router.clone(), self.patience, Arc::clone(&self.owner));
            tasks.spawn(async move {
                let _place = place;
                let trace = RequestTrace::behind(&head.traceparent);
                let response = trace::within(trace, async {
                    let response = answered(router, head, body).await;
                    if owner.may_answer() {
                        return response;
                    }
                    let why = "the process that was asked has lost its shards meanwhile; a change may have been made";
                    Problem::unanswered(why).into_response()
                });
                sent(pass_on(response.await, reply, patience, &*owner).await);
            });
        }
    }

    /// A place among the requests that are answered; none is needed for one that waits.
    fn place(&self, head: &RequestHead) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        if head.waits {
            return Ok(None);
        }
        Arc::clone(&self.places).try_acquire_owned().map(Some)
    }

    /// Sends a problem, which is one part, so that nobody is waited for.
    async fn refuse(&self, traceparent: &str, problem: Problem, reply: Box<dyn Reply>) {
        let trace = RequestTrace::behind(traceparent);
        let response = trace::within(trace, async { problem.into_response() }).await;
        sent(pass_on(response, reply, self.patience, &*self.owner).await);
    }
}

/// An answer that nobody reads to its end is not news.
fn sent(outcome: Result<(), ForwardingError>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a forwarded request was not answered to the end");
    }
}

/// The request as the router takes it.
fn request(head: RequestHead, body: Bytes) -> Result<Request, Problem> {
    let principal = Principal::vouched(head.principal, head.role, head.tenant);
    let mut request = Request::builder()
        .method(head.method.as_str())
        .uri(head.target)
        .header(header::HOST, "localhost")
        .header(trace::TRACEPARENT, head.traceparent)
        .extension(Vouched {
            principal,
            is_audited: head.audited,
        });
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    for (name, value) in head.headers {
        request = request.header(name, value);
    }
    let unreadable = |error: axum::http::Error| Problem::invalid(format!("not a forwarded request: {error}"));
    request.body(Body::from(body)).map_err(unreadable)
}

async fn answered(router: Router, head: RequestHead, body: Bytes) -> Response {
    let request = match request(head, body) {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    match TowerToHyperService::new(router).call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Sends an answer in parts as large as the broker takes them, each part of a stream as it comes.
async fn pass_on(
    response: Response,
    mut reply: Box<dyn Reply>,
    patience: Duration,
    owner: &dyn Owner,
) -> Result<(), ForwardingError> {
    let (parts, body) = response.into_parts();
    let kept = |name: &HeaderName| {
        let value = parts.headers.get(name).map(HeaderValue::to_str)?.ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    };
    let head = AnswerHead {
        status: parts.status.as_u16(),
        headers: ANSWERED.iter().filter_map(kept).collect(),
    };
    let is_stream = head
        .headers
        .iter()
        .any(|(_, value)| value.starts_with("text/event-stream"));
    let most = reply.part_bytes_max();
    let mut part = BytesMut::from(&joined(&head, &[])[..]);
    let mut body = body.into_data_stream();
    loop {
        // The head of a stream does not wait for its first event.
        if is_stream && !part.is_empty() {
            reply.send(part.split().freeze(), patience).await?;
        }
        let Some(chunk) = body.next().await else {
            return reply.finish(part.freeze()).await;
        };
        // A client that watches comes back, to the process that has the shards now.
        if is_stream && !owner.may_answer() {
            return reply.finish(Bytes::new()).await;
        }
        let chunk = chunk.map_err(|error| ForwardingError::Unanswered(error.to_string()))?;
        part.extend_from_slice(&chunk);
        while part.len() > most {
            reply.send(part.split_to(most).freeze(), patience).await?;
        }
    }
}
