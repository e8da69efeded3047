//! Effect commands that the worker of this process gets without the broker: their first attempt only.
//!
//! The row stays in the outbox until the result is applied, so a call that a crash cuts off is made again. Rows of
//! an earlier life of the process may have been called, nobody knows; they take the way of the queue and say so.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;

use super::backlog::Row;
use super::envelope;
use super::handover::{Done, done};
use super::publish::Publisher;
use super::sweeper;
use crate::kernel::envelope::EffectProgress;
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::dispatch::{Attempted, Dispatch, EffectDesk};

/// The worker of this process.
pub struct LocalFirst {
    pub dispatch: Arc<dyn Dispatch>,
    /// Log sequence of the last commit of the process's earlier life.
    pub recovered: u64,
}

/// Which way a row goes.
pub enum Way {
    /// To the worker of this process.
    Here(Arc<dyn EffectDesk>),
    /// To the broker, with what is known about a command.
    Broker(Option<EffectProgress>),
}

/// How the call for a row ended.
pub enum Called {
    Done(Done),
    /// Its command goes to the queue.
    Queue(Row, EffectProgress),
}

/// A command that may have been executed, by somebody who left no word.
pub fn maybe_called() -> EffectProgress {
    EffectProgress {
        unsettled: true,
        ..EffectProgress::default()
    }
}

impl Publisher {
    /// The way of a row; `room` says whether the worker of this process may get more.
    pub fn way(&self, (row, item): &Row, room: bool) -> Way {
        let (Some(local), WorkKind::Effect { effect, .. }) = (&self.local, &item.kind) else {
            return Way::Broker(None);
        };
        if row.log_sequence <= local.recovered {
            return Way::Broker(Some(maybe_called()));
        }
        match local.dispatch.desk(effect).filter(|_| room) {
            Some(desk) => Way::Here(desk),
            None => Way::Broker(None),
        }
    }

    /// Has the first attempt made here.
    pub async fn call(self: Arc<Self>, desk: Arc<dyn EffectDesk>, (row, item): Row) -> Called {
        let attempted = AssertUnwindSafe(self.attempt(&*desk, row, &item))
            .catch_unwind()
            .await;
        match attempted {
            Ok(Ok(done)) => Called::Done(done),
            Ok(Err(progress)) => Called::Queue((row, item), progress),
            Err(_) => {
                tracing::error!(instance = %item.instance, command = %item.command_id, "a call panicked; its command goes to the queue");
                Called::Queue((row, item), maybe_called())
            }
        }
    }

    async fn attempt(
        &self,
        desk: &dyn EffectDesk,
        row: WorkRef,
        item: &WorkItem,
    ) -> Result<Done, EffectProgress> {
        let WorkKind::Effect { effect, payload } = &item.kind else {
            return Err(EffectProgress::default());
        };
        let body = match envelope::command(item, effect, payload, None) {
            Ok(command) => match desk.first_attempt(&command).await {
                Attempted::Answered(body) => body,
                Attempted::Elsewhere(progress) => return Err(progress),
            },
            Err(error) => {
                let verdict = sweeper::unsendable(item, effect, error.to_string(), self.clock.now());
                return Ok(done(row, item, Some(verdict), false, "unsendable"));
            }
        };
        let mut verdict = sweeper::verdict_of(item, effect, &body, self.clock.now());
        verdict.publish = Some(Box::new(WorkItem {
            kind: WorkKind::Result {
                effect: effect.clone(),
                body,
            },
            ..item.clone()
        }));
        Ok(done(row, item, Some(verdict), false, "executed"))
    }
}
