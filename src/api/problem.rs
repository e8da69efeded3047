//! Errors as RFC 9457 problem details.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::ApiState;
use crate::kernel::subject::Tenancy;
use crate::ports::control::ControlError;

/// One refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub title: &'static str,
    pub status: u16,
    pub detail: String,
    /// Stable code, with a page under docs/errors/.
    pub code: &'static str,
}

impl Problem {
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid request", "SR0501", detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not found", "SR0502", detail)
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "SR0503", detail)
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
        }
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotFound(detail) => Self::not_found(detail),
            ControlError::Invalid(detail) => Self::invalid(detail),
            ControlError::Conflict(detail) => Self::conflict(detail),
            ControlError::Gone(detail) => Self::gone(detail),
            ControlError::Unavailable(detail) => Self::unavailable(detail),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
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

pub async fn too_many_connections() -> Problem {
    Problem::unavailable("the API has reached http.connections_max; retry later")
}

pub async fn no_such_method() -> Response {
    let mut problem = Problem::invalid("method not allowed");
    problem.status = StatusCode::METHOD_NOT_ALLOWED.as_u16();
    problem.into_response()
}
