//! Reads of instances: one by its id, lists of a saga, and searches among the live ones.

use saga_runner_kernel::ids::{InstanceId, SagaName, TenantId};
use saga_runner_kernel::record::{Record, Summary};

use super::{Bound, Reader, SCAN_MAX, behind, number};
use crate::storage::rows::{EndedRow, Tombstone, decode};
use crate::storage::tables::{ENDED, INSTANCES, TOMBSTONES};
use crate::storage::{ReadRows, StorageError, keys};

/// An instance as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Live(Record),
    Ended(Summary),
}

impl Found {
    /// Of an ended instance the last one.
    #[must_use]
    pub const fn record(&self) -> &Record {
        match self {
            Self::Live(record) => record,
            Self::Ended(summary) => &summary.record,
        }
    }
}

/// Where a list of instances goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListCursor {
    /// Behind this key among the live ones.
    Live(Vec<u8>),
    /// Behind this row among the ended ones.
    Ended(u64),
}

/// An instance in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub id: InstanceId,
    pub found: Found,
    /// The list goes on behind it.
    pub place: ListCursor,
}

/// Some instances, and where the list goes on.
pub type InstancePage = (Vec<Listed>, Option<ListCursor>);

/// Some live instances, and the key behind which the list goes on.
pub type LivePage = (Vec<(InstanceId, Record)>, Option<Vec<u8>>);

impl Reader {
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
}

pub(in crate::storage) fn instance(
    view: &dyn ReadRows,
    id: &InstanceId,
) -> Result<Option<Found>, StorageError> {
    if let Some(bytes) = view.get(INSTANCES, &keys::instance(id))? {
        return record(&bytes, id).map(|record| Some(Found::Live(record)));
    }
    Ok(last_ended(view, id)?.map(Found::Ended))
}

/// The last instance of a key that has ended, if it is kept.
pub(in crate::storage) fn last_ended(
    view: &dyn ReadRows,
    id: &InstanceId,
) -> Result<Option<Summary>, StorageError> {
    match view.get(TOMBSTONES, &keys::instance(id))? {
        Some(tombstone) => Ok(ended_of(view, id, &tombstone)?.map(|(summary, _)| summary)),
        None => Ok(None),
    }
}

/// The instance of a tombstone, if it is kept, and how many bytes its row has.
pub(in crate::storage) fn ended_of(
    view: &dyn ReadRows,
    id: &InstanceId,
    tombstone: &[u8],
) -> Result<Option<(Summary, usize)>, StorageError> {
    let tombstone: Tombstone = decode(tombstone, "a tombstone")?;
    let Some(bytes) = view.get(ENDED, &keys::number(tombstone.summary))? else {
        return Ok(None);
    };
    let row: EndedRow = decode(&bytes, "an ended instance")?;
    Ok((row.instance == *id).then_some((row.summary, bytes.len())))
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

pub(in crate::storage) fn record(bytes: &[u8], id: &InstanceId) -> Result<Record, StorageError> {
    Record::decode(bytes).map_err(|error| StorageError::Corrupt(format!("{id}: {error}")))
}
