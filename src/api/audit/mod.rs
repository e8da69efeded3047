//! The audit: what is recorded of a request for a change, and the list of what was.

mod request;

pub use request::{Audited, MadeId, ProblemCode};

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Deserialize;

use super::ApiState;
use super::extract::{self, Names, PageParameters, Parameters};
use super::pages::{self, Source};
use super::problem::Problem;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{SagaName, TenantId, TimeMs};
use crate::ports::control::{AuditFilter, AuditOutcome};

/// The query parameters by which records are chosen; [`of_all`] knows `tenant` as well.
pub const FILTER: &[&str] = &[
    "principal",
    "action",
    "saga",
    "key",
    "outcome",
    "status",
    "since",
    "until",
];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditParameters {
    /// Only of [`of_all`]: the gate refuses it elsewhere.
    tenant: Option<String>,
    principal: Option<String>,
    action: Option<String>,
    saga: Option<String>,
    key: Option<String>,
    outcome: Option<String>,
    status: Option<String>,
    since: Option<String>,
    until: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

/// The records of one tenant, the newest first.
pub async fn of_tenant(
    State(state): State<ApiState>,
    Path(names): Path<Names>,
    Parameters(query): Parameters<AuditParameters>,
) -> Result<Response, Problem> {
    let tenant = extract::tenant(state.tenancy, &names)?;
    if query.tenant.is_some() {
        return Err(Problem::invalid("the tenant is that of the path").of("query", "tenant"));
    }
    listed(&state, Some(&tenant), query).await
}

/// All records, the newest first.
pub async fn of_all(
    State(state): State<ApiState>,
    Parameters(query): Parameters<AuditParameters>,
) -> Result<Response, Problem> {
    let tenant = query.tenant.as_deref().map(TenantId::parse).transpose();
    let tenant = tenant.map_err(|error| Problem::invalid(error.to_string()).of("query", "tenant"))?;
    listed(&state, tenant.as_ref(), query).await
}

async fn listed(
    state: &ApiState,
    tenant: Option<&TenantId>,
    query: AuditParameters,
) -> Result<Response, Problem> {
    let saga = query.saga.as_deref().map(SagaName::parse).transpose();
    let saga = saga.map_err(|error| Problem::invalid(error.to_string()).of("query", "saga"))?;
    let now = state.clock.now();
    let filter = AuditFilter {
        // Without multi-tenancy no record has a tenant, and all are of the one that has no name.
        tenant: tenant.filter(|tenant| !tenant.is_none()).map(ToString::to_string),
        principal: query.principal,
        action: query.action,
        saga: saga.map(|saga| saga.to_string()),
        key: query.key,
        outcome: query.outcome.as_deref().map(outcome).transpose()?,
        status: query.status.as_deref().map(status).transpose()?,
        since: time("since", query.since.as_deref(), now)?,
        until: time("until", query.until.as_deref(), now)?,
    };
    let page = PageParameters::new(query.after, query.limit).page()?;
    let control = Arc::clone(&state.control);
    let ask = move |page| {
        let (control, filter) = (Arc::clone(&control), filter.clone());
        async move { control.audited(filter, page).await }
    };
    pages::listed(state, (pages::ITEMS, Source::Broker), page, ask).await
}

fn outcome(text: &str) -> Result<AuditOutcome, Problem> {
    let known = AuditOutcome::ALL
        .into_iter()
        .find(|outcome| outcome.as_str() == text);
    known.ok_or_else(|| {
        let names = AuditOutcome::ALL.map(AuditOutcome::as_str).join(", ");
        Problem::invalid(format!("outcome: {text:?} is not one of {names}")).of("query", "outcome")
    })
}

fn status(text: &str) -> Result<u16, Problem> {
    let status = text.parse().ok().filter(|status| (100..1_000).contains(status));
    status
        .ok_or_else(|| Problem::invalid("status must be a status of HTTP, such as 403").of("query", "status"))
}

/// A time in RFC 3339, or how long ago it was.
fn time(name: &str, text: Option<&str>, now: TimeMs) -> Result<Option<TimeMs>, Problem> {
    let Some(text) = text else { return Ok(None) };
    if let Some(time) = TimeMs::read(text) {
        return Ok(Some(time));
    }
    if let Ok(ago) = Millis::parse(text) {
        return Ok(Some(now.plus_ms(ago.as_i64().saturating_neg())));
    }
    let wrong = format!("{name} must be a time in RFC 3339, or a duration before now, such as 2h: {text:?}");
    Err(Problem::invalid(wrong).of("query", name))
}
