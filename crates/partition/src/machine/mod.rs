//! DECIDES what a partition makes of its inputs: in one transaction, from what is stored, what it is told and the time that
//! comes with it. The same orders at the same times give the same rows, whatever store they lie in.
//!
//! [`Partition`] is what outlives a transaction in memory, [`staging::Run`] one transaction.

pub mod activation;
mod aliases;
pub mod apply;
mod archiving;
mod asking;
pub mod catch_up;
pub mod counts;
pub mod crash_isolation;
mod deleting;
mod editing;
mod fault;
pub mod held;
mod inbox;
mod letters;
mod marks;
pub mod message;
pub mod opening;
mod orders;
mod patch_rows;
mod poison;
pub mod progress;
mod recording;
mod replacing;
mod schedules;
pub mod source;
pub mod staging;
pub mod story;
pub mod timers;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{ClusterId, InstanceId, TenantId, TimeMs};
use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::limits::Limits;
use serde::{Deserialize, Serialize};

use crate::storage::rows::{PositionRow, Stamp, Waiting};
use crate::storage::write::Counters;
use crate::storage::{Batch, HeldRow, Outdated, StorageError};
use crash_isolation::CrashIsolation;
pub use fault::is_of_process;
use source::StreamIdentity;
use staging::{Ground, Run, Staged};
use story::Story;

/// Rows that one commit forgets at most, besides twice as many as it ended.
const PRUNE_ROWS: usize = 64;

/// What is kept of what has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// How long ended instances, their history and the tombstones of their keys are kept, if neither their saga nor their tenant
    /// says it.
    pub ended: Millis,
    /// Most ended instances, whatever their saga and their tenant say.
    pub ended_count: u64,
    /// Most rows in the history of one instance, besides the first, exceeded by a thousand or so between two looks; 0: any number.
    pub history_count: u64,
    /// Most dead letters.
    pub dead_letters: u64,
    /// Largest input that is kept with the history, in bytes as it is stored; 0: none.
    pub input_bytes: u64,
    /// Work of one input that is kept with the history, in bytes as it is stored; of more, what it carries is left out. 0: none.
    pub work_bytes: u64,
    /// What tenants have of their own.
    pub tenants: BTreeMap<TenantId, TenantKeep>,
    /// Ended instances are not forgotten before an archive has them.
    pub archive: bool,
}

/// What is kept of the ended instances of one tenant; what is absent is as for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantKeep {
    /// How long, if their saga does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ended: Option<Millis>,
    /// At most so many in a partition, whatever their saga says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ended_count: Option<u64>,
}

impl Keep {
    /// How long ended instances of a tenant are kept whose saga does not say it, where the tenant has a time of its own.
    #[must_use]
    pub fn ended_of(&self, tenant: &TenantId) -> Option<Millis> {
        self.tenants.get(tenant)?.keep_ended
    }

    /// What of the ended instances is old now.
    #[must_use]
    pub fn outdated(&self, now: TimeMs) -> Outdated {
        Outdated {
            now,
            before: now.plus_ms(-self.ended.as_i64()),
            count: self.ended_count,
            archive: self.archive,
        }
    }

    /// The tenants that may have so many ended instances only.
    pub fn counts(&self) -> impl Iterator<Item = (&TenantId, u64)> {
        let tenants = self.tenants.iter();
        tenants.filter_map(|(tenant, keep)| Some((tenant, keep.keep_ended_count?)))
    }
}

impl Default for Keep {
    /// 7 days, 1,000,000 instances, histories of 10,000 rows, 100,000 dead letters, inputs and work of 64 KiB each.
    fn default() -> Self {
        Self {
            ended: Millis(7 * 24 * 3_600_000),
            ended_count: 1_000_000,
            history_count: 10_000,
            dead_letters: 100_000,
            tenants: BTreeMap::new(),
            archive: false,
            input_bytes: 64 << 10,
            work_bytes: 64 << 10,
        }
    }
}

/// What a partition knows besides its rows: what it works under, and what its last commit has left.
#[derive(Debug, Clone)]
pub struct Partition {
    pub cluster: ClusterId,
    pub definitions: Arc<DefinitionSet>,
    /// The tenants whose schedules it runs.
    pub scheduled_tenants: Vec<TenantId>,
    pub limits: Limits,
    pub keep: Keep,
    /// How long a timer waits for streams that cannot be read.
    pub timer_hold: Millis,
    /// The source streams, by [`SourceStream::index`].
    pub streams: [StreamIdentity; 3],
    pub positions: [u64; 3],
    /// What stands at the positions.
    pub stamps: [Option<Stamp>; 3],
    pub counters: Counters,
    pub waiting: HashMap<InstanceId, Waiting>,
    /// Instances among them that wait for their definition.
    pub unversioned: usize,
    /// Those that wait behind a dead letter or for their definition.
    pub blocked: usize,
    /// Inputs that wait behind timers that ask aliases.
    pub later: u64,
    pub outbox_rows: u64,
    pub next_due: Option<TimeMs>,
    pub isolation: CrashIsolation,
    /// What it holds back, where it goes on from an adopted state.
    pub held: Option<HeldRow>,
}

/// What a transaction found out besides rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    pub next_due: Option<TimeMs>,
    pub outbox_rows: u64,
}

impl Partition {
    /// The changes of a batch that begins where the last commit has ended.
    #[must_use]
    pub fn stage(&self) -> Staged {
        Staged {
            counters: self.counters,
            positions: self.positions,
            stamps: self.stamps,
            next_due: self.next_due,
            held: self.held,
            story: Story::begun(),
            ..Staged::default()
        }
    }

    /// One transaction at the time `now`.
    pub fn run_in<'a>(&'a self, batch: &'a Batch<'a>, staged: &'a mut Staged, now: TimeMs) -> Run<'a> {
        Run {
            ground: Ground {
                definitions: &self.definitions,
                scheduled_tenants: &self.scheduled_tenants,
                limits: &self.limits,
                cluster: self.cluster,
                now,
                keep: &self.keep,
                timer_hold: self.timer_hold,
                waiting: &self.waiting,
                isolation: &self.isolation,
                watch: None,
            },
            batch,
            staged,
        }
    }

    /// Stores everything of a transaction besides the rows of its inputs; `prune`: what is old is forgotten, too.
    ///
    /// # Errors
    /// [`StorageError`]: nothing of the transaction is to remain.
    pub fn finish(
        &self,
        batch: &Batch<'_>,
        staged: &mut Staged,
        now: TimeMs,
        prune: bool,
    ) -> Result<Found, StorageError> {
        staged.list_blocked(batch, &self.definitions, &self.waiting)?;
        staged.records.write(batch, &mut staged.statuses)?;
        for stream in SourceStream::ALL {
            let index = stream.index();
            if staged.positions[index] == self.positions[index] {
                continue;
            }
            let row = PositionRow {
                stream: self.streams[index].clone(),
                sequence: staged.positions[index],
                stamp: staged.stamps[index],
            };
            batch.put_position(stream, &row)?;
        }
        batch.put_counters(&staged.counters)?;
        if staged.ended > 0 || prune {
            let (letters, rows) = (PRUNE_ROWS + 2 * staged.inputs, PRUNE_ROWS + 2 * staged.ended);
            let of_batch = std::mem::take(&mut staged.tenants_ended);
            let tenants = (!prune).then_some(&of_batch);
            self.forget(batch, staged, now, tenants, [letters, rows])?;
        }
        batch.change_uses(&staged.uses, |hash| self.definitions.is_active(hash))?;
        batch.count_statuses(&staged.statuses)?;
        let (next_due, outbox_rows) = (batch.next_due()?, batch.outbox_rows()?);
        held::let_go(batch, staged, now, outbox_rows, next_due)?;
        Ok(Found {
            next_due,
            outbox_rows,
        })
    }

    /// A transaction that does nothing but forget what is old, up to so many rows of each kind.
    ///
    /// # Errors
    /// [`StorageError`]: nothing of the transaction is to remain.
    pub fn prune(
        &self,
        batch: &Batch<'_>,
        staged: &mut Staged,
        now: TimeMs,
        rows: usize,
    ) -> Result<(), StorageError> {
        self.forget(batch, staged, now, None, [rows, rows])?;
        batch.count_statuses(&staged.statuses)?;
        batch.change_uses(&staged.uses, |hash| self.definitions.is_active(hash))
    }

    /// Deletes what is old, up to so many dead letters and so many rows of each other kind. Whether tenants have too many is looked
    /// at for these, or for all.
    fn forget(
        &self,
        batch: &Batch<'_>,
        staged: &mut Staged,
        now: TimeMs,
        tenants: Option<&BTreeSet<TenantId>>,
        [letters, rows]: [usize; 2],
    ) -> Result<(), StorageError> {
        let forgotten = batch.prune_dead_letters(self.keep.dead_letters, letters)?;
        staged.counts.forgotten(forgotten);
        let mut ended = batch.prune_ended(self.keep.outdated(now), rows)?;
        for (tenant, count) in self.keep.counts().filter(|_| !self.keep.archive) {
            if tenants.is_none_or(|tenants| tenants.contains(tenant)) {
                batch.prune_tenant(tenant, count, rows, &staged.statuses, &mut ended)?;
            }
        }
        staged.pruned += forgotten + ended.instances.len() + ended.tombstones;
        staged.statuses.add(&ended.statuses);
        for hash in ended.instances {
            staged.uses.ended(hash, -1);
        }
        Ok(())
    }

    /// Makes a committed batch the state of the partition.
    pub fn adopt(&mut self, staged: &mut Staged, found: Found) {
        self.counters = staged.counters;
        self.positions = staged.positions;
        self.stamps = staged.stamps;
        for (id, waiting) in std::mem::take(&mut staged.waiting) {
            let before = self.waiting.get(&id).copied().unwrap_or_default();
            self.unversioned += usize::from(waiting.unversioned > 0);
            self.unversioned -= usize::from(before.unversioned > 0);
            self.blocked += usize::from(waiting.is_blocked());
            self.blocked -= usize::from(before.is_blocked());
            self.later += u64::from(waiting.later);
            self.later -= u64::from(before.later);
            if waiting.is_empty() {
                self.waiting.remove(&id);
            } else {
                self.waiting.insert(id, waiting);
            }
        }
        self.held = staged.held;
        self.next_due = found.next_due;
        self.outbox_rows = found.outbox_rows;
    }

    /// Rows of the outbox that leave it although no event is taken and no timer fires: events may wait for these. The others
    /// may wait for events themselves (ADR 66): those of other sagas that are awaited, and those whose results wait behind a timer that
    /// asks its aliases. What waits there may be something else than a result, so this is a lower bound.
    #[must_use]
    pub fn pressing_rows(&self) -> u64 {
        let resting = self.counters.awaited_sagas.saturating_add(self.later);
        self.outbox_rows.saturating_sub(resting)
    }
}
