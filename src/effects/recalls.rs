//! Commands that were taken back: nobody waits for their results any longer.
//!
//! The sagas leave word in the stream of commands, one message for each. Whoever has not begun a command by then does
//! not begin it. A command that is carried out nevertheless does no harm: what it did is undone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio_util::sync::CancellationToken;

use crate::kernel::ids::{CommandId, TenantId};
use crate::kernel::subject::{self, Subject, Tenancy};
use crate::ports::broker::{Broker, BrokerError, Message, ReaderBroken, ReaderSpec};

const REOPEN_FIRST: Duration = Duration::from_millis(100);
const REOPEN_MAX: Duration = Duration::from_secs(10);
/// How long the first command waits for what was taken back before it.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// Messages that the broker sends ahead.
const BUFFER: usize = 256;

type Name = (TenantId, CommandId);

/// What this worker knows of commands that were taken back.
pub struct Recalls {
    known: Cache<Name, ()>,
    /// Commands that this worker has in hand.
    in_hand: Mutex<HashMap<Name, InHand>>,
    /// Once all was heard that stood in the stream when the worker began.
    caught_up: CancellationToken,
}

/// A command in hand. A second delivery of it may have come before the first one was through.
#[derive(Default)]
struct InHand {
    deliveries: usize,
    recalled: CancellationToken,
}

impl Recalls {
    /// Remembers the newest `known_max`.
    pub fn new(known_max: u64) -> Self {
        Self {
            known: Cache::new(known_max),
            in_hand: Mutex::default(),
            caught_up: CancellationToken::new(),
        }
    }

    /// Watches a command while it is in hand.
    pub fn watch(self: &Arc<Self>, name: Name) -> Watch {
        let token = {
            let mut in_hand = self.lock();
            let command = in_hand.entry(name.clone()).or_default();
            command.deliveries += 1;
            command.recalled.clone()
        };
        // Looked up behind that, so that no word falls between the two.
        if self.known.contains_key(&name) {
            token.cancel();
        }
        Watch {
            recalls: Arc::clone(self),
            name,
            token,
        }
    }

    /// Waits until all was heard that stood in the stream when the worker began, but not for long: nothing depends
    /// on it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn caught_up(&self) {
        // Past it, a command may be carried out that was taken back.
        let _ = tokio::time::timeout(CATCH_UP_MAX, self.caught_up.cancelled()).await;
    }

    fn recall(&self, name: &Name) {
        self.known.insert(name.clone(), ());
        if let Some(command) = self.lock().get(name) {
            command.recalled.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Name, InHand>> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, message: &Message, tenancy: Tenancy) {
        if let Ok(Subject::EffectRecall { tenant, command, .. }) = Subject::parse(&message.subject, tenancy) {
            self.recall(&(tenant, command));
        } else {
            tracing::warn!(subject = ?message.subject, "subject takes no command back");
        }
    }
}

/// One command in hand.
pub struct Watch {
    recalls: Arc<Recalls>,
    name: Name,
    token: CancellationToken,
}

impl Watch {
    pub fn is_recalled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Ends when the command is taken back.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn recalled(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut in_hand = self.recalls.lock();
        if let Entry::Occupied(mut command) = in_hand.entry(self.name.clone()) {
            command.get_mut().deliveries -= 1;
            if command.get().deliveries == 0 {
                command.remove();
            }
        }
    }
}

/// Where the word comes from.
pub struct Source {
    pub broker: Arc<dyn Broker>,
    /// The stream of commands.
    pub stream: String,
    pub tenancy: Tenancy,
    /// Name of the reader, of this worker alone.
    pub reader: String,
}

/// Hears what is taken back, and all that the stream still has of it, until `stopping`.
pub async fn follow(recalls: Arc<Recalls>, source: Source, stopping: CancellationToken) {
    let mut next = None;
    let mut delay = REOPEN_FIRST;
    loop {
        let reason = tokio::select! {
            () = stopping.cancelled() => return,
            ended = hear_all(&recalls, &source, &mut next, &mut delay) => match ended {
                Ok(ReaderBroken(reason)) => reason,
                Err(error) => error.to_string(),
            },
        };
        tracing::debug!(
            reason,
            "commands that are taken back are not heard of, trying again"
        );
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
        delay = (delay * 2).min(REOPEN_MAX);
    }
}

/// Reads from `next` on until the reader breaks.
async fn hear_all(
    recalls: &Recalls,
    source: &Source,
    next: &mut Option<u64>,
    delay: &mut Duration,
) -> Result<ReaderBroken, BrokerError> {
    let start = match *next {
        Some(sequence) => sequence,
        None => source.broker.stream_state(&source.stream).await?.first_sequence,
    };
    let mut reader = source
        .broker
        .reader(ReaderSpec {
            stream: source.stream.clone(),
            filters: vec![subject::filter(source.tenancy, None, "effect_recall", None)],
            start_sequence: start,
            name: format!("{}-{}", source.reader, uuid::Uuid::new_v4().simple()),
            buffer: BUFFER,
        })
        .await?;
    let mut heard = 0;
    loop {
        if !recalls.caught_up.is_cancelled() {
            match reader.horizon().await {
                Ok(Some(horizon)) if horizon.after <= heard => recalls.caught_up.cancel(),
                Ok(_) => {}
                Err(broken) => return Ok(broken),
            }
        }
        let message = match reader.next().await {
            Ok(message) => message,
            Err(broken) => return Ok(broken),
        };
        *delay = REOPEN_FIRST;
        recalls.hear(&message, source.tenancy);
        heard = message.stream_sequence;
        *next = Some(heard + 1);
        reader.acknowledge(heard).await;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn name(n: u128) -> Name {
        (
            TenantId::parse("acme").expect("legal"),
            CommandId(Uuid::from_u128(n)),
        )
    }

    #[test]
    fn a_recall_is_heard_before_and_while_a_command_is_in_hand_and_only_by_it() {
        let recalls = Arc::new(Recalls::new(8));
        let (first, other) = (recalls.watch(name(1)), recalls.watch(name(2)));
        assert!(!first.is_recalled());
        recalls.recall(&name(1));
        assert!(first.is_recalled() && !other.is_recalled());
        drop((first, other));
        assert!(recalls.lock().is_empty(), "nothing is kept of what is over");
        assert!(recalls.watch(name(1)).is_recalled());
        let stranger = (TenantId::parse("other").expect("legal"), name(1).1);
        assert!(!recalls.watch(stranger).is_recalled());
    }

    #[test]
    fn a_second_delivery_that_is_over_leaves_the_first_in_hand() {
        let recalls = Arc::new(Recalls::new(8));
        let (first, second) = (recalls.watch(name(1)), recalls.watch(name(1)));
        drop(second);
        recalls.recall(&name(1));
        assert!(first.is_recalled());
        drop(first);
        assert!(recalls.lock().is_empty());
    }
}
