//! Lists and counts of instances across sagas.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::pages::{self, Source};
use super::problem::Problem;
use crate::kernel::duration::Millis;
use crate::kernel::expr::{Expr, Root};
use crate::kernel::ids::SagaName;
use crate::kernel::instance_status::{BlockedCause, Waits};
use crate::kernel::record::Phase;
use crate::ports::control::{InstanceFilter, InstanceTrait};

/// Bytes of a condition.
const CONDITION_BYTES_MAX: usize = 4_096;

/// The query parameters by which [`list`] and [`count`] choose instances.
pub const LIST: &[&str] = &[
    "saga",
    "phase",
    "blocked_by",
    "waits_for",
    "error",
    "key_prefix",
    "older_than",
    "idle_for",
    "where",
    "step",
    "upstream",
    "event",
    "signal",
    "last_generation",
];
/// The query parameters that [`count`] knows besides these.
pub const COUNT: &[&str] = &["by", "after"];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListParameters {
    saga: Option<String>,
    phase: Option<String>,
    blocked_by: Option<String>,
    waits_for: Option<String>,
    error: Option<String>,
    key_prefix: Option<String>,
    older_than: Option<String>,
    idle_for: Option<String>,
    #[serde(rename = "where")]
    condition: Option<String>,
    step: Option<String>,
    upstream: Option<String>,
    event: Option<String>,
    signal: Option<String>,
    last_generation: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// What a filter of instances is made of, by the names that [`list`] takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterParameters {
    saga: Option<String>,
    phase: Option<String>,
    blocked_by: Option<String>,
    waits_for: Option<String>,
    error: Option<String>,
    key_prefix: Option<String>,
    older_than: Option<String>,
    idle_for: Option<String>,
    #[serde(rename = "where")]
    condition: Option<String>,
    step: Option<String>,
    upstream: Option<String>,
    event: Option<String>,
    signal: Option<String>,
    last_generation: Option<String>,
}

impl FilterParameters {
    /// Reads a filter that is no query.
    ///
    /// # Errors
    /// [`Problem`] for an unknown name.
    pub fn read(named: &BTreeMap<String, String>) -> Result<Self, Problem> {
        serde_json::from_value(serde_json::json!(named))
            .map_err(|error| Problem::invalid(format!("filter: {error}")).of("body", "filter"))
    }

    /// # Errors
    /// [`Problem`] for what is not a value of its parameter.
    pub fn filter(self) -> Result<InstanceFilter, Problem> {
        let saga = self.saga.map(|saga| SagaName::parse(&saga)).transpose();
        let blocked_by = match self.blocked_by.as_deref() {
            Some("anything") => {
                let all = BlockedCause::ALL.into_iter();
                all.filter(|blocked| *blocked != BlockedCause::Nothing).collect()
            }
            text => several("blocked_by", text, BlockedCause::ALL, BlockedCause::as_str)?,
        };
        let having = [
            (InstanceTrait::Step, self.step),
            (InstanceTrait::Upstream, self.upstream),
            (InstanceTrait::Event, self.event),
            (InstanceTrait::Signal, self.signal),
        ];
        let having = having.map(|(by, value)| value.map(|value| (by, value)));
        let age = |name: &str, text: Option<String>| text.map(|age| age_of(name, &age)).transpose();
        Ok(InstanceFilter {
            saga: saga.map_err(|error| Problem::invalid(error.to_string()))?,
            phases: several("phase", self.phase.as_deref(), Phase::ALL, Phase::as_str)?,
            blocked_by,
            waits_for: several("waits_for", self.waits_for.as_deref(), Waits::ALL, Waits::as_str)?,
            error: self.error,
            key_prefix: self.key_prefix.filter(|prefix| !prefix.is_empty()),
            older_than: age("older_than", self.older_than)?,
            idle_for: age("idle_for", self.idle_for)?,
            condition: self.condition.map(|text| condition(&text)).transpose()?,
            having: having.into_iter().flatten().collect(),
            last_generation: flag("last_generation", self.last_generation.as_deref())?.unwrap_or(false),
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CountParameters {
    saga: Option<String>,
    phase: Option<String>,
    blocked_by: Option<String>,
    waits_for: Option<String>,
    error: Option<String>,
    key_prefix: Option<String>,
    older_than: Option<String>,
    idle_for: Option<String>,
    #[serde(rename = "where")]
    condition: Option<String>,
    step: Option<String>,
    upstream: Option<String>,
    event: Option<String>,
    signal: Option<String>,
    last_generation: Option<String>,
    by: Option<String>,
    after: Option<String>,
}

/// Instances across sagas, as summaries.
pub async fn list(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<ListParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let filter = FilterParameters {
        saga: query.saga,
        phase: query.phase,
        blocked_by: query.blocked_by,
        waits_for: query.waits_for,
        error: query.error,
        key_prefix: query.key_prefix,
        older_than: query.older_than,
        idle_for: query.idle_for,
        condition: query.condition,
        step: query.step,
        upstream: query.upstream,
        event: query.event,
        signal: query.signal,
        last_generation: query.last_generation,
    };
    let filter = filter.filter()?;
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, tenant, filter) = (Arc::clone(&control), tenant.clone(), filter.clone());
        async move { control.search(&tenant, filter, page).await }
    };
    pages::listed(&state, (pages::ITEMS, Source::Shards), page, ask).await
}

/// How many instances there are, in all and by status, or by what they have in common: of a page where records are looked at.
pub async fn count(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<CountParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let filter = FilterParameters {
        saga: query.saga,
        phase: query.phase,
        blocked_by: query.blocked_by,
        waits_for: query.waits_for,
        error: query.error,
        key_prefix: query.key_prefix,
        older_than: query.older_than,
        idle_for: query.idle_for,
        condition: query.condition,
        step: query.step,
        upstream: query.upstream,
        event: query.event,
        signal: query.signal,
        last_generation: query.last_generation,
    };
    let (filter, after) = (filter.filter()?, query.after);
    if let Some(by) = query.by {
        let known = InstanceTrait::ALL.into_iter().find(|one| one.as_str() == by);
        let by = known.ok_or_else(|| {
            let all = InstanceTrait::ALL.map(InstanceTrait::as_str).join(", ");
            Problem::invalid(format!("by: {by:?} is not one of {all}")).of("query", "by")
        })?;
        let grouped = state.control.group(&tenant, filter, by, after).await?;
        return Ok(Json(grouped).into_response());
    }
    let counted = state.control.count(&tenant, filter, after).await?;
    Ok(Json(counted).into_response())
}

/// Reads names with commas between them.
fn several<T: Copy, const N: usize>(
    parameter: &str,
    text: Option<&str>,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, Problem> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let known = |wanted: &str| all.into_iter().find(|one| name(*one) == wanted);
    text.split(',')
        .map(|wanted| {
            known(wanted).ok_or_else(|| {
                let names = all.map(&name).join(", ");
                Problem::invalid(format!("{parameter}: {wanted:?} is not one of {names}"))
                    .of("query", parameter)
            })
        })
        .collect()
}

pub(super) fn age_of(parameter: &str, text: &str) -> Result<Millis, Problem> {
    Millis::parse(text)
        .map_err(|wrong| Problem::invalid(format!("{parameter}: {wrong}")).of("query", parameter))
}

pub(super) fn flag(name: &str, text: Option<&str>) -> Result<Option<bool>, Problem> {
    match text {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(Problem::invalid(format!("{name} must be true or false")).of("query", name)),
    }
}

fn condition(text: &str) -> Result<Arc<Expr>, Problem> {
    if text.len() > CONDITION_BYTES_MAX {
        let most = format!("where: a condition has at most {CONDITION_BYTES_MAX} bytes");
        return Err(Problem::invalid(most).of("query", "where"));
    }
    let compiled = Expr::compile(text, &[Root::State, Root::Key]);
    compiled.map(Arc::new).map_err(|error| {
        let help = error
            .help
            .as_ref()
            .map(|help| format!("; {help}"))
            .unwrap_or_default();
        let told = format!("where: {error}{help} (at byte {})", error.offset);
        Problem::invalid(told).of("query", "where")
    })
}
