//! From an upstream's answer to an outcome.

use std::borrow::Cow;
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::Http;
use super::body::{Body, BodyFault};
use super::coding::{Undecoded, decoded};
use crate::effects::body::{self, Form};
use crate::effects::certainty::{Ending, Said, SideEffects};
use crate::effects::provider::{CallContext, CallFailure, CallOutcome, Provider as _};
use crate::effects::rendering::Verdict;
use crate::kernel::breaker::CallEnd;
use crate::kernel::ids::TimeMs;
use crate::kernel::json::Json;

/// Longest wait that an upstream may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// Bytes of a refusal's body that go into the message.
const EXCERPT_BYTES: usize = 200;

impl Http {
    /// Reads the answer, until `by`, and says what it means: the definition's rules first, then the built-in ones.
    pub(super) async fn judge(
        &self,
        mut answer: Response<Body>,
        call: &CallContext<'_>,
        by: Instant,
    ) -> CallOutcome {
        let status = answer.status();
        let headers = std::mem::take(answer.headers_mut());
        let read = self.read(answer.body_mut(), status, &headers, by).await;
        let response = read.as_ref().map_err(Clone::clone).and_then(|body| {
            let response = self.response_value(status, &headers, body);
            Ok((body, response.map_err(|error| self.malformed(error.to_string()))?))
        });
        let (body, response) = match response {
            Ok(answer) => answer,
            Err(failure) => return CallOutcome::Failed(failure),
        };
        let steps = self.settings.expression_steps;
        let command = self.environment.command(call.command);
        let mut verdict = Verdict::on(&response, &self.definition, call, &command, steps);
        let failure = (!status.is_success()).then(|| CallFailure {
            retry_after: retry_after(&headers, call.now),
            ..self.said(status, message(status, &headers, &self.told(&response, body)))
        });
        verdict.outcome(self.side_effects(), failure)
    }

    /// The failure that a status is.
    fn said(&self, status: StatusCode, message: String) -> CallFailure {
        CallFailure::of(Ending::Said(said(status)), self.side_effects(), message)
    }

    fn malformed(&self, reason: String) -> CallFailure {
        CallFailure::of(Ending::Malformed, self.side_effects(), reason)
    }

    /// Reads the body up to its bound, and takes its coding away.
    async fn read(
        &self,
        body: &mut Body,
        status: StatusCode,
        headers: &HeaderMap,
        by: Instant,
    ) -> Result<Vec<u8>, CallFailure> {
        let bytes_max = self.settings.response_bytes;
        let side_effects = self.side_effects();
        let too_long = || {
            let message = format!("the answer is longer than {bytes_max} bytes");
            let failure = CallFailure::of(Ending::TooLong, side_effects, message);
            certain(failure, status, side_effects)
        };
        let bytes = body.read(bytes_max, by).await.map_err(|fault| match fault {
            BodyFault::TooLong => too_long(),
            BodyFault::Broken(error) => certain(self.unanswered(&error), status, side_effects),
        })?;
        match decoded(headers, bytes, bytes_max) {
            Ok(bytes) => Ok(bytes),
            Err(Undecoded::TooLong) => Err(too_long()),
            Err(Undecoded::Unreadable(reason)) if status.is_success() => Err(self.malformed(reason)),
            // What a refusal says further is not needed.
            Err(Undecoded::Unreadable(_)) => Ok(Vec::new()),
        }
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

    fn response_value<'a>(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        bytes: &'a [u8],
    ) -> Result<Json<'a>, body::Unreadable> {
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let body = match body::value(bytes, Form::of(content_type), self.settings.json_depth) {
            Err(_) if !status.is_success() => body::text(bytes),
            read => read?,
        };
        Ok(Json::Map(vec![
            ("body".into(), body),
            ("headers".into(), headers_value(headers)),
            ("status".into(), Json::Int(i64::from(status.as_u16()))),
        ]))
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

/// A failure to read the rest of an answer that reports a failure: the status is known, and says what happened.
fn certain(failure: CallFailure, status: StatusCode, side_effects: SideEffects) -> CallFailure {
    if status.is_success() {
        return failure;
    }
    let meaning = Ending::Said(said(status)).meaning(side_effects);
    CallFailure {
        certainty: meaning.certainty,
        end: match failure.end {
            CallEnd::Failed => CallEnd::Failed,
            CallEnd::Answered | CallEnd::Abandoned => meaning.end,
        },
        ..failure
    }
}

pub(super) fn said(status: StatusCode) -> Said {
    Said::of_status(i64::from(status.as_u16()))
}

fn message(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    if matches!(said(status), Said::Moved | Said::Elsewhere) {
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

/// What `Retry-After` asks for: seconds, or a date, which counts from the upstream's own `Date` where there is one, else
/// from `now`.
pub(super) fn retry_after(headers: &HeaderMap, now: TimeMs) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        let until = date_ms(text)?;
        let said = headers.get(DATE).and_then(|date| date_ms(date.to_str().ok()?));
        let ms = until.checked_sub(said.unwrap_or(now.0))?;
        Duration::from_millis(u64::try_from(ms).ok()?)
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// A date of HTTP in its usual form (RFC 9110, 5.6.7), in milliseconds since 1970.
fn date_ms(text: &str) -> Option<i64> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()?;
    Some(time.as_millisecond())
}
