//! Errors as RFC 9457 problem details.

use std::borrow::Cow;
use std::net::SocketAddr;

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::audit::ProblemCode;
use super::connections::Peer;
use super::endpoints::Role;
use super::settings::is_loopback;
use super::{ApiState, trace};
use crate::kernel::subject::Tenancy;
use crate::ports::control::ControlError;

/// One refused request.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub title: &'static str,
    pub status: u16,
    pub detail: String,
    /// Stable code, with a page under docs/errors/.
    pub code: &'static str,
    /// What is wrong, one by one, where it has a place in the request or in a file.
    pub errors: Vec<serde_json::Value>,
    /// The outcome of a request to an instance.
    pub outcome: Option<serde_json::Value>,
    /// Port where the endpoint is, for clients on the same machine.
    pub admin_port: Option<u16>,
}

/// As it is sent.
#[derive(Serialize)]
struct Wire<'p> {
    /// Where this process explains the code.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: &'p str,
    code: &'static str,
    /// That of `traceparent`, or one of its own; the log has it too.
    trace_id: Option<String>,
    errors: &'p [serde_json::Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'p serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_port: Option<u16>,
}

/// The pages of the codes, as they are in docs/errors/.
const PAGES: [(&str, &str); 20] = [
    ("SR0501", include_str!("../../docs/errors/SR0501.md")),
    ("SR0502", include_str!("../../docs/errors/SR0502.md")),
    ("SR0503", include_str!("../../docs/errors/SR0503.md")),
    ("SR0504", include_str!("../../docs/errors/SR0504.md")),
    ("SR0505", include_str!("../../docs/errors/SR0505.md")),
    ("SR0506", include_str!("../../docs/errors/SR0506.md")),
    ("SR0507", include_str!("../../docs/errors/SR0507.md")),
    ("SR0508", include_str!("../../docs/errors/SR0508.md")),
    ("SR0509", include_str!("../../docs/errors/SR0509.md")),
    ("SR0510", include_str!("../../docs/errors/SR0510.md")),
    ("SR0511", include_str!("../../docs/errors/SR0511.md")),
    ("SR0512", include_str!("../../docs/errors/SR0512.md")),
    ("SR0513", include_str!("../../docs/errors/SR0513.md")),
    ("SR0514", include_str!("../../docs/errors/SR0514.md")),
    ("SR0515", include_str!("../../docs/errors/SR0515.md")),
    ("SR0518", include_str!("../../docs/errors/SR0518.md")),
    ("SR0521", include_str!("../../docs/errors/SR0521.md")),
    ("SR0522", include_str!("../../docs/errors/SR0522.md")),
    ("SR0523", include_str!("../../docs/errors/SR0523.md")),
    ("SR0525", include_str!("../../docs/errors/SR0525.md")),
];

/// Explains a code: the `type` of problems leads here.
pub async fn page(Path(code): Path<String>) -> Result<Response, Problem> {
    let found = PAGES.iter().find(|(known, _)| *known == code);
    let (_, text) = found.ok_or_else(|| Problem::not_found("no problem of this API has this code"))?;
    Ok(([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], *text).into_response())
}

impl Problem {
    /// Adds where in the request it is: in `query`, `path`, `header` or `body`, under which name.
    #[must_use]
    pub fn of(mut self, part: &str, name: &str) -> Self {
        let mut error = serde_json::json!({"in": part, "detail": self.detail});
        if !name.is_empty() {
            error["name"] = name.into();
        }
        self.errors.push(error);
        self
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid request", "SR0501", detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not found", "SR0502", detail)
    }

    /// Of a tenant that is not served, and of one that is not the caller's.
    pub fn no_such_tenant() -> Self {
        Self::not_found("no such tenant")
    }

    pub fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "credentials needed",
            "SR0512",
            "send a valid token: Authorization: Bearer <token>",
        )
    }

    /// Of a principal that may see the thing, but not do this.
    pub fn forbidden(needed: Role) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "not allowed",
            "SR0513",
            format!("this needs the role {}", needed.as_str()),
        )
    }

    /// As [`Self::forbidden`], for what belongs to no tenant.
    pub fn forbidden_everywhere(needed: Role) -> Self {
        let needed = needed.as_str();
        Self {
            detail: format!(
                "this belongs to no tenant and needs the role {needed}@*: {needed} for all tenants"
            ),
            ..Self::forbidden(Role::Viewer)
        }
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed",
            "SR0511",
            "this endpoint does not have this method; docs/operations.md lists the API",
        )
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "SR0503", detail)
    }

    /// Of a request whose id another one had.
    pub fn mismatch(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "input_mismatch", "SR0514", detail)
    }

    /// Of a start whose instance runs.
    pub fn exists(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "instance exists", "SR0515", detail)
    }

    /// Adds the outcome of the request.
    #[must_use]
    pub fn with_outcome(mut self, outcome: serde_json::Value) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Of edited data that could not be applied: by which reason of dead letters, and what is wrong.
    pub fn unfit(reason: &str, message: &str) -> Self {
        let mut problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "edited data do not fit",
            "SR0518",
            format!("the edited input would be of no use, and nothing was changed: {reason}: {message}"),
        );
        let finding = serde_json::json!({"in": "body", "name": "data", "detail": message, "reason": reason});
        problem.errors.push(finding);
        problem
    }

    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", "SR0510", detail)
    }

    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not available now",
            "SR0504",
            detail,
        )
    }

    /// Of a request that only the process with the shards can answer, where none is there.
    pub fn no_owner(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no process has the shards",
            "SR0521",
            detail,
        )
    }

    /// Of a forwarded request whose answer has not come.
    pub fn unanswered(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "no answer from another process",
            "SR0522",
            detail,
        )
    }

    /// Of a forwarded request whose answer is longer than it may be.
    pub fn answer_too_large(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "answer too large to be forwarded",
            "SR0523",
            detail,
        )
    }

    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body too large", "SR0505", detail)
    }

    pub fn refused(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "definitions refused",
            "SR0508",
            detail,
        )
    }

    pub fn media_type(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "wrong content type",
            "SR0506",
            detail,
        )
    }

    /// Of a request that no client of the API makes.
    pub fn foreign(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "foreign request", "SR0509", detail)
    }

    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal error",
            "SR0507",
            detail,
        )
    }

    fn new(status: StatusCode, title: &'static str, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            title,
            status: status.as_u16(),
            detail: detail.into(),
            code,
            errors: Vec::new(),
            outcome: None,
            admin_port: None,
        }
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotFound(detail) => Self::not_found(detail),
            ControlError::Invalid(detail) => Self::invalid(detail),
            ControlError::Conflict(detail) => Self::conflict(detail),
            ControlError::Mismatch(detail) => Self::mismatch(detail),
            ControlError::Unfit { reason, message } => Self::unfit(&reason, &message),
            ControlError::Forbidden(detail) => {
                Self::new(StatusCode::FORBIDDEN, "not allowed", "SR0513", detail)
            }
            ControlError::Gone(detail) => Self::gone(detail),
            ControlError::Unavailable(detail) => Self::unavailable(detail),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let trace_id = trace::current();
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(
                trace_id,
                code = self.code,
                detail = self.detail,
                "a request failed"
            );
        } else {
            tracing::debug!(
                trace_id,
                code = self.code,
                status = self.status,
                detail = self.detail,
                "a request was refused"
            );
        }
        let wire = Wire {
            kind: format!("/errors/{}", self.code),
            title: self.title,
            status: self.status,
            detail: &self.detail,
            code: self.code,
            trace_id,
            errors: &self.errors,
            outcome: self.outcome.as_ref(),
            admin_port: self.admin_port,
        };
        let mut response = (status, Json(wire)).into_response();
        let code = ProblemCode(Cow::Borrowed(self.code));
        response.extensions_mut().insert(code);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

pub async fn no_such_page(State(state): State<ApiState>, uri: Uri) -> Problem {
    let has_tenant = uri.path().starts_with("/v1/tenants/");
    Problem::not_found(match state.tenancy {
        Tenancy::Multi if !has_tenant && uri.path().starts_with("/v1/") => {
            "no such endpoint; endpoints of a tenant begin with /v1/tenants/<tenant>"
        }
        Tenancy::Single if has_tenant => {
            "no such endpoint; this runner runs without tenants, and its endpoints begin with /v1"
        }
        Tenancy::Multi | Tenancy::Single => "no such endpoint; docs/operations.md lists the API",
    })
}

/// Answers for what is on the listener of operators only. Its port is told to clients on the same machine alone,
/// which reach it by the address that they used.
pub async fn on_the_admin_address(State(state): State<ApiState>, peer: Option<Extension<Peer>>) -> Problem {
    let is_here = peer.is_some_and(|Extension(Peer(peer))| is_loopback(peer.ip()));
    let reached_here = |address: &SocketAddr| address.ip().is_unspecified() || is_loopback(address.ip());
    let detail = "this endpoint is on the address of http.admin_listen; name it by --admin-url, SAGA_RUNNER_ADMIN_URL or admin_url of the profile";
    Problem {
        admin_port: state
            .admin_address
            .filter(reached_here)
            .filter(|_| is_here)
            .map(|address| address.port()),
        ..on_the_other_address(detail)
    }
}

/// Answers on the listener of operators for what is on that of tenants only.
pub async fn on_the_tenants_address() -> Problem {
    on_the_other_address(
        "this endpoint is on the address of http.listen; name it by --url, SAGA_RUNNER_URL or url of the profile",
    )
}

fn on_the_other_address(detail: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "on the other address", "SR0525", detail)
}

pub async fn too_many_connections() -> Problem {
    Problem::unavailable("the API has reached http.connections_max; retry later")
}

pub async fn no_such_method() -> Problem {
    Problem::method_not_allowed()
}
