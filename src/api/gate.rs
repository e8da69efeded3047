//! What every request to an endpoint passes: who asks, for which tenant, with which query parameters; and the audit, which has each
//! request for a change.

use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt as _;
use axum::body::Body;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::account;
use super::audit::Audited;
use super::auth::{self, Principal};
use super::endpoints::{Access, Endpoint, Kind, Place};
use super::entrance::named_tenant;
use super::extract::{self, Names};
use super::forwarding::{self, Asking, Vouched};
use super::pages::{self, Wanted};
use super::problem::Problem;
use super::tls::ClientCertificate;
use super::{ApiState, requests, trace};
use crate::kernel::ids::{TenantId, TimeMs};
use crate::kernel::subject::Tenancy;
use crate::ports::forwarding::Forwarding;
use crate::telemetry::{Span, SpanKind};

/// Path parameters that may hold a '/': keys and values of aliases come from events, which may have any.
const MAY_HOLD_SLASH: [&str; 2] = ["key", "value"];

/// Stands before the handler of one endpoint.
#[derive(Clone)]
pub struct Gate {
    pub state: ApiState,
    pub endpoint: Arc<Endpoint>,
}

/// What a request brings beside its headers to say who asks.
struct Credentials {
    /// Another process of the cluster has found out who it is.
    vouched: Option<Vouched>,
    certificate: Option<ClientCertificate>,
}

/// Lets a request through, or refuses it.
pub async fn pass(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let names = match request.extract_parts::<RawPathParams>().await {
        Ok(params) => params
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        Err(_) => Names::new(),
    };
    let credentials = Credentials {
        vouched: request.extensions().get::<Vouched>().cloned(),
        certificate: request.extensions().get::<ClientCertificate>().cloned(),
    };
    // What another process has forwarded is in the audit there.
    let is_audited = credentials
        .vouched
        .as_ref()
        .is_some_and(|vouched| vouched.is_audited);
    let mut audited = (gate.endpoint.is_mutation() && !is_audited)
        .then(|| Audited::new(&gate.state, &gate.endpoint, &request, &names));
    let (began, from) = (gate.state.clock.now(), gate.state.clock.monotonic());
    let principal = gate.principal(request.headers(), credentials).await;
    let is_known = principal.is_ok();
    let answer = match principal {
        Ok(principal) => {
            gate.answer(principal, request, &names, next, audited.as_mut())
                .await
        }
        Err(problem) => Err(problem),
    };
    let answer = answer.unwrap_or_else(Problem::into_response);
    // A probe, a scrape and the outcome of a change are told even where there is no room for them.
    let may_be_refused = !gate.endpoint.is_mutation() && gate.endpoint.place == Place::Tenants;
    let answer = gate.state.answers.hold(answer, may_be_refused).await;
    let answer = answer.unwrap_or_else(Problem::into_response);
    if let Some(audited) = audited {
        audited.answered(&answer);
        // Whoever has the answer can rely on the record.
        gate.state.control.audit_stored().await;
    }
    if is_known && gate.endpoint.is_mutation() {
        gate.record_span(answer.status(), began, from);
    }
    answer
}

/// Whether no process has decided about a request: none has the shards, it does not answer in time, or one of the two has no place
/// for it now.
fn is_undecided(answer: &Result<Response, Problem>) -> bool {
    let status = match answer {
        Ok(response) => response.status().as_u16(),
        Err(problem) => problem.status,
    };
    [StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT]
        .iter()
        .any(|undecided| undecided.as_u16() == status)
}

/// The same request once more.
async fn twice(request: Request) -> Result<(Request, Request), Problem> {
    let (parts, body) = request.into_parts();
    let body = extract::whole(body).await?;
    let again = Request::from_parts(parts.clone(), Body::from(body.clone()));
    Ok((Request::from_parts(parts, Body::from(body)), again))
}

impl Gate {
    async fn principal(&self, headers: &HeaderMap, credentials: Credentials) -> Result<Principal, Problem> {
        let Credentials { vouched, certificate } = credentials;
        match (self.endpoint.access, vouched) {
            (Access::Open, _) => Ok(Principal::nobody()),
            (Access::Needs(_), Some(vouched)) => Ok(vouched.principal),
            (Access::Needs(_), None) => {
                let (door, clock) = (&self.state.door, &*self.state.clock);
                door.principal(headers, certificate.as_ref(), clock).await
            }
        }
    }

    /// Answers here, or has it answered, what may pass.
    async fn answer(
        &self,
        principal: Principal,
        mut request: Request,
        names: &Names,
        next: Next,
        audited: Option<&mut Audited>,
    ) -> Result<Response, Problem> {
        let mut audited = audited;
        if let Some(audited) = &mut audited {
            audited.by(&principal);
        }
        let tenant = self.check(&principal, &request, names)?;
        request = self.read(request, audited).await?;
        let way;
        (request, way) = self.elsewhere(request).await?;
        if let Some(way) = way {
            let may_be_stored = forwarding::may_be_stored(&self.endpoint, &request);
            let (sent, kept) = if may_be_stored {
                let (sent, kept) = twice(request).await?;
                (sent, Some(kept))
            } else {
                (request, None)
            };
            let asking = Asking {
                endpoint: &self.endpoint,
                principal: &principal,
                tenant: tenant.as_ref(),
                request: sent,
            };
            let answer = forwarding::ask(&self.state, way, asking).await;
            match kept.filter(|_| is_undecided(&answer)) {
                // It has an id: where the other process has stored it after all, it is recognised.
                Some(kept) => request = kept,
                None => return answer,
            }
        }
        let key = requests::key(request.headers())?;
        let is_forwarded = request.extensions().get::<Vouched>().is_some();
        let wanted = Wanted::of(request.headers()).filter(|_| is_forwarded);
        let answering = requests::within(key, pages::within(wanted, next.run(request)));
        Ok(auth::within(&principal, tenant.as_ref(), answering).await)
    }

    /// Looks into the body of a request for a change: for the audit, and whether it says more than the endpoint reads.
    async fn read(&self, request: Request, audited: Option<&mut Audited>) -> Result<Request, Problem> {
        let reading = async {
            let request = match audited {
                Some(audited) => audited.read(&self.endpoint, request).await?,
                None => request,
            };
            account::read(&self.endpoint, request).await
        };
        if self.endpoint.kind != Kind::Slow {
            return reading.await;
        }
        // Nothing else bounds the time of these.
        let read = tokio::time::timeout(self.state.request_timeout, reading).await;
        read.unwrap_or_else(|_| {
            Err(Problem::unavailable(
                "the request took longer than http.request_timeout",
            ))
        })
    }

    /// The request again, and the way to the process that answers it, if that is another one. What was forwarded here is answered
    /// here.
    async fn elsewhere(&self, request: Request) -> Result<(Request, Option<Arc<dyn Forwarding>>), Problem> {
        let is_forwarded = request.extensions().get::<Vouched>().is_some();
        let is_for_owner = forwarding::is_for_owner(&self.endpoint);
        if is_forwarded || !(is_for_owner || self.endpoint.starts_job()) {
            return Ok((request, None));
        }
        let Some(way) = self.state.control.forwarding() else {
            return Ok((request, None));
        };
        if is_for_owner {
            return Ok((request, Some(way)));
        }
        let (request, is_plan) = forwarding::plans_job(request).await?;
        Ok((request, is_plan.then_some(way)))
    }

    /// Lets it through, with the tenant that it is about, if it is about one.
    fn check(
        &self,
        principal: &Principal,
        request: &Request,
        names: &Names,
    ) -> Result<Option<TenantId>, Problem> {
        let tenant = self.tenant(request, names)?;
        principal.check(self.endpoint.access, tenant.as_ref())?;
        if let (Some(served), Some(tenant)) = (&self.state.tenants, &tenant)
            && !served.contains(tenant)
        {
            return Err(Problem::no_such_tenant());
        }
        let query = request.uri().query().unwrap_or("");
        if self.endpoint.parameters.is_empty() && !query.is_empty() {
            return Err(Problem::invalid("this endpoint has no query parameters"));
        }
        for (name, value) in names {
            if value.contains('/') && !MAY_HOLD_SLASH.contains(&name.as_str()) {
                return Err(Problem::invalid(format!("{name} may not hold '/'")).of("path", name));
            }
        }
        let key = requests::key(request.headers())?;
        if key.is_some() && self.endpoint.is_mutation() && !self.endpoint.takes_key() {
            let detail = "this endpoint takes no Idempotency-Key: repeat the request, it does the same once more or says why not";
            return Err(Problem::invalid(detail).of("header", requests::IDEMPOTENCY_KEY.as_str()));
        }
        Ok(tenant)
    }

    /// The tenant that the request is about, if it is about one. Without multi-tenancy it is the one that has no name.
    fn tenant(&self, request: &Request, names: &Names) -> Result<Option<TenantId>, Problem> {
        let in_header = named_tenant(request.headers())?;
        if !self.endpoint.is_of_tenant {
            return Ok(None);
        }
        let tenant = extract::tenant(self.state.tenancy, names)?;
        match in_header {
            Some(_) if self.state.tenancy == Tenancy::Single => {
                Err(Problem::invalid("this runner runs without tenants").of("header", "x-tenant-id"))
            }
            Some(other) if other != tenant => {
                let detail = "x-tenant-id and the path name different tenants";
                Err(Problem::invalid(detail).of("header", "x-tenant-id"))
            }
            _ => Ok(Some(tenant)),
        }
    }

    /// Hands over the span of a request for a change, which instances begin with. Whoever only asks has none.
    fn record_span(&self, status: StatusCode, began: TimeMs, from: Duration) {
        let spans = &self.state.metrics.spans;
        let Some(trace) = trace::of_request().filter(|_| spans.is_on()) else {
            return;
        };
        spans.push(Span {
            name: "request",
            kind: SpanKind::Server,
            parent: trace.caller_span().map(str::to_owned),
            traceparent: trace.traceparent,
            link: None,
            began_ms: began.0,
            took: self.state.clock.monotonic().saturating_sub(from),
            attributes: vec![
                ("http.request.method", self.endpoint.method.to_string()),
                ("http.route", self.endpoint.path.clone()),
                ("http.response.status_code", status.as_u16().to_string()),
            ],
            error: status.is_server_error().then(|| status.as_u16().to_string()),
        });
    }
}
