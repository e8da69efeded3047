//! The HTTP API: health, metrics, drain, events, instances and dead letters.
//!
//! It knows `ports::control` and nothing behind it. Errors are problem+json (RFC 9457) with a stable code.

mod account;
pub mod aliases;
mod answers;
mod audit;
pub mod auth;
mod connections;
pub mod contract;
mod definitions;
pub mod endpoints;
mod entrance;
pub mod extract;
mod files;
mod forwarding;
mod gate;
mod guard;
pub mod instances;
mod jobs;
mod letters;
mod negotiation;
pub mod openapi;
pub mod operations;
mod pages;
mod pending;
pub mod problem;
pub mod queries;
mod requests;
mod schedules;
pub mod search;
mod settings;
pub mod tls;
mod trace;
mod verbs;
mod watch;

pub use answers::Answers;
pub use connections::serve;
pub use forwarding::{Bounds as ForwardBounds, Owner as ForwardOwner, serve as serve_forwarded};
pub use settings::{Authentication, Settings};

use std::any::Any;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

use self::auth::Door;
use self::endpoints::{Endpoint, Kind, Place};
use self::entrance::Entrance;
use self::gate::Gate;
use self::guard::Hosts;
use self::problem::Problem;
use crate::kernel::ids::TenantId;
use crate::kernel::subject::Tenancy;
use crate::ports::clock::Clock;
use crate::ports::control::Control;
use crate::telemetry::Metrics;

/// What every handler can reach.
#[derive(Clone)]
pub struct ApiState {
    pub control: Arc<dyn Control>,
    pub tenancy: Tenancy,
    /// The tenants served; `None` for any.
    pub tenants: Option<Arc<[TenantId]>>,
    /// Knows principals by their credentials.
    pub door: Arc<Door>,
    pub clock: Arc<dyn Clock>,
    /// Takes the spans of requests.
    pub metrics: Arc<Metrics>,
    /// Whether events are accepted over HTTP.
    pub accept_events: bool,
    /// Places of requests that wait.
    pub waits: Arc<Semaphore>,
    /// Places of watches.
    pub streams: Arc<Semaphore>,
    /// Longest wait of a request.
    pub wait_max: Duration,
    /// Longest time until a request is answered that does not wait.
    pub request_timeout: Duration,
    /// Longest time in which a client may take an answer.
    pub answer_timeout: Duration,
    /// Bytes of one page of a list.
    pub page_bytes_max: usize,
    /// Places of the portions of lists that are being read.
    pub reads: Arc<Semaphore>,
    /// What clients have not taken yet.
    pub answers: Answers,
    /// The listener of operators, where it is not that of tenants.
    pub admin_address: Option<SocketAddr>,
    /// Bounds of the requests that another process answers.
    pub forwarding: ForwardBounds,
}

/// Largest request body, in bytes.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Refuses a body that announces itself as too large before it is sent, and explains an answer out of time.
async fn bounded(request: Request, next: Next) -> Response {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Problem::too_large("body is larger than 1 MiB").into_response();
    }
    let response = next.run(request).await;
    // The time limit answers with a bare status; whatever else says 503 has told why.
    let bare = !response.headers().contains_key(header::CONTENT_TYPE);
    if response.status() == StatusCode::SERVICE_UNAVAILABLE && bare {
        return Problem::unavailable("the request took longer than http.request_timeout").into_response();
    }
    response
}

/// Hears of the panic of a request.
pub type OnPanic = Arc<dyn Fn(&(dyn Any + Send)) + Send + Sync>;

/// Answers for a handler that panics in this router, and tells of it.
fn answering_panics<S: Clone + Send + Sync + 'static>(router: Router<S>, on_panic: OnPanic) -> Router<S> {
    let answer = move |panic: Box<dyn Any + Send>| {
        on_panic(&*panic);
        Problem::internal("internal error of the runner; please report it with the log").into_response()
    };
    router.layer(CatchPanicLayer::custom(answer))
}

/// Builds the router of the endpoints in `place`.
pub fn router(state: ApiState, settings: &Settings, place: Place, on_panic: OnPanic) -> Router {
    let all = endpoints::all(state.tenancy);
    let entrance = Entrance::new(state.tenancy, &all);
    let mut router = Router::new();
    let paths = |of: Place| -> BTreeSet<String> {
        let elsewhere = all.iter().filter(|endpoint| endpoint.place == of);
        elsewhere.map(|endpoint| endpoint.path.clone()).collect()
    };
    if place == Place::Tenants {
        for path in paths(Place::Admin) {
            router = router.route(&path, any(problem::on_the_admin_address));
        }
    }
    if place == Place::Admin {
        for path in paths(Place::Tenants) {
            router = router.route(&path, any(problem::on_the_tenants_address));
        }
    }
    let here = |endpoint: &Endpoint| {
        place == Place::Everywhere || endpoint.place == place || endpoint.place == Place::Everywhere
    };
    for endpoint in all.into_iter().filter(here) {
        let path = endpoint.path.clone();
        router = router.route(&path, gated(endpoint, &state, settings));
    }
    let router = router
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(
            Hosts::new(&settings.hosts),
            guard::guard,
        ))
        .with_state(state);
    entered(answering_panics(router, on_panic), entrance)
}

/// A router behind the entrance, which may change the path by which the endpoint is found.
fn entered(router: Router, entrance: Entrance) -> Router {
    let entering = middleware::from_fn_with_state(entrance, entrance::enter);
    Router::new().fallback_service(router).layer(entering)
}

/// The handler of an endpoint behind its gate.
fn gated(endpoint: Endpoint, state: &ApiState, settings: &Settings) -> MethodRouter<ApiState> {
    let (handler, is_slow, waits) = (
        endpoint.handler.clone(),
        endpoint.kind == Kind::Slow,
        endpoint.waits(),
    );
    let gate = Gate {
        state: state.clone(),
        endpoint: Arc::new(endpoint),
    };
    let handler = handler.route_layer(middleware::from_fn_with_state(gate, gate::pass));
    if is_slow {
        return handler;
    }
    if waits {
        return handler.route_layer(middleware::from_fn_with_state(state.clone(), requests::limit));
    }
    handler.route_layer(TimeoutLayer::with_status_code(
        StatusCode::SERVICE_UNAVAILABLE,
        settings.request_timeout.duration(),
    ))
}

/// The paths of all endpoints.
#[must_use]
pub fn paths(tenancy: Tenancy) -> BTreeSet<String> {
    endpoints::all(tenancy)
        .into_iter()
        .map(|endpoint| endpoint.path)
        .collect()
}

/// What is answered where there are more connections than there may be.
pub fn crowded(state: ApiState) -> Router {
    let probes = endpoints::probes();
    let entrance = Entrance::new(state.tenancy, &probes);
    let router = probes.into_iter().fold(Router::new(), |router, endpoint| {
        router.route(&endpoint.path, endpoint.handler)
    });
    entered(
        router.fallback(problem::too_many_connections).with_state(state),
        entrance,
    )
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    async fn broken() -> StatusCode {
        panic!("boom")
    }

    #[tokio::test]
    async fn a_panic_is_a_problem_like_any_other_and_told() {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let on_panic: OnPanic = Arc::new(move |panic| {
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"boom"));
            count.fetch_add(1, Ordering::Relaxed);
        });
        let router: Router = answering_panics(Router::new().route("/", get(broken)), on_panic);
        let request = Request::new(axum::body::Body::empty());
        let answer = TowerToHyperService::new(router)
            .call(request)
            .await
            .expect("an answer");
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = axum::body::to_bytes(answer.into_body(), 1024)
            .await
            .expect("a body");
        let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(problem["code"], "SR0507");
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
