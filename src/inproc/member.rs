//! One member of a queue, and the receipts it hands out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{BrokerError, Message, Queue, QueueMessage, ReaderBroken, Receipt};

use super::queue::{Asking, QueueShared, Taken};
use super::trust::Trust;

pub(super) struct Member {
    shared: Arc<QueueShared>,
    runtime: Handle,
    news: watch::Receiver<u64>,
    trust: Trust,
    /// Messages that may be taken.
    room: usize,
    /// While there is room.
    asking: Option<Asking>,
}

impl Member {
    pub fn new(shared: Arc<QueueShared>) -> Self {
        Self {
            runtime: Handle::current(),
            news: shared.stream().news(),
            asking: Some(shared.ask()),
            shared,
            trust: Trust::default(),
            room: usize::MAX,
        }
    }

    fn set_room(&mut self, room: usize) {
        self.room = room;
        if room == 0 {
            self.asking = None;
        } else if self.asking.is_none() {
            self.asking = Some(self.shared.ask());
        }
    }

    fn hand_over(&mut self, message: Message) -> QueueMessage {
        // Without end where nobody has said how much there is.
        if self.room != usize::MAX {
            self.set_room(self.room - 1);
        }
        let receipt = InprocReceipt {
            shared: Arc::clone(&self.shared),
            sequence: message.stream_sequence,
            delivered: message.delivered,
        };
        QueueMessage {
            message,
            receipt: Box::new(receipt),
        }
    }

    async fn try_next(&mut self) -> Result<Message, ReaderBroken> {
        let shared = Arc::clone(&self.shared);
        loop {
            // Both are armed before the look, so that nothing can happen between the look and the wait.
            let mut stirred = std::pin::pin!(shared.stirred().notified());
            stirred.as_mut().enable();
            self.news.mark_unchanged();
            let wait = match shared.take(&self.runtime)? {
                Taken::Message(message) => return Ok(message),
                Taken::Nothing(wait) => wait,
            };
            tokio::select! {
                () = stirred => {}
                changed = self.news.changed() => {
                    changed.map_err(|_| ReaderBroken("the stream is gone".to_owned()))?;
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

#[async_trait]
impl Queue for Member {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        self.trust.check()?;
        tokio::task::coop::consume_budget().await;
        if self.room == 0 {
            std::future::pending::<()>().await;
        }
        let result = self.try_next().await;
        self.trust.keep(result).map(|message| self.hand_over(message))
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        if let Err(broken) = self.trust.check() {
            return Some(Err(broken));
        }
        if self.room == 0 {
            return None;
        }
        let taken = self.shared.take(&self.runtime);
        match self.trust.keep(taken) {
            Ok(Taken::Message(message)) => Some(Ok(self.hand_over(message))),
            Ok(Taken::Nothing(_)) => None,
            Err(broken) => Some(Err(broken)),
        }
    }

    fn make_room(&mut self, room: usize) {
        self.set_room(room);
    }

    fn created(&self) -> TimeMs {
        self.shared.created()
    }

    /// There is nothing to give back: a message leaves the queue only when it is taken.
    async fn close(&mut self) {
        self.asking = None;
        self.trust.lose("the member has left the queue");
    }
}

struct InprocReceipt {
    shared: Arc<QueueShared>,
    sequence: u64,
    delivered: u64,
}

#[async_trait]
impl Receipt for InprocReceipt {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.shared.acknowledge(self.sequence)
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.shared.give_back(self.sequence, self.delivered, delay)
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        self.shared.extend(self.sequence, self.delivered)
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.shared.acknowledge(self.sequence)
    }
}
