//! What operators decide about dead letters.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;

use super::ApiState;
use super::auth;
use super::extract::{self, Names};
use super::instances::{control_request, sized};
use super::problem::Problem;
use crate::ports::control::{LetterDecision, LetterOrder};

/// `{"by": ..., "reason": ...}`, and of a retry `"data"`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LetterRequest {
    by: String,
    reason: String,
    /// Applied in the place of the data that came.
    data: Option<Value>,
}

/// Applies it again, as it came or with other data.
pub async fn retry(
    state: State<ApiState>,
    names: Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide(state, names, body, LetterDecision::Retry).await
}

/// Forgets it, and goes on with what waits behind it.
pub async fn discard(
    state: State<ApiState>,
    names: Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide(state, names, body, LetterDecision::Discard).await
}

async fn decide(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
    decision: LetterDecision,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let id = names.get("id").map_or("", String::as_str);
    let request: LetterRequest = control_request(&sized(body)?)?;
    if request.data.is_some() && decision == LetterDecision::Discard {
        return Err(Problem::invalid("a dead letter that is discarded has no `data`").of("body", "data"));
    }
    let order = LetterOrder {
        edited: request.data.map(|data| Bytes::from(data.to_string())),
        principal: auth::operator(request.by, request.reason),
        ..LetterOrder::from(decision)
    };
    state.control.decide(&tenant, id, order).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
