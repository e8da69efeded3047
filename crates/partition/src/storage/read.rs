//! Reads for other threads: short, consistent, paginated.
//!
//! `instances`, `inbox` and `dead_letters` have the reads of their noun; those of the others are here.

mod dead_letters;
mod inbox;
mod instances;
mod requests;

use std::io::Write;
use std::sync::Arc;

use saga_runner_kernel::ids::{DefinitionHash, InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::backup::{self, BackupError};
use super::keys;
use super::rows::{
    ActiveDefinitions, AliasRow, ArchivedRow, PositionRow, ScheduleRow, TimerTarget, Uses, decode,
};
use super::tables::{ALIASES, DEAD_LETTERS, DEFINITIONS, ENDED, INSTANCES, META, OUTBOX, SCHEDULES, TIMERS};
use super::write::{ACTIVE, COUNTERS, Counters, position_key, uses_key};
use super::{ReadRows, Snapshots, StorageError};
pub use dead_letters::DeadLetterPage;
pub use inbox::Inbox;
pub(super) use inbox::kept;
pub use instances::{Found, InstancePage, ListCursor, Listed, LivePage};
pub(super) use instances::{ended_of, instance, last_ended, record};
pub use requests::{Answered, Became, Request};

/// Rows that one call may look at, whatever it is looking for.
const SCAN_MAX: usize = 20_000;

/// A cheap handle for reading one shard's state.
#[derive(Debug, Clone)]
pub struct Reader {
    store: Arc<dyn Snapshots>,
}

/// How much of a list one read gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub items: usize,
    /// Of the rows as they are stored; the one that passes it is given as well.
    pub bytes: usize,
}

impl From<usize> for Bound {
    fn from(items: usize) -> Self {
        Self {
            items,
            bytes: usize::MAX,
        }
    }
}

impl Bound {
    /// Counts a row that was given; whether it was the last.
    pub(super) const fn is_reached_by(&mut self, bytes: usize) -> bool {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.items == 0 || self.bytes == 0
    }
}

/// How far a partition has come, as of one commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Log sequence of the last input.
    pub log_sequence: u64,
    /// Positions in the source streams, by [`SourceStream::index`]; 0 where none is stored.
    pub positions: [u64; 3],
}

/// A saga of a tenant, and where its schedule stands.
pub type Scheduled = (TenantId, SagaName, ScheduleRow);

impl Reader {
    #[must_use]
    pub fn new(store: Arc<dyn Snapshots>) -> Self {
        Self { store }
    }

    /// Runs `work` on one consistent view.
    pub(super) fn view<R>(
        &self,
        work: impl FnOnce(&dyn ReadRows) -> Result<R, StorageError>,
    ) -> Result<R, StorageError> {
        let mut work = Some(work);
        let mut result = None;
        self.store.read(&mut |rows| {
            if let Some(work) = work.take() {
                result = Some(work(rows)?);
            }
            Ok(())
        })?;
        result.ok_or_else(|| StorageError::Failed("the store gave no view".to_owned()))
    }

    /// Writes all rows to `out`, behind a header for the place in the log and in the streams where they stand; gives their number.
    /// The view is held until `out` has taken everything.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn backup(
        &self,
        header: impl FnOnce(Progress) -> Vec<u8>,
        out: &mut dyn Write,
    ) -> Result<u64, BackupError> {
        let written = self.view(|view| {
            let progress = progress(view)?;
            Ok(backup::write(view, &header(progress), out))
        });
        written?
    }

    /// Timers due at or before `now`, counted up to `limit`.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn timers_due(&self, now: TimeMs, limit: usize) -> Result<usize, StorageError> {
        self.view(|view| {
            let mut due = 0;
            view.scan(TIMERS, &[], &mut |key, _| {
                let (at, _) = keys::read_timer(key)
                    .ok_or_else(|| StorageError::Corrupt("a key of the timers".to_owned()))?;
                let counts = at <= now && due < limit;
                due += usize::from(counts);
                Ok(counts)
            })?;
            Ok(due)
        })
    }

    /// Timers behind `after`, earliest first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn timers(
        &self,
        after: Option<(TimeMs, WorkRef)>,
        limit: usize,
    ) -> Result<Vec<(TimeMs, WorkRef, TimerTarget)>, StorageError> {
        self.view(|view| {
            let from = after.map_or_else(Vec::new, |(due, set_by)| {
                let mut key = keys::timer(due, set_by).to_vec();
                // The smallest key behind this one.
                key.push(0);
                key
            });
            let mut timers = Vec::new();
            view.scan(TIMERS, &from, &mut |key, value| {
                let (due, set_by) = keys::read_timer(key)
                    .ok_or_else(|| StorageError::Corrupt("a key of the timers".to_owned()))?;
                if timers.len() < limit {
                    timers.push((due, set_by, decode(&value, "a timer")?));
                }
                Ok(timers.len() < limit)
            })?;
            Ok(timers)
        })
    }

    /// The archived definitions, in the order of the hashes, with who refers to them.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn definitions(&self) -> Result<Vec<(DefinitionHash, ArchivedRow, Uses)>, StorageError> {
        self.view(|view| {
            let mut found = Vec::new();
            view.scan(DEFINITIONS, &[], &mut |key, value| {
                let hash = key
                    .try_into()
                    .map(DefinitionHash)
                    .map_err(|_| StorageError::Corrupt("a key of the definitions".to_owned()))?;
                found.push((hash, decode(&value, "an archived definition")?, Uses::default()));
                Ok(true)
            })?;
            for (hash, _, uses) in &mut found {
                if let Some(bytes) = view.get(META, &uses_key(hash))? {
                    *uses = decode(&bytes, "the uses of a definition")?;
                }
            }
            Ok(found)
        })
    }

    /// The sagas that this shard works under.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn active_definitions(&self) -> Result<ActiveDefinitions, StorageError> {
        self.view(|view| match view.get(META, ACTIVE)? {
            Some(bytes) => decode(&bytes, "the active definitions"),
            None => Ok(ActiveDefinitions::default()),
        })
    }

    /// Where a stream stands, `None` in a shard that has never run.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn position(&self, stream: SourceStream) -> Result<Option<PositionRow>, StorageError> {
        self.view(|view| {
            view.get(META, &position_key(stream))?
                .map(|bytes| decode(&bytes, "a position"))
                .transpose()
        })
    }

    /// Where the schedules stand that this shard runs, by tenant and saga.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn schedules(&self) -> Result<Vec<Scheduled>, StorageError> {
        self.view(schedules)
    }

    /// How far the partition has come.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn progress(&self) -> Result<Progress, StorageError> {
        self.view(progress)
    }

    /// Who has the alias of this address.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn alias(&self, id: &InstanceId) -> Result<AliasRow, StorageError> {
        self.view(|view| alias(view, id))
    }

    /// Rows of the outbox behind `after`, in order.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn work_after(
        &self,
        after: Option<WorkRef>,
        bound: impl Into<Bound>,
    ) -> Result<Vec<(WorkRef, WorkItem)>, StorageError> {
        let bound = bound.into();
        self.view(|view| work_after(view, after, bound))
    }

    /// How many dead letters there are.
    ///
    /// # Errors
    /// What is wrong with the environment.
    pub fn dead_letter_count(&self) -> Result<u64, StorageError> {
        self.view(|view| view.count(DEAD_LETTERS))
    }

    /// Proves that the environment answers.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<Statistics, StorageError> {
        self.view(|view| {
            Ok(Statistics {
                live: view.count(INSTANCES)?,
                ended: view.count(ENDED)?,
                outbox: view.count(OUTBOX)?,
                timers: view.count(TIMERS)?,
                dead_letters: view.count(DEAD_LETTERS)?,
                aliases: view.count(ALIASES)?,
                next_due: view
                    .first(TIMERS, &[])?
                    .and_then(|(key, _)| keys::read_timer(&key))
                    .map(|(due, _)| due),
            })
        })
    }
}

/// Numbers of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    pub live: u64,
    pub ended: u64,
    pub outbox: u64,
    pub timers: u64,
    pub dead_letters: u64,
    pub aliases: u64,
    pub next_due: Option<TimeMs>,
}

/// Rows of the outbox behind `after`, in order.
pub(super) fn work_after(
    view: &dyn ReadRows,
    after: Option<WorkRef>,
    mut bound: Bound,
) -> Result<Vec<(WorkRef, WorkItem)>, StorageError> {
    let from = after.map_or_else(Vec::new, |row| {
        let mut key = keys::work(row).to_vec();
        // The smallest key behind this one.
        key.push(0);
        key
    });
    let mut rows = Vec::new();
    if bound.items == 0 {
        return Ok(rows);
    }
    view.scan(OUTBOX, &from, &mut |key, value| {
        let row =
            keys::read_work(key).ok_or_else(|| StorageError::Corrupt("a key of the outbox".to_owned()))?;
        rows.push((row, decode(&value, "a work item")?));
        Ok(!bound.is_reached_by(value.len()))
    })?;
    Ok(rows)
}

fn behind(after: Option<u64>) -> Vec<u8> {
    after.map_or_else(Vec::new, |number| keys::number(number.saturating_add(1)).to_vec())
}

fn progress(view: &dyn ReadRows) -> Result<Progress, StorageError> {
    let mut progress = Progress::default();
    if let Some(bytes) = view.get(META, COUNTERS)? {
        let counters: Counters = decode(&bytes, "the counters")?;
        progress.log_sequence = counters.log_sequence;
    }
    for stream in SourceStream::ALL {
        if let Some(bytes) = view.get(META, &position_key(stream))? {
            let row: PositionRow = decode(&bytes, "a position")?;
            progress.positions[stream.index()] = row.sequence;
        }
    }
    Ok(progress)
}

fn number(key: &[u8]) -> Result<u64, StorageError> {
    keys::read_number(key).ok_or_else(|| StorageError::Corrupt("a numbered key".to_owned()))
}

pub(super) fn alias(view: &dyn ReadRows, id: &InstanceId) -> Result<AliasRow, StorageError> {
    match view.get(ALIASES, &keys::instance(id))? {
        Some(bytes) => decode(&bytes, "an alias"),
        None => Ok(AliasRow::default()),
    }
}

/// Where the schedules stand.
pub(super) fn schedules(view: &dyn ReadRows) -> Result<Vec<Scheduled>, StorageError> {
    let mut rows = Vec::new();
    view.scan(SCHEDULES, &[], &mut |key, value| {
        let (tenant, saga) =
            keys::read_saga(key).ok_or_else(|| StorageError::Corrupt("a key of the schedules".to_owned()))?;
        rows.push((tenant, saga, decode(&value, "a schedule")?));
        Ok(true)
    })?;
    Ok(rows)
}
