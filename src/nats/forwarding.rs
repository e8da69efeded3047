//! Requests of the API on their way to the process that answers them, over core NATS.
//!
//! ```text
//! runner.<cluster>.query.all             a request; its reply subject is where the parts of the answer go
//! runner.<cluster>.answer.<random id>    a part; its reply subject is where the next one is asked for, the last one has none
//! ```
//!
//! The process that asks for a next part names a subject for it that nobody else knows. So the parts of one answer come from one process, even
//! where two have taken the request: what the other one sends is not read.
//!
//! The server itself says at once where nobody listens on a subject, to both sides: a process that was killed is no more asked, and
//! an answer that nobody reads is ended.

use std::sync::Arc;
use std::time::Duration;

use async_nats::client::{PublishError, PublishErrorKind};
use async_nats::{Message, StatusCode, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;

use crate::ports::forwarding::{Answer, Forwarding, ForwardingError, Listener, Reply};

use super::NatsBroker;
use super::link::Link;

/// Largest part, in bytes, where the server would take a larger message.
const PART_BYTES_MAX: usize = 512 * 1024;

/// Where the process listens that has all shards. A process that has some of them will listen on their numbers.
fn requests(cluster: &str) -> String {
    format!("runner.{cluster}.query.all")
}

/// What the subjects of answers begin with.
fn answers(cluster: &str) -> String {
    format!("runner.{cluster}.answer.")
}

#[async_trait]
impl Forwarding for NatsBroker {
    async fn forward(&self, cluster: &str, request: Bytes) -> Result<Box<dyn Answer>, ForwardingError> {
        let inbox = Inbox::open(&self.link, cluster).await?;
        let (to, back) = (requests(cluster), inbox.subject.clone());
        let sent = self.link.client.publish_with_reply(to, back, request).await;
        sent.map_err(|error| not_sent(&error))?;
        Ok(Box::new(NatsAnswer {
            inbox,
            cluster: cluster.to_owned(),
            more: None,
            parts: Parts::None,
        }))
    }

    async fn listen(&self, cluster: &str) -> Result<Box<dyn Listener>, ForwardingError> {
        let requests = self.link.client.subscribe(requests(cluster)).await;
        let requests = requests.map_err(|error| ForwardingError::Unavailable(error.to_string()))?;
        // The server takes what comes over a connection in its order: once it answers this, it knows of the subscription.
        let mut inbox = Inbox::open(&self.link, cluster).await?;
        let sent = self
            .link
            .client
            .publish(inbox.subject.clone(), Bytes::new())
            .await;
        sent.map_err(|error| not_sent(&error))?;
        inbox.next(self.link.request_timeout).await?;
        Ok(Box::new(NatsListener {
            link: Arc::clone(&self.link),
            cluster: cluster.to_owned(),
            requests,
        }))
    }
}

fn not_sent(error: &PublishError) -> ForwardingError {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded | PublishErrorKind::InvalidSubject => {
            ForwardingError::Refused(error.to_string())
        }
        PublishErrorKind::Send => ForwardingError::Unavailable(error.to_string()),
    }
}

/// A subject of one's own. What is sent there comes over the connection that it was opened on, or not at all.
struct Inbox {
    link: Arc<Link>,
    generation: u64,
    subject: String,
    messages: Subscriber,
}

impl Inbox {
    async fn open(link: &Arc<Link>, cluster: &str) -> Result<Self, ForwardingError> {
        let generation = link.generation().map_err(ForwardingError::Unavailable)?;
        // The client's own inboxes end with a random token, too.
        let inbox = link.client.new_inbox();
        let random = inbox.rsplit('.').next().unwrap_or_default();
        let subject = format!("{}{random}", answers(cluster));
        let messages = link.client.subscribe(subject.clone()).await;
        Ok(Self {
            link: Arc::clone(link),
            generation,
            subject,
            messages: messages.map_err(|error| ForwardingError::Unavailable(error.to_string()))?,
        })
    }

    async fn next(&mut self, patience: Duration) -> Result<Message, ForwardingError> {
        let unanswered = |why: &str| Err(ForwardingError::Unanswered(why.to_owned()));
        let received = tokio::select! {
            biased;
            received = tokio::time::timeout(patience, self.messages.next()) => received,
            () = self.link.lost(self.generation) => return unanswered("the connection to NATS was lost"),
        };
        match received {
            Ok(Some(message)) if message.status == Some(StatusCode::NO_RESPONDERS) => {
                Err(ForwardingError::Unheard)
            }
            Ok(Some(message)) => Ok(message),
            Ok(None) => unanswered("the connection to NATS has ended"),
            Err(_) => unanswered(&format!("no answer within {} ms", patience.as_millis())),
        }
    }
}

struct NatsAnswer {
    inbox: Inbox,
    cluster: String,
    /// Where the next part is asked for.
    more: Option<String>,
    parts: Parts,
}

/// Which parts have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    None,
    /// The first; the others come to an inbox that only its sender has been told.
    First,
    Further,
    All,
}

#[async_trait]
impl Answer for NatsAnswer {
    async fn part(&mut self, patience: Duration) -> Result<Option<Bytes>, ForwardingError> {
        if self.parts == Parts::All {
            return Ok(None);
        }
        if let Some(more) = self.more.take() {
            let link = Arc::clone(&self.inbox.link);
            let lost = |why: String| ForwardingError::Unanswered(why);
            if self.parts == Parts::First {
                let private = Inbox::open(&link, &self.cluster).await;
                self.inbox = private.map_err(|error| lost(error.to_string()))?;
                self.parts = Parts::Further;
            }
            let to = self.inbox.subject.clone();
            let asked = link.client.publish_with_reply(more, to, Bytes::new()).await;
            asked.map_err(|error| lost(error.to_string()))?;
        }
        let part = self.inbox.next(patience).await?;
        self.more = part.reply.map(|more| more.to_string());
        if self.more.is_none() {
            self.parts = Parts::All;
        } else if self.parts == Parts::None {
            self.parts = Parts::First;
        }
        Ok(Some(part.payload))
    }
}

struct NatsListener {
    link: Arc<Link>,
    cluster: String,
    requests: Subscriber,
}

#[async_trait]
impl Listener for NatsListener {
    async fn request(&mut self) -> Option<(Bytes, Box<dyn Reply>)> {
        let answers = answers(&self.cluster);
        loop {
            let message = self.requests.next().await?;
            // What names another way back is none of a runner: the answer would be published there in the name of this process.
            let Some(to) = message.reply.filter(|to| to.starts_with(&answers)) else {
                continue;
            };
            let reply = NatsReply {
                link: Arc::clone(&self.link),
                cluster: self.cluster.clone(),
                to: to.to_string(),
                inbox: None,
            };
            return Some((message.payload, Box::new(reply)));
        }
    }
}

struct NatsReply {
    link: Arc<Link>,
    cluster: String,
    to: String,
    /// Where the next part is asked for, once there is more than one.
    inbox: Option<Inbox>,
}

#[async_trait]
impl Reply for NatsReply {
    fn part_bytes_max(&self) -> usize {
        self.link.client.max_payload().min(PART_BYTES_MAX)
    }

    async fn send(&mut self, part: Bytes, patience: Duration) -> Result<(), ForwardingError> {
        let inbox = match &mut self.inbox {
            Some(inbox) => inbox,
            none => none.insert(Inbox::open(&self.link, &self.cluster).await?),
        };
        let (to, more) = (self.to.clone(), inbox.subject.clone());
        let sent = self.link.client.publish_with_reply(to, more, part).await;
        sent.map_err(|error| not_sent(&error))?;
        let asked = inbox.next(patience).await?;
        let answers = answers(&self.cluster);
        if let Some(to) = asked.reply.filter(|to| to.starts_with(&answers)) {
            self.to = to.to_string();
        }
        Ok(())
    }

    async fn finish(self: Box<Self>, part: Bytes) -> Result<(), ForwardingError> {
        let sent = self.link.client.publish(self.to.clone(), part).await;
        sent.map_err(|error| not_sent(&error))
    }
}
