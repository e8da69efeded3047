//! Room in progress: how many commands of an executor are served at the same time, who gets room next, and what happens to those
//! for whom there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::attempt::{Reason, Turn};
use super::executor::{Disposition, Executor, answer_for};
use super::held::HeldCommand;
use super::line::{Bound, Granted};
use super::progress::{self, Version};
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::{TenantId, TimeMs};

/// First delay of a command for which there is no room, in milliseconds.
const BUSY_DELAY_MS: u64 = 500;
/// Commands that take longer do not wait here for room in progress, but in the queue, where other workers may have them.
const AHEAD_BELOW: Duration = Duration::from_millis(100);

/// Room for one command. It is kept for as long as the command, so it is small there.
pub type Permit = Box<Granted<OwnedSemaphorePermit>>;

/// What is known of a delivery from the consumer that has brought it.
#[derive(Debug, Clone, Copy)]
pub struct Brought {
    /// When the consumer was made.
    pub created: TimeMs,
    /// [`Bound::Share`] where it brings the commands of one tenant: that tenant alone waits where it has its part of the room.
    pub bound: Bound,
}

impl Executor {
    /// Waits for room in progress. `None`: the drain began.
    pub(super) async fn in_line(&self, tenant: &TenantId, bound: Bound) -> Option<Permit> {
        self.tenants.note(tenant, self.clock.monotonic());
        let room = async || {
            let room = Arc::clone(&self.permits).acquire_owned().await;
            room.expect("the semaphore is never closed")
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            room = self.line.enter(tenant, bound, room) => Some(Box::new(room)),
        }
    }

    /// Room in progress, if there is some that nobody waits for.
    pub fn permit(&self, tenant: &TenantId, bound: Bound) -> Option<Permit> {
        self.tenants.note(tenant, self.clock.monotonic());
        self.line
            .try_enter(tenant, bound, || {
                Arc::clone(&self.permits).try_acquire_owned().ok()
            })
            .map(Box::new)
    }

    /// How many commands of `tenant` may be here at the same time, in progress or waiting for room: its part of the room, and fewer
    /// the more tenants have some here, so that what waits can be had by other workers.
    pub fn room_of(&self, tenant: &TenantId) -> usize {
        let (others, theirs) = self.line.others(tenant);
        let part = self
            .tenants
            .most_of(self.permits_max, theirs, self.clock.monotonic());
        (part.saturating_add(self.ahead()) / (others + 1)).max(1)
    }

    /// Gives a command back for which there is no room, with word that nothing was done. `created` is when the consumer was made.
    pub async fn give_back_busy(self: Arc<Self>, delivery: HeldCommand, created: TimeMs) {
        let name = delivery.name().clone();
        let message = &delivery.message;
        let stream = &self.streams.commands;
        let effect = &self.definition.name;
        let disposition = {
            let work = std::pin::pin!(async {
                // Its message says more than this worker has to know: what it begins with is read when it is served.
                let initial = initial_progress(&message.payload);
                let read = progress::read(
                    &*self.broker,
                    stream,
                    effect,
                    &name,
                    self.delivery(message, created),
                    initial.as_ref(),
                );
                match read.await {
                    Ok(mut progress) if !delivery.is_lost() => {
                        progress.delivered = delivery.delivered();
                        progress::write(&*self.broker, stream, effect, &name, &progress, Version::Newest)
                            .await;
                    }
                    // Without word the next worker assumes that a call may have happened.
                    Ok(_) | Err(_) => {}
                }
                self.count_given_back(&name, Reason::Busy);
                Disposition::GiveBack(Turn::of(message, &delivery).patience(BUSY_DELAY_MS))
            });
            tokio::select! {
                biased;
                disposition = work => disposition,
                () = self.stopping.cancelled() => Disposition::GiveBack(Duration::ZERO),
                never = delivery.keep() => match never {},
            }
        };
        answer_for(delivery, disposition).await;
    }

    /// How many commands may wait here for room in progress: as many as there is room for, where they come by quickly enough
    /// that the way to the broker counts.
    pub fn ahead(&self) -> usize {
        let is_quick = self.took.mean() < AHEAD_BELOW && self.pace.is_none();
        if is_quick { self.permits_max } else { 0 }
    }
}

/// What the message of a command says that was done before, if it can be read.
fn initial_progress(payload: &[u8]) -> Option<EffectProgress> {
    let command: Result<EffectCommand<'_>, _> = serde_json::from_slice(payload);
    command.ok()?.progress
}

/// How long a command has room in progress, on the average of the last few.
pub struct Took(AtomicU64);

impl Default for Took {
    /// Nothing is known yet.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Took {
    fn mean(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// One more, that weighs an eighth. Of two at the same time one may be lost, which does not matter.
    pub(super) fn add(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mean = match self.0.load(Ordering::Relaxed) {
            u64::MAX => took,
            mean => mean - mean / 8 + took / 8,
        };
        self.0.store(mean, Ordering::Relaxed);
    }
}
