//! One transaction of a shard, by noun.

use std::collections::BTreeSet;

use saga_runner_kernel::ids::{DefinitionHash, InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::patch::TimerRow;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::keys;
use super::newest;
use super::read::Scheduled;
use super::rows::{
    AcceptedRow, ActiveDefinitions, AliasRow, ArchivedRow, BlockedRow, DeadLetter, HaltRow, HistoryRow,
    InboxRow, PositionRow, ScheduleRow, Suspect, TimerTarget, UseChanges, Uses, decode, encode,
};
use super::tables::{
    ALIASES, BEGUN, DEAD_LETTERS, DEFINITIONS, HISTORY, INBOX, INSTANCES, LOCAL, META, OUTBOX, SCHEDULES,
    TIMERS,
};
use super::{StorageError, WriteRows};

/// Everything written through it appears together or not at all.
pub struct Batch<'t> {
    pub(super) view: &'t dyn WriteRows,
}

impl<'t> Batch<'t> {
    #[must_use]
    pub const fn new(view: &'t dyn WriteRows) -> Self {
        Self { view }
    }

    /// The record of a live instance.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where it cannot be read.
    pub fn record(&self, id: &InstanceId) -> Result<Option<Record>, StorageError> {
        self.view
            .get(INSTANCES, &keys::instance(id))?
            .map(|bytes| {
                Record::decode(&bytes).map_err(|error| StorageError::Corrupt(format!("{id}: {error}")))
            })
            .transpose()
    }

    pub fn put_record(&self, id: &InstanceId, record: &Record) -> Result<(), StorageError> {
        self.view.put(INSTANCES, &keys::instance(id), record.encode())
    }

    pub fn delete_record(&self, id: &InstanceId) -> Result<(), StorageError> {
        self.view.delete(INSTANCES, &keys::instance(id)).map(drop)
    }

    pub fn put_work(&self, row: WorkRef, item: &WorkItem) -> Result<(), StorageError> {
        self.view.append(OUTBOX, &keys::work(row), encode(item))
    }

    /// Deletes a row of the outbox, and that its call has begun; whether it was there.
    pub fn delete_work(&self, row: WorkRef) -> Result<bool, StorageError> {
        self.forget_begun(row)?;
        self.view.delete(OUTBOX, &keys::work(row))
    }

    /// Keeps that the call of this row begins; `false`: there is no such row.
    pub fn begin_work(&self, row: WorkRef) -> Result<bool, StorageError> {
        let key = keys::work(row);
        if self.view.get(OUTBOX, &key)?.is_none() {
            return Ok(false);
        }
        self.view.put(BEGUN, &key, encode(&()))?;
        Ok(true)
    }

    /// The call of this row was not made, or is known to have done nothing.
    pub fn forget_begun(&self, row: WorkRef) -> Result<(), StorageError> {
        self.view.delete(BEGUN, &keys::work(row)).map(drop)
    }

    /// Rows of the outbox whose calls have begun.
    pub fn begun(&self) -> Result<BTreeSet<WorkRef>, StorageError> {
        let mut rows = BTreeSet::new();
        self.view.scan(BEGUN, &[], &mut |key, _| {
            rows.insert(keys::read_work(key).ok_or_else(|| corrupt("a key of the begun calls"))?);
            Ok(true)
        })?;
        Ok(rows)
    }

    /// Rows of the outbox behind `after`, in order.
    pub fn work_after(
        &self,
        after: Option<WorkRef>,
        limit: usize,
    ) -> Result<Vec<(WorkRef, WorkItem)>, StorageError> {
        super::read::work_after(self.view, after, limit.into())
    }

    pub fn outbox_rows(&self) -> Result<u64, StorageError> {
        self.view.count(OUTBOX)
    }

    pub fn put_history(&self, log_sequence: u64, row: &HistoryRow) -> Result<(), StorageError> {
        self.view
            .append(HISTORY, &keys::number(log_sequence), encode(row))
    }

    pub fn put_timer(&self, id: &InstanceId, timer: &TimerRow) -> Result<(), StorageError> {
        let target = TimerTarget {
            instance: id.clone(),
            name: timer.name.clone(),
        };
        self.view
            .put(TIMERS, &keys::timer(timer.due, timer.set_by), encode(&target))
    }

    /// Deletes a timer; whether it was set.
    pub fn delete_timer(&self, due: TimeMs, set_by: WorkRef) -> Result<bool, StorageError> {
        self.view.delete(TIMERS, &keys::timer(due, set_by))
    }

    /// Timers due at or before `now`, earliest first.
    pub fn due_timers(
        &self,
        now: TimeMs,
        limit: usize,
    ) -> Result<Vec<(TimeMs, WorkRef, TimerTarget)>, StorageError> {
        let mut due = Vec::new();
        self.view.scan(TIMERS, &[], &mut |key, value| {
            let (at, set_by) = keys::read_timer(key).ok_or_else(|| corrupt("a key of the timers"))?;
            if at > now || due.len() >= limit {
                return Ok(false);
            }
            due.push((at, set_by, decode(&value, "a timer")?));
            Ok(true)
        })?;
        Ok(due)
    }

    /// When the next timer is due.
    pub fn next_due(&self) -> Result<Option<TimeMs>, StorageError> {
        let first = self.view.first(TIMERS, &[])?;
        Ok(first
            .and_then(|(key, _)| keys::read_timer(&key))
            .map(|(due, _)| due))
    }

    /// Puts an encoded [`InboxRow`].
    pub fn put_inbox(&self, id: &InstanceId, number: u64, row: Vec<u8>) -> Result<(), StorageError> {
        self.view.put(INBOX, &keys::numbered(id, number), row)
    }

    pub fn delete_inbox(&self, id: &InstanceId, number: u64) -> Result<(), StorageError> {
        self.view.delete(INBOX, &keys::numbered(id, number)).map(drop)
    }

    /// What waits for an instance, oldest first, with its encoded size in bytes.
    pub fn inbox(&self, id: &InstanceId) -> Result<Vec<(u64, InboxRow, usize)>, StorageError> {
        let prefix = keys::instance(id);
        let mut waiting = Vec::new();
        self.view
            .scan(INBOX, &keys::numbered(id, keys::PARKED + 1), &mut |key, value| {
                let Some(number) = key.strip_prefix(prefix.as_slice()).and_then(keys::read_number) else {
                    return Ok(false);
                };
                waiting.push((number, decode(&value, "an inbox row")?, value.len()));
                Ok(true)
            })?;
        Ok(waiting)
    }

    /// Marks an instance as blocked behind a dead letter, or as blocked no more.
    pub fn put_blocked(&self, id: &InstanceId, dead_letter: Option<u64>) -> Result<(), StorageError> {
        let key = keys::numbered(id, keys::PARKED);
        match dead_letter {
            Some(dead_letter) => self.view.put(INBOX, &key, encode(&BlockedRow { dead_letter })),
            None => self.view.delete(INBOX, &key).map(drop),
        }
    }

    pub fn put_dead_letter(&self, number: u64, letter: &DeadLetter) -> Result<(), StorageError> {
        self.view.put(DEAD_LETTERS, &keys::number(number), encode(letter))
    }

    pub fn dead_letter(&self, number: u64) -> Result<Option<DeadLetter>, StorageError> {
        self.view
            .get(DEAD_LETTERS, &keys::number(number))?
            .map(|bytes| decode(&bytes, "a dead letter"))
            .transpose()
    }

    pub fn delete_dead_letter(&self, number: u64) -> Result<(), StorageError> {
        self.view.delete(DEAD_LETTERS, &keys::number(number)).map(drop)
    }

    /// Forgets the oldest dead letters beyond `keep`, but none for which an instance waits; looks at up to `limit`
    /// rows and goes on behind them the next time. Returns how many were forgotten.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where a row cannot be read.
    pub fn prune_dead_letters(&self, keep: u64, limit: usize) -> Result<usize, StorageError> {
        let excess = self.view.count(DEAD_LETTERS)?.saturating_sub(keep);
        if excess == 0 {
            return Ok(0);
        }
        let from = self.view.get(META, DEAD_LETTERS_SEEN)?.unwrap_or_default();
        let mut rows = Vec::new();
        self.view.scan(DEAD_LETTERS, &from, &mut |key, value| {
            let number = keys::read_number(key).ok_or_else(|| corrupt("a key of the dead letters"))?;
            rows.push((number, decode::<DeadLetter>(&value, "a dead letter")?));
            Ok(rows.len() < limit)
        })?;
        let mut forgotten = 0;
        for (number, letter) in &rows {
            if (forgotten as u64) < excess && !self.stands_in_the_way(*number, letter)? {
                self.delete_dead_letter(*number)?;
                forgotten += 1;
            }
        }
        let next = match rows.last() {
            Some((number, _)) if rows.len() == limit => keys::number(number + 1).to_vec(),
            _ => Vec::new(),
        };
        if next != from {
            self.view.put(META, DEAD_LETTERS_SEEN, next)?;
        }
        Ok(forgotten)
    }

    /// Whether an instance waits behind a dead letter.
    fn stands_in_the_way(&self, number: u64, letter: &DeadLetter) -> Result<bool, StorageError> {
        let Some(input) = &letter.input else {
            return Ok(false);
        };
        match self
            .view
            .get(INBOX, &keys::numbered(&input.instance, keys::PARKED))?
        {
            Some(bytes) => {
                let blocked: BlockedRow = decode(&bytes, "a blocked instance")?;
                Ok(blocked.dead_letter == number)
            }
            None => Ok(false),
        }
    }

    /// Archives a version; one that is there stays as it is.
    pub fn put_definition(&self, hash: &DefinitionHash, row: &ArchivedRow) -> Result<(), StorageError> {
        if self.view.get(DEFINITIONS, &hash.0)?.is_none() {
            self.view.put(DEFINITIONS, &hash.0, encode(row))?;
        }
        Ok(())
    }

    pub fn uses(&self, hash: &DefinitionHash) -> Result<Uses, StorageError> {
        match self.view.get(META, &uses_key(hash))? {
            Some(bytes) => decode(&bytes, "the uses of a definition"),
            None => Ok(Uses::default()),
        }
    }

    /// Counts who refers to which version, and forgets versions to which nobody does and which are not to be
    /// kept for new instances.
    pub fn change_uses(
        &self,
        changes: &UseChanges,
        is_active: impl Fn(&DefinitionHash) -> bool,
    ) -> Result<(), StorageError> {
        for (hash, change) in changes.iter() {
            let uses = self.uses(hash)?.changed(change);
            if !uses.is_none() {
                self.view.put(META, &uses_key(hash), encode(&uses))?;
                continue;
            }
            self.view.delete(META, &uses_key(hash))?;
            if !is_active(hash) {
                self.view.delete(DEFINITIONS, &hash.0)?;
            }
        }
        Ok(())
    }

    /// Forgets every version to which nobody refers and which is not active.
    pub fn prune_definitions(&self, is_active: impl Fn(&DefinitionHash) -> bool) -> Result<(), StorageError> {
        let mut hashes = Vec::new();
        self.view.scan(DEFINITIONS, &[], &mut |key, _| {
            let hash = key.try_into().map_err(|_| corrupt("a key of the definitions"))?;
            hashes.push(DefinitionHash(hash));
            Ok(true)
        })?;
        for hash in hashes {
            if !is_active(&hash) && self.uses(&hash)?.is_none() {
                self.view.delete(DEFINITIONS, &hash.0)?;
            }
        }
        Ok(())
    }

    pub fn position(&self, stream: SourceStream) -> Result<Option<PositionRow>, StorageError> {
        self.view
            .get(META, &position_key(stream))?
            .map(|bytes| decode(&bytes, "a position"))
            .transpose()
    }

    pub fn put_position(&self, stream: SourceStream, position: &PositionRow) -> Result<(), StorageError> {
        self.view.put(META, &position_key(stream), encode(position))
    }

    /// Why a stream must not be read on before an operator says so.
    pub fn halt(&self, stream: SourceStream) -> Result<Option<HaltRow>, StorageError> {
        self.view
            .get(META, &halt_key(stream))?
            .map(|bytes| decode(&bytes, "a halt"))
            .transpose()
    }

    pub fn put_halt(&self, stream: SourceStream, halt: Option<&HaltRow>) -> Result<(), StorageError> {
        let key = halt_key(stream);
        match halt {
            Some(halt) => self.view.put(META, &key, encode(halt)),
            None => self.view.delete(META, &key).map(drop),
        }
    }

    /// Keeps an operator's word beside the newest ones before it.
    pub fn put_accepted(&self, accepted: &AcceptedRow) -> Result<(), StorageError> {
        newest::add(self, ACCEPTED, accepted)
    }

    /// The counters that exist once.
    pub fn counters(&self) -> Result<Counters, StorageError> {
        match self.view.get(META, COUNTERS)? {
            Some(bytes) => decode(&bytes, "the counters"),
            None => Ok(Counters::default()),
        }
    }

    pub fn put_counters(&self, counters: &Counters) -> Result<(), StorageError> {
        self.view.put(META, COUNTERS, encode(counters))
    }

    /// Of a folder that was closed after everything was committed, the log sequence up to which calls may have been made
    /// without a mark; none of another one.
    pub fn closed(&self) -> Result<Option<u64>, StorageError> {
        let row = self.view.get(LOCAL, CLOSED)?;
        row.map(|bytes| decode(&bytes, "the mark of a stop")).transpose()
    }

    pub fn put_closed(&self, maybe_called: Option<u64>) -> Result<(), StorageError> {
        match maybe_called {
            Some(up_to) => self.view.put(LOCAL, CLOSED, encode(&up_to)),
            None => self.view.delete(LOCAL, CLOSED).map(drop),
        }
    }

    pub fn active_definitions(&self) -> Result<ActiveDefinitions, StorageError> {
        match self.view.get(META, ACTIVE)? {
            Some(bytes) => decode(&bytes, "the active definitions"),
            None => Ok(ActiveDefinitions::default()),
        }
    }

    pub fn put_active_definitions(&self, active: &ActiveDefinitions) -> Result<(), StorageError> {
        self.view.put(META, ACTIVE, encode(active))
    }

    /// Where the schedule of a saga stands.
    pub fn schedule(&self, tenant: &TenantId, saga: &SagaName) -> Result<Option<ScheduleRow>, StorageError> {
        self.view
            .get(SCHEDULES, &keys::saga_prefix(tenant, saga))?
            .map(|bytes| decode(&bytes, "a schedule"))
            .transpose()
    }

    /// All of them, by tenant and saga.
    pub fn schedules(&self) -> Result<Vec<Scheduled>, StorageError> {
        super::read::schedules(self.view)
    }

    pub fn put_schedule(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        row: &ScheduleRow,
    ) -> Result<(), StorageError> {
        self.view
            .put(SCHEDULES, &keys::saga_prefix(tenant, saga), encode(row))
    }

    pub fn delete_schedule(&self, tenant: &TenantId, saga: &SagaName) -> Result<(), StorageError> {
        self.view
            .delete(SCHEDULES, &keys::saga_prefix(tenant, saga))
            .map(drop)
    }

    /// Who has the alias of this address.
    pub fn alias(&self, id: &InstanceId) -> Result<AliasRow, StorageError> {
        super::read::alias(self.view, id)
    }

    /// Keeps who has an alias; that nobody has or had it takes no row.
    pub fn put_alias(&self, id: &InstanceId, row: &AliasRow) -> Result<(), StorageError> {
        let key = keys::instance(id);
        if row.is_empty() {
            return self.view.delete(ALIASES, &key).map(drop);
        }
        self.view.put(ALIASES, &key, encode(row))
    }

    /// Inputs in whose application the process has died, the latest last.
    pub fn suspects(&self) -> Result<Vec<Suspect>, StorageError> {
        match self.view.get(META, SUSPECTS)? {
            Some(bytes) => decode(&bytes, "the suspects"),
            None => Ok(Vec::new()),
        }
    }

    pub fn put_suspects(&self, suspects: &[Suspect]) -> Result<(), StorageError> {
        if suspects.is_empty() {
            return self.view.delete(META, SUSPECTS).map(drop);
        }
        self.view.put(META, SUSPECTS, encode(&suspects))
    }
}

/// Counters of a shard, in one row so that a commit touches one page for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Log sequence of the last input.
    pub log_sequence: u64,
    /// Rows up to here were handed over by the relay, as `log_sequence << 16 | index`.
    pub sent_floor: u64,
    /// Time of the last input: local verdicts never come before it.
    pub last_time: TimeMs,
    /// Inputs that wait for instances to begin, and their encoded size.
    pub early_inputs: u64,
    pub early_bytes: u64,
    /// Rows of the outbox that wait for another instance to end.
    pub awaited_sagas: u64,
}

/// The counters.
pub(super) const COUNTERS: &[u8] = b"counters";
/// Up to where the dead letters were looked through.
const DEAD_LETTERS_SEEN: &[u8] = b"dead letters seen";
/// Name of the inputs in whose application the process has died.
const SUSPECTS: &[u8] = b"suspects";

/// Says that the folder was closed cleanly.
const CLOSED: &[u8] = b"closed";

/// The active definitions.
pub(super) const ACTIVE: &[u8] = b"active";

/// Who refers to a version.
pub(super) fn uses_key(hash: &DefinitionHash) -> Vec<u8> {
    let mut key = b"uses/".to_vec();
    key.extend_from_slice(&hash.0);
    key
}

/// Begins the keys of what operators have accepted.
pub(super) const ACCEPTED: &[u8] = b"accepted/";

pub(super) fn halt_key(stream: SourceStream) -> Vec<u8> {
    let index = u8::try_from(stream.index()).expect("there are three streams");
    [b"halt/".as_slice(), &[index]].concat()
}

pub(super) fn position_key(stream: SourceStream) -> Vec<u8> {
    let index = u8::try_from(stream.index()).expect("there are three streams");
    let mut key = b"position/".to_vec();
    key.push(index);
    // Two bytes that are always zero belong to the stored form.
    key.extend_from_slice(&[0, 0]);
    key
}

fn corrupt(what: &str) -> StorageError {
    StorageError::Corrupt(what.to_owned())
}
