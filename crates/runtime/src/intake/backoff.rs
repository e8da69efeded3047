//! Waits between two attempts to open a reader. A new connection ends them.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::future::BoxFuture;

use super::context::Context;
use crate::ports::clock::Clock as _;

pub(super) struct Backoff {
    ctx: Arc<Context>,
    delays: ExponentialBackoff,
    /// When the next attempt may begin; `None` after success.
    until: Option<Duration>,
    /// Resolves with the first connection made behind the beginning of the last attempt.
    connection: BoxFuture<'static, ()>,
}

impl Backoff {
    pub fn new(ctx: &Arc<Context>) -> Self {
        Self {
            delays: delays(ctx),
            until: None,
            connection: ctx.broker.next_connection(),
            ctx: Arc::clone(ctx),
        }
    }

    /// The attempt failed, or what it brought ended.
    pub fn failed(&mut self) {
        let delay = self.delays.next();
        let delay = delay.unwrap_or(self.ctx.settings.reopen_max.duration());
        self.until = Some(self.ctx.clock.monotonic() + delay);
    }

    /// The next attempt may be made at once.
    pub fn reset(&mut self) {
        if self.until.take().is_some() {
            self.delays = delays(&self.ctx);
        }
    }

    /// Waits until an attempt may be made, which begins with the return.
    ///
    /// # Cancel safety
    /// It goes on with the next call.
    pub async fn wait(&mut self) {
        if let Some(until) = self.until {
            tokio::select! {
                biased;
                () = &mut self.connection => self.reset(),
                () = self.ctx.until(until) => {}
            }
        }
        // Before the attempt: what it misses may be there a moment later.
        self.connection = self.ctx.broker.next_connection();
    }
}

fn delays(ctx: &Context) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(ctx.settings.reopen_initial.duration())
        .with_max_delay(ctx.settings.reopen_max.duration())
        .without_max_times()
        .with_jitter()
        .with_jitter_seed(ctx.draw())
        .build()
}
