//! Ended instances whose time is over, for the archive: they stay until it has them.

use std::collections::BTreeMap;

use saga_runner_kernel::ids::{TenantId, TimeMs};

use super::ended::{ENDED_SEEN, Outdated, corrupt, ended_row, read_ended};
use super::listed::{StatusChanges, oldest_ended};
use super::read::Reader;
use super::rows::EndedRow;
use super::tables::{ENDED, EXPIRIES, META};
use super::{ReadRows, StorageError, keys};

/// Rows of one kind that a look passes by at most.
const LOOKED_MAX: usize = 10_000;

/// Ended instances by the numbers of their rows.
type Due = BTreeMap<u64, EndedRow>;

impl Outdated {
    /// Since when the time of an ended instance is over; `None`: it is not, and there are too many beside it.
    #[must_use]
    pub fn due_since(&self, row: &EndedRow) -> Option<TimeMs> {
        let kept_ms = self.now.0 - self.before.0;
        let since = row.until.unwrap_or_else(|| row.summary.ended.plus_ms(kept_ms));
        (since < self.now).then_some(since)
    }
}

impl Reader {
    /// Ended instances that would be forgotten now if there were no archive, the oldest first, at most `limit`. `tenants`: how many
    /// those may have that have a limit of their own.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn due(
        &self,
        outdated: Outdated,
        tenants: &[(TenantId, u64)],
        limit: usize,
    ) -> Result<Vec<(u64, EndedRow)>, StorageError> {
        let due = self.view(|view| {
            let mut due = Due::new();
            expired(view, outdated, limit, &mut due)?;
            aged(view, outdated, limit, &mut due)?;
            excess(view, outdated, limit, &mut due)?;
            for (tenant, keep) in tenants {
                let changes = StatusChanges::default();
                for number in oldest_ended(view, tenant, *keep, limit, &changes)? {
                    due.extend(ended_row(view, number)?.map(|row| (number, row)));
                }
            }
            Ok(due)
        })?;
        Ok(due.into_iter().take(limit).collect())
    }
}

fn expired(view: &dyn ReadRows, outdated: Outdated, limit: usize, due: &mut Due) -> Result<(), StorageError> {
    let mut numbers = Vec::new();
    view.scan(EXPIRIES, &[], &mut |key, _| {
        let (until, number) = keys::read_expiry(key).ok_or_else(|| corrupt("a key of the expiries"))?;
        let is_over = until < outdated.now;
        if is_over {
            numbers.push(number);
        }
        Ok(is_over && numbers.len() < limit)
    })?;
    for number in numbers {
        due.extend(ended_row(view, number)?.map(|row| (number, row)));
    }
    Ok(())
}

fn aged(view: &dyn ReadRows, outdated: Outdated, limit: usize, due: &mut Due) -> Result<(), StorageError> {
    let from = view.get(META, ENDED_SEEN)?.unwrap_or_default();
    let (mut looked, mut found) = (0, 0);
    view.scan(ENDED, &from, &mut |key, value| {
        let (number, row) = read_ended(key, &value)?;
        if row.until.is_none() {
            if row.summary.ended >= outdated.before {
                return Ok(false);
            }
            due.insert(number, row);
            found += 1;
        }
        looked += 1;
        Ok(looked < LOOKED_MAX && found < limit)
    })
}

fn excess(view: &dyn ReadRows, outdated: Outdated, limit: usize, due: &mut Due) -> Result<(), StorageError> {
    let excess = view.count(ENDED)?.saturating_sub(outdated.count);
    let most = usize::try_from(excess).unwrap_or(limit).min(limit);
    if most == 0 {
        return Ok(());
    }
    let mut found = 0;
    view.scan(ENDED, &[], &mut |key, value| {
        let (number, row) = read_ended(key, &value)?;
        due.insert(number, row);
        found += 1;
        Ok(found < most)
    })
}
