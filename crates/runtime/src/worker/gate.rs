//! The gate before execution: was this command answered already?
//!
//! The result subject is the truth: a broker that lost power may have lost the result of a command that this worker has answered.
//! The marker in memory says only that the broker has to be asked.

use std::time::Duration;

use moka::sync::Cache;

use super::attempt::{Reason, Turn};
use super::cancellations::Watch;
use super::executor::{Executor, NAK_DELAY, Next};
use super::held::Held;
use super::progress::{self, Version, Written};
use super::result;
use crate::kernel::envelope::{EffectCommand, EffectProgress};
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

    /// Whether this worker answered the command lately, or saw its result. The result may be lost since.
    pub fn has_seen_answered(&self, name: &(TenantId, CommandId)) -> bool {
        self.answered.contains_key(name)
    }

    /// Whether no other delivery can have been answered: not so for repeated deliveries, for messages of some age, and for
    /// those that are older than the consumer that has brought them, since another one may have brought them before.
    /// `created` is when the consumer was made.
    pub fn is_first(&self, message: &Message, now: TimeMs, created: TimeMs) -> bool {
        let age_ms = u128::try_from(now.0.saturating_sub(message.time.0)).unwrap_or(0);
        let is_young = age_ms < self.recheck_after.as_millis() && message.time > created;
        message.delivered <= 1 && is_young
    }

    /// Whether the command has a result, which the broker is asked.
    pub async fn is_answered(
        &self,
        broker: &dyn Broker,
        events: &str,
        name: &(TenantId, CommandId),
        result_subject: &str,
    ) -> Result<bool, BrokerError> {
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

impl Executor {
    /// Whether there is something to ask before the call of a command: it has waited, or what is known of it may not be
    /// all.
    pub(super) fn is_doubtful(turn: Turn<'_>, watch: &Watch) -> bool {
        watch.is_unsure() || turn.held.is_some_and(Held::is_doubtful)
    }

    /// Asks for what is not sure right before a call: whether the command is still this worker's, whether somebody has
    /// answered it, and whether it was cancelled. What to do instead of the call, if there is to be none.
    pub(super) async fn look_again(
        &self,
        command: &EffectCommand<'_>,
        turn: Turn<'_>,
        watch: &Watch,
        progress: &EffectProgress,
    ) -> Option<Next> {
        let effect = &self.definition.name;
        if let Some(held) = turn.held {
            if !held.is_ours().await {
                return Some(Next::GiveBack(Duration::ZERO, Reason::Lost));
            }
            if held.has_waited() {
                let name = (command.tenant_id.clone(), command.command_id);
                let subject = result::subject(&name.0, effect, name.1);
                let now = self.clock.monotonic();
                let events = &self.streams.events;
                match self
                    .gate
                    .is_answered(&*self.broker, events, &name, &subject)
                    .await
                {
                    Ok(false) => held.looked(now),
                    // The next delivery stops at the gate.
                    Ok(true) => return Some(Next::GiveBack(Duration::ZERO, Reason::Lost)),
                    Err(_) => return Some(Next::GiveBack(NAK_DELAY, Reason::Broker)),
                }
            }
        }
        if watch.is_unsure() {
            let asked = watch.ask(&*self.broker, &self.streams.commands, effect).await;
            // Locally, what cancels the command has yet to leave this process, so it cannot stand there.
            if turn.held.is_some() && asked.is_err() {
                return Some(Next::GiveBack(NAK_DELAY, Reason::Broker));
            }
        }
        watch.is_cancelled().then(|| self.taken_back(command, progress))
    }

    /// Records the intent before a call that must not be made twice, or whose command asks for it. Without one, no call was begun: the outcome of a command
    /// that was only held in progress is not unknown. At the first delivery of a command there is none, unless the broker has
    /// lost count; then `progress` becomes what stands there.
    pub(super) async fn announce(
        &self,
        command: &EffectCommand<'_>,
        turn: Turn<'_>,
        progress: &mut EffectProgress,
    ) -> Written {
        if let Some(intent) = turn.intent {
            return if intent.record().await {
                Written::Stands
            } else {
                Written::Lost
            };
        }
        let begun = EffectProgress {
            delivered: turn.number,
            outcome_unknown: true,
            begun_ms: self.clock.now().0,
            ..progress.clone()
        };
        let name = (command.tenant_id.clone(), command.command_id);
        let effect = &self.definition.name;
        let commands = &self.streams.commands;
        let write = |version| progress::write(&*self.broker, commands, effect, &name, &begun, version);
        let version = if turn.number <= 1 {
            Version::First
        } else {
            Version::Newest
        };
        let written = write(version).await;
        if written != Written::Preceded {
            return written;
        }
        // A consumer that was made again counts from 1 again; what stands there says the outcome of the calls before.
        match progress::stored(&*self.broker, commands, effect, &name).await {
            Ok(Some(before)) if !before.outcome_unknown => write(Version::Newest).await,
            Ok(before) => {
                *progress = before.unwrap_or(begun);
                Written::Preceded
            }
            Err(_) => Written::Lost,
        }
    }
}
