//! First attempts at commands of this process's own sagas, straight from their outbox.
//!
//! Only the first attempt, and only where there is room: everything that takes another turn (a retry, an open
//! breaker, a tenant that has enough in hand) takes the way of the queue, where any worker may go on with it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;

use super::attempt::Turn;
use super::lane::{Lane, Next};
use super::result::{self, Addressee, Answer};
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::EffectName;
use crate::ports::dispatch::{Attempted, Dispatch, EffectDesk};

/// The lanes of the worker that is in force, by effect.
pub type Lanes = BTreeMap<EffectName, Arc<Lane>>;

/// Where the relays find the worker of this process. It outlives workers: a reload puts another one in.
#[derive(Default)]
pub struct Local {
    lanes: RwLock<Lanes>,
    /// Largest result, in bytes of its message.
    result_bytes_max: usize,
}

impl Local {
    #[must_use]
    pub fn new(result_bytes_max: usize) -> Self {
        Self {
            lanes: RwLock::default(),
            result_bytes_max,
        }
    }

    /// From now on this worker makes the calls.
    pub fn serve_by(&self, lanes: Lanes) {
        *self.lanes.write().unwrap_or_else(PoisonError::into_inner) = lanes;
    }
}

impl Dispatch for Local {
    fn desk(&self, effect: &EffectName) -> Option<Arc<dyn EffectDesk>> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.get(effect)?;
        if lane.definition.limits.rate.is_some() || lane.draining.is_cancelled() {
            return None;
        }
        Some(Arc::new(Desk {
            lane: Arc::clone(lane),
            result_bytes_max: self.result_bytes_max,
        }))
    }
}

struct Desk {
    lane: Arc<Lane>,
    result_bytes_max: usize,
}

#[async_trait]
impl EffectDesk for Desk {
    async fn first_attempt(&self, command: &EffectCommand<'_>) -> Attempted {
        let lane = &*self.lane;
        lane.series.running.inc();
        let attempted = tokio::select! {
            biased;
            attempted = self.attempt(command) => attempted,
            // The drain is over; the call may have happened.
            () = lane.stopping.cancelled() => Attempted::Elsewhere(EffectProgress {
                unsettled: true,
                ..EffectProgress::default()
            }),
        };
        lane.series.running.dec();
        attempted
    }
}

impl Desk {
    async fn attempt(&self, command: &EffectCommand<'_>) -> Attempted {
        let mut progress = EffectProgress::default();
        let (_, seed) = command.command_id.0.as_u64_pair();
        let turn = Turn {
            held: None,
            number: 1,
            seed,
            sequence: u64::MAX,
            queued: false,
        };
        match self.lane.next(command, turn, &mut progress).await {
            Next::Answer(answer) => self.answered(command, answer, progress.calls),
            Next::GiveBack(_, reason) => {
                self.lane
                    .metrics
                    .effects_given_back
                    .with_label_values(&[command.effect_name.as_str(), reason.as_str()])
                    .inc();
                Attempted::Elsewhere(progress)
            }
        }
    }

    fn answered(&self, command: &EffectCommand<'_>, answer: Answer, calls: u32) -> Attempted {
        let happened = answer.may_have_happened();
        let mut counter = self.lane.series.of_answer(&answer);
        let mut body = self.body(command, answer, calls);
        if body.len() > self.result_bytes_max {
            let reason = format!("it has {} bytes, at most {}", body.len(), self.result_bytes_max);
            tracing::error!(effect = %command.effect_name, command = %command.command_id, reason, "a result is too large");
            let refused = Answer::refused(happened, &reason);
            counter = self.lane.series.of_answer(&refused);
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
        let now = self.lane.clock.now();
        result::publication(&self.lane.streams.events, &to, answer, calls, now).payload
    }
}
