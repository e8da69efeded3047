//! Reads for other threads: short, consistent, paginated.

use std::collections::HashMap;
use std::sync::Arc;

use saga_runner_kernel::ids::{DefinitionHash, InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::record::{Record, Summary};
use saga_runner_kernel::view::{Kept, LetterView};
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::keys;
use super::rows::{
    ActiveDefinitions, AliasRow, ArchivedRow, BlockedRow, DeadLetter, EndedRow, InboxRow, PositionRow,
    ScheduleRow, TimerTarget, Tombstone, Uses, WaitReason, Waiting, decode,
};
use super::tables::{
    ALIASES, DEAD_LETTERS, DEFINITIONS, ENDED, INBOX, INSTANCES, META, OUTBOX, SCHEDULES, TIMERS, TOMBSTONES,
};
use super::write::{ACTIVE, COUNTERS, Counters, position_key, uses_key};
use super::{ReadRows, Snapshots, StorageError};

/// Rows that one call may look at, whatever it is looking for.
const SCAN_MAX: usize = 20_000;

/// A cheap handle for reading one shard's state.
#[derive(Debug, Clone)]
pub struct Reader {
    store: Arc<dyn Snapshots>,
}

/// An instance as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Live(Record),
    Ended(Summary),
}

/// Where a list of instances goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListCursor {
    /// Behind this key among the live ones.
    Live(Vec<u8>),
    /// Behind this row among the ended ones.
    Ended(u64),
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

/// An instance in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub id: InstanceId,
    pub found: Found,
    /// The list goes on behind it.
    pub place: ListCursor,
}

/// Some dead letters with their numbers, and the number behind which the list goes on.
pub type DeadLetterPage = (Vec<(u64, DeadLetter)>, Option<u64>);

/// Some instances, and where the list goes on.
pub type InstancePage = (Vec<Listed>, Option<ListCursor>);

/// Some live instances, and the key behind which the list goes on.
pub type LivePage = (Vec<(InstanceId, Record)>, Option<Vec<u8>>);

/// The dead letter that stands in an instance's way, and the inputs that wait, with their numbers.
pub type Inbox = (Option<u64>, Vec<(u64, InboxRow)>);

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

    /// One instance, live or ended.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn instance(&self, id: &InstanceId) -> Result<Option<Found>, StorageError> {
        self.view(|view| instance(view, id))
    }

    /// Instances of a saga: the live ones by key, then the ended ones by the time of their end.
    ///
    /// A page may be shorter than its bound although the list goes on, because one call looks at a bounded number
    /// of rows.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        after: Option<&ListCursor>,
        bound: impl Into<Bound>,
    ) -> Result<InstancePage, StorageError> {
        let bound = bound.into();
        self.view(|view| {
            let mut left = bound;
            let mut page = Vec::new();
            let mut ended_after = 0;
            match after {
                Some(ListCursor::Ended(sequence)) => ended_after = *sequence,
                live => {
                    let next = live_instances(view, tenant, saga, live, &mut left, &mut page)?;
                    if next.is_some() {
                        return Ok((page, next));
                    }
                }
            }
            let next = ended_instances(view, tenant, saga, ended_after, &mut left, &mut page)?;
            Ok((page, next))
        })
    }

    /// Live instances of all tenants behind `after`, a key, that `wanted` takes, and the key behind which the
    /// list goes on.
    ///
    /// A page may be shorter than `limit` although the list goes on, because one call looks at a bounded number
    /// of rows.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn live(
        &self,
        after: Option<&[u8]>,
        limit: usize,
        wanted: impl Fn(&InstanceId, &Record) -> bool,
    ) -> Result<LivePage, StorageError> {
        let from = after.map_or_else(Vec::new, |key| [key, &[0]].concat());
        self.view(|view| {
            let (mut page, mut next, mut looked) = (Vec::new(), None, 0);
            view.scan(INSTANCES, &from, &mut |key, value| {
                looked += 1;
                let mut rest = key;
                let id = keys::read_instance(&mut rest)
                    .ok_or_else(|| StorageError::Corrupt("a key of the instances".to_owned()))?;
                let record = record(&value, &id)?;
                if wanted(&id, &record) {
                    page.push((id, record));
                }
                if page.len() >= limit || looked >= SCAN_MAX {
                    next = Some(key.to_vec());
                }
                Ok(next.is_none())
            })?;
            Ok((page, next))
        })
    }

    /// Dead letters of a tenant behind `after`, oldest first, and the number behind which the list goes on.
    ///
    /// A page may be shorter than `limit` although the list goes on, because one call looks at a bounded number
    /// of rows.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn dead_letters(
        &self,
        tenant: &TenantId,
        after: Option<u64>,
        bound: impl Into<Bound>,
    ) -> Result<DeadLetterPage, StorageError> {
        let bound = bound.into();
        self.view(|view| {
            let mut left = bound;
            let mut letters = Vec::new();
            let mut next = None;
            let mut looked = 0;
            view.scan(DEAD_LETTERS, &behind(after), &mut |key, value| {
                looked += 1;
                let number = number(key)?;
                let letter: DeadLetter = decode(&value, "a dead letter")?;
                let mut is_last = looked >= SCAN_MAX;
                if letter.tenant == *tenant {
                    letters.push((number, letter));
                    is_last |= left.is_reached_by(value.len());
                }
                if is_last {
                    next = Some(number);
                }
                Ok(next.is_none())
            })?;
            Ok((letters, next))
        })
    }

    /// What waits for an instance, oldest first, with the dead letter that stands in its way.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn inbox(&self, id: &InstanceId, limit: usize) -> Result<Inbox, StorageError> {
        self.view(|view| {
            let prefix = keys::instance(id);
            let (mut behind, mut rows) = (None, Vec::new());
            view.scan(INBOX, &prefix, &mut |key, value| {
                let Some(number) = key.strip_prefix(prefix.as_slice()).and_then(keys::read_number) else {
                    return Ok(false);
                };
                if number == keys::PARKED {
                    let row: BlockedRow = decode(&value, "a blocked instance")?;
                    behind = Some(row.dead_letter);
                } else {
                    rows.push((number, decode(&value, "an inbox row")?));
                }
                Ok(rows.len() < limit)
            })?;
            Ok((behind, rows))
        })
    }

    /// What of an instance's inputs waits for a decision on a dead letter or for a definition.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn kept(&self, id: &InstanceId) -> Result<Kept, StorageError> {
        self.view(|view| kept(view, id))
    }

    /// The instances that have something in the inbox, with what waits for them.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn waiting(&self) -> Result<HashMap<InstanceId, Waiting>, StorageError> {
        self.view(|view| {
            let mut found: HashMap<InstanceId, Waiting> = HashMap::new();
            view.scan(INBOX, &[], &mut |key, value| {
                let mut rest = key;
                let corrupt = || StorageError::Corrupt("a key of the inbox".to_owned());
                let id = keys::read_instance(&mut rest).ok_or_else(corrupt)?;
                let number = keys::read_number(rest).ok_or_else(corrupt)?;
                let waiting = found.entry(id).or_default();
                if number == keys::PARKED {
                    let row: BlockedRow = decode(&value, "a blocked instance")?;
                    waiting.behind = Some(row.dead_letter);
                } else {
                    let row: InboxRow = decode(&value, "an inbox row")?;
                    waiting.add(row.reason, value.len());
                }
                Ok(true)
            })?;
            Ok(found)
        })
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

    /// Where the schedules stand that this shard looks after, by tenant and saga.
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
        self.view(|view| {
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
        })
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

fn live_instances(
    view: &dyn ReadRows,
    tenant: &TenantId,
    saga: &SagaName,
    after: Option<&ListCursor>,
    left: &mut Bound,
    page: &mut Vec<Listed>,
) -> Result<Option<ListCursor>, StorageError> {
    let prefix = keys::saga_prefix(tenant, saga);
    let from = match after {
        Some(ListCursor::Live(key)) if key.starts_with(&prefix) => {
            let mut from = key.clone();
            from.push(0);
            from
        }
        _ => prefix.clone(),
    };
    let mut next = None;
    view.scan(INSTANCES, &from, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return Ok(false);
        }
        let mut rest = key;
        let id = keys::read_instance(&mut rest)
            .ok_or_else(|| StorageError::Corrupt("a key of the instances".to_owned()))?;
        let place = ListCursor::Live(key.to_vec());
        let is_last = left.is_reached_by(value.len());
        next = is_last.then(|| place.clone());
        let found = Found::Live(record(&value, &id)?);
        page.push(Listed { id, found, place });
        Ok(!is_last)
    })?;
    Ok(next)
}

fn ended_instances(
    view: &dyn ReadRows,
    tenant: &TenantId,
    saga: &SagaName,
    after: u64,
    left: &mut Bound,
    page: &mut Vec<Listed>,
) -> Result<Option<ListCursor>, StorageError> {
    let mut next = None;
    let mut looked = 0;
    view.scan(ENDED, &behind((after > 0).then_some(after)), &mut |key, value| {
        looked += 1;
        let row: EndedRow = decode(&value, "an ended instance")?;
        let place = ListCursor::Ended(number(key)?);
        let mut is_last = looked >= SCAN_MAX;
        if row.instance.tenant == *tenant && row.instance.saga == *saga {
            is_last |= left.is_reached_by(value.len());
            page.push(Listed {
                id: row.instance,
                found: Found::Ended(row.summary),
                place: place.clone(),
            });
        }
        next = is_last.then_some(place);
        Ok(!is_last)
    })?;
    Ok(next)
}

fn record(bytes: &[u8], id: &InstanceId) -> Result<Record, StorageError> {
    Record::decode(bytes).map_err(|error| StorageError::Corrupt(format!("{id}: {error}")))
}

fn behind(after: Option<u64>) -> Vec<u8> {
    after.map_or_else(Vec::new, |number| keys::number(number.saturating_add(1)).to_vec())
}

fn number(key: &[u8]) -> Result<u64, StorageError> {
    keys::read_number(key).ok_or_else(|| StorageError::Corrupt("a numbered key".to_owned()))
}

/// Who has the alias of this address.
pub(super) fn instance(view: &dyn ReadRows, id: &InstanceId) -> Result<Option<Found>, StorageError> {
    if let Some(bytes) = view.get(INSTANCES, &keys::instance(id))? {
        return record(&bytes, id).map(|record| Some(Found::Live(record)));
    }
    let Some(bytes) = view.get(TOMBSTONES, &keys::tombstone(id))? else {
        return Ok(None);
    };
    let tombstone: Tombstone = decode(&bytes, "a tombstone")?;
    let Some(bytes) = view.get(ENDED, &keys::number(tombstone.summary))? else {
        return Ok(None);
    };
    let row: EndedRow = decode(&bytes, "an ended instance")?;
    Ok((row.instance == *id).then_some(Found::Ended(row.summary)))
}

pub(super) fn kept(view: &dyn ReadRows, id: &InstanceId) -> Result<Kept, StorageError> {
    let prefix = keys::instance(id);
    let mut kept = Kept::default();
    let (mut behind, mut first) = (None, None);
    view.scan(INBOX, &prefix, &mut |key, value| {
        let Some(number) = key.strip_prefix(prefix.as_slice()).and_then(keys::read_number) else {
            return Ok(false);
        };
        if number == keys::PARKED {
            let row: BlockedRow = decode(&value, "a blocked instance")?;
            behind = Some(row.dead_letter);
            return Ok(true);
        }
        let row: InboxRow = decode(&value, "an inbox row")?;
        if let WaitReason::Early { .. } = row.reason {
            kept.early += 1;
            kept.early_since.get_or_insert(row.input.time);
        }
        if row.reason.is_blocking() {
            kept.inputs += 1;
            first.get_or_insert(row.input.time);
            if row.reason == WaitReason::Unversioned {
                kept.unversioned.get_or_insert(row.input.time);
            }
        }
        Ok(true)
    })?;
    let Some(number) = behind else {
        return Ok(kept);
    };
    let id = Some(number.to_string());
    let letter: Option<DeadLetter> = view
        .get(DEAD_LETTERS, &keys::number(number))?
        .map(|bytes| decode(&bytes, "a dead letter"))
        .transpose()?;
    let (reason, message, since) = letter.map_or_else(
        || {
            let since = first.unwrap_or(TimeMs(0));
            ("forgotten".to_owned(), "it is no longer kept".to_owned(), since)
        },
        |letter| (letter.reason, letter.message, letter.time),
    );
    kept.behind = Some((LetterView { id, reason, message }, since));
    Ok(kept)
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
