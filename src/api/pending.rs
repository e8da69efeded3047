//! Lists of timers and of the outbox.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Deserialize;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::pages::{self, Source};
use super::problem::Problem;
use super::search::{age_of, flag};
use crate::kernel::duration::Millis;
use crate::kernel::ids::SagaName;
use crate::ports::control::{OutboxFilter, TimerFilter};

/// The query parameters that [`timers`] knows.
pub const TIMERS: &[&str] = &["saga", "due_within", "overdue", "after", "limit"];
/// The query parameters that [`outbox`] knows.
pub const OUTBOX: &[&str] = &["saga", "kind", "name", "sent", "older_than", "after", "limit"];

/// What rows of the outbox are.
const KINDS: [&str; 5] = ["effect", "command", "fact", "start", "message"];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimerParameters {
    saga: Option<String>,
    due_within: Option<String>,
    overdue: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// Timers of the instances of a tenant.
pub async fn timers(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<TimerParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    let within = query
        .due_within
        .map(|text| age_of("due_within", &text))
        .transpose()?;
    let filter = TimerFilter {
        saga: saga(query.saga)?,
        due_within: match (flag("overdue", query.overdue.as_deref())?, within) {
            (Some(true), None) => Some(Millis(0)),
            (Some(true), Some(_)) => {
                let detail = "overdue and due_within ask for different timers: give one of them";
                return Err(Problem::invalid(detail).of("query", "overdue"));
            }
            (_, within) => within,
        },
    };
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, tenant, filter) = (Arc::clone(&control), tenant.clone(), filter.clone());
        async move { control.timers(&tenant, filter, page).await }
    };
    pages::listed(&state, (pages::ITEMS, Source::Shards), page, ask).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxParameters {
    saga: Option<String>,
    kind: Option<String>,
    name: Option<String>,
    sent: Option<String>,
    older_than: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// Rows of the outbox of a tenant.
pub async fn outbox(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<OutboxParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    if let Some(kind) = query.kind.as_deref().filter(|kind| !KINDS.contains(kind)) {
        let detail = format!("kind: {kind:?} is not one of {}", KINDS.join(", "));
        return Err(Problem::invalid(detail).of("query", "kind"));
    }
    let filter = OutboxFilter {
        saga: saga(query.saga)?,
        kind: query.kind,
        name: query.name,
        sent: flag("sent", query.sent.as_deref())?,
        older_than: query
            .older_than
            .map(|text| age_of("older_than", &text))
            .transpose()?,
    };
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, tenant, filter) = (Arc::clone(&control), tenant.clone(), filter.clone());
        async move { control.outbox(&tenant, filter, page).await }
    };
    pages::listed(&state, (pages::ITEMS, Source::Shards), page, ask).await
}

fn saga(text: Option<String>) -> Result<Option<SagaName>, Problem> {
    let read = text.map(|saga| SagaName::parse(&saga)).transpose();
    read.map_err(|error| Problem::invalid(error.to_string()).of("query", "saga"))
}
