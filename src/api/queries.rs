//! What operators ask: why an instance does not go on, what happened to it, which inputs could not be applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::pages::{self, Source};
use super::problem::Problem;
use super::search;
use crate::kernel::ids::InstanceId;
use crate::kernel::input::SourceStream;
use crate::ports::control::{
    ArchivedInstance, ControlError, LetterFilter, LetterKind, LetterTrait, Page, PageRequest,
};

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

/// The graph of an instance, with where each part of it stands.
pub async fn graph(State(state): State<ApiState>, Path(names): Path<Names>) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    Ok(Json(state.control.graph(&id).await?).into_response())
}

/// The history of an instance, newest entry first: `?after=<cursor>&limit=<1..500>`.
pub async fn history(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<PageParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let (control, asked) = (Arc::clone(&state.control), id.clone());
    let ask = move |page| {
        let (control, id) = (Arc::clone(&control), asked.clone());
        async move { control.history(&id, page).await }
    };
    let list = (pages::ITEMS, Source::Shards);
    also_archived(&state, &id, query.page()?, list, ask, archived_history).await
}

/// The inputs of one instance, to be replayed elsewhere: `?after=<cursor>&limit=<1..500>`.
pub async fn inputs(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<PageParameters>,
) -> Result<Response, Problem> {
    let id = extract::instance(state.tenancy, &names)?;
    let (control, asked) = (Arc::clone(&state.control), id.clone());
    let ask = move |page| {
        let (control, id) = (Arc::clone(&control), asked.clone());
        async move { control.inputs(&id, page).await.map(Page::from) }
    };
    let list = (pages::INPUTS, Source::Broker);
    also_archived(&state, &id, query.page()?, list, ask, archived_inputs).await
}

/// A page of an archived instance, from this number on and with at most so many items.
type ArchivedPage = fn(ArchivedInstance, usize, usize) -> Result<Response, Problem>;

/// A page of a list about an instance: as its shard has it, or, where only the archive has the instance, as `archived` makes it.
async fn also_archived<T, F, Asked>(
    state: &ApiState,
    id: &InstanceId,
    page: PageRequest,
    list: (&'static str, Source),
    ask: F,
    archived: ArchivedPage,
) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
    F: Fn(PageRequest) -> Asked + Send + 'static,
    Asked: Future<Output = Result<Page<T>, ControlError>> + Send + 'static,
{
    let (limit, is_first) = (page.limit, page.after.is_none());
    if let Some(after) = archived_after(&page)? {
        let found = state.control.archived(id).await?;
        return archived(found.ok_or_else(|| Problem::invalid(FORGED))?, after, limit);
    }
    match pages::listed(state, list, page, ask).await {
        Err(missing) if is_first && missing.status == StatusCode::NOT_FOUND => {
            let found = state.control.archived(id).await?;
            archived(found.ok_or(missing)?, 0, limit)
        }
        found => found,
    }
}

/// Where a page of an archived instance goes on.
fn archived_after(page: &PageRequest) -> Result<Option<usize>, Problem> {
    let after = page
        .after
        .as_deref()
        .and_then(|after| after.strip_prefix(ARCHIVED));
    let after = after.map(str::parse).transpose();
    after.map_err(|_| Problem::invalid(FORGED))
}

/// A page of the inputs of an instance that only the archive has.
fn archived_inputs(archived: ArchivedInstance, after: usize, limit: usize) -> Result<Response, Problem> {
    let Some(inputs) = archived.inputs else {
        let message = "the archive has the instance without its inputs (storage.archive)";
        return Err(ControlError::NotFound(message.to_owned()).into());
    };
    let end = after.saturating_add(limit);
    let next = (end < inputs.len()).then(|| format!("{ARCHIVED}{end}"));
    let page = ArchivedInputs {
        archived: true,
        inputs: inputs.into_iter().skip(after).take(limit).collect(),
        next,
        left_out: archived.inputs_left_out,
    };
    Ok(Json(page).into_response())
}

#[derive(Debug, Serialize)]
struct ArchivedInputs {
    archived: bool,
    inputs: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// How many of all its inputs do not say what they carried.
    left_out: usize,
}

/// What cursors of the history of an archived instance begin with.
const ARCHIVED: &str = "archived-";
/// What is said of a cursor that no page has given.
const FORGED: &str = "after is not a cursor of this list";

/// A page of the history of an instance that only the archive has.
#[expect(clippy::unnecessary_wraps, reason = "as `ArchivedPage` asks")]
fn archived_history(archived: ArchivedInstance, after: usize, limit: usize) -> Result<Response, Problem> {
    let end = after.saturating_add(limit);
    let more = end < archived.history.len();
    let items: Vec<_> = archived.history.into_iter().skip(after).take(limit).collect();
    let mut page = json!({"items": items, "archived": true});
    if more {
        page["next"] = format!("{ARCHIVED}{end}").into();
    }
    Ok(Json(page).into_response())
}

/// The query parameters by which dead letters are chosen.
pub const LETTER_FILTER: &[&str] = &[
    "saga",
    "key",
    "key_prefix",
    "reason",
    "kind",
    "stream",
    "subject_prefix",
    "older_than",
    "newer_than",
];
/// The query of a list or count of dead letters, or the filter of a job.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LetterParameters {
    saga: Option<String>,
    key: Option<String>,
    key_prefix: Option<String>,
    reason: Option<String>,
    kind: Option<String>,
    stream: Option<String>,
    subject_prefix: Option<String>,
    older_than: Option<String>,
    newer_than: Option<String>,
    by: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// What the streams are called that bring inputs.
const STREAMS: [(&str, SourceStream); 3] = [
    ("events", SourceStream::AggregateEvents),
    ("results", SourceStream::WorkflowEvents),
    ("commands", SourceStream::WorkflowCommands),
];

impl LetterParameters {
    /// Reads a filter that is no query.
    ///
    /// # Errors
    /// [`Problem`] for an unknown name.
    pub fn read(named: &BTreeMap<String, String>) -> Result<Self, Problem> {
        if let Some(name) = named.keys().find(|name| !LETTER_FILTER.contains(&name.as_str())) {
            let known = LETTER_FILTER.join(", ");
            let detail = format!("filter: {name:?} is not one of {known}");
            return Err(Problem::invalid(detail).of("body", "filter"));
        }
        serde_json::from_value(serde_json::json!(named))
            .map_err(|error| Problem::invalid(format!("filter: {error}")).of("body", "filter"))
    }

    /// # Errors
    /// [`Problem`] for what is not a value of its parameter.
    pub fn filter(&self) -> Result<LetterFilter, Problem> {
        let age = |name: &str, text: &Option<String>| {
            let text = text.as_deref();
            text.map(|text| search::age_of(name, text)).transpose()
        };
        let kinds = LetterKind::ALL.map(|kind| (kind.as_str(), kind));
        Ok(LetterFilter {
            saga: self.saga.clone(),
            key: self.key.clone(),
            key_prefix: self.key_prefix.clone(),
            reason: self.reason.clone(),
            kind: one_of("kind", self.kind.as_deref(), &kinds)?,
            stream: one_of("stream", self.stream.as_deref(), &STREAMS)?,
            subject_prefix: self.subject_prefix.clone(),
            older_than: age("older_than", &self.older_than)?,
            newer_than: age("newer_than", &self.newer_than)?,
        })
    }
}

fn one_of<T: Copy>(name: &str, text: Option<&str>, all: &[(&str, T)]) -> Result<Option<T>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let known = all.iter().find(|(known, _)| *known == text);
    known.map(|(_, value)| Some(*value)).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        let detail = format!("{name}: {text:?} is not one of {}", names.join(", "));
        Problem::invalid(detail).of("query", name)
    })
}

/// Dead letters of the tenant that a filter selects, oldest first.
pub async fn dead_letters(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<LetterParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    if query.by.is_some() {
        return Err(Problem::invalid("`by` is a parameter of the count").of("query", "by"));
    }
    let filter = query.filter()?;
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, tenant, filter) = (Arc::clone(&control), tenant.clone(), filter.clone());
        async move { control.dead_letters(&tenant, filter, page).await }
    };
    pages::listed(&state, (pages::ITEMS, Source::Shards), page, ask).await
}

/// How many there are, by reason or by something else that they have in common.
pub async fn count_dead_letters(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<LetterParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    if query.after.is_some() || query.limit.is_some() {
        return Err(
            Problem::invalid("a count has no pages: leave out `after` and `limit`").of("query", "after"),
        );
    }
    let all = LetterTrait::ALL.map(|one| (one.as_str(), one));
    let by = one_of("by", query.by.as_deref(), &all)?.unwrap_or(LetterTrait::Reason);
    let filter = query.filter()?;
    Ok(Json(state.control.count_letters(&tenant, filter, by).await?).into_response())
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
