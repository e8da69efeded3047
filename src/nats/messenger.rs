//! Messages to others over the runner's own connection.

use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{Request, RequestErrorKind};
use async_trait::async_trait;
use bytes::Bytes;

use crate::ports::broker::{Broker as _, BrokerError, Expect, Publication};
use crate::ports::messenger::{Messenger, MessengerError, Outgoing, Reply, Stored};

use super::{NatsBroker, message, publish};

/// What stands over a value that was taken away: by somebody, or by the server when its time was over.
const GONE: [&str; 2] = ["KV-Operation", "Nats-Marker-Reason"];

#[async_trait]
impl Messenger for NatsBroker {
    async fn request(&self, message: Outgoing, timeout: Duration) -> Result<Reply, MessengerError> {
        let generation = self.link.generation().map_err(MessengerError::Unavailable)?;
        publish::check_subject(&message.subject)?;
        let request = Request::new()
            .headers(publish::headers(&message.headers)?)
            .payload(message.payload)
            .timeout(Some(timeout));
        let asked = message.subject.clone();
        // An answer can only come over the connection that carried the question.
        let answer = tokio::select! {
            biased;
            answer = self.link.client.send_request(message.subject, request) => answer,
            () = self.link.lost(generation) => {
                return Err(MessengerError::Unknown("connection lost before the answer".to_owned()));
            }
        };
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => MessengerError::Unheard(asked),
            RequestErrorKind::TimedOut => {
                MessengerError::Unknown(format!("none within {} ms", timeout.as_millis()))
            }
            RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
                MessengerError::Refused(error.to_string())
            }
            RequestErrorKind::Other => MessengerError::Unknown(error.to_string()),
        })?;
        Ok(Reply {
            headers: message::headers(answer.headers.as_ref(), |_| true),
            payload: answer.payload,
        })
    }

    async fn send(&self, message: Outgoing) -> Result<(), MessengerError> {
        let generation = self.link.generation().map_err(MessengerError::Unavailable)?;
        publish::check_subject(&message.subject)?;
        let headers = publish::headers(&message.headers)?;
        let client = &self.link.client;
        let sent = client.publish_with_headers(message.subject, headers, message.payload);
        sent.await.map_err(|error| match error.kind() {
            PublishErrorKind::Send => MessengerError::Unavailable(error.to_string()),
            PublishErrorKind::MaxPayloadExceeded | PublishErrorKind::InvalidSubject => {
                MessengerError::Refused(error.to_string())
            }
        })?;
        // The server takes in order what comes over one connection. That nobody listens on a subject that was
        // made a moment ago is its answer to the next message, so it has this one.
        let probe = Outgoing {
            subject: client.new_inbox(),
            headers: Vec::new(),
            payload: Bytes::new(),
        };
        match self.request(probe, self.link.request_timeout).await {
            Ok(_) | Err(MessengerError::Unheard(_)) if self.link.holds(generation) => Ok(()),
            Ok(_) | Err(MessengerError::Unheard(_)) => Err(MessengerError::Unknown(
                "connection lost before it was confirmed".to_owned(),
            )),
            Err(error) => Err(MessengerError::Unknown(format!("not confirmed: {error}"))),
        }
    }

    async fn store(&self, message: Outgoing, id: &str) -> Result<Stored, MessengerError> {
        let publication = Publication {
            stream: String::new(),
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
            expect: Expect::MessageId(id.to_owned()),
        };
        let ack = self.publisher.store(&self.link, publication).await?;
        Ok(Stored {
            stream: ack.stream,
            sequence: ack.sequence,
            duplicate: ack.duplicate,
        })
    }

    async fn value(&self, bucket: &str, key: &str) -> Result<Option<Bytes>, MessengerError> {
        let found = self
            .last_by_subject(&format!("KV_{bucket}"), &format!("$KV.{bucket}.{key}"))
            .await;
        match found {
            Ok(entry) => Ok(entry
                .filter(|entry| !entry.headers.iter().any(|(name, _)| GONE.contains(&&**name)))
                .map(|entry| entry.payload)),
            Err(BrokerError::Unavailable(why)) => Err(MessengerError::Unavailable(why)),
            Err(error) => Err(MessengerError::Refused(format!("bucket {bucket}: {error}"))),
        }
    }
}
