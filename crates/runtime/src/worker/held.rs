//! Deliveries in progress. Each is claimed from its arrival until it is answered for, so that nobody else gets it, and a
//! command has one at a time: another delivery of it takes the place of the one before and begins nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kernel::envelope::is_announced;
use crate::kernel::ids::{CommandId, TenantId};
use crate::kernel::planted::{Bug, is_planted};
use crate::ports::broker::{BrokerError, Message, QueueMessage, Receipt};
use crate::ports::clock::Clock;

type Name = (TenantId, CommandId);

/// All that a worker has in progress.
pub struct HeldCommands {
    held: Mutex<HashMap<Name, Arc<Held>>>,
    clock: Arc<dyn Clock>,
    /// A claim is renewed three times in it.
    ack_wait: Duration,
}

impl HeldCommands {
    pub fn new(clock: Arc<dyn Clock>, ack_wait: Duration) -> Self {
        Self {
            held: Mutex::default(),
            clock,
            ack_wait,
        }
    }

    /// Takes a delivery in progress. `None`: another one of this command is in progress, and goes on with the right to answer of
    /// this one.
    pub fn take(self: &Arc<Self>, name: Name, delivery: QueueMessage) -> Option<HeldCommand> {
        let QueueMessage { message, receipt } = delivery;
        let now = self.clock.monotonic();
        let mut held = self.lock();
        if let Some(first) = held.get(&name).filter(|_| !is_planted(Bug::TwiceInHand)) {
            first.take_over(receipt.into(), message.delivered, now);
            return None;
        }
        let one = Arc::new(Held {
            clock: Arc::clone(&self.clock),
            ack_wait: self.ack_wait,
            announced: is_announced(&message.headers),
            claim: Mutex::new(Claim {
                receipt: receipt.into(),
                delivered: message.delivered,
                since: now,
                looked: now,
                has_lapsed: false,
                was_elsewhere: false,
            }),
        });
        held.insert(name.clone(), Arc::clone(&one));
        drop(held);
        Some(HeldCommand {
            message,
            held: one,
            name,
            all: Arc::clone(self),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command in progress, until it is dropped.
pub struct HeldCommand {
    pub message: Message,
    held: Arc<Held>,
    name: Name,
    all: Arc<HeldCommands>,
}

impl HeldCommand {
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Lets go of the command. What comes of it from now on is begun again, so the answer for it follows at once.
    pub fn release(self) -> Arc<Held> {
        Arc::clone(&self.held)
    }
}

impl Deref for HeldCommand {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for HeldCommand {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

/// The claim on a command.
pub struct Held {
    clock: Arc<dyn Clock>,
    ack_wait: Duration,
    /// Its message has the mark by which each call is recorded before it is made.
    announced: bool,
    claim: Mutex<Claim>,
}

struct Claim {
    /// Of the newest delivery.
    receipt: Arc<dyn Receipt>,
    delivered: u64,
    /// The claim holds for the ack wait from then on: when the broker was asked that granted it.
    since: Duration,
    /// When nobody had answered the command.
    looked: Duration,
    /// The claim may have ended before it was renewed: then the broker gives the command to somebody else.
    has_lapsed: bool,
    /// Somebody else was given the command in between.
    was_elsewhere: bool,
}

impl Held {
    fn take_over(&self, receipt: Arc<dyn Receipt>, delivered: u64, now: Duration) {
        let mut claim = self.lock();
        // An older one is that of another consumer, which gives it again.
        if delivered > claim.delivered {
            claim.was_elsewhere |= delivered != claim.delivered + 1;
            claim.receipt = receipt;
            claim.delivered = delivered;
            claim.since = now;
            claim.has_lapsed = false;
        }
    }

    /// Whether each call of the command is recorded before it is made, whatever the definition in force says.
    pub const fn is_announced(&self) -> bool {
        self.announced
    }

    /// Number of the newest delivery.
    pub fn delivered(&self) -> u64 {
        self.lock().delivered
    }

    /// Nobody had answered the command at this time.
    pub fn looked(&self, at: Duration) {
        self.lock().looked = at;
    }

    /// Whether it is so long that nobody had answered that somebody may have.
    pub fn has_waited(&self) -> bool {
        let looked = self.lock().looked;
        self.clock.monotonic().saturating_sub(looked) > self.ack_wait / 3
    }

    /// Whether something has to be asked before a call.
    pub fn is_doubtful(&self) -> bool {
        if is_planted(Bug::TwiceInHand) {
            return false;
        }
        let claim = self.lock();
        let now = self.clock.monotonic();
        let (renewed, looked) = (now.saturating_sub(claim.since), now.saturating_sub(claim.looked));
        claim.has_lapsed || claim.was_elsewhere || renewed > self.ack_wait / 2 || looked > self.ack_wait / 3
    }

    /// Whether nobody else can have been given the command since this worker took it; asks the broker if need be.
    pub async fn is_ours(&self) -> bool {
        let renewed = self.clock.monotonic().saturating_sub(self.lock().since);
        (renewed <= self.ack_wait / 2 || self.renew().await) && !self.is_lost()
    }

    /// Whether somebody else may have been given the command, or may be now.
    pub fn is_lost(&self) -> bool {
        let claim = self.lock();
        claim.was_elsewhere || self.has_ended(&claim)
    }

    fn has_ended(&self, claim: &Claim) -> bool {
        claim.has_lapsed || self.clock.monotonic().saturating_sub(claim.since) > self.ack_wait
    }

    /// Renews the claim for as long as it is polled.
    pub async fn keep(&self) -> Infallible {
        if is_planted(Bug::TwiceInHand) {
            std::future::pending::<()>().await;
        }
        let mut pause = self.ack_wait / 3;
        loop {
            tokio::time::sleep(pause).await;
            pause = self.ack_wait / if self.renew().await { 3 } else { 12 };
        }
    }

    /// Whether the broker has taken the claim.
    async fn renew(&self) -> bool {
        let receipt = Arc::clone(&self.lock().receipt);
        let asked = self.clock.monotonic();
        let granted = receipt.progress().await;
        let mut claim = self.lock();
        match granted {
            Ok(()) => {
                claim.has_lapsed = self.has_ended(&claim);
                claim.since = claim.since.max(asked);
                true
            }
            Err(error) => {
                let is_newest = Arc::ptr_eq(&claim.receipt, &receipt);
                claim.has_lapsed |= is_newest && matches!(error, BrokerError::Refused(_));
                drop(claim);
                tracing::debug!(%error, "a claim was not renewed");
                false
            }
        }
    }

    pub async fn ack(&self) -> Result<(), BrokerError> {
        let receipt = Arc::clone(&self.lock().receipt);
        receipt.ack().await
    }

    pub async fn term(&self) -> Result<(), BrokerError> {
        let receipt = Arc::clone(&self.lock().receipt);
        receipt.term().await
    }

    /// Gives the command back, unless somebody else may have it: he would lose it.
    pub async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let receipt = {
            let claim = self.lock();
            if self.has_ended(&claim) {
                return Err(BrokerError::Refused("another worker may have it".to_owned()));
            }
            Arc::clone(&claim.receipt)
        };
        receipt.nak(delay).await
    }

    fn lock(&self) -> MutexGuard<'_, Claim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
