//! What operators ask: why an instance does not go on, what happened to it, which inputs could not be applied.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::problem::Problem;
use crate::ports::control::{ArchivedInstance, ControlError, LetterFilter};

/// Why an instance does not go on, with the evidence.
pub async fn why(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    Ok(Json(state.control.why(&id).await?).into_response())
}

/// The history of an instance, newest entry first: `?after=<cursor>&limit=<1..500>`.
pub async fn history(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<PageParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let page = query.page()?;
    let archived_after = page
        .after
        .as_deref()
        .and_then(|after| after.strip_prefix(ARCHIVED));
    if let Some(after) = archived_after {
        let archived = state.control.archived(&id).await?;
        let after = after.parse().map_err(|_| Problem::invalid(FORGED))?;
        let archived = archived.ok_or_else(|| Problem::invalid(FORGED))?;
        return Ok(archived_page(archived, after, page.limit));
    }
    let limit = page.limit;
    let is_first = page.after.is_none();
    match state.control.history(&id, page).await {
        Err(missing @ ControlError::NotFound(_)) if is_first => {
            let archived = state.control.archived(&id).await?;
            Ok(archived_page(archived.ok_or(missing)?, 0, limit))
        }
        found => Ok(Json(found?).into_response()),
    }
}

/// What cursors of the history of an archived instance begin with.
const ARCHIVED: &str = "archived-";
/// What is said of a cursor that no page has given.
const FORGED: &str = "after is not a cursor of this list";

/// A page of the history of an instance that only the archive has.
fn archived_page(archived: ArchivedInstance, after: usize, limit: usize) -> Response {
    let end = after.saturating_add(limit);
    let more = end < archived.history.len();
    let items: Vec<_> = archived.history.into_iter().skip(after).take(limit).collect();
    let mut page = json!({"items": items, "archived": true});
    if more {
        page["next"] = format!("{ARCHIVED}{end}").into();
    }
    Json(page).into_response()
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
