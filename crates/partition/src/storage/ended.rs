//! What is kept of instances that have ended, and how it is forgotten: by the age that the store allows, by their number, or at
//! the time that their saga has said.

use saga_runner_kernel::ids::{DefinitionHash, InstanceId, TenantId, TimeMs};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::transition::Last;

use super::keys;
use super::listed::StatusChanges;
use super::rows::{EndedRow, HistoryRow, Tombstone, decode, encode};
use super::tables::{DELETED, ENDED, EXPIRIES, HISTORY, META, TOMBSTONES};
use super::{Batch, ReadRows, StorageError};

/// What of the ended instances is old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outdated {
    pub now: TimeMs,
    /// Those of which no saga has said anything are kept if they ended then or later.
    pub before: TimeMs,
    /// Most ended instances, whatever was said.
    pub count: u64,
    /// An archive is to have them before they are forgotten.
    pub archive: bool,
}

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The definition of each instance.
    pub instances: Vec<DefinitionHash>,
    pub tombstones: usize,
    /// The statuses that they were in.
    pub statuses: StatusChanges,
}

impl Batch<'_> {
    /// What is remembered of the last instance of a key.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn tombstone(&self, id: &InstanceId) -> Result<Option<Tombstone>, StorageError> {
        self.view
            .get(TOMBSTONES, &keys::instance(id))?
            .map(|bytes| decode(&bytes, "a tombstone"))
            .transpose()
    }

    /// Keeps that a key was used.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn put_tombstone(&self, id: &InstanceId, tombstone: &Tombstone) -> Result<(), StorageError> {
        self.view.put(TOMBSTONES, &keys::instance(id), encode(tombstone))
    }

    /// The last record of an ended instance, if it is still kept.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn ended(&self, id: &InstanceId, number: u64) -> Result<Option<Record>, StorageError> {
        let row = self.ended_row_of(id, number)?;
        Ok(row.map(|row| row.summary.record))
    }

    /// The row of an ended instance, if it is still kept.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn ended_row_of(&self, id: &InstanceId, number: u64) -> Result<Option<EndedRow>, StorageError> {
        Ok(self.ended_row(number)?.filter(|row| row.instance == *id))
    }

    /// Deletes an ended instance with its history; its tombstone stays.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn delete_ended_instance(
        &self,
        number: u64,
        row: EndedRow,
        statuses: &mut StatusChanges,
    ) -> Result<(), StorageError> {
        let mut forgotten = Forgotten::default();
        self.forget_ended(vec![(number, row)], &mut forgotten)?;
        statuses.add(&forgotten.statuses);
        Ok(())
    }

    /// An ended instance, by the number of its row.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn ended_row(&self, number: u64) -> Result<Option<EndedRow>, StorageError> {
        ended_row(self.view, number)
    }

    /// Takes an instance out of the ended ones: it is live again, and its record is to be put.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn reopen(&self, id: &InstanceId, number: u64) -> Result<(), StorageError> {
        self.view.delete(TOMBSTONES, &keys::instance(id))?;
        if let Some(row) = self.ended_row(number)? {
            self.delete_ended(number, row.until)?;
        }
        Ok(())
    }

    fn delete_ended(&self, number: u64, until: Option<TimeMs>) -> Result<(), StorageError> {
        if let Some(until) = until {
            self.view.delete(EXPIRIES, &keys::expiry(until, number))?;
        }
        self.view.delete(ENDED, &keys::number(number)).map(drop)
    }

    /// Moves an instance from the live ones to the ended ones.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn end(&self, log_sequence: u64, row: &EndedRow) -> Result<(), StorageError> {
        let last = Last::of(&row.summary);
        let tombstone = Tombstone {
            generation: last.generation,
            ended: row.summary.ended,
            until: row.until,
            summary: log_sequence,
            phase: last.phase,
            start: last.start,
        };
        if last.generation > 1
            && let Some(before) = self.tombstone(&row.instance)?
            && before.generation < last.generation
        {
            self.note_earlier(&row.instance, before.summary)?;
        }
        self.put_tombstone(&row.instance, &tombstone)?;
        // What was remembered of the generation before goes with its tombstone.
        self.view.delete(DELETED, &keys::instance(&row.instance))?;
        if let Some(until) = row.until {
            self.view
                .put(EXPIRIES, &keys::expiry(until, log_sequence), Vec::new())?;
        }
        self.view
            .append(ENDED, &keys::number(log_sequence), encode(row))?;
        self.delete_record(&row.instance)
    }

    /// Forgets ended instances that are outdated, with their history, and outdated tombstones. Looks at up to `limit` rows of
    /// each kind.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn prune_ended(&self, outdated: Outdated, limit: usize) -> Result<Forgotten, StorageError> {
        let mut forgotten = Forgotten::default();
        self.prune_aged(outdated, limit, &mut forgotten)?;
        if !outdated.archive {
            self.prune_excess(outdated.count, limit, &mut forgotten)?;
            self.prune_expired(outdated.now, limit, &mut forgotten)?;
        }
        forgotten.tombstones = self.prune_tombstones(outdated, limit)?;
        Ok(forgotten)
    }

    /// The oldest ones beyond `keep`.
    fn prune_excess(&self, keep: u64, limit: usize, forgotten: &mut Forgotten) -> Result<(), StorageError> {
        let excess = self.view.count(ENDED)?.saturating_sub(keep);
        let most = usize::try_from(excess).unwrap_or(limit).min(limit);
        if most == 0 {
            return Ok(());
        }
        let mut doomed = Vec::new();
        self.view.scan(ENDED, &[], &mut |key, value| {
            doomed.push(read_ended(key, &value)?);
            Ok(doomed.len() < most)
        })?;
        self.forget_ended(doomed, forgotten)
    }

    /// The oldest ended instances of a tenant beyond `keep`, up to `limit`, with their history. `staged`: how many more or fewer
    /// there are in each status than the counts say.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn prune_tenant(
        &self,
        tenant: &TenantId,
        keep: u64,
        limit: usize,
        staged: &StatusChanges,
        forgotten: &mut Forgotten,
    ) -> Result<(), StorageError> {
        let mut changes = staged.clone();
        changes.add(&forgotten.statuses);
        let numbers = self.oldest_ended(tenant, keep, limit, &changes)?;
        let mut doomed = Vec::with_capacity(numbers.len());
        for number in numbers {
            doomed.extend(self.ended_row(number)?.map(|row| (number, row)));
        }
        self.forget_ended(doomed, forgotten)
    }

    /// Those of which no saga has said anything, that ended too long ago. They stand in the order of their ends, so the
    /// look stops at the first that is kept; it goes on there the next time, behind the others that lie among them.
    fn prune_aged(
        &self,
        outdated: Outdated,
        limit: usize,
        forgotten: &mut Forgotten,
    ) -> Result<(), StorageError> {
        let from = self.view.get(META, ENDED_SEEN)?.unwrap_or_default();
        let (mut doomed, mut seen, mut next) = (Vec::new(), 0, from.clone());
        self.view.scan(ENDED, &from, &mut |key, value| {
            let (number, row) = read_ended(key, &value)?;
            if row.until.is_none() {
                // What is for the archive stays where the next look begins.
                if row.summary.ended >= outdated.before || outdated.archive {
                    return Ok(false);
                }
                doomed.push((number, row));
            } else {
                next = keys::number(number + 1).to_vec();
            }
            seen += 1;
            Ok(seen < limit)
        })?;
        if next != from {
            self.view.put(META, ENDED_SEEN, next)?;
        }
        self.forget_ended(doomed, forgotten)
    }

    /// Those whose saga has said how long they are kept.
    fn prune_expired(
        &self,
        now: TimeMs,
        limit: usize,
        forgotten: &mut Forgotten,
    ) -> Result<(), StorageError> {
        let mut numbers = Vec::new();
        self.view.scan(EXPIRIES, &[], &mut |key, _| {
            let (until, number) = keys::read_expiry(key).ok_or_else(|| corrupt("a key of the expiries"))?;
            let is_over = until < now;
            if is_over {
                numbers.push((until, number));
            }
            Ok(is_over && numbers.len() < limit)
        })?;
        let mut doomed = Vec::new();
        for (until, number) in numbers {
            match self.ended_row(number)? {
                Some(row) => doomed.push((number, row)),
                None => drop(self.view.delete(EXPIRIES, &keys::expiry(until, number))?),
            }
        }
        self.forget_ended(doomed, forgotten)
    }

    fn forget_ended(
        &self,
        doomed: Vec<(u64, EndedRow)>,
        forgotten: &mut Forgotten,
    ) -> Result<(), StorageError> {
        for (number, row) in doomed {
            let record = &row.summary.record;
            self.forget_history(record.last_history)?;
            self.forget_earlier(&row.instance, number)?;
            self.delete_ended(number, row.until)?;
            if let Some(listing) = &record.listing {
                self.delist(&row.instance, listing, &mut forgotten.statuses)?;
            }
            forgotten.instances.push(record.definition);
        }
        Ok(())
    }

    fn forget_history(&self, mut next: Option<u64>) -> Result<(), StorageError> {
        while let Some(sequence) = next {
            let key = keys::number(sequence);
            next = match self.view.get(HISTORY, &key)? {
                Some(bytes) => decode::<HistoryRow>(&bytes, "a history row")?.previous,
                None => None,
            };
            self.view.delete(HISTORY, &key)?;
            self.delete_kept(sequence)?;
        }
        Ok(())
    }

    /// Goes once around all tombstones in small slices. In the order of their keys those of one slice share
    /// pages; in the order of time each would be on a page of its own.
    fn prune_tombstones(&self, outdated: Outdated, limit: usize) -> Result<usize, StorageError> {
        let from = self.view.get(META, TOMBSTONES_SEEN)?.unwrap_or_default();
        let mut doomed = Vec::new();
        let mut seen = 0;
        let mut next = Vec::new();
        self.view.scan(TOMBSTONES, &from, &mut |key, value| {
            if seen == limit {
                next = key.to_vec();
                return Ok(false);
            }
            seen += 1;
            let tombstone: Tombstone = decode(&value, "a tombstone")?;
            let is_old = match tombstone.until {
                Some(until) => until < outdated.now,
                None => tombstone.ended < outdated.before,
            };
            // What the archive has not got yet is found by its key.
            if is_old && !(outdated.archive && self.ended_row(tombstone.summary)?.is_some()) {
                doomed.push(key.to_vec());
            }
            Ok(true)
        })?;
        for key in &doomed {
            self.view.delete(TOMBSTONES, key)?;
            self.view.delete(DELETED, key)?;
        }
        if next != from {
            self.view.put(META, TOMBSTONES_SEEN, next)?;
        }
        Ok(doomed.len())
    }
}

pub(super) fn ended_row(view: &dyn ReadRows, number: u64) -> Result<Option<EndedRow>, StorageError> {
    view.get(ENDED, &keys::number(number))?
        .map(|bytes| decode(&bytes, "an ended instance"))
        .transpose()
}

pub(super) fn read_ended(key: &[u8], value: &[u8]) -> Result<(u64, EndedRow), StorageError> {
    let number = keys::read_number(key).ok_or_else(|| corrupt("a key of the ended instances"))?;
    Ok((number, decode(value, "an ended instance")?))
}

pub(super) fn corrupt(what: &str) -> StorageError {
    StorageError::Corrupt(what.to_owned())
}

/// Up to where no ended instance is kept that goes by its age.
pub(super) const ENDED_SEEN: &[u8] = b"ended seen";
/// Up to where the tombstones were looked through.
const TOMBSTONES_SEEN: &[u8] = b"tombstones seen";

#[cfg(test)]
mod tests {
    use saga_runner_kernel::ids::{Key, SagaName, TenantId};
    use saga_runner_kernel::record::{Phase, Summary};

    use super::*;
    use crate::storage::Memory;

    fn id(key: &str) -> InstanceId {
        InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse(key).expect("legal"),
        }
    }

    fn record() -> Record {
        Record {
            version: 1,
            phase: Phase::Completed,
            data: b"{}".to_vec().into(),
            ..Record::opened(1, DefinitionHash([7; 32]), "e-1", TimeMs(1))
        }
    }

    /// Ends an instance `o-<number>` at `100 * number`, under this log sequence.
    fn end(batch: &Batch<'_>, number: u64, until: Option<i64>) -> Result<(), StorageError> {
        let row = EndedRow {
            instance: id(&format!("o-{number}")),
            summary: Summary {
                record: record(),
                ended: TimeMs(100 * number.cast_signed()),
            },
            until: until.map(TimeMs),
        };
        batch.end(number, &row)
    }

    fn store(rows: &[Option<i64>]) -> Memory {
        let store = Memory::default();
        write(&store, |batch| {
            (1..)
                .zip(rows)
                .try_for_each(|(number, until)| end(batch, number, *until))
        });
        store
    }

    fn write<R>(store: &Memory, work: impl FnOnce(&Batch<'_>) -> Result<R, StorageError>) -> R {
        store.write(work).expect("there is room")
    }

    fn prune(store: &Memory, now: i64, before: i64, count: u64, limit: usize) -> usize {
        let outdated = Outdated {
            now: TimeMs(now),
            before: TimeMs(before),
            count,
            archive: false,
        };
        let forgotten = write(store, |batch| batch.prune_ended(outdated, limit));
        forgotten.instances.len()
    }

    /// Numbers of the instances that are there, and of the keys that are used up.
    fn left(store: &Memory) -> (Vec<u64>, Vec<u64>) {
        write(store, |batch| {
            let mut left = (Vec::new(), Vec::new());
            for number in 1..10 {
                let id = id(&format!("o-{number}"));
                if batch.ended(&id, number)?.is_some() {
                    left.0.push(number);
                }
                if batch.tombstone(&id)?.is_some() {
                    left.1.push(number);
                }
            }
            Ok(left)
        })
    }

    fn expiries(store: &Memory) -> usize {
        store
            .rows()
            .iter()
            .filter(|(table, _)| *table == EXPIRIES)
            .count()
    }

    #[test]
    fn the_age_set_by_a_saga_wins_over_the_age_of_the_store() {
        let store = store(&[None, Some(5_000), None, Some(700), Some(5_000), None]);
        assert_eq!(prune(&store, 700, 200, 99, 99), 1);
        assert_eq!(left(&store), (vec![2, 3, 4, 5, 6], vec![2, 3, 4, 5, 6]));
        assert_eq!(prune(&store, 701, 200, 99, 99), 1, "the fourth has expired");
        assert_eq!(
            prune(&store, 5_000, 601, 99, 99),
            2,
            "the third and the sixth are old"
        );
        assert_eq!(left(&store), (vec![2, 5], vec![2, 5]));
        assert_eq!(prune(&store, 5_001, 601, 99, 99), 2);
        assert_eq!((left(&store), expiries(&store)), ((vec![], vec![]), 0));
    }

    #[test]
    fn those_that_are_kept_for_long_do_not_hide_the_old_ones_behind_them() {
        let store = store(&[
            Some(9_000),
            Some(9_000),
            Some(9_000),
            None,
            Some(9_000),
            None,
            None,
        ]);
        let mut forgotten = 0;
        for _ in 0..4 {
            forgotten += prune(&store, 1_000, 700, 99, 2);
        }
        assert_eq!((forgotten, left(&store).0), (2, vec![1, 2, 3, 5, 7]));
        // The store allows less than before.
        assert_eq!(prune(&store, 1_000, 701, 99, 2), 1);
    }

    #[test]
    fn above_the_limit_the_oldest_ended_instances_are_removed_despite_their_age() {
        let store = store(&[Some(9_000), None, Some(9_000), None]);
        assert_eq!(prune(&store, 0, 0, 1, 2), 2);
        assert_eq!(prune(&store, 0, 0, 1, 2), 1);
        assert_eq!((left(&store), expiries(&store)), ((vec![4], vec![1, 2, 3, 4]), 0));
    }

    #[test]
    fn an_instance_that_is_live_again_does_not_expire() {
        let store = store(&[Some(700)]);
        write(&store, |batch| batch.reopen(&id("o-1"), 1));
        assert_eq!(expiries(&store), 0);
        write(&store, |batch| end(batch, 2, Some(800)));
        assert_eq!((prune(&store, 750, 0, 99, 99), left(&store).0), (0, vec![2]));
    }
}
