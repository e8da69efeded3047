//! First attempts at commands of this process's own sagas, straight from their outbox.
//!
//! Only the first attempt, and only where there is room: everything that takes another turn (a retry, an open
//! breaker, a tenant that has enough in progress) takes the way of the queue, where any worker may go on with it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::attempt::Turn;
use super::executor::{Executor, Next};
use super::result::{self, Addressee, Answer};
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::EffectName;
use crate::ports::dispatch::{Attempted, Dispatch, Intent, LocalEffect};

/// The executors of the worker that is in force, by effect.
pub type Executors = BTreeMap<EffectName, Arc<Executor>>;

/// Where the relays find the worker of this process. It outlives workers: a reload puts another one in.
#[derive(Default)]
pub struct Local {
    executors: RwLock<Executors>,
    /// Largest result, in bytes of its message.
    result_bytes_max: usize,
}

impl Local {
    #[must_use]
    pub fn new(result_bytes_max: usize) -> Self {
        Self {
            executors: RwLock::default(),
            result_bytes_max,
        }
    }

    fn executor(&self, effect: &EffectName) -> Option<Arc<Executor>> {
        let executors = self.executors.read().unwrap_or_else(PoisonError::into_inner);
        executors.get(effect).cloned()
    }

    /// From now on this worker makes the calls.
    pub fn serve_by(&self, executors: Executors) {
        *self.executors.write().unwrap_or_else(PoisonError::into_inner) = executors;
    }
}

impl Dispatch for Local {
    fn local(&self, effect: &EffectName) -> Option<Arc<dyn LocalEffect>> {
        let executor = self.executor(effect)?;
        // Before the look at the drain, which waits for all that have one.
        let under_way = executor.home.token();
        if executor.definition.limits.rate.is_some() || executor.draining.is_cancelled() {
            return None;
        }
        Some(Arc::new(LocalCaller {
            executor,
            result_bytes_max: self.result_bytes_max,
            _under_way: under_way,
        }))
    }
}

struct LocalCaller {
    executor: Arc<Executor>,
    result_bytes_max: usize,
    _under_way: TaskTrackerToken,
}

#[async_trait]
impl LocalEffect for LocalCaller {
    async fn first_attempt(&self, command: &EffectCommand<'_>, intent: &dyn Intent) -> Attempted {
        let executor = &*self.executor;
        executor.series.running.inc();
        let attempted = tokio::select! {
            biased;
            attempted = self.attempt(command, intent) => attempted,
            // The drain is over; the call may have happened.
            () = executor.stopping.cancelled() => Attempted::Elsewhere(EffectProgress {
                outcome_unknown: true,
                begun_ms: executor.clock.now().0,
                ..EffectProgress::default()
            }),
        };
        executor.series.running.dec();
        attempted
    }
}

impl LocalCaller {
    async fn attempt(&self, command: &EffectCommand<'_>, intent: &dyn Intent) -> Attempted {
        let mut progress = EffectProgress::default();
        let (_, seed) = command.command_id.0.as_u64_pair();
        let turn = Turn {
            held: None,
            number: 1,
            seed,
            sequence: u64::MAX,
            intent: Some(intent),
        };
        match self.executor.next(command, turn, &mut progress).await {
            Next::Answer(answer) => self.answered(command, answer, progress.calls),
            Next::GiveBack(delay, reason) => {
                progress.held = self.executor.held_back(delay, reason);
                let name = (command.tenant_id.clone(), command.command_id);
                self.executor.count_given_back(&name, reason);
                Attempted::Elsewhere(progress)
            }
        }
    }

    fn answered(&self, command: &EffectCommand<'_>, answer: Answer, calls: u32) -> Attempted {
        let happened = answer.may_have_happened();
        let mut counter = self.executor.series.of_answer(&answer);
        let mut body = self.body(command, answer, calls);
        if body.len() > self.result_bytes_max {
            let reason = format!("it has {} bytes, at most {}", body.len(), self.result_bytes_max);
            tracing::error!(effect = %command.effect_name, command = %command.command_id, reason, "a result is too large");
            let refused = Answer::refused(happened, &reason);
            counter = self.executor.series.of_answer(&refused);
            body = self.body(command, refused, calls);
        }
        counter.inc();
        Attempted::Answered(body)
    }

    fn body(&self, command: &EffectCommand<'_>, answer: Answer, calls: u32) -> Bytes {
        let to = Addressee {
            tenant: &command.tenant_id,
            command: command.command_id,
            effect: &command.effect_name,
            metadata: Some(&command.metadata),
        };
        let now = self.executor.clock.now();
        result::publication(&self.executor.streams.events, &to, answer, calls, now).payload
    }
}
