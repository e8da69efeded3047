//! What a request names, checked: tenant, saga, key, cursor, page size, query parameters.

use std::collections::BTreeMap;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::BODY_BYTES_MAX;
use super::problem::Problem;
use crate::kernel::alias::{Alias, VALUE_BYTES_MAX};
use crate::kernel::ids::{InstanceId, Key, SagaName, TenantId};
use crate::kernel::subject::Tenancy;
use crate::ports::control::PageRequest;

/// Path parameters by name.
pub type Names = BTreeMap<String, String>;

/// Most items of a page.
const PAGE_MAX: usize = 500;
/// Items of a page where the request does not say.
const PAGE_DEFAULT: usize = 50;

/// All of a body.
///
/// # Errors
/// [`Problem`] for one that is too large, or breaks off.
pub async fn whole(body: Body) -> Result<Bytes, Problem> {
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    body.map_err(|_| Problem::too_large("body is larger than 1 MiB, or broke off"))
}

/// The tenant of the path.
pub fn tenant(tenancy: Tenancy, names: &Names) -> Result<TenantId, Problem> {
    match tenancy {
        Tenancy::Single => Ok(TenantId::none()),
        Tenancy::Multi => {
            let text = names.get("tenant").map_or("", String::as_str);
            match TenantId::parse(text) {
                Ok(tenant) if !tenant.is_none() => Ok(tenant),
                Ok(_) => Err(Problem::invalid("tenant is empty")),
                Err(error) => Err(Problem::invalid(error.to_string())),
            }
        }
    }
}

/// The saga of the path.
pub fn saga(names: &Names) -> Result<SagaName, Problem> {
    let text = names.get("saga").map_or("", String::as_str);
    SagaName::parse(text).map_err(|error| Problem::invalid(error.to_string()))
}

/// The instance of the path.
pub fn instance(tenancy: Tenancy, names: &Names) -> Result<InstanceId, Problem> {
    let text = names.get("key").map_or("", String::as_str);
    Ok(InstanceId {
        tenant: tenant(tenancy, names)?,
        saga: saga(names)?,
        key: Key::parse(text).map_err(|error| Problem::invalid(error.to_string()))?,
    })
}

/// The alias of the path.
pub fn alias(names: &Names) -> Result<Alias, Problem> {
    let part = |name: &str| names.get(name).cloned().unwrap_or_default();
    let alias = Alias {
        name: part("name"),
        value: part("value"),
    };
    if alias.is_legal() {
        return Ok(alias);
    }
    Err(Problem::invalid(format!(
        "an alias has a name of letters, digits and '_', and a value of 1 to {VALUE_BYTES_MAX} bytes without control characters"
    )))
}

/// The shard of the path.
#[derive(Debug, Clone, Copy)]
pub struct Shard(pub u16);

impl<S: Send + Sync> FromRequestParts<S> for Shard {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let found = Path::<u16>::from_request_parts(parts, state).await;
        found
            .map(|Path(shard)| Self(shard))
            .map_err(|_| Problem::invalid("a shard is a whole number from 0 to 65535").of("path", "shard"))
    }
}

/// The query parameters of a request, which the handler names. An unknown or repeated one is an error: a filter that is
/// ignored would be taken for one that holds.
#[derive(Debug)]
pub struct Parameters<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(found)) => Ok(Self(found)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text()).of("query", "")),
        }
    }
}

/// `?after=...&limit=...`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PageParameters {
    after: Option<String>,
    limit: Option<String>,
}

impl PageParameters {
    pub const fn new(after: Option<String>, limit: Option<String>) -> Self {
        Self { after, limit }
    }

    /// A limit above the maximum is lowered to it.
    pub fn page(self) -> Result<PageRequest, Problem> {
        let limit = match self.limit {
            None => PAGE_DEFAULT,
            Some(text) => match text.parse::<u64>() {
                Ok(0) | Err(_) => return Err(Problem::invalid("limit must be a whole number from 1")),
                Ok(limit) => usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX),
            },
        };
        Ok(PageRequest::new(self.after, limit))
    }
}
