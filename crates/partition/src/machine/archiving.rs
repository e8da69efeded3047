//! What the archive has may go: the instances whose time was over, and those that an operator has deleted.

use super::staging::Run;
use crate::storage::StorageError;

impl Run<'_> {
    /// The archive has the ended instances of these rows, as they are: they are deleted, with their history. One that has changed
    /// since has another number, and stays.
    pub fn archived(&mut self, numbers: &[u64]) -> Result<(), StorageError> {
        for number in numbers {
            let Some(row) = self.batch.ended_row(*number)? else {
                continue;
            };
            let id = row.instance.clone();
            let tombstone = self.batch.tombstone(&id)?;
            let is_last = tombstone.is_some_and(|tombstone| tombstone.summary == *number);
            if let Some(mut deleted) = self
                .batch
                .deleted(&id)?
                .filter(|deleted| is_last && deleted.waits)
            {
                deleted.waits = false;
                self.batch.put_deleted(&id, &deleted)?;
            }
            self.staged.uses.ended(row.summary.record.definition, -1);
            self.staged.pruned += 1;
            self.batch
                .delete_ended_instance(*number, row, &mut self.staged.statuses)?;
        }
        Ok(())
    }
}
