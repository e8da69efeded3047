//! The versions of sagas that a cluster keeps. They belong to no tenant.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::ApiState;
use super::extract::{Names, Parameters};
use super::problem::Problem;
use crate::ports::control::MigrationRequest;

/// `?saga=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListParameters {
    saga: Option<String>,
}

/// `?dry_run=...&undo=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MigrateParameters {
    dry_run: Option<String>,
    undo: Option<String>,
}

/// All versions with the numbers of their instances: `?saga=<name>`. The numbers lack those of absent shards.
pub async fn list(
    State(state): State<ApiState>,
    Parameters(query): Parameters<ListParameters>,
) -> Result<Response, Problem> {
    let mut items = state.control.definitions().await?;
    if let Some(saga) = query.saga {
        items.retain(|item| item.saga == saga);
    }
    let mut answer = json!({ "items": items });
    let absent = state.control.ready().await.absent_shards;
    if !absent.is_empty() {
        answer["absent_shards"] = json!(absent);
    }
    Ok(Json(answer).into_response())
}

/// Brings the live instances of the saga over to this version, or with `?undo=true` back from it: `?dry_run=true`
/// only tells what would become of them.
pub async fn migrate(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<MigrateParameters>,
) -> Result<Response, Problem> {
    let hash = names.get("hash").map_or("", String::as_str);
    let flag = |name: &str, value: Option<&str>| match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Problem::invalid(format!("{name} must be true or false"))),
    };
    let request = MigrationRequest {
        dry_run: flag("dry_run", query.dry_run.as_deref())?,
        undo: flag("undo", query.undo.as_deref())?,
    };
    Ok(Json(state.control.migrate(hash, request).await?).into_response())
}

/// How far a migration is.
pub async fn migration(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let id = names.get("id").map_or("", String::as_str);
    Ok(Json(state.control.migration(id).await?).into_response())
}

/// One version with its text; the hash may be shortened.
pub async fn show(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let hash = names.get("hash").map_or("", String::as_str);
    Ok(Json(state.control.definition(hash).await?).into_response())
}
