//! What operators do to an instance as a whole, and to its timers.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::json;

use super::ApiState;
use super::auth;
use super::extract::{self, Names, Parameters};
use super::instances::{body_of, control_request, decide, sized};
use super::problem::Problem;
use super::requests::WaitParameters;
use crate::kernel::envelope::ControlVerb;
use crate::ports::control::{Destination, InstanceMigrationRequest};

/// `{"by": ..., "reason": ..., "request_id": ...}`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OperationRequest {
    by: String,
    reason: String,
    request_id: Option<String>,
}

/// The same with `"step"`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TryNowRequest {
    step: Option<String>,
    by: String,
    reason: String,
    request_id: Option<String>,
}

/// `{"to": ..., "dry_run": ..., "by": ..., "reason": ...}`, or `"undo": true` in place of `to`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MigrateRequest {
    to: Option<String>,
    undo: bool,
    dry_run: bool,
    by: String,
    reason: String,
}

impl MigrateRequest {
    fn destination(&self) -> Result<Destination, Problem> {
        match (&self.to, self.undo) {
            (Some(hash), false) => Ok(Destination::Version(hash.clone())),
            (None, true) => Ok(Destination::Before),
            (Some(_), true) => Err(Problem::invalid("`to` and `undo` exclude each other").of("body", "undo")),
            (None, false) => Err(Problem::invalid("`migrate` needs `to`, or `undo`").of("body", "to")),
        }
    }
}

/// Keeps the inputs of an instance until it is resumed.
pub async fn pause(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    operate(&state, &names, wait, body, ControlVerb::Pause {}).await
}

/// Applies what a paused instance has kept, and lets it go on.
pub async fn resume(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    operate(&state, &names, wait, body, ControlVerb::Resume {}).await
}

/// Ends an instance at once and undoes nothing; needs a reason.
pub async fn kill(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    operate(&state, &names, wait, body, ControlVerb::Kill {}).await
}

/// Begins an instance that has ended again, with nothing kept but what it was given.
pub async fn restart(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    operate(&state, &names, wait, body, ControlVerb::Restart { event: None }).await
}

/// Deletes an instance that has ended, with its history; needs a reason.
pub async fn delete(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let verb = ControlVerb::Delete { parent_over: false };
    operate(&state, &names, wait, body, verb).await
}

/// Makes the next attempt of what backs off now: of one step and its compensation, or of all.
pub async fn try_now(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let request: TryNowRequest = control_request(&sized(body)?)?;
    let principal = auth::operator(request.by, request.reason);
    let verb = ControlVerb::TryNow { step: request.step };
    decide(&state, &names, wait, request.request_id, principal, verb).await
}

/// Fires a timer of an instance now.
pub async fn fire_timer(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let timer = timer(&names);
    operate(&state, &names, wait, body, ControlVerb::FireTimer { timer }).await
}

/// Clears a timer of an instance.
pub async fn cancel_timer(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(wait): Parameters<WaitParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let timer = timer(&names);
    operate(&state, &names, wait, body, ControlVerb::CancelTimer { timer }).await
}

/// Brings an instance over to another version of its saga, or back to the one that it came from, which needs a reason; or tells with
/// `dry_run` what would happen to it.
pub async fn migrate(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let request: MigrateRequest = body_of(&sized(body)?)?;
    let destination = request.destination()?;
    let principal = auth::operator(request.by, request.reason);
    principal.check().map_err(Problem::invalid)?;
    if principal.reason.trim().is_empty() && !request.dry_run {
        return Err(Problem::invalid("`migrate` needs a `reason`").of("body", "reason"));
    }
    let asked = InstanceMigrationRequest {
        to: destination,
        dry_run: request.dry_run,
    };
    let answer = state.control.migrate_instance(&id, asked).await?;
    if answer.problems.is_empty() {
        return Ok(Json(answer).into_response());
    }
    let told: Vec<String> = answer
        .problems
        .iter()
        .map(|found| found.message.clone())
        .collect();
    let detail = format!(
        "instance {} stays with version {}: {}",
        answer.key,
        answer.from,
        told.join("; ")
    );
    let mut problem = Problem::conflict(detail);
    let errors = answer.problems.into_iter();
    problem.errors = errors
        .map(|found| json!({"at": found.at, "detail": found.message}))
        .collect();
    Err(problem)
}

fn timer(names: &Names) -> String {
    names.get("name").cloned().unwrap_or_default()
}

async fn operate(
    state: &ApiState,
    names: &Names,
    wait: WaitParameters,
    body: Result<Bytes, BytesRejection>,
    verb: ControlVerb,
) -> Result<Response, Problem> {
    let request: OperationRequest = control_request(&sized(body)?)?;
    let principal = auth::operator(request.by, request.reason);
    decide(state, names, wait, request.request_id, principal, verb).await
}
