//! Instances by a value that they have registered.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::ApiState;
use super::extract::{self, Names};
use super::problem::Problem;

/// Who has an alias.
pub async fn show(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let saga = extract::saga(&names)?;
    let alias = extract::alias(&names)?;
    let view = state.control.alias(&tenant, &saga, &alias).await?;
    Ok(Json(view).into_response())
}
