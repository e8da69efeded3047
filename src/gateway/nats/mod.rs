//! The gateway over NATS: one request per command, its reply sorted into definite and indefinite.

mod subject;
#[cfg(test)]
mod tests;

pub use subject::SubjectPattern;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::presentable;
use super::settings::Settings;
use crate::kernel::envelope::{AggregateCommand, CommandReply, CommandStatus};
use crate::kernel::trace::is_traceparent;
use crate::ports::gateway::{Gateway, GatewayError};
use crate::ports::messenger::{Messenger, MessengerError, Outgoing};

/// Longest reply that is read, in bytes.
const REPLY_BYTES_MAX: usize = 64 * 1_024;

pub struct NatsGateway {
    messenger: Arc<dyn Messenger>,
    subject: SubjectPattern,
    tenant_header: String,
    timeout: Duration,
}

impl NatsGateway {
    #[must_use]
    pub fn new(subject: SubjectPattern, settings: &Settings, messenger: Arc<dyn Messenger>) -> Self {
        Self {
            messenger,
            subject,
            tenant_header: settings.tenant_header.clone(),
            timeout: settings.timeout.duration(),
        }
    }

    fn message(&self, command: &AggregateCommand<'_>) -> Result<Outgoing, String> {
        let metadata = &command.metadata;
        let mut headers = vec![
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Idempotency-Key".to_owned(), metadata.idempotency_key.clone()),
        ];
        if !command.tenant_id.is_none() {
            let tenant = command.tenant_id.as_str().to_owned();
            headers.push((self.tenant_header.clone(), tenant));
        }
        let traceparent = metadata.traceparent.as_ref();
        if let Some(traceparent) = traceparent.filter(|text| is_traceparent(text)) {
            headers.push(("traceparent".to_owned(), traceparent.clone()));
        }
        let payload = serde_json::to_vec(command).map_err(|error| error.to_string())?;
        Ok(Outgoing {
            subject: self.subject.of(command)?,
            headers,
            payload: Bytes::from(payload),
        })
    }
}

#[async_trait]
impl Gateway for NatsGateway {
    async fn submit(&self, command: &AggregateCommand<'_>, within: Duration) -> Result<(), GatewayError> {
        let message = self
            .message(command)
            .map_err(|reason| GatewayError::Unsendable { message: reason })?;
        match self.messenger.request(message, self.timeout.min(within)).await {
            Ok(reply) => judge(&reply.payload),
            Err(error) => Err(unanswered(&error)),
        }
    }
}

/// A request that nobody was there to hear is one that was not sent.
fn unanswered(error: &MessengerError) -> GatewayError {
    let message = presentable(&error.to_string());
    match error {
        MessengerError::Refused(_) => GatewayError::Unsendable { message },
        MessengerError::Unavailable(_) | MessengerError::Unheard(_) => GatewayError::Unavailable { message },
        MessengerError::Unknown(_) => GatewayError::Unknown { message },
    }
}

fn judge(reply: &[u8]) -> Result<(), GatewayError> {
    let unclear = |message: String| Err(GatewayError::Unknown { message });
    if reply.len() > REPLY_BYTES_MAX {
        return unclear(format!("the reply is longer than {REPLY_BYTES_MAX} bytes"));
    }
    let CommandReply { status, message } = match serde_json::from_slice(reply) {
        Ok(reply) => reply,
        Err(error) => return unclear(format!("the reply is none of a gateway: {error}")),
    };
    let message = presentable(&message);
    match status {
        CommandStatus::Accepted => Ok(()),
        CommandStatus::Rejected => Err(GatewayError::Rejected { message }),
        CommandStatus::Unavailable => Err(GatewayError::Unavailable { message }),
    }
}
