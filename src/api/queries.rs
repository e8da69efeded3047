//! What operators ask: why an instance does not go on, what happened to it, which inputs could not be applied.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::problem::Problem;
use crate::ports::control::LetterFilter;

/// Why an instance does not go on, with the evidence.
pub async fn why(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    Ok(Json(state.control.why(&id).await?).into_response())
}

/// What can be done to an instance now.
pub async fn actions(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    Ok(Json(state.control.actions(&id).await?).into_response())
}

/// The history of an instance, newest entry first: `?after=<cursor>&limit=<1..500>`.
pub async fn history(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<PageParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let page = query.page()?;
    Ok(Json(state.control.history(&id, page).await?).into_response())
}

/// `?saga=...&key=...&reason=...&after=...&limit=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LetterParameters {
    saga: Option<String>,
    key: Option<String>,
    reason: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// Dead letters of the tenant: `?saga=...&key=...&reason=...&after=<cursor>&limit=<1..500>`.
pub async fn dead_letters(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<LetterParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let filter = LetterFilter {
        saga: query.saga,
        key: query.key,
        reason: query.reason,
    };
    let page = PageParameters::new(query.after, query.limit).page()?;
    Ok(Json(state.control.dead_letters(&tenant, filter, page).await?).into_response())
}

/// One dead letter.
pub async fn dead_letter(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let id = names.get("id").map_or("", String::as_str);
    Ok(Json(state.control.dead_letter(&tenant, id).await?).into_response())
}
