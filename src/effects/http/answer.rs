//! From an upstream's answer to an outcome.

use std::borrow::Cow;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::Http;
use super::body::{Body, BodyFault};
use crate::effects::provider::{CallContext, CallFailure, CallOutcome, Certainty};
use crate::effects::rendering::Verdict;
use crate::kernel::breaker::CallEnd;
use crate::kernel::json::Json;

/// Longest wait that an upstream may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// Bytes of a refusal's body that go into the message.
const EXCERPT_BYTES: usize = 200;

impl Http {
    /// Reads the answer and says what it means: the definition's rules first, then the built-in ones.
    pub(super) async fn judge(&self, mut answer: Response<Body>, call: &CallContext<'_>) -> CallOutcome {
        let status = answer.status();
        let headers = std::mem::take(answer.headers_mut());
        let body = match self.read(answer.body_mut()).await {
            Ok(body) => body,
            Err(failure) => return CallOutcome::Failed(certain(failure, status)),
        };
        let response = self.response_value(status, &headers, &body);
        let steps = self.settings.expression_steps;
        let command = self.environment.command(call.command);
        let mut verdict = Verdict::on(&response, &self.definition, call, &command, steps);
        let class = verdict
            .class()
            .or_else(|| (!status.is_success()).then(|| built_in(status)));
        match class {
            None | Some("succeeded") => verdict.result(),
            Some(class) => CallOutcome::Failed(verdict.redacted(CallFailure {
                class: Cow::Owned(class.to_owned()),
                message: message(status, &headers, &self.told(&response, &body)),
                certainty: certainty(status),
                end: end(status),
                retry_after: retry_after(&headers),
            })),
        }
    }

    /// Reads the body up to its bound.
    async fn read(&self, body: &mut Body) -> Result<Vec<u8>, CallFailure> {
        let bytes_max = self.settings.response_bytes;
        body.read(bytes_max).await.map_err(|fault| match fault {
            BodyFault::TooLong => CallFailure::not_done(
                "response.size",
                format!("the answer is longer than {bytes_max} bytes"),
            ),
            BodyFault::Broken(error) => self.unanswered(&error),
        })
    }

    /// The body as it may be told. What is redacted is looked for in the values, not in one spelling of them.
    fn told<'b>(&self, response: &Json<'_>, body: &'b [u8]) -> Cow<'b, [u8]> {
        let redaction = &self.definition.redaction;
        if redaction.is_empty() {
            return Cow::Borrowed(body);
        }
        let hidden = redaction
            .response
            .iter()
            .fold(response.clone(), |value, path| path.hide(value));
        match hidden.get("body") {
            None | Some(Json::Null) => Cow::Borrowed(b""),
            Some(Json::Str(text)) => Cow::Owned(text.as_bytes().to_vec()),
            Some(value) => {
                let mut bytes = Vec::new();
                value.write(&mut bytes);
                Cow::Owned(bytes)
            }
        }
    }

    fn response_value<'a>(&self, status: StatusCode, headers: &HeaderMap, body: &'a [u8]) -> Json<'a> {
        let body = match body {
            [] => Json::Null,
            body => Json::parse(body, self.settings.json_depth)
                .unwrap_or_else(|_| Json::Str(String::from_utf8_lossy(body))),
        };
        Json::Map(vec![
            ("body".into(), body),
            ("headers".into(), headers_value(headers)),
            ("status".into(), Json::Int(i64::from(status.as_u16()))),
        ])
    }
}

/// Header names are lower case; values of a repeated header are joined.
fn headers_value(headers: &HeaderMap) -> Json<'static> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let member = |name: &HeaderName| {
        let values: Vec<String> = headers.get_all(name).iter().map(text).collect();
        (
            Cow::Owned(name.as_str().to_owned()),
            Json::Str(Cow::Owned(values.join(", "))),
        )
    };
    Json::Map(headers.keys().map(member).collect())
}

/// A failure to read the rest of an answer whose status is known.
fn certain(failure: CallFailure, status: StatusCode) -> CallFailure {
    let certainty = if status.is_success() {
        Certainty::Unknown
    } else {
        certainty(status)
    };
    let end = match failure.end {
        CallEnd::Failed => CallEnd::Failed,
        CallEnd::Answered | CallEnd::Abandoned => end(status),
    };
    CallFailure {
        certainty,
        end,
        ..failure
    }
}

pub(super) fn built_in(status: StatusCode) -> &'static str {
    match status.as_u16() {
        300..=399 => "egress.denied",
        408 | 504 => "timeout",
        429 => "throttled",
        500..=599 => "transient",
        _ => "permanent",
    }
}

fn certainty(status: StatusCode) -> Certainty {
    match status.as_u16() {
        408 | 504 => Certainty::Unknown,
        300..=399 | 429 | 500..=599 => Certainty::NotDone,
        _ => Certainty::Refused,
    }
}

/// Whether the upstream is well: a refusal is an answer like any other.
fn end(status: StatusCode) -> CallEnd {
    match status.as_u16() {
        408 | 429 | 500..=599 => CallEnd::Failed,
        _ => CallEnd::Answered,
    }
}

fn message(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    if status.is_redirection() {
        let location = headers
            .get(LOCATION)
            .map(|value| String::from_utf8_lossy(value.as_bytes()));
        let location = location.unwrap_or_default();
        return format!(
            "{status}: redirect to {:?} is not followed",
            excerpt(location.as_bytes())
        );
    }
    match excerpt(body) {
        text if text.is_empty() => status.to_string(),
        text => format!("{status}: {text}"),
    }
}

fn excerpt(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(EXCERPT_BYTES)];
    // A character that is cut in two is left out, so that the end can be compared with what is masked.
    let whole = match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Ok(_) | Err(_) => head.len(),
    };
    String::from_utf8_lossy(&head[..whole]).replace(char::is_control, " ")
}

/// What `Retry-After` asks for, in seconds. Dates are not read: they need the upstream's clock to be right.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| text.parse().unwrap_or(u64::MAX))?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}
