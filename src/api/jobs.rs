//! Jobs: one verb for many instances.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::ApiState;
use super::audit::MadeId;
use super::auth;
use super::extract::{self, Names};
use super::instances::{body_of, control_request, sized};
use super::problem::Problem;
use super::queries::LetterParameters;
use super::requests;
use super::search::FilterParameters;
use crate::kernel::envelope::{FoundAs, Role};
use crate::kernel::input::CancelMode;
use crate::ports::control::{JobCommand, JobFilter, JobOptions, JobOrder, JobRequest, JobVerb};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartRequest {
    verb: JobVerb,
    /// The parameters of the list of instances, or of that of dead letters, by name.
    #[serde(default)]
    filter: BTreeMap<String, String>,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    dry_run: bool,
    /// Instances a second; that of the manifest where nothing is said.
    #[serde(default)]
    rate: Option<u32>,
    #[serde(default)]
    mode: Option<CancelMode>,
    #[serde(default)]
    ended: bool,
    #[serde(default)]
    step: Option<String>,
    #[serde(default, rename = "as")]
    found: Option<FoundAs>,
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    all: bool,
}

/// Stores a job, or says what it would be about: 202 with the job, 200 with the plan of a dry run.
pub async fn start(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let request: StartRequest = body_of(&sized(body)?)?;
    if request.rate == Some(0) {
        return Err(Problem::invalid("`rate` is a number of instances a second, from 1").of("body", "rate"));
    }
    let filter = if request.verb.is_about_letters() {
        JobFilter::Letters(LetterParameters::read(&request.filter)?.filter()?)
    } else {
        JobFilter::Instances(FilterParameters::read(&request.filter)?.filter()?)
    };
    let job = JobRequest {
        filter,
        order: JobOrder {
            verb: request.verb,
            options: JobOptions {
                mode: request.mode,
                ended: request.ended,
                step: request.step,
                found: request.found,
                to: request.to,
                all: request.all,
            },
            filter: request.filter,
            principal: auth::operator(request.by, request.reason),
            rate: request.rate.unwrap_or_default(),
        },
        key: requests::given(),
    };
    if job.order.verb == JobVerb::Delete && job.order.principal.role < Role::Admin {
        return Err(Problem::forbidden(Role::Admin));
    }
    if request.dry_run {
        return Ok(Json(state.control.plan_job(&tenant, job).await?).into_response());
    }
    let started = state.control.start_job(&tenant, job).await?;
    let id = MadeId(started.id.clone());
    let mut response = (StatusCode::ACCEPTED, Json(started)).into_response();
    response.extensions_mut().insert(id);
    Ok(response)
}

/// The jobs that are kept, the newest first.
pub async fn list(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let items = state.control.jobs(&tenant).await?;
    Ok(Json(json!({ "items": items })).into_response())
}

/// One job, with its progress.
pub async fn show(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    Ok(Json(state.control.job(&tenant, id(&names)).await?).into_response())
}

/// Sends nothing more until it is resumed.
pub async fn pause(
    state: State<ApiState>,
    names: Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    command(state, names, body, JobCommand::Pause).await
}

/// Goes on where it was.
pub async fn resume(
    state: State<ApiState>,
    names: Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    command(state, names, body, JobCommand::Resume).await
}

/// Ends it: what was sent stands.
pub async fn stop(
    state: State<ApiState>,
    names: Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    command(state, names, body, JobCommand::Stop).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CommandRequest {
    by: String,
    reason: String,
}

async fn command(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
    command: JobCommand,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let request: CommandRequest = control_request(&sized(body)?)?;
    let principal = auth::operator(request.by, request.reason);
    let told = state.control.command_job(&tenant, id(&names), command, principal);
    Ok(Json(told.await?).into_response())
}

fn id(names: &Names) -> &str {
    names.get("id").map_or("", String::as_str)
}
