//! From templates to a request that can go nowhere but to the definition's own host.

use bytes::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Method, Request, Uri};
use reqwest::Url;

use super::Http;
use super::oauth2::Token;
use super::sign::sign;
use crate::effects::network::Network;
use crate::effects::origin::Origin;
use crate::effects::provider::{CallContext, CallFailure};
use crate::effects::rendering::Rendering;
use crate::kernel::definition::effect::{HttpCall, Provider};
use crate::kernel::ids::TimeMs;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Headers that a request has beside those of its definition; `Host` is the client's.
const OWN_HEADERS: usize = 7;

impl Http {
    /// Renders the request of one attempt, with its token, and signs it.
    pub(super) fn request(
        &self,
        call: &CallContext<'_>,
        token: Option<&Token>,
        now: TimeMs,
    ) -> Result<Request<Bytes>, CallFailure> {
        let Provider::Http(template) = &self.definition.provider else {
            return Err(CallFailure::not_done(
                "permanent",
                "the effect is not an HTTP call",
            ));
        };
        let steps = self.settings.expression_steps;
        let command = self.environment.command(call.command);
        let mut rendering = Rendering::of(call, &command, &self.environment, steps);
        let url = rendering.text("url", &template.url)?;
        let url = checked_url("url", &url, &self.origin, &self.network)?;
        let mut headers = self.headers(template, &mut rendering)?;
        let meta = &call.command.metadata;
        if !headers.contains_key(&IDEMPOTENCY_KEY) {
            headers.insert(IDEMPOTENCY_KEY, value("Idempotency-Key", &meta.idempotency_key)?);
        }
        if !headers.contains_key(&TRACEPARENT) {
            headers.insert(TRACEPARENT, value("traceparent", &call.traceparent)?);
        }
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        // Without it a server may take any coding.
        headers
            .entry(ACCEPT_ENCODING)
            .or_insert(HeaderValue::from_static("identity"));
        let mut body = Bytes::new();
        if let Some(template) = &template.body {
            // Only what is written is kept while the call waits.
            body = rendering.json("body", template)?.into_boxed_slice().into();
            headers
                .entry(CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("application/json"));
        }
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, token.header.clone());
        }
        let mut request = request_of(&self.method, "url", &url, headers, body)?;
        if let Some(signature) = &template.sign {
            let key = rendering.text("key", &signature.key)?;
            sign(&mut request, signature, &key, now)?;
        }
        Ok(request)
    }

    fn headers(&self, call: &HttpCall, rendering: &mut Rendering<'_>) -> Result<HeaderMap, CallFailure> {
        let mut headers = HeaderMap::with_capacity(call.headers.len() + OWN_HEADERS);
        for (name, (label, template)) in self.header_names.iter().zip(&call.headers) {
            let text = rendering.text(label, template)?;
            headers.insert(name.clone(), value(label, &text)?);
        }
        Ok(headers)
    }
}

/// A request to `url`, which `place` names in the failure.
pub(super) fn request_of(
    method: &Method,
    place: &str,
    url: &Url,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Bytes>, CallFailure> {
    let uri = url
        .as_str()
        .parse::<Uri>()
        .map_err(|error| CallFailure::not_done("permanent", format!("{place} cannot be sent: {error}")))?;
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The URL of a template: it leads to `origin` and to no address that may not be called. `place` names it in the
/// failure.
pub(super) fn checked_url(
    place: &str,
    text: &str,
    origin: &Origin,
    network: &Network,
) -> Result<Url, CallFailure> {
    let denied = |message: String| CallFailure::not_done("egress.denied", message);
    if has_dot_segment(text) {
        return Err(denied(format!(
            "a value put a dot segment into the path of the {place}"
        )));
    }
    let url = Url::parse(text)
        .map_err(|error| CallFailure::not_done("permanent", format!("{place} is malformed: {error}")))?;
    let same = Origin::of_url(&url).is_some_and(|found| found == *origin);
    if !same || !url.username().is_empty() || url.password().is_some() {
        return Err(denied(format!(
            "{place} leads to another host than the definition's {}",
            origin.host
        )));
    }
    network
        .check_literal(&url)
        .map_err(|error| denied(error.to_string()))?;
    Ok(url)
}

/// A header value. Line breaks would let a value add headers of its own.
pub(super) fn value(name: &str, text: &str) -> Result<HeaderValue, CallFailure> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        CallFailure::not_done(
            "header.illegal",
            format!("the value of header {name} holds characters that no header may hold"),
        )
    })
}

/// Whether the path holds `.` or `..`, in any spelling: parsers resolve them, so a value could climb.
fn has_dot_segment(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    })
}
