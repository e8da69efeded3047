//! Requests that no client of the API makes: of web pages of other sites, in the browser of someone who may reach the
//! API, and of names that were made to lead here.
//!
//! A page may send anything to any address, and its browser says so: by `Sec-Fetch-Site`, by `Origin`. A page whose own
//! name leads to this machine (DNS rebinding) is of the same origin for its browser, but has a foreign `Host`. A body is
//! JSON and calls itself so, which a page of another site cannot send unasked.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::problem::Problem;

/// Pages that probes ask by whatever name they have. `/health` and `/metrics` are none of them: they name sagas, effects and
/// upstreams.
const OPEN: [&str; 2] = ["/live", "/ready"];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names by which the API may be called, besides `localhost` and IP addresses.
#[derive(Debug, Clone)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether no browser can have been led here by a name of somebody else.
    fn knows(&self, host: &str) -> bool {
        let name = host.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        address.unwrap_or(name).parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.0.iter().any(|known| known == name)
    }
}

/// Lets a request through, or refuses it.
pub async fn guard(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let has_body = !request.body().is_end_stream();
    match check(
        &hosts,
        request.method(),
        request.uri(),
        request.headers(),
        has_body,
    ) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(
    hosts: &Hosts,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    has_body: bool,
) -> Result<(), Problem> {
    let reads = method.is_safe();
    if reads && OPEN.contains(&uri.path()) {
        return Ok(());
    }
    let called = called(uri, headers)?;
    if !hosts.knows(called.host()) {
        let host = called.host();
        return Err(Problem::foreign(format!(
            "unknown host name {host:?}: use an IP address, or add the name to http.hosts"
        )));
    }
    if reads {
        return Ok(());
    }
    for site in headers.get_all(SEC_FETCH_SITE) {
        if site != "same-origin" && site != "none" {
            return Err(Problem::foreign(
                "the request comes from a page of another origin",
            ));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let is_own = origin.to_str().is_ok_and(|origin| is_of(origin, &called));
        if !is_own {
            return Err(Problem::foreign(
                "the request comes from a page of another origin",
            ));
        }
    }
    if has_body { json(headers) } else { Ok(()) }
}

/// By which name the client has called: that of the request line, or of `Host`.
fn called(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
    let mut named = headers.get_all(header::HOST).iter();
    let authority = match (uri.authority(), named.next(), named.next()) {
        (Some(authority), _, None) => Some(authority.clone()),
        (None, Some(host), None) => Authority::try_from(host.as_bytes()).ok(),
        (_, _, Some(_)) | (None, None, None) => None,
    };
    authority
        .filter(|authority| !authority.as_str().contains('@'))
        .ok_or_else(|| Problem::invalid("the request needs one Host header: a name or an address"))
}

/// Whether an origin is that of the pages under this name.
fn is_of(origin: &str, called: &Authority) -> bool {
    let host = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| host.eq_ignore_ascii_case(called.as_str()))
}

/// Refuses a body that does not call itself JSON.
fn json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json") {
        Ok(())
    } else {
        Err(Problem::media_type(format!(
            "the body must be application/json, found {kind:?}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &Method, uri: &str, headers: &[(&str, &str)], has_body: bool) -> u16 {
        let hosts = Hosts::new(&["Sagas.example.com".to_owned()]);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::try_from(*name).expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        let uri: Uri = uri.parse().expect("a URI");
        check(&hosts, method, &uri, &map, has_body).map_or_else(|problem| problem.status, |()| 200)
    }

    #[test]
    fn names_of_others_are_refused_everywhere_but_for_probes() {
        for (host, status) in [
            ("127.0.0.1:8080", 200),
            ("10.1.2.3:8080", 200),
            ("[::1]:8080", 200),
            ("localhost", 200),
            ("LocalHost:8080", 200),
            ("runner.localhost:8080", 200),
            ("sagas.example.com", 200),
            ("sagas.example.com.", 200),
            ("sagas.example.com:8080", 200),
            ("evil.example", 403),
            ("sagas.example.com.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("user@localhost", 400),
            ("", 400),
        ] {
            for method in [Method::GET, Method::POST] {
                assert_eq!(
                    asked(&method, "/v1/x", &[("host", host)], false),
                    status,
                    "{host}"
                );
            }
            for page in ["/health", "/metrics"] {
                assert_eq!(
                    asked(&Method::GET, page, &[("host", host)], false),
                    status,
                    "{host}"
                );
            }
            for probe in ["/live", "/ready"] {
                assert_eq!(asked(&Method::GET, probe, &[("host", host)], false), 200);
            }
        }
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(asked(&Method::GET, "/v1/x", &both, false), 400);
        assert_eq!(asked(&Method::GET, "/v1/x", &[], false), 400);
        let absolute = "http://evil.example/v1/x";
        assert_eq!(
            asked(&Method::GET, absolute, &[("host", "localhost")], false),
            403
        );
    }

    #[test]
    fn pages_of_other_origins_change_nothing() {
        let local = ("host", "localhost:8080");
        for (name, value, status) in [
            ("sec-fetch-site", "same-origin", 200),
            ("sec-fetch-site", "none", 200),
            ("sec-fetch-site", "same-site", 403),
            ("sec-fetch-site", "cross-site", 403),
            ("origin", "http://localhost:8080", 200),
            ("origin", "https://LOCALHOST:8080", 200),
            ("origin", "http://localhost:3000", 403),
            ("origin", "http://localhost", 403),
            ("origin", "http://other.example", 403),
            ("origin", "null", 403),
            ("origin", "localhost:8080", 403),
        ] {
            let headers = [local, (name, value)];
            for method in [Method::POST, Method::PUT, Method::DELETE] {
                assert_eq!(asked(&method, "/admin/drain", &headers, false), status, "{value}");
            }
            assert_eq!(asked(&Method::GET, "/info", &headers, false), 200, "{value}");
        }
    }

    #[test]
    fn a_body_calls_itself_json() {
        for (kind, status) in [
            ("application/json", 200),
            ("Application/JSON; charset=utf-8", 200),
            ("application/cloudevents+json", 200),
            ("text/plain", 415),
            ("text/x+json", 415),
            ("application/x-www-form-urlencoded", 415),
            ("multipart/form-data; boundary=application/json", 415),
        ] {
            let headers = [("host", "localhost"), ("content-type", kind)];
            assert_eq!(asked(&Method::POST, "/v1/x", &headers, true), status, "{kind}");
        }
        let bare = [("host", "localhost")];
        assert_eq!(asked(&Method::POST, "/v1/x", &bare, true), 415);
        assert_eq!(
            asked(&Method::POST, "/v1/x", &bare, false),
            200,
            "nothing to call"
        );
    }
}
