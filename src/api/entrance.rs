//! What every request passes before an endpoint is looked for: its trace, its path, and the tenant that a header names.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::endpoints::Endpoint;
use super::problem::Problem;
use super::trace::{self, RequestTrace};
use crate::kernel::ids::TenantId;
use crate::kernel::subject::Tenancy;

/// Names the tenant of a request.
pub const TENANT_HEADER: HeaderName = HeaderName::from_static("x-tenant-id");

/// What the paths of tenants begin with.
pub const TENANT_PREFIX: &str = "/v1/tenants/{tenant}";

/// Knows by the beginning of a path whether an endpoint of a tenant is meant.
#[derive(Clone)]
pub struct Entrance {
    tenancy: Tenancy,
    /// The first segments behind `/v1/tenants/{tenant}`.
    of_tenants: Arc<BTreeSet<String>>,
}

impl Entrance {
    pub fn new(tenancy: Tenancy, endpoints: &[Endpoint]) -> Self {
        let behind = endpoints
            .iter()
            .filter_map(|endpoint| endpoint.path.strip_prefix(TENANT_PREFIX));
        let heads = behind.filter_map(|path| path.split('/').nth(1));
        Self {
            tenancy,
            of_tenants: Arc::new(heads.map(str::to_owned).collect()),
        }
    }

    /// The URI under which the endpoint is found.
    fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Uri>, Problem> {
        check_path(uri.path())?;
        let Some(rest) = self.without_tenant(uri.path()) else {
            return Ok(None);
        };
        let Some(tenant) = named_tenant(headers)? else {
            return Err(Problem::invalid(
                "the tenant is missing: begin the path with /v1/tenants/<tenant>, or send x-tenant-id",
            )
            .of("header", "x-tenant-id"));
        };
        let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
        let path = format!("/v1/tenants/{}/{rest}{query}", tenant.as_str());
        let mut parts = uri.clone().into_parts();
        let path = PathAndQuery::try_from(path).map_err(|error| Problem::invalid(error.to_string()))?;
        parts.path_and_query = Some(path);
        let uri = Uri::from_parts(parts).map_err(|error| Problem::invalid(error.to_string()))?;
        Ok(Some(uri))
    }

    /// What stands behind `/v1/`, if it is about a tenant that the path does not name.
    fn without_tenant<'u>(&self, path: &'u str) -> Option<&'u str> {
        let rest = path
            .strip_prefix("/v1/")
            .filter(|_| self.tenancy == Tenancy::Multi)?;
        let head = rest.split('/').next().unwrap_or(rest);
        self.of_tenants.contains(head).then_some(rest)
    }
}

/// The tenant of the header, if there is one.
pub fn named_tenant(headers: &HeaderMap) -> Result<Option<TenantId>, Problem> {
    let mut named = headers.get_all(TENANT_HEADER).iter();
    let refused = |detail: String| Problem::invalid(detail).of("header", "x-tenant-id");
    match (named.next(), named.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(refused("x-tenant-id is there twice".to_owned())),
        (Some(value), None) => {
            let text = value
                .to_str()
                .map_err(|_| refused("x-tenant-id is not a tenant".to_owned()))?;
            match TenantId::parse(text) {
                Ok(tenant) if !tenant.is_none() => Ok(Some(tenant)),
                Ok(_) => Err(refused("x-tenant-id is empty".to_owned())),
                Err(error) => Err(refused(format!("x-tenant-id: {error}"))),
            }
        }
    }
}

/// Refuses a path that programs between here and the client may read in different ways.
fn check_path(path: &str) -> Result<(), Problem> {
    for segment in path.split('/') {
        let wrong = |what: &str| Err(Problem::invalid(format!("the path has {what}")).of("path", segment));
        let Some(bytes) = decoded(segment) else {
            return wrong("a % that two hexadecimal digits do not follow");
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return wrong("an encoding that is not UTF-8");
        };
        if text.chars().any(char::is_control) {
            return wrong("a control character");
        }
        if text.split(['/', '\\']).any(|part| part == "." || part == "..") {
            return wrong("a segment '.' or '..'");
        }
    }
    Ok(())
}

/// The bytes of a segment.
fn decoded(segment: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).ok()?);
    }
    Some(bytes)
}

/// Lets a request in, or refuses it.
pub async fn enter(State(entrance): State<Entrance>, mut request: Request, next: Next) -> Response {
    let trace = RequestTrace::of(request.headers());
    trace::within(trace, async move {
        match entrance.admit(request.uri(), request.headers()) {
            Ok(None) => next.run(request).await,
            Ok(Some(uri)) => {
                *request.uri_mut() = uri;
                next.run(request).await
            }
            Err(problem) => problem.into_response(),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_can_be_read_in_two_ways_is_refused() {
        for (path, legal) in [
            ("/v1/tenants/acme/sagas/order/instances/o-1", true),
            ("/v1/x/a%2Fb%20c%C3%A9", true),
            ("/v1/x/a..b", true),
            ("/v1/%ff/x", false),
            ("/v1/x/%C3", false),
            ("/v1/x/a%00b", false),
            ("/v1/x/a%0Ab", false),
            ("/v1/x/%zz", false),
            ("/v1/x/100%", false),
            ("/v1/x/..", false),
            ("/v1/x/../y", false),
            ("/v1/x/./y", false),
            ("/v1/x/%2e%2e/y", false),
            ("/v1/x/..%2Fy", false),
            ("/v1/x/a%2F..%2Fy", false),
            ("/v1/x/..%5cy", false),
        ] {
            assert_eq!(check_path(path).is_ok(), legal, "{path}");
        }
    }

    #[test]
    fn a_header_names_the_tenant_where_the_path_does_not() {
        let entrance = Entrance {
            tenancy: Tenancy::Multi,
            of_tenants: Arc::new(["sagas".to_owned()].into()),
        };
        let ask = |path: &str, tenants: &[&str]| {
            let mut headers = HeaderMap::new();
            for tenant in tenants {
                headers.append(TENANT_HEADER, tenant.parse().expect("a value"));
            }
            let uri = path.parse().expect("a URI");
            let admitted = entrance.admit(&uri, &headers);
            admitted
                .map(|uri| uri.map(|uri| uri.to_string()))
                .map_err(|problem| problem.status)
        };
        let found = ask("/v1/sagas/order/instances?limit=5", &["acme"]);
        assert_eq!(
            found,
            Ok(Some("/v1/tenants/acme/sagas/order/instances?limit=5".to_owned()))
        );
        assert_eq!(ask("/v1/sagas/order/instances", &[]), Err(400));
        assert_eq!(ask("/v1/sagas", &["acme", "acme"]), Err(400));
        assert_eq!(ask("/v1/sagas", &["a/b"]), Err(400));
        assert_eq!(ask("/v1/definitions", &[]), Ok(None));
        assert_eq!(ask("/v1/tenants/acme/sagas", &[]), Ok(None));
    }
}
