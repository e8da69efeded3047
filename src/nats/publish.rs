//! Publications: stored in the order in which they were begun, each with a verdict.

use std::str::FromStr;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{PublishError as ClientError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck as ServerAck;
use async_nats::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::Bytes;
use std::future::IntoFuture;
use tokio::sync::Mutex;

use crate::ports::broker::{Expect, Publication, PublishAck, PublishError};

use super::link::Link;

pub(super) struct Publisher {
    context: Context,
    /// Held from the wait for a place in flight until the message is in the client's queue. Waiters get it
    /// in order; without it two that wait for a place could pass each other.
    order: Mutex<()>,
}

impl Publisher {
    pub fn new(context: Context) -> Self {
        Self {
            context,
            order: Mutex::new(()),
        }
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    /// # Errors
    /// [`PublishError::Refused`] also where another stream than the one that was meant took the message.
    pub async fn publish(&self, link: &Link, message: Publication) -> Result<PublishAck, PublishError> {
        let stream = message.stream.clone();
        let ack = self.store(link, message).await?;
        if ack.stream != stream {
            return Err(PublishError::Refused(format!(
                "stream {} took the message meant for {stream}",
                ack.stream
            )));
        }
        Ok(PublishAck {
            sequence: ack.sequence,
            duplicate: ack.duplicate,
        })
    }

    /// The same with whatever stream takes the subject.
    pub async fn store(&self, link: &Link, message: Publication) -> Result<ServerAck, PublishError> {
        let generation = link.generation().map_err(PublishError::Unavailable)?;
        check_subject(&message.subject)?;
        let headers = expecting(&message)?;
        let mut outbound = PublishMessage::build().payload(message.payload);
        if let Some(headers) = headers {
            outbound = outbound.headers(headers);
        }
        self.exchange(link, generation, message.subject, outbound)
            .await
            .map_err(|failure| match failure {
                Failure::NotSent(error) => not_sent(&error),
                Failure::Lost => PublishError::Unknown(Failure::LOST.to_owned()),
                Failure::Answered(error) => refusal(&error, &message.expect),
            })
    }

    /// Stores one message where the newest on its subject has the sequence `last`, or none is there and that is 0.
    /// [`PublishError::AlreadyThere`] says that it has another one.
    pub async fn replace(
        &self,
        link: &Link,
        stream: &str,
        subject: String,
        payload: Bytes,
        last: u64,
    ) -> Result<u64, PublishError> {
        let generation = link.generation().map_err(PublishError::Unavailable)?;
        check_subject(&subject)?;
        let mut headers = HeaderMap::new();
        headers.insert(
            header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
            HeaderValue::from(last),
        );
        headers.insert(header::NATS_EXPECTED_STREAM, header_value("stream", stream)?);
        let outbound = PublishMessage::build().payload(payload).headers(headers);
        match self.exchange(link, generation, subject, outbound).await {
            Ok(ack) => Ok(ack.sequence),
            Err(Failure::NotSent(error)) => Err(not_sent(&error)),
            Err(Failure::Lost) => Err(PublishError::Unknown(Failure::LOST.to_owned())),
            Err(Failure::Answered(error)) => Err(refusal(&error, &Expect::FirstOnSubject)),
        }
    }

    /// Sends one message over the connection of that generation and waits for the server's answer to it.
    pub async fn exchange(
        &self,
        link: &Link,
        generation: u64,
        subject: String,
        outbound: PublishMessage,
    ) -> Result<ServerAck, Failure> {
        let acknowledged = {
            let _turn = self.order.lock().await;
            self.context
                .send_publish(subject, outbound)
                .await
                .map_err(Failure::NotSent)?
        };
        // An answer can only come over the connection that carried the question.
        tokio::select! {
            biased;
            answer = acknowledged.into_future() => answer.map_err(Failure::Answered),
            () = link.lost(generation) => Err(Failure::Lost),
        }
    }
}

/// Why a message that was to be stored is not known to be.
pub(super) enum Failure {
    /// It did not reach the client's queue.
    NotSent(ClientError),
    /// The connection is gone, and the answer with it.
    Lost,
    /// What the server answered, or that it did not in time.
    Answered(ClientError),
}

impl Failure {
    pub const LOST: &str = "connection lost before the answer";
}

/// A subject to publish on is literal: tokens that filters would take for wildcards, and bytes that break
/// the protocol, are refused here because the server stores them.
pub(super) fn check_subject(subject: &str) -> Result<(), PublishError> {
    if is_literal(subject) {
        return Ok(());
    }
    Err(PublishError::Refused(format!(
        "subject {subject:?} is not literal"
    )))
}

pub(super) fn is_literal(subject: &str) -> bool {
    subject.split('.').all(|token| {
        !token.is_empty()
            && token != "*"
            && token != ">"
            && !token
                .bytes()
                .any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
    })
}

/// The headers of a message with what is expected of the stream; none where there are none.
pub(super) fn expecting(message: &Publication) -> Result<Option<HeaderMap>, PublishError> {
    if message.headers.is_empty() && message.expect == Expect::Nothing {
        return Ok(None);
    }
    let mut map = headers(&message.headers)?;
    match &message.expect {
        Expect::Nothing => {}
        Expect::FirstOnSubject => {
            map.insert(
                header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
                HeaderValue::from(0_u64),
            );
        }
        Expect::MessageId(id) => {
            map.insert(header::NATS_MESSAGE_ID, header_value("message id", id)?);
        }
    }
    Ok(Some(map))
}

pub(super) fn headers(given: &[(String, String)]) -> Result<HeaderMap, PublishError> {
    let mut map = HeaderMap::new();
    for (name, value) in given {
        if name.is_empty() {
            return Err(PublishError::Refused("a header without a name".to_owned()));
        }
        let header = HeaderName::from_str(name)
            .map_err(|error| PublishError::Refused(format!("header name {name:?}: {error}")))?;
        map.append(header, header_value(name, value)?);
    }
    Ok(map)
}

/// The server ends a value at the first line end, hence control characters are refused and not only those
/// that the client finds.
fn header_value(name: &str, value: &str) -> Result<HeaderValue, PublishError> {
    if value.chars().any(char::is_control) {
        return Err(PublishError::Refused(format!(
            "header {name:?} holds a control character"
        )));
    }
    HeaderValue::from_str(value).map_err(|error| PublishError::Refused(format!("header {name:?}: {error}")))
}

/// The message did not reach the client's queue.
fn not_sent(error: &ClientError) -> PublishError {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => PublishError::Refused(describe(error)),
        // The only other cause of this kind before sending is the subject, which was checked; or a client
        // that has ended.
        _ => PublishError::Unavailable(describe(error)),
    }
}

fn refusal(error: &ClientError, expect: &Expect) -> PublishError {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            PublishError::Unavailable("no stream takes this subject, or it has no leader".to_owned())
        }
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => PublishError::Unknown(describe(error)),
        PublishErrorKind::WrongLastSequence if *expect == Expect::FirstOnSubject => {
            PublishError::AlreadyThere
        }
        _ => match server_error(error) {
            Some(failure) => judge(failure.code(), failure.error_code(), describe(error)),
            // An answer that cannot be read: it may have been stored.
            None => PublishError::Unknown(describe(error)),
        },
    }
}

pub(super) fn server_error(error: &ClientError) -> Option<&async_nats::jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Sorts the server's error codes: what will never be stored, and what may be stored later.
fn judge(class: usize, code: async_nats::jetstream::ErrorCode, text: String) -> PublishError {
    const MESSAGE_TOO_LARGE: u64 = 10_054;
    const ROLLUP_FORBIDDEN: u64 = 10_111;
    const ACCOUNT_EXHAUSTED: u64 = 10_002;
    const BUSY_ON_SUBJECT: u64 = 10_164;
    match code.0 {
        MESSAGE_TOO_LARGE | ROLLUP_FORBIDDEN => PublishError::Refused(text),
        // Another message for this subject is on its way through the replicas; it may still fail.
        BUSY_ON_SUBJECT | ACCOUNT_EXHAUSTED => PublishError::Unavailable(text),
        // 409: the same message id is on its way. 429: too many requests. 404: the stream is gone.
        _ if class >= 500 || matches!(class, 404 | 409 | 429) => PublishError::Unavailable(text),
        _ => PublishError::Refused(text),
    }
}

pub(super) fn describe(error: &ClientError) -> String {
    match server_error(error) {
        Some(failure) => failure.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &[(&str, &str)], expect: Expect) -> Publication {
        Publication {
            stream: "S".to_owned(),
            subject: "a.b".to_owned(),
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            payload: bytes::Bytes::new(),
            expect,
        }
    }

    #[test]
    fn control_characters_in_headers_are_refused_without_a_panic() {
        for (name, value) in [
            ("a", "x\r\ny"),
            ("a", "x\ny"),
            ("a", "\0"),
            ("a\r\n", "x"),
            ("a:b", "x"),
            ("", "x"),
            ("a b", "x"),
        ] {
            let result = expecting(&message(&[(name, value)], Expect::Nothing));
            assert!(
                matches!(result, Err(PublishError::Refused(_))),
                "{name:?} {value:?}"
            );
        }
        let id = Expect::MessageId("x\ny".to_owned());
        assert!(matches!(
            expecting(&message(&[], id)),
            Err(PublishError::Refused(_))
        ));
    }

    #[test]
    fn only_literal_subjects_are_published_on() {
        for good in ["a", "a.b.c", "tenant.t.x%20y", "a.*b.c>"] {
            assert!(is_literal(good), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "a.*", "a.>", "*", "a b", "a\tb", "a\r\nb", "a.\0",
        ] {
            assert!(!is_literal(bad), "{bad:?}");
        }
    }

    #[test]
    fn only_what_will_never_be_stored_is_refused() {
        let judged =
            |class, code: u64| judge(class, serde_json::from_value(code.into()).unwrap(), String::new());
        for (class, code) in [(400, 10_054), (500, 10_111), (400, 10_166), (400, 10_060)] {
            assert!(matches!(judged(class, code), PublishError::Refused(_)), "{code}");
        }
        for (class, code) in [
            (503, 10_077),
            (503, 10_039),
            (503, 10_023),
            (500, 10_047),
            (400, 10_002),
            (400, 10_164),
            (404, 10_059),
            (409, 10_158),
            (429, 10_167),
            (503, 10_008),
        ] {
            assert!(
                matches!(judged(class, code), PublishError::Unavailable(_)),
                "{code}"
            );
        }
    }
}
