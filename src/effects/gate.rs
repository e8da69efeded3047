//! The gate before execution: was this command answered already?
//!
//! The marker in memory is a shortcut; the result subject is the truth.

use std::time::Duration;

use moka::sync::Cache;

use crate::kernel::ids::{CommandId, TenantId, TimeMs};
use crate::ports::broker::{Broker, BrokerError, Message};

/// Commands that this worker saw answered lately. The tenant is part of the name: ids are deterministic, so
/// one tenant could guess another's.
pub struct Gate {
    answered: Cache<(TenantId, CommandId), ()>,
    recheck_after: Duration,
}

impl Gate {
    pub fn new(answered_max: u64, recheck_after: Duration) -> Self {
        Self {
            answered: Cache::new(answered_max),
            recheck_after,
        }
    }

    /// Whether the command has a result. Asks the broker only where another delivery may have been answered:
    /// for repeated deliveries, for messages of some age, and for those that are older than the consumer that has
    /// brought them, since another one may have brought them before. `times` are now and when the consumer was made.
    pub async fn is_answered(
        &self,
        broker: &dyn Broker,
        events: &str,
        name: &(TenantId, CommandId),
        result_subject: &str,
        message: &Message,
        times: (TimeMs, TimeMs),
    ) -> Result<bool, BrokerError> {
        if self.answered.contains_key(name) {
            return Ok(true);
        }
        let (now, created) = times;
        let age_ms = u128::try_from(now.0.saturating_sub(message.time.0)).unwrap_or(0);
        let is_young = age_ms < self.recheck_after.as_millis() && message.time > created;
        if message.delivered <= 1 && is_young {
            return Ok(false);
        }
        let found = broker.last_by_subject(events, result_subject).await?.is_some();
        if found {
            self.mark(name.clone());
        }
        Ok(found)
    }

    pub fn mark(&self, name: (TenantId, CommandId)) {
        self.answered.insert(name, ());
    }
}
