//! Submitting aggregate commands: retried with the same id until the gateway decides or the deadline passes,
//! behind one circuit breaker that all shards share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::envelope;
use super::publish::seed;
use super::settings::Settings;
use crate::kernel::breaker::{Admission, Breaker, BreakerState, CallEnd};
use crate::kernel::envelope::AggregateCommand;
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::clock::Clock;
use crate::ports::gateway::{Gateway, GatewayError};

/// One gateway, shared by the relays of all shards.
pub struct Submitter {
    gateway: Arc<dyn Gateway>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    breaker: Mutex<Breaker>,
    places: Semaphore,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    Accepted,
    Rejected {
        message: String,
    },
    /// The deadline passed without a verdict.
    TimedOut {
        message: String,
    },
}

/// What became of one look at whether a command may be submitted.
enum Attempt {
    Ended(Result<(), GatewayError>),
    /// The breaker asks to come again after this time.
    HeldBack(Duration),
    /// Its deadline is over: it is not submitted any more.
    Late,
}

impl Submitter {
    #[must_use]
    pub fn new(gateway: Arc<dyn Gateway>, settings: &Settings, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            places: Semaphore::new(settings.gateway_in_flight.max(1)),
            settings: settings.clone(),
            clock,
        })
    }

    /// Where the breaker stands: open, it holds all commands back.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        let now = self.now_ms();
        self.breaker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .state(now)
    }

    /// Submits the command until there is a verdict.
    pub async fn submit(&self, item: &WorkItem) -> Submitted {
        let WorkKind::Command {
            aggregate_type,
            aggregate_id,
            command_type,
            payload,
            ..
        } = &item.kind
        else {
            let message = "not an aggregate command".to_owned();
            return Submitted::Rejected { message };
        };
        match envelope::aggregate_command(item, aggregate_type, aggregate_id, command_type, payload) {
            Ok(command) => self.until_decided(item, &command).await,
            Err(error) => Submitted::Rejected {
                message: error.to_string(),
            },
        }
    }

    async fn until_decided(&self, item: &WorkItem, command: &AggregateCommand<'_>) -> Submitted {
        let mut delays = self.settings.delays(seed(item));
        let mut last = "it was never its turn".to_owned();
        loop {
            let wait = match self.attempt(item, command).await {
                Attempt::Ended(Ok(())) => return Submitted::Accepted,
                Attempt::Ended(Err(GatewayError::Rejected { message })) => {
                    return Submitted::Rejected { message };
                }
                Attempt::Ended(Err(
                    error @ (GatewayError::Unavailable { .. } | GatewayError::Unknown { .. }),
                )) => {
                    last = error.to_string();
                    delays.next().unwrap_or(Duration::from_secs(1))
                }
                Attempt::HeldBack(wait) => {
                    "the gateway's breaker is open".clone_into(&mut last);
                    wait
                }
                Attempt::Late => {
                    let message = format!("no verdict before the deadline; last: {last}");
                    return Submitted::TimedOut { message };
                }
            };
            tokio::time::sleep(wait.min(self.left(item))).await;
        }
    }

    /// One call, unless something forbids it.
    async fn attempt(&self, item: &WorkItem, command: &AggregateCommand<'_>) -> Attempt {
        let Ok(place) = tokio::time::timeout(self.left(item), self.places.acquire()).await else {
            return Attempt::Late;
        };
        let _place = place.expect("the semaphore is never closed");
        // Looked at again: the wait for the place may have been long.
        let left = self.left(item);
        if left.is_zero() {
            return Attempt::Late;
        }
        let admission = self
            .breaker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(self.now_ms());
        if let Admission::Wait { ms } = admission {
            return Attempt::HeldBack(Duration::from_millis(ms));
        }
        let mut call = Call {
            submitter: self,
            end: CallEnd::Abandoned,
        };
        let answer = self.gateway.submit(command, left).await;
        call.end = match &answer {
            Ok(()) | Err(GatewayError::Rejected { .. }) => CallEnd::Answered,
            Err(GatewayError::Unavailable { .. } | GatewayError::Unknown { .. }) => CallEnd::Failed,
        };
        Attempt::Ended(answer)
    }

    fn left(&self, item: &WorkItem) -> Duration {
        let left = item.deadline.0.saturating_sub(self.clock.now().0);
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Tells the breaker how a call ended, also when its future is dropped.
struct Call<'a> {
    submitter: &'a Submitter,
    end: CallEnd,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let now = self.submitter.now_ms();
        self.submitter
            .breaker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .record(now, self.end);
    }
}
