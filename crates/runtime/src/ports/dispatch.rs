//! Carrying effects out in this process, without a message to a worker.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::EffectName;

/// The worker of this process, as the relay sees it.
pub trait Dispatch: Send + Sync + 'static {
    /// Who makes calls of this effect here, `None` where its commands go by the broker: nobody makes them, the
    /// worker drains, or the effect has a limit that counts for all workers together.
    fn local(&self, effect: &EffectName) -> Option<Arc<dyn LocalEffect>>;
}

/// The record that a call begins.
#[async_trait]
pub trait Intent: Send + Sync {
    /// Whether it is made before each call, whatever the definition in force says.
    fn is_needed(&self) -> bool;

    /// Makes it durable. `false`: it may not stand, so the call must not be made.
    async fn record(&self) -> bool;

    /// Whether the process still owns what it would call for. Asked right before each call.
    fn may_begin(&self) -> bool;
}

/// Makes the calls of one effect.
#[async_trait]
pub trait LocalEffect: Send + Sync {
    /// Makes the first attempt at a command that never was a message. Where the effect makes no call twice, or `intent` is needed, that
    /// is recorded before the call.
    ///
    /// # Cancel safety
    /// None: a call that was begun may have happened.
    async fn first_attempt(&self, command: &EffectCommand<'_>, intent: &dyn Intent) -> Attempted;
}

/// How a first attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Attempted {
    /// For good: the body of the result's message.
    Answered(Bytes),
    /// Other attempts follow, or there was no room for this one: the command goes to the queue, with what is
    /// known about it.
    Elsewhere(EffectProgress),
}
