//! Requests that this process cannot answer, because it has no shards, are answered by the one that has them.
//!
//! The process with the connection authenticates, checks tenant, role and parameters, and forwards the request ([`ask()`]). The other
//! one puts it through the same router as any request over HTTP ([`serve`]), so it checks all that again, and there is
//! one piece of code that answers. Both messages are a line of JSON and, behind it, the body.

mod answer;
mod ask;
mod list;

pub use answer::{Owner, serve};
pub use ask::{Asking, Bounds, ask};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, Method, header};
use bytes::{BufMut as _, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::auth::Principal;
use super::endpoints::{Access, Answers, Endpoint, Kind, Role};
use super::extract;
use super::problem::Problem;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TenantId;
use crate::ports::forwarding::ForwardingError;

/// What is said of a request beside its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RequestHead {
    method: String,
    /// Path and query.
    target: String,
    /// Who asks; none where the API does not authenticate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    /// What they may do for `tenant`, or for what belongs to no tenant.
    role: Role,
    /// Empty without multi-tenancy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantId>,
    traceparent: String,
    /// It may take longer than others, and has a place among those that wait or watch.
    #[serde(default)]
    waits: bool,
    /// The process that asks has it in the audit; one of a version before the audit has not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    audited: bool,
    /// Names and values of those headers that the answer depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
}

/// What is said of an answer beside its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AnswerHead {
    status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
}

/// A principal that another process has authenticated. Only [`answer`] puts it into a request.
#[derive(Debug, Clone)]
pub struct Vouched {
    pub principal: Principal,
    /// That process has the request in the audit.
    pub is_audited: bool,
}

/// The headers of an answer that are passed on.
const ANSWERED: [HeaderName; 3] = [header::CONTENT_TYPE, header::CACHE_CONTROL, header::RETRY_AFTER];

/// Whether the process that has the shards answers a request, where this one has none.
pub fn is_for_owner(endpoint: &Endpoint) -> bool {
    endpoint.access != Access::Open
        && match endpoint.answers {
            Answers::Owner => true,
            // It can be stored from here as well; whether it is of use is seen where the instance is.
            Answers::Here => endpoint.kind == Kind::Request,
        }
}

/// Whether a request for a job is a dry run. Any process stores jobs, and the one that has the shards knows what they select. The
/// request comes back as it was; what cannot be read is none.
///
/// # Errors
/// [`Problem`] for a body that is too large, or breaks off.
pub async fn plans_job(request: Request) -> Result<(Request, bool), Problem> {
    #[derive(Deserialize)]
    struct Said {
        #[serde(default)]
        dry_run: bool,
    }

    let (parts, body) = request.into_parts();
    let body = extract::whole(body).await?;
    let is_plan = serde_json::from_slice::<Said>(&body).is_ok_and(|said| said.dry_run);
    Ok((Request::from_parts(parts, Body::from(body)), is_plan))
}

/// Whether a request for the owner is stored from here where the owner does not answer: one that is a message to an instance, unless
/// somebody waits for its outcome.
pub fn may_be_stored(endpoint: &Endpoint, request: &Request) -> bool {
    endpoint.answers == Answers::Here && endpoint.kind == Kind::Request && !waits(endpoint, request)
}

/// Whether a request may wait for longer than others are answered.
fn waits(endpoint: &Endpoint, request: &Request) -> bool {
    let says_so = || {
        let query = request.uri().query().unwrap_or("");
        let time = query.split('&').find_map(|part| part.strip_prefix("wait="));
        time.is_some_and(|time| Millis::parse(time) != Ok(Millis(0)))
    };
    endpoint.waits() && (endpoint.method == Method::GET || says_so())
}

/// One message of a head and the bytes behind it.
fn joined(head: &impl Serialize, body: &[u8]) -> Bytes {
    let head = serde_json::to_vec(head).expect("a head is plain data");
    let mut message = BytesMut::with_capacity(head.len() + 1 + body.len());
    message.put_slice(&head);
    message.put_u8(b'\n');
    message.put_slice(body);
    message.freeze()
}

/// Takes a message apart.
fn parted<T: DeserializeOwned>(message: &Bytes) -> Result<(T, Bytes), String> {
    let end = message.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| "the message has no line of JSON before its body".to_owned())?;
    let head = serde_json::from_slice(&message[..end]).map_err(|error| error.to_string())?;
    Ok((head, message.slice(end + 1..)))
}

impl From<ForwardingError> for Problem {
    fn from(error: ForwardingError) -> Self {
        match error {
            ForwardingError::Unheard => Self::no_owner(
                "this process has no shards, and no process that has them listens: start one in mode saga or combined, or wait until it runs",
            ),
            ForwardingError::Unavailable(why) => Self::unavailable(format!("broker: {why}")),
            ForwardingError::Refused(why) => Self::too_large(format!(
                "the request does not fit into one message to the process that has the shards: {why}"
            )),
            ForwardingError::Unanswered(why) => Self::unanswered(format!(
                "the process that has the shards has not answered: {why}; a change may have been made"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_head_and_any_bytes_behind_it() {
        let head = RequestHead {
            method: "GET".to_owned(),
            target: "/v1/tenants/acme/instances?limit=5".to_owned(),
            principal: Some("ann".to_owned()),
            role: Role::Viewer,
            tenant: Some(TenantId::parse("acme").expect("a tenant")),
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
            waits: false,
            audited: true,
            headers: vec![("last-event-id".to_owned(), "a\n7".to_owned())],
        };
        for body in [&b""[..], b"\n", b"{\"a\": 1}\n\n\xff"] {
            let (read, rest) = parted::<RequestHead>(&joined(&head, body)).expect("a message");
            assert_eq!((&read, &rest[..]), (&head, body));
        }
    }

    #[tokio::test]
    async fn a_dry_run_of_a_job_is_recognised_and_the_request_stays_as_it_is() {
        for (body, is_plan) in [
            (r#"{"verb": "pause", "dry_run": true}"#, true),
            (r#"{"verb": "pause", "dry_run": false}"#, false),
            (r#"{"verb": "pause"}"#, false),
            (r#"{"dry_run": "yes"}"#, false),
            ("dry_run", false),
        ] {
            let request = Request::post("/jobs").body(Body::from(body)).expect("a request");
            let (request, found) = plans_job(request).await.expect("a whole body");
            assert_eq!(found, is_plan, "{body}");
            let whole = extract::whole(request.into_body()).await.expect("a whole body");
            assert_eq!(whole, body);
        }
    }

    #[test]
    fn a_message_without_a_readable_head_is_refused() {
        for wrong in ["", "{}", "\n", "{\"stream\":\"S\",\"seq\":7}\n", "GET /\n"] {
            let message = Bytes::from(wrong.to_owned());
            assert!(parted::<RequestHead>(&message).is_err(), "{wrong:?}");
        }
        // A role that this version does not know is none.
        let unknown = r#"{"method":"GET","target":"/","role":"root","traceparent":""}"#;
        let message = Bytes::from(format!("{unknown}\n"));
        assert!(parted::<RequestHead>(&message).is_err());
    }
}
