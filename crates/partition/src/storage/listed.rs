//! The index of instances by status: a row for each that is live or kept, and a count for each status. It is written with
//! the record and never rebuilt.
//!
//! Rows of one status stand side by side, in the order in which the instances came into it.

use std::collections::BTreeMap;

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::ids::{InstanceId, Key, SagaName, TenantId};
use saga_runner_kernel::instance_status::{InstanceStatus, Listing};
use saga_runner_kernel::record::Record;
use serde::{Deserialize, Serialize};

use super::keys;
use super::read::{Found, Reader};
use super::rows::{EndedRow, Tombstone, Waiting, decode, encode};
use super::tables::{ENDED, INSTANCES, LISTED, STATUSES, TOMBSTONES};
use super::{Batch, ReadRows, StorageError};

/// Categories of a tenant that one call looks at.
const STATUSES_MAX: usize = 20_000;

/// One instance in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ListedRow {
    key: Key,
    /// It has ended, and its row stands under the sequence.
    ended: bool,
}

/// How many instances more or fewer there are of each status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusChanges(BTreeMap<Vec<u8>, i64>);

/// How many instances are in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCount {
    pub saga: SagaName,
    pub status: InstanceStatus,
    pub instances: u64,
}

/// How much of a list one call gives and looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListBound {
    pub items: usize,
    /// Of the rows as they are stored; the one that passes it is given as well.
    pub bytes: usize,
    /// Instances that it looks at.
    pub looked: usize,
}

/// An instance in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub id: InstanceId,
    pub status: InstanceStatus,
    pub found: Found,
    /// No later generation of its key has begun.
    pub last_generation: bool,
    /// The list goes on behind it.
    pub place: Vec<u8>,
}

/// Some of a list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entries {
    pub items: Vec<Entry>,
    /// Behind which the list goes on, if it does.
    pub next: Option<Vec<u8>>,
    pub looked_at: usize,
}

impl ListBound {
    /// Takes an item of so many bytes into account.
    pub const fn take(&mut self, bytes: usize) {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    #[must_use]
    pub const fn is_reached(&self) -> bool {
        self.items == 0 || self.bytes == 0 || self.looked == 0
    }
}

impl StatusChanges {
    /// Adds what else has changed.
    pub fn add(&mut self, others: &Self) {
        for (status, by) in &others.0 {
            self.change(status.clone(), *by);
        }
    }

    fn change(&mut self, status: Vec<u8>, by: i64) {
        *self.0.entry(status).or_default() += by;
    }

    /// How many instances of a tenant are in each status of those that have ended, by the key of the status.
    fn counted(
        &self,
        view: &dyn ReadRows,
        tenant: &TenantId,
    ) -> Result<BTreeMap<Vec<u8>, u64>, StorageError> {
        let prefix = keys::tenant_prefix(tenant);
        let mut found = BTreeMap::new();
        view.scan(STATUSES, &prefix, &mut |key, value| {
            if !key.starts_with(&prefix) {
                return Ok(false);
            }
            let count: u64 = decode(&value, "the count of a status")?;
            found.insert(key.to_vec(), count);
            Ok(found.len() < STATUSES_MAX)
        })?;
        for (status, by) in self.0.iter().filter(|(status, _)| status.starts_with(&prefix)) {
            let count: &mut u64 = found.entry(status.clone()).or_default();
            *count = count.saturating_add_signed(*by);
        }
        found.retain(|key, _| keys::read_status(key).is_some_and(|(.., status)| status.is_of_ended()));
        Ok(found)
    }
}

impl Batch<'_> {
    /// Puts a live instance where its listing says.
    ///
    /// # Errors
    /// [`StorageError::Full`].
    pub fn enlist_live(
        &self,
        id: &InstanceId,
        listing: &Listing,
        changes: &mut StatusChanges,
    ) -> Result<(), StorageError> {
        let row = ListedRow {
            key: id.key.clone(),
            ended: false,
        };
        self.enlist(id, listing, &row, changes)
    }

    /// Puts an instance that has ended where its listing says.
    ///
    /// # Errors
    /// [`StorageError::Full`].
    pub fn enlist_ended(
        &self,
        id: &InstanceId,
        listing: &Listing,
        changes: &mut StatusChanges,
    ) -> Result<(), StorageError> {
        let row = ListedRow {
            key: id.key.clone(),
            ended: true,
        };
        self.enlist(id, listing, &row, changes)
    }

    fn enlist(
        &self,
        id: &InstanceId,
        listing: &Listing,
        row: &ListedRow,
        changes: &mut StatusChanges,
    ) -> Result<(), StorageError> {
        self.view.put(LISTED, &keys::listed(id, listing), encode(row))?;
        changes.change(keys::status(&id.tenant, &id.saga, &listing.status), 1);
        Ok(())
    }

    /// Takes an instance away from there.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn delist(
        &self,
        id: &InstanceId,
        listing: &Listing,
        changes: &mut StatusChanges,
    ) -> Result<(), StorageError> {
        if self.view.delete(LISTED, &keys::listed(id, listing))? {
            changes.change(keys::status(&id.tenant, &id.saga, &listing.status), -1);
        }
        Ok(())
    }

    /// Numbers of the oldest ended instances of a tenant beyond `keep`, at most `limit`. `changes`: what was changed since the
    /// statuses were counted.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn oldest_ended(
        &self,
        tenant: &TenantId,
        keep: u64,
        limit: usize,
        changes: &StatusChanges,
    ) -> Result<Vec<u64>, StorageError> {
        oldest_ended(self.view, tenant, keep, limit, changes)
    }

    /// Counts the instances of the statuses that have changed.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn count_statuses(&self, changes: &StatusChanges) -> Result<(), StorageError> {
        for (status, by) in changes.0.iter().filter(|(_, by)| **by != 0) {
            let before = match self.view.get(STATUSES, status)? {
                Some(bytes) => decode(&bytes, "the count of a status")?,
                None => 0_u64,
            };
            match before.saturating_add_signed(*by) {
                0 => drop(self.view.delete(STATUSES, status)?),
                count => self.view.put(STATUSES, status, encode(&count))?,
            }
        }
        Ok(())
    }
}

impl Reader {
    /// How many instances of a tenant are in each status, by saga; false: there are more statuses than one call looks at.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn statuses(&self, tenant: &TenantId) -> Result<(Vec<StatusCount>, bool), StorageError> {
        self.view(|view| statuses(view, tenant))
    }

    /// Instances of a tenant whose status is `wanted` and whose record `fits`, behind `after`: a saga and a status after the other,
    /// and within one those first that came into it first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn listed(
        &self,
        tenant: &TenantId,
        wanted: impl Fn(&SagaName, &InstanceStatus) -> bool,
        fits: impl Fn(&InstanceId, &Found) -> bool,
        after: Option<&[u8]>,
        bound: ListBound,
    ) -> Result<Entries, StorageError> {
        self.view(|view| {
            let (all, _) = statuses(view, tenant)?;
            let mut entries = Entries::default();
            let mut left = bound;
            for StatusCount { saga, status, .. } in all {
                let prefix = keys::status(tenant, &saga, &status);
                let from = match after {
                    // The smallest key behind it.
                    Some(after) if after.starts_with(&prefix) => [after, &[0]].concat(),
                    Some(after) if after > prefix.as_slice() => continue,
                    Some(_) | None => prefix.clone(),
                };
                if !wanted(&saga, &status) {
                    continue;
                }
                let place = Place {
                    tenant,
                    saga: &saga,
                    status: &status,
                    prefix: &prefix,
                };
                place.scan(view, &from, &fits, &mut left, &mut entries)?;
                if entries.next.is_some() {
                    break;
                }
            }
            Ok(entries)
        })
    }
}

/// A status of a saga.
struct Place<'p> {
    tenant: &'p TenantId,
    saga: &'p SagaName,
    status: &'p InstanceStatus,
    prefix: &'p [u8],
}

impl Place<'_> {
    /// Adds what is in it from `from` on, until the bound is reached.
    fn scan(
        &self,
        view: &dyn ReadRows,
        from: &[u8],
        fits: impl Fn(&InstanceId, &Found) -> bool,
        left: &mut ListBound,
        entries: &mut Entries,
    ) -> Result<(), StorageError> {
        view.scan(LISTED, from, &mut |key, value| {
            let Some(sequence) = key.strip_prefix(self.prefix).and_then(keys::read_number) else {
                return Ok(false);
            };
            let row: ListedRow = decode(&value, "a listed instance")?;
            let id = InstanceId {
                tenant: self.tenant.clone(),
                saga: self.saga.clone(),
                key: row.key,
            };
            entries.looked_at += 1;
            left.looked = left.looked.saturating_sub(1);
            let (found, bytes) = stored(view, &id, row.ended.then_some(sequence))?;
            if fits(&id, &found) {
                left.take(bytes);
                entries.items.push(Entry {
                    last_generation: !row.ended || is_last(view, &id, sequence)?,
                    id,
                    status: self.status.clone(),
                    found,
                    place: key.to_vec(),
                });
            }
            if left.is_reached() {
                entries.next = Some(key.to_vec());
            }
            Ok(!left.is_reached())
        })
    }
}

impl Reader {
    /// What is wrong with the index: whatever differs from the records, one line each. For tests, the simulator and whoever looks for
    /// damage: it reads everything.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn index_faults(&self, definitions: &DefinitionSet) -> Result<Vec<String>, StorageError> {
        let waiting = self.waiting()?;
        self.view(|view| {
            faults(view, |id, record| {
                let beside = waiting.get(id).map(Waiting::inbox_status).unwrap_or_default();
                // Without its definition it was listed by what was known.
                let definition = definitions.by_hash(&record.definition)?;
                Some(InstanceStatus::of(record, Some(definition), beside))
            })
        })
    }
}

/// Numbers of the oldest ended instances of a tenant beyond `keep`, at most `limit`.
pub(super) fn oldest_ended(
    view: &dyn ReadRows,
    tenant: &TenantId,
    keep: u64,
    limit: usize,
    changes: &StatusChanges,
) -> Result<Vec<u64>, StorageError> {
    let statuses = changes.counted(view, tenant)?;
    let count = statuses
        .values()
        .fold(0_u64, |sum, count| sum.saturating_add(*count));
    let excess = usize::try_from(count.saturating_sub(keep)).unwrap_or(limit);
    let most = excess.min(limit);
    let mut oldest = Vec::new();
    if most == 0 {
        return Ok(oldest);
    }
    for prefix in statuses.keys() {
        let mut found = 0;
        view.scan(LISTED, prefix, &mut |key, value| {
            let Some(sequence) = key.strip_prefix(prefix.as_slice()).and_then(keys::read_number) else {
                return Ok(false);
            };
            let row: ListedRow = decode(&value, "a listed instance")?;
            if row.ended {
                oldest.push(sequence);
                found += 1;
            }
            Ok(found < most)
        })?;
    }
    oldest.sort_unstable();
    oldest.truncate(most);
    Ok(oldest)
}

/// An instance that the index names, and how many bytes it has; `ended`: the number of its row.
fn stored(view: &dyn ReadRows, id: &InstanceId, ended: Option<u64>) -> Result<(Found, usize), StorageError> {
    let lost = || StorageError::Corrupt(format!("the index names {id}, which is not there"));
    if let Some(number) = ended {
        let bytes = view.get(ENDED, &keys::number(number))?.ok_or_else(lost)?;
        let row: EndedRow = decode(&bytes, "an ended instance")?;
        return Ok((Found::Ended(row.summary), bytes.len()));
    }
    let bytes = view.get(INSTANCES, &keys::instance(id))?.ok_or_else(lost)?;
    Ok((Found::Live(super::read::record(&bytes, id)?), bytes.len()))
}

/// Whether no later generation of a key has begun than the ended one of this row.
fn is_last(view: &dyn ReadRows, id: &InstanceId, number: u64) -> Result<bool, StorageError> {
    let key = keys::instance(id);
    if view.get(INSTANCES, &key)?.is_some() {
        return Ok(false);
    }
    // A tombstone may go before its instance does.
    let Some(bytes) = view.get(TOMBSTONES, &key)? else {
        return Ok(true);
    };
    let tombstone: Tombstone = decode(&bytes, "a tombstone")?;
    Ok(tombstone.summary == number)
}

pub(super) fn statuses(
    view: &dyn ReadRows,
    tenant: &TenantId,
) -> Result<(Vec<StatusCount>, bool), StorageError> {
    let prefix = keys::tenant_prefix(tenant);
    let (mut found, mut is_whole) = (Vec::new(), true);
    view.scan(STATUSES, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return Ok(false);
        }
        let (_, saga, status) = keys::read_status(key)
            .ok_or_else(|| StorageError::Corrupt("a key of the statuses".to_owned()))?;
        found.push(StatusCount {
            saga,
            status,
            instances: decode(&value, "the count of a status")?,
        });
        is_whole = found.len() < STATUSES_MAX;
        Ok(is_whole)
    })?;
    Ok((found, is_whole))
}

/// What is wrong with the index; `status`: what a live instance should be listed by, where that is known.
fn faults(
    view: &dyn ReadRows,
    status: impl Fn(&InstanceId, &Record) -> Option<InstanceStatus>,
) -> Result<Vec<String>, StorageError> {
    let mut faults = Vec::new();
    let mut expected: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
    let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut expect = |id: &InstanceId, listing: Option<&Listing>, ended: bool| match listing {
        Some(listing) => {
            expected.insert(keys::listed(id, listing), ended);
            *counts
                .entry(keys::status(&id.tenant, &id.saga, &listing.status))
                .or_default() += 1;
            None
        }
        None => Some(format!("{id} is not listed")),
    };
    view.scan(INSTANCES, &[], &mut |key, value| {
        let id = keys::read_instance(&mut &key[..])
            .ok_or_else(|| StorageError::Corrupt("a key of the instances".to_owned()))?;
        let record = super::read::record(&value, &id)?;
        faults.extend(expect(&id, record.listing.as_deref(), false));
        let (right, is) = (status(&id, &record), record.listing.map(|listing| listing.status));
        if let (Some(right), Some(is)) = (right, is)
            && right != is
        {
            faults.push(format!("{id} is listed as {is:?} and is {right:?}"));
        }
        Ok(true)
    })?;
    view.scan(ENDED, &[], &mut |_, value| {
        let row: EndedRow = decode(&value, "an ended instance")?;
        faults.extend(expect(&row.instance, row.summary.record.listing.as_deref(), true));
        Ok(true)
    })?;
    view.scan(LISTED, &[], &mut |key, value| {
        let row: ListedRow = decode(&value, "a listed instance")?;
        if expected.remove(key) != Some(row.ended) {
            faults.push(format!("the index has a row of {} that no record has", row.key));
        }
        Ok(true)
    })?;
    faults.extend(
        expected
            .keys()
            .map(|key| format!("the index lacks the row {key:02x?}")),
    );
    view.scan(STATUSES, &[], &mut |key, value| {
        let count: u64 = decode(&value, "the count of a status")?;
        let right = counts.remove(key).unwrap_or_default();
        if right != count {
            faults.push(format!(
                "status {key:02x?} counts {count} instances and has {right}"
            ));
        }
        Ok(true)
    })?;
    faults.extend(
        counts
            .keys()
            .map(|key| format!("status {key:02x?} is not counted")),
    );
    Ok(faults)
}
