//! Reads of dead letters: those of a tenant, and one by its number.

use saga_runner_kernel::ids::TenantId;

use super::{Bound, Reader, SCAN_MAX, behind, number};
use crate::storage::rows::{DeadLetter, decode};
use crate::storage::tables::DEAD_LETTERS;
use crate::storage::{StorageError, keys};

/// Some dead letters with their numbers, and the number behind which the list goes on.
pub type DeadLetterPage = (Vec<(u64, DeadLetter)>, Option<u64>);

impl Reader {
    /// Dead letters of a tenant behind `after` that `wanted` takes, oldest first, and the number behind which the list goes on.
    ///
    /// A page may be shorter than `limit` although the list goes on, because one call looks at a bounded number
    /// of rows.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn dead_letters_of(
        &self,
        tenant: &TenantId,
        after: Option<u64>,
        bound: impl Into<Bound>,
        wanted: impl Fn(&DeadLetter) -> bool,
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
                if letter.tenant == *tenant && wanted(&letter) {
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

    /// The same of all of them.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn dead_letters(
        &self,
        tenant: &TenantId,
        after: Option<u64>,
        bound: impl Into<Bound>,
    ) -> Result<DeadLetterPage, StorageError> {
        self.dead_letters_of(tenant, after, bound, |_| true)
    }

    /// The dead letter of this number.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn dead_letter(&self, number: u64) -> Result<Option<DeadLetter>, StorageError> {
        self.view(|view| {
            let found = view.get(DEAD_LETTERS, &keys::number(number))?;
            found.map(|bytes| decode(&bytes, "a dead letter")).transpose()
        })
    }
}
