//! Who asks for a change, and why, as its body says it: `by` and `reason`, which the audit has.

use axum::body::Body;
use axum::extract::Request;
use serde::Deserialize;

use super::endpoints::Endpoint;
use super::extract;
use super::instances::control_request;
use super::problem::Problem;
use crate::kernel::envelope::{Principal, Role};

/// A body that says nothing else. Where the API authenticates, `by` names nobody.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Account {
    pub by: String,
    pub reason: String,
}

/// Refuses the body of a request to an endpoint that reads nothing but an account, if it is anything else. None at all is one.
///
/// # Errors
/// [`Problem`] for a body that is too large, is not JSON, has another member, or a text that is too long.
pub async fn read(endpoint: &Endpoint, request: Request) -> Result<Request, Problem> {
    if !endpoint.has_account_only {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let body = extract::whole(body).await?;
    let account: Account = control_request(&body)?;
    check(&account.by, &account.reason)?;
    Ok(Request::from_parts(parts, Body::from(body)))
}

/// Refuses names of more than 256 bytes, and reasons of more than 1,024.
///
/// # Errors
/// [`Problem`] that says which is too long.
pub fn check(by: &str, reason: &str) -> Result<(), Problem> {
    let account = Principal {
        who: by.to_owned(),
        role: Role::Viewer,
        reason: reason.to_owned(),
    };
    account.check().map_err(Problem::invalid)
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::super::endpoints;
    use super::*;
    use crate::kernel::subject::Tenancy;

    async fn status(endpoint: &Endpoint, body: &str) -> u16 {
        let request = Request::new(Body::from(body.to_owned()));
        match read(endpoint, request).await {
            Ok(request) => {
                let kept = extract::whole(request.into_body()).await;
                assert_eq!(kept.expect("a body"), body.as_bytes());
                200
            }
            Err(problem) => problem.status,
        }
    }

    #[tokio::test]
    async fn endpoints_that_read_nothing_else_take_who_and_why_and_refuse_the_rest() {
        let all = endpoints::all(Tenancy::Multi).into_iter();
        let accounted: Vec<Endpoint> = all.filter(|endpoint| endpoint.has_account_only).collect();
        assert_eq!(accounted.len(), 8);
        for endpoint in &accounted {
            assert!(
                endpoint.has_body && endpoint.method == Method::POST,
                "{}",
                endpoint.path
            );
            for (body, expected) in [
                (String::new(), 200),
                ("{}".to_owned(), 200),
                (r#"{"by": "ann", "reason": "maintenance"}"#.to_owned(), 200),
                (format!(r#"{{"by": "{}"}}"#, "x".repeat(256)), 200),
                (format!(r#"{{"by": "{}"}}"#, "x".repeat(257)), 400),
                (format!(r#"{{"reason": "{}"}}"#, "x".repeat(1_024)), 200),
                (format!(r#"{{"reason": "{}"}}"#, "x".repeat(1_025)), 400),
                (r#"{"by": 7}"#.to_owned(), 400),
                (r#"{"by": "ann", "shard": 1}"#.to_owned(), 400),
                (r#"{"by": "ann", "by": "bob"}"#.to_owned(), 400),
                (r#"["ann", "maintenance"]"#.to_owned(), 400),
                ("null".to_owned(), 400),
                ("not json".to_owned(), 400),
            ] {
                assert_eq!(
                    status(endpoint, &body).await,
                    expected,
                    "{}: {body}",
                    endpoint.path
                );
            }
        }
    }

    #[test]
    fn every_change_reads_a_body() {
        for endpoint in endpoints::all(Tenancy::Multi) {
            assert_eq!(
                endpoint.is_mutation(),
                endpoint.has_body,
                "{} {}",
                endpoint.method,
                endpoint.path
            );
        }
    }
}
