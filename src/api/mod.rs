//! The HTTP API: health, metrics, drain, events, instances and dead letters.
//!
//! It knows `ports::control` and nothing behind it. Errors are problem+json (RFC 9457) with a stable code.

pub mod aliases;
mod connections;
mod definitions;
pub mod extract;
mod guard;
pub mod instances;
pub mod operations;
pub mod problem;
mod schedules;
mod settings;

pub use connections::serve;
pub use settings::{Authentication, Settings};

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

use self::guard::Hosts;
use self::problem::Problem;
use crate::kernel::subject::Tenancy;
use crate::ports::control::Control;

/// What every handler can reach.
#[derive(Clone)]
pub struct ApiState {
    pub control: Arc<dyn Control>,
    pub tenancy: Tenancy,
    /// Whether events are accepted over HTTP.
    pub accept_events: bool,
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

/// Builds the router.
pub fn router(state: ApiState, settings: &Settings, on_panic: OnPanic) -> Router {
    let quick = routed(quick_pages(state.tenancy))
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            settings.request_timeout.duration(),
        ));
    let slow = routed(slow_pages()).method_not_allowed_fallback(problem::no_such_method);
    let router = quick
        .merge(slow)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(
            Hosts::new(&settings.hosts),
            guard::guard,
        ));
    answering_panics(router, on_panic).with_state(state)
}

/// The paths of all pages.
#[must_use]
pub fn paths(tenancy: Tenancy) -> Vec<String> {
    let pages = quick_pages(tenancy).into_iter().chain(slow_pages());
    pages.map(|(path, _)| path).collect()
}

/// A path, and what is answered there.
type Page = (String, MethodRouter<ApiState>);

fn routed(pages: Vec<Page>) -> Router<ApiState> {
    let pages = pages.into_iter();
    pages.fold(Router::new(), |router, (path, methods)| {
        router.route(&path, methods)
    })
}

/// Pages whose answer may take as long as a shard needs for what is asked for, which goes on without whoever asked.
fn slow_pages() -> Vec<Page> {
    [
        ("open", plain(post(operations::open_shard))),
        ("close", plain(post(operations::close_shard))),
    ]
    .map(|(verb, methods)| (format!("/admin/shards/{{shard}}/{verb}"), methods))
    .into()
}

fn quick_pages(tenancy: Tenancy) -> Vec<Page> {
    let tenant = [
        ("/events", plain(post(instances::publish_event))),
        (
            "/sagas/{saga}/instances",
            plain(post(instances::start)).get(instances::list),
        ),
        ("/sagas/{saga}/instances/{key}", get(instances::show)),
        ("/sagas/{saga}/instances/{key}/inputs", get(instances::inputs)),
        (
            "/sagas/{saga}/instances/{key}/cancel",
            plain(post(instances::cancel)),
        ),
        (
            "/sagas/{saga}/instances/{key}/signals/{name}",
            plain(post(instances::signal)),
        ),
        (
            "/sagas/{saga}/instances/{key}/retry",
            plain(post(instances::retry)),
        ),
        ("/sagas/{saga}/instances/{key}/skip", plain(post(instances::skip))),
        (
            "/sagas/{saga}/instances/{key}/resolve",
            plain(post(instances::resolve)),
        ),
        ("/sagas/{saga}/aliases/{name}/{value}", plain(get(aliases::show))),
        ("/schedules", plain(get(schedules::list))),
        ("/sagas/{saga}/schedule", plain(get(schedules::show))),
        ("/sagas/{saga}/schedule/pause", plain(post(schedules::pause))),
        ("/sagas/{saga}/schedule/resume", plain(post(schedules::resume))),
        ("/dead-letters", get(instances::dead_letters)),
        (
            "/dead-letters/{id}/retry",
            plain(post(instances::retry_dead_letter)),
        ),
        (
            "/dead-letters/{id}/discard",
            plain(post(instances::discard_dead_letter)),
        ),
    ];
    // Without multi-tenancy the tenant segment is absent, as it is in subjects.
    let prefix = match tenancy {
        Tenancy::Multi => "/v1/tenants/{tenant}",
        Tenancy::Single => "/v1",
    };
    let common = [
        ("/health", plain(get(operations::health))),
        ("/metrics", plain(get(operations::metrics))),
        ("/info", plain(get(operations::info))),
        ("/admin/drain", plain(post(operations::drain))),
        ("/admin/reload", plain(post(operations::reload))),
        ("/v1/definitions", get(definitions::list)),
        ("/v1/definitions/{hash}", plain(get(definitions::show))),
        ("/admin/breakers", plain(get(operations::breakers))),
        (
            "/admin/breakers/{upstream}",
            plain(post(operations::force_breaker)),
        ),
        ("/admin/shards", plain(get(operations::shards))),
        (
            "/admin/shards/{shard}/accept-gap",
            plain(post(operations::accept_gap)),
        ),
        ("/admin/shards/{shard}/rebind", plain(post(operations::rebind))),
        ("/admin/shards/{shard}/pending", get(operations::pending)),
        ("/admin/shards/{shard}/release", plain(post(operations::release))),
        ("/admin/shards/{shard}/discard", plain(post(operations::discard))),
        ("/v1/definitions/{hash}/migrate", post(definitions::migrate)),
        ("/v1/migrations/{id}", plain(get(definitions::migration))),
        ("/v1/callbacks/{token}", plain(post(instances::callback))),
    ];
    let tenant = tenant.map(|(path, methods)| (format!("{prefix}{path}"), methods));
    let common = common.map(|(path, methods)| (path.to_owned(), methods));
    probes().into_iter().chain(common).chain(tenant).collect()
}

/// What is answered where there are more connections than there may be.
pub fn crowded(state: ApiState) -> Router {
    routed(probes())
        .fallback(problem::too_many_connections)
        .with_state(state)
}

/// What orchestrators ask.
fn probes() -> Vec<Page> {
    vec![
        ("/live".to_owned(), plain(get(operations::live))),
        ("/ready".to_owned(), plain(get(operations::ready))),
    ]
}

/// Methods that take no query parameter.
fn plain(methods: MethodRouter<ApiState>) -> MethodRouter<ApiState> {
    methods.layer(middleware::from_fn(extract::no_parameters))
}

#[cfg(test)]
mod tests {
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
