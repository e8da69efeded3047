//! The versions of sagas that a cluster keeps. They belong to no tenant.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::ApiState;
use super::extract::Names;
use super::problem::Problem;

/// All versions with the numbers of their instances: `?saga=<name>`.
pub async fn list(
    State(state): State<ApiState>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Response, Problem> {
    let mut items = state.control.definitions().await?;
    if let Some(saga) = query.get("saga") {
        items.retain(|item| item.saga == *saga);
    }
    Ok(Json(json!({ "items": items })).into_response())
}

/// One version with its text; the hash may be shortened.
pub async fn show(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let hash = names.get("hash").map_or("", String::as_str);
    Ok(Json(state.control.definition(hash).await?).into_response())
}
