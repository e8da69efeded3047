//! Submitting aggregate commands: retried with the same id until the gateway decides or the deadline passes.
//!
//! The commands of one tenant for aggregates of one type have places and a circuit breaker of their own, so that whoever
//! is slow or fails costs nobody else anything.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::channels::{Channel, Channels};
use super::envelope;
use super::fence::Fence;
use super::publish::seed;
use super::settings::Settings;
use crate::breakers::Breakers;
use crate::kernel::breaker::CallEnd;
use crate::kernel::envelope::AggregateCommand;
use crate::kernel::ids::InstanceId;
use crate::kernel::token::TokenKey;
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::clock::Clock;
use crate::ports::gateway::{Gateway, GatewayError};
use crate::telemetry::Metrics;

/// How breakers name the gateway, before the type of aggregate.
const UPSTREAM_PREFIX: &str = "gateway:";

/// One gateway, shared by the relays of all shards.
pub struct Submitter {
    gateway: Arc<dyn Gateway>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    breakers: Arc<Breakers>,
    channels: Channels,
    /// Makes the callback tokens that commands hand out, where the manifest has a key for them.
    tokens: Option<TokenKey>,
}

/// Whether an earlier life of this process may have submitted a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    Never,
    Perhaps,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    Accepted,
    /// The gateway refuses it.
    Rejected {
        message: String,
    },
    /// It can be sent to no gateway.
    Unsendable {
        message: String,
    },
    /// The deadline passed, and the gateway has certainly not carried it out.
    Unavailable {
        message: String,
    },
    /// The deadline passed, and it may have been carried out.
    TimedOut {
        message: String,
    },
}

/// The outcome of one look at whether a command may be submitted.
enum Attempt {
    Ended(Result<(), GatewayError>),
    /// The breaker asks to come again after this time.
    HeldBack(Duration),
    /// Its deadline is over: it is not submitted any more.
    Late,
}

impl Submitter {
    #[must_use]
    pub fn new(
        gateway: Arc<dyn Gateway>,
        settings: &Settings,
        tokens: Option<TokenKey>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            breakers: Breakers::of_any(settings.breaker, Arc::clone(&clock), metrics),
            channels: Channels::new(settings.gateway_in_flight, settings.gateway_in_flight_all),
            settings: settings.clone(),
            tokens,
            clock,
        })
    }

    /// The breakers, one for each tenant and aggregate type: open, one holds the commands of both back.
    #[must_use]
    pub const fn breakers(&self) -> &Arc<Breakers> {
        &self.breakers
    }

    /// Submits the command until there is a verdict.
    pub async fn submit(&self, item: &WorkItem, earlier: Earlier, fence: &Fence) -> Submitted {
        let WorkKind::Command {
            aggregate_type,
            aggregate_id,
            command_type,
            payload,
            token,
            ..
        } = &item.kind
        else {
            let message = "not an aggregate command".to_owned();
            return Submitted::Unsendable { message };
        };
        let payload = match token.as_ref().map(|mark| self.with_token(item, payload, mark)) {
            None => payload.clone(),
            Some(Ok(payload)) => payload,
            Some(Err(message)) => return Submitted::Unsendable { message },
        };
        let channel = (item.instance.tenant.clone(), Arc::from(aggregate_type.as_str()));
        match envelope::aggregate_command(item, aggregate_type, aggregate_id, command_type, &payload) {
            Ok(command) => self.until_decided(item, &command, &channel, earlier, fence).await,
            Err(error) => Submitted::Unsendable {
                message: error.to_string(),
            },
        }
    }

    /// The payload with the callback token of its work in the place of what stands for it. Neither has a character that JSON would
    /// write in another way.
    fn with_token(&self, item: &WorkItem, payload: &[u8], mark: &str) -> Result<Bytes, String> {
        let Some(tokens) = &self.tokens else {
            return Err("the command hands out a token, and the manifest has no callbacks.key".to_owned());
        };
        let InstanceId { tenant, saga, key } = &item.instance;
        let token = tokens.token(tenant, saga, key, &item.idempotency_key);
        let text = std::str::from_utf8(payload).map_err(|error| error.to_string())?;
        Ok(Bytes::from(text.replace(mark, &token)))
    }

    async fn until_decided(
        &self,
        item: &WorkItem,
        command: &AggregateCommand<'_>,
        channel: &Channel,
        mut earlier: Earlier,
        fence: &Fence,
    ) -> Submitted {
        let upstream: Arc<str> = format!("{UPSTREAM_PREFIX}{}", channel.1).into();
        let mut delays = self.settings.delays(seed(item));
        let mut last = "deadline passed while queued behind an earlier command of this key".to_owned();
        loop {
            let wait = match self.attempt(item, command, channel, &upstream, fence).await {
                Attempt::Ended(Ok(())) => return Submitted::Accepted,
                Attempt::Ended(Err(GatewayError::Rejected { message })) => {
                    return Submitted::Rejected { message };
                }
                Attempt::Ended(Err(GatewayError::Unsendable { message })) => {
                    return Submitted::Unsendable { message };
                }
                Attempt::Ended(Err(error @ GatewayError::Unavailable { .. })) => {
                    last = error.to_string();
                    delays.next().unwrap_or(Duration::from_secs(1))
                }
                Attempt::Ended(Err(error @ GatewayError::Unknown { .. })) => {
                    earlier = Earlier::Perhaps;
                    last = error.to_string();
                    delays.next().unwrap_or(Duration::from_secs(1))
                }
                Attempt::HeldBack(wait) => {
                    "the gateway's breaker is open".clone_into(&mut last);
                    wait
                }
                Attempt::Late => {
                    let message = format!("no verdict before the deadline; last: {last}");
                    return given_up(earlier, message);
                }
            };
            tokio::time::sleep(wait.min(self.left(item))).await;
        }
    }

    /// One call, unless something forbids it.
    async fn attempt(
        &self,
        item: &WorkItem,
        command: &AggregateCommand<'_>,
        channel: &Channel,
        upstream: &Arc<str>,
        fence: &Fence,
    ) -> Attempt {
        let _place = loop {
            // The place comes last: others may use it meanwhile.
            let entered = async {
                fence.passed().await;
                self.channels.enter(channel).await
            };
            let Ok(place) = tokio::time::timeout(self.left(item), entered).await else {
                return Attempt::Late;
            };
            // Looked at again, like the time that is left: the wait for the place may have been long.
            if fence.is_open() {
                break place;
            }
        };
        let left = self.left(item);
        if left.is_zero() {
            return Attempt::Late;
        }
        // Dropped with this future, it says nothing about the gateway.
        let call = match self.breakers.admit(upstream, &channel.0) {
            Ok(call) => call,
            Err(refused) => return Attempt::HeldBack(Duration::from_millis(refused.ms)),
        };
        let answer = self.gateway.submit(command, left).await;
        call.ended(match &answer {
            Ok(()) | Err(GatewayError::Rejected { .. }) => CallEnd::Answered,
            Err(GatewayError::Unavailable { .. } | GatewayError::Unknown { .. }) => CallEnd::Failed,
            Err(GatewayError::Unsendable { .. }) => CallEnd::Abandoned,
        });
        Attempt::Ended(answer)
    }

    fn left(&self, item: &WorkItem) -> Duration {
        let left = item.ends().0.saturating_sub(self.clock.now().0);
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }
}

/// What a command without a verdict is at its deadline.
pub fn given_up(earlier: Earlier, message: String) -> Submitted {
    match earlier {
        Earlier::Never => Submitted::Unavailable { message },
        Earlier::Perhaps => Submitted::TimedOut { message },
    }
}
