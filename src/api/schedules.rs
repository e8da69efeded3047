//! Sagas that start by the clock: where their schedules stand, and pauses.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::ApiState;
use super::account::Account;
use super::auth;
use super::extract::{self, Names};
use super::instances::{control_request, sized};
use super::problem::Problem;
use crate::ports::control::{ScheduleOrder, ScheduleView};

/// All schedules of the tenant.
pub async fn list(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let items = state.control.schedules(&tenant).await?;
    Ok(Json(json!({ "items": items })).into_response())
}

/// That of one saga.
pub async fn show(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    Ok(Json(found(&state, &names).await?).into_response())
}

/// Nothing starts by it until it is resumed; what would have is skipped.
pub async fn pause(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    order(&state, &names, body, ScheduleOrder::Pause).await
}

/// It goes on with the next planned time.
pub async fn resume(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    order(&state, &names, body, ScheduleOrder::Resume).await
}

async fn order(
    state: &ApiState,
    names: &Names,
    body: Result<Bytes, BytesRejection>,
    order: ScheduleOrder,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, names)?;
    let saga = extract::saga(names)?;
    let account: Account = control_request(&sized(body)?)?;
    let principal = auth::operator(account.by, account.reason);
    state
        .control
        .order_schedule(&tenant, &saga, order, principal)
        .await?;
    Ok(Json(found(state, names).await?).into_response())
}

async fn found(state: &ApiState, names: &Names) -> Result<ScheduleView, Problem> {
    let tenant = extract::tenant(state.tenancy, names)?;
    let saga = extract::saga(names)?;
    let schedules = state.control.schedules(&tenant).await?;
    let mut schedules = schedules.into_iter();
    let found = schedules.find(|schedule| schedule.saga == saga.as_str());
    found.ok_or_else(|| Problem::not_found(format!("saga {saga} has no schedule")))
}
