//! What is remembered of instances that an operator has deleted before their time, for as long as their tombstones stand.

use saga_runner_kernel::ids::{InstanceId, TimeMs};

use super::keys;
use super::read::Reader;
use super::rows::{DeletedRow, EndedRow, decode, encode};
use super::tables::{DELETED, ENDED, EXPIRIES};
use super::{Batch, ReadRows, StorageError};

impl Batch<'_> {
    /// What is remembered of the instance of a key.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn deleted(&self, id: &InstanceId) -> Result<Option<DeletedRow>, StorageError> {
        deleted(self.view, id)
    }

    /// Keeps it, for as long as the tombstone.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn put_deleted(&self, id: &InstanceId, row: &DeletedRow) -> Result<(), StorageError> {
        self.view.put(DELETED, &keys::instance(id), encode(row))
    }

    /// Lets the time of an ended instance be over, so that it goes once the archive has it. Its tombstone keeps its own.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn expire_ended(&self, number: u64, mut row: EndedRow, until: TimeMs) -> Result<(), StorageError> {
        if let Some(before) = row.until.replace(until) {
            self.view.delete(EXPIRIES, &keys::expiry(before, number))?;
        }
        self.view
            .put(EXPIRIES, &keys::expiry(until, number), Vec::new())?;
        self.view.put(ENDED, &keys::number(number), encode(&row))
    }
}

impl Reader {
    /// What is remembered of the instance of a key that an operator has deleted.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn deleted(&self, id: &InstanceId) -> Result<Option<DeletedRow>, StorageError> {
        self.view(|view| deleted(view, id))
    }
}

pub(super) fn deleted(view: &dyn ReadRows, id: &InstanceId) -> Result<Option<DeletedRow>, StorageError> {
    view.get(DELETED, &keys::instance(id))?
        .map(|bytes| decode(&bytes, "a deleted instance"))
        .transpose()
}
