//! The generations of a key before its last one, as far as they are kept: by these rows a deletion finds them.
//!
//! A row is written when the next generation ends, and goes with the instance. Keys that have one generation have none.

use saga_runner_kernel::ids::InstanceId;

use super::ended::ended_row;
use super::read::Reader;
use super::rows::EndedRow;
use super::tables::{EARLIER, ENDED};
use super::{Batch, ReadRows, StorageError, keys};

/// Generations that one deletion takes with the last one.
const EARLIER_MAX: usize = 1_000;

/// Why one deletion does not take all of these, if they are too many.
#[must_use]
pub fn too_many(earlier: &[(u64, EndedRow)]) -> Option<String> {
    (earlier.len() > EARLIER_MAX).then(|| {
        format!(
            "more than {EARLIER_MAX} earlier generations of its key are kept: they go when their time is over (keep_ended)"
        )
    })
}

impl Batch<'_> {
    /// Notes that the last generation so far, of this number, is about to be an earlier one.
    pub(super) fn note_earlier(&self, id: &InstanceId, number: u64) -> Result<(), StorageError> {
        if self.view.get(ENDED, &keys::number(number))?.is_none() {
            return Ok(());
        }
        self.view.put(EARLIER, &keys::numbered(id, number), Vec::new())
    }

    /// It is not kept any more.
    pub(super) fn forget_earlier(&self, id: &InstanceId, number: u64) -> Result<(), StorageError> {
        self.view.delete(EARLIER, &keys::numbered(id, number)).map(drop)
    }

    /// The generations of a key before its last one, with the numbers of their rows, the oldest first: at most one more
    /// than one deletion takes.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn earlier(&self, id: &InstanceId) -> Result<Vec<(u64, EndedRow)>, StorageError> {
        earlier(self.view, id)
    }
}

impl Reader {
    /// The same.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn earlier(&self, id: &InstanceId) -> Result<Vec<(u64, EndedRow)>, StorageError> {
        self.view(|view| earlier(view, id))
    }
}

fn earlier(view: &dyn ReadRows, id: &InstanceId) -> Result<Vec<(u64, EndedRow)>, StorageError> {
    let prefix = keys::instance(id);
    let mut numbers = Vec::new();
    view.scan(EARLIER, &prefix, &mut |key, _| {
        let number = key.strip_prefix(&prefix[..]).and_then(keys::read_number);
        numbers.extend(number);
        Ok(number.is_some() && numbers.len() <= EARLIER_MAX)
    })?;
    let mut found = Vec::with_capacity(numbers.len());
    for number in numbers {
        let row = ended_row(view, number)?.filter(|row| row.instance == *id);
        let row = row.ok_or_else(|| {
            StorageError::Corrupt(format!("{id}: its earlier generation {number} is not there"))
        })?;
        found.push((number, row));
    }
    Ok(found)
}
