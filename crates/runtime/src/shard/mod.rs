//! SINGLE WRITER. A shard is one thread that owns one store: it takes deliveries from its mailbox,
//! applies them in one transaction, commits, and only then releases work and positions.
//!
//! It does not publish, call HTTP or read the broker; those sit behind the mailbox and the release channel. It
//! never waits for either: a release that finds no room is left in the outbox, and the relay asks for it.

mod activation;
mod batch;
mod catch_up;
mod commit;
mod figures;
pub mod mailbox;
mod reposition;
mod settings;
mod shard_loop;
mod spans;
pub mod status;
mod sweep;
#[cfg(test)]
mod tests;
pub mod watchers;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use saga_runner_partition::machine::Partition;
use saga_runner_partition::machine::opening::Terms;
pub use saga_runner_partition::machine::source::{Standing, gap, stream_trouble, with_halt};
pub use settings::Settings;
pub use shard_loop::IDLE;
pub use status::{ShardState, ShardStatus};

use crate::kernel::definition::DefinitionSet;
use crate::kernel::ids::TenantId;
use crate::kernel::limits::Limits;
use crate::kernel::work::WorkRef;
use crate::ports::broker::StreamState;
use crate::ports::clock::Clock;
use crate::storage::{Reader, StorageError, Store};
use crate::tasks::{Task, Tasks, Thread};
use crate::telemetry::Metrics;
use mailbox::{Mail, Notice, Relayed, Released, Stamp};

/// What a shard is made of.
pub struct ShardSpec {
    pub index: u16,
    pub store: Store,
    pub definitions: Arc<DefinitionSet>,
    /// The tenants whose schedules this shard runs.
    pub scheduled_tenants: Vec<TenantId>,
    /// Revision of the active ones.
    pub revision: u64,
    pub limits: Limits,
    pub settings: Settings,
    /// Inputs of one delivery, which a commit takes as a whole.
    pub delivery_inputs: usize,
    /// The source streams as they are now, by `SourceStream::index`.
    pub streams: [StreamState; 3],
    /// What stands in the streams where the positions of the shard are, by `SourceStream::index`.
    pub standing: [Option<Standing>; 3],
    /// Positions that a new shard begins with, by `SourceStream::index`.
    pub initial_positions: [u64; 3],
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    pub release: mpsc::Sender<Released>,
    pub notices: mpsc::Sender<Notice>,
}

impl ShardSpec {
    /// What the partition is opened with.
    fn terms(&self) -> Terms {
        Terms {
            cluster: self.store.cluster_id(),
            definitions: Arc::clone(&self.definitions),
            revision: self.revision,
            scheduled_tenants: self.scheduled_tenants.clone(),
            limits: self.limits.clone(),
            keep: self.store.settings().keep(),
            timer_hold: self.settings.timer_hold_max,
            streams: self.streams.clone(),
            standing: self.standing,
            initial_positions: self.initial_positions,
            // A commit that has nearly enough takes one more delivery.
            commit_inputs: self.settings.batch_inputs + self.delivery_inputs,
            applying: self.store.applying(),
        }
    }
}

/// A running shard.
pub struct ShardHandle {
    pub index: u16,
    pub mail: mpsc::Sender<Mail>,
    pub status: Arc<ShardStatus>,
    pub relayed: Arc<Relayed>,
    /// What stood at its positions when it was started, by `SourceStream::index`.
    pub stamps: [Option<Stamp>; 3],
    /// Log sequence of the last commit before this start, 0 if there was none.
    pub began_after: u64,
    /// Rows of the outbox whose calls have begun before this start, and that have no outcome.
    pub begun: BTreeSet<WorkRef>,
    /// Log sequence up to which calls may have been made before this start that have no mark.
    pub maybe_called: u64,
    pub reader: Reader,
    stopping: watch::Sender<bool>,
    thread: Option<Thread>,
}

impl ShardHandle {
    /// Opens the shard's state and starts its thread. Must be called within a tokio runtime.
    ///
    /// A shard whose streams are not the ones it knows is started halted: it keeps its mailbox and says why.
    ///
    /// # Errors
    /// [`StorageError`] where the state cannot be read.
    pub fn start(spec: ShardSpec) -> Result<Self, StorageError> {
        let (mail, mailbox) = mpsc::channel(spec.settings.mailbox);
        let (stopping, told) = watch::channel(false);
        let index = spec.index;
        let reader = spec.store.reader();
        let waiting = reader.waiting()?;
        let mut opened = spec
            .store
            .write::<_, StorageError>(|batch| Partition::open(batch, waiting, spec.terms()))?;
        // The death is counted: a note that came into being before is of no use any more.
        spec.store.note_applied()?;
        let partition = &opened.partition;
        let status = Arc::new(ShardStatus::new(partition.positions, spec.clock.monotonic()));
        let relayed = Arc::new(Relayed::default());
        relayed.floor.store(
            partition.counters.sent_floor,
            std::sync::atomic::Ordering::Release,
        );
        let began_after = partition.counters.log_sequence;
        let (stamps, maybe_called) = (partition.stamps, opened.maybe_called);
        let begun = std::mem::take(&mut opened.begun);
        let (tasks, metrics) = (spec.tasks.clone(), Arc::clone(&spec.metrics));
        let shard_loop = shard_loop::ShardLoop::new(
            spec,
            opened,
            mailbox,
            told,
            Arc::clone(&status),
            Arc::clone(&relayed),
        );
        let shown = Arc::clone(&status);
        let thread = tasks
            .thread(
                Task::Shard,
                format!("shard-{index:04}"),
                shard_loop.run(),
                // Its mailbox is closed by now, so nobody waits for it.
                move |message| shown.halt(index, "shard.panicked", message, &metrics),
            )
            .map_err(|error| StorageError::Failed(format!("no thread for shard {index}: {error}")))?;
        Ok(Self {
            index,
            mail,
            status,
            relayed,
            stamps,
            began_after,
            begun,
            maybe_called,
            reader,
            stopping,
            thread: Some(thread),
        })
    }

    /// Waits until what is in the mailbox is committed and released, or the thread has stopped.
    pub async fn commit(&self) {
        let (reply, answer) = tokio::sync::oneshot::channel();
        // Refills are answered behind the commit of what came before them.
        let mail = Mail::Refill {
            after: None,
            limit: 0,
            reply,
        };
        if self.mail.send(mail).await.is_ok() {
            // An error: it has stopped or is halted, and commits nothing any more.
            let _stopped = answer.await;
        }
    }

    /// Commits what is in the mailbox and stops the thread. Without room on the disk it stops at once.
    pub async fn stop(mut self) {
        // A full disk keeps the mailbox full, so this is told beside it.
        self.stopping.send_replace(true);
        // A mailbox that is closed belongs to a thread that has stopped.
        let _closed = self.mail.send(Mail::Stop).await;
        if let Some(thread) = self.thread.take()
            && !thread.ended().await
        {
            tracing::error!(shard = self.index, "the shard's thread ended abnormally");
        }
    }
}
