//! Probes, metrics and the drain.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::ApiState;
use super::account;
use super::extract::{PageParameters, Parameters, Shard};
use super::instances::{body_of, sized};
use super::negotiation;
use super::problem::Problem;
use crate::kernel::ids::TenantId;
use crate::kernel::subject::Tenancy;
use crate::ports::control::{AcceptRequest, AcceptVerb, BreakerForce, DrainStarted, ReloadError};
use crate::ports::held::{HeldRequest, HeldVerb};

/// 200 while the process moves. It asks neither storage nor broker: a restart fixes neither.
pub async fn live(State(state): State<ApiState>) -> Response {
    if state.control.alive() {
        Json(json!({"live": true})).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"live": false}))).into_response()
    }
}

/// 200 if storage and broker answer, 503 otherwise; the body tells each check.
pub async fn health(State(state): State<ApiState>) -> Response {
    let health = state.control.health().await;
    (status(health.healthy), Json(health)).into_response()
}

/// 200 while this process takes work.
pub async fn ready(State(state): State<ApiState>) -> Response {
    let readiness = state.control.ready().await;
    (status(readiness.ready), Json(readiness)).into_response()
}

/// All series, in the format that the client prefers.
pub async fn metrics(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    let format = negotiation::metrics_format(&headers);
    // A cache must not give one client what another one has asked for.
    let told = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, "accept"),
    ];
    (told, state.control.metrics(format)).into_response()
}

/// What happened in the last hour.
pub async fn rates(State(state): State<ApiState>) -> Response {
    Json(state.control.rates()).into_response()
}

pub async fn info(State(state): State<ApiState>) -> Response {
    Json(state.control.info()).into_response()
}

/// Begins the drain: 202, also where one is already under way.
pub async fn drain(State(state): State<ApiState>) -> Response {
    let began = match state.control.drain() {
        DrainStarted::Now => true,
        DrainStarted::Before => false,
    };
    (
        StatusCode::ACCEPTED,
        Json(json!({"draining": true, "began_now": began})),
    )
        .into_response()
}

/// Reads the definitions again: 200 with what changed, 422 with every finding where nothing did.
pub async fn reload(State(state): State<ApiState>) -> Response {
    match state.control.reload().await {
        Ok(reloaded) => Json(reloaded).into_response(),
        Err(ReloadError::Unavailable(message)) => Problem::unavailable(message).into_response(),
        Err(ReloadError::Refused { message, findings }) => {
            let mut problem = Problem::refused(message);
            problem.errors = findings.iter().map(|finding| json!(finding)).collect();
            problem.into_response()
        }
    }
}

/// The breakers of this process: each upstream, and the tenants for which it is not simply closed.
pub async fn breakers(State(state): State<ApiState>) -> Response {
    Json(json!({"items": state.control.breakers()})).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceRequest {
    state: BreakerForce,
    /// Absent: for all tenants.
    #[serde(default)]
    tenant: Option<TenantId>,
    /// For the audit alone, as `reason`.
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
}

/// Sets a breaker of this process to open, closed or auto.
pub async fn force_breaker(
    State(state): State<ApiState>,
    Path(upstream): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let request: ForceRequest = body_of(&sized(body)?)?;
    account::check(&request.by, &request.reason)?;
    let tenant = match (state.tenancy, request.tenant) {
        (Tenancy::Single, Some(_)) => {
            return Err(Problem::invalid("this runner runs without tenants"));
        }
        // Without multi-tenancy there is one, which has no name.
        (_, tenant) => tenant,
    };
    state
        .control
        .force_breaker(&upstream, tenant.as_ref(), request.state)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// All shards of the cluster.
pub async fn shards(State(state): State<ApiState>) -> Result<Response, Problem> {
    Ok(Json(json!({"items": state.control.shards().await?})).into_response())
}

/// Opens a shard in this process.
pub async fn open_shard(State(state): State<ApiState>, Shard(shard): Shard) -> Result<Response, Problem> {
    state.control.open_shard(shard).await?;
    Ok(Json(json!({"shard": shard, "open": true})).into_response())
}

/// Drains and closes a shard of this process.
pub async fn close_shard(State(state): State<ApiState>, Shard(shard): Shard) -> Result<Response, Problem> {
    state.control.close_shard(shard).await?;
    Ok(Json(json!({"shard": shard, "open": false})).into_response())
}

/// All rows of a shard, as a file.
pub async fn backup_shard(State(state): State<ApiState>, Shard(shard): Shard) -> Result<Response, Problem> {
    let backup = state.control.backup(shard).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{}\"", backup.name),
        ),
    ];
    Ok((headers, Body::from_stream(backup.chunks)).into_response())
}

/// Lets a shard go on behind messages that are gone.
pub async fn accept_gap(
    state: State<ApiState>,
    shard: Shard,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    accept(state, shard, body, AcceptVerb::Gap).await
}

/// Lets a shard go on in a stream that is not the one that it has read.
pub async fn rebind(
    state: State<ApiState>,
    shard: Shard,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    accept(state, shard, body, AcceptVerb::Rebind).await
}

async fn accept(
    State(state): State<ApiState>,
    Shard(shard): Shard,
    body: Result<Bytes, BytesRejection>,
    verb: AcceptVerb,
) -> Result<Response, Problem> {
    let request: AcceptRequest = body_of(&sized(body)?)?;
    account::check(&request.by, "")?;
    Ok(Json(state.control.accept(shard, verb, request).await?).into_response())
}

/// What a shard holds back that goes on from an adopted state: `?after=<cursor>&limit=<1..500>`.
pub async fn pending(
    State(state): State<ApiState>,
    Shard(shard): Shard,
    Parameters(query): Parameters<PageParameters>,
) -> Result<Response, Problem> {
    let page = query.page()?;
    Ok(Json(state.control.pending(shard, page).await?).into_response())
}

/// Lets it go.
pub async fn release(
    state: State<ApiState>,
    shard: Shard,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide_held(state, shard, body, HeldVerb::Release).await
}

/// Gives some of it up.
pub async fn discard(
    state: State<ApiState>,
    shard: Shard,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide_held(state, shard, body, HeldVerb::Discard).await
}

async fn decide_held(
    State(state): State<ApiState>,
    Shard(shard): Shard,
    body: Result<Bytes, BytesRejection>,
    verb: HeldVerb,
) -> Result<Response, Problem> {
    let request: HeldRequest = body_of(&sized(body)?)?;
    account::check(&request.by, "")?;
    Ok(Json(state.control.decide_held(shard, verb, request).await?).into_response())
}

const fn status(ok: bool) -> StatusCode {
    if ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
