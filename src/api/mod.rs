//! The HTTP API: health, metrics, drain, events, instances and dead letters.
//!
//! It knows `ports::control` and nothing behind it. Errors are problem+json (RFC 9457) with a stable code.

pub mod aliases;
mod definitions;
pub mod extract;
pub mod instances;
pub mod operations;
pub mod problem;
mod schedules;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

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
/// Longest time that a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses a body that announces itself as too large before it is sent, and explains an answer out of time.
async fn bounded(request: Request, next: Next) -> Response {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Problem::too_large("the body may have at most 1 MiB").into_response();
    }
    let response = next.run(request).await;
    // The time limit answers with a bare status; whatever else says 503 has told why.
    let bare = !response.headers().contains_key(header::CONTENT_TYPE);
    if response.status() == StatusCode::SERVICE_UNAVAILABLE && bare {
        return Problem::unavailable("the request took longer than 10 s").into_response();
    }
    response
}

/// Answers for a handler that panicked; the panic itself is in the log.
fn panicked(_cause: Box<dyn std::any::Any + Send>) -> Response {
    Problem::internal("the request met a fault of the runner; please report what its log says")
        .into_response()
}

/// Builds the router.
pub fn router(state: ApiState) -> Router {
    let tenant = Router::new()
        .route("/events", post(instances::publish_event))
        .route(
            "/sagas/{saga}/instances",
            get(instances::list).post(instances::start),
        )
        .route("/sagas/{saga}/instances/{key}", get(instances::show))
        .route("/sagas/{saga}/instances/{key}/inputs", get(instances::inputs))
        .route("/sagas/{saga}/instances/{key}/cancel", post(instances::cancel))
        .route(
            "/sagas/{saga}/instances/{key}/signals/{name}",
            post(instances::signal),
        )
        .route("/sagas/{saga}/instances/{key}/retry", post(instances::retry))
        .route("/sagas/{saga}/instances/{key}/skip", post(instances::skip))
        .route("/sagas/{saga}/instances/{key}/resolve", post(instances::resolve))
        .route("/sagas/{saga}/aliases/{name}/{value}", get(aliases::show))
        .route("/schedules", get(schedules::list))
        .route("/sagas/{saga}/schedule", get(schedules::show))
        .route("/sagas/{saga}/schedule/pause", post(schedules::pause))
        .route("/sagas/{saga}/schedule/resume", post(schedules::resume))
        .route("/dead-letters", get(instances::dead_letters))
        .route("/dead-letters/{id}/retry", post(instances::retry_dead_letter))
        .route("/dead-letters/{id}/discard", post(instances::discard_dead_letter));
    // Without multi-tenancy the tenant segment is absent, as it is in subjects.
    let prefix = match state.tenancy {
        Tenancy::Multi => "/v1/tenants/{tenant}",
        Tenancy::Single => "/v1",
    };
    Router::new()
        .route("/live", get(operations::live))
        .route("/health", get(operations::health))
        .route("/ready", get(operations::ready))
        .route("/metrics", get(operations::metrics))
        .route("/info", get(operations::info))
        .route("/admin/drain", post(operations::drain))
        .route("/admin/reload", post(operations::reload))
        .route("/v1/definitions", get(definitions::list))
        .route("/v1/definitions/{hash}", get(definitions::show))
        .route("/admin/breakers", get(operations::breakers))
        .route("/admin/breakers/{upstream}", post(operations::force_breaker))
        .route("/v1/definitions/{hash}/migrate", post(definitions::migrate))
        .route("/v1/migrations/{id}", get(definitions::migration))
        .route("/v1/callbacks/{token}", post(instances::callback))
        .nest(prefix, tenant)
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            REQUEST_TIMEOUT,
        ))
        .layer(middleware::from_fn(bounded))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_problem_like_any_other() {
        let answer = panicked(Box::new("boom"));
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = axum::body::to_bytes(answer.into_body(), 1024)
            .await
            .expect("a body");
        let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(problem["code"], "SR0507");
    }
}
