//! Deletes an instance that has ended before its time, because an operator says so. Its key stays used for as long as it would have
//! been, and repetitions of what it had applied are recognised until then.

use saga_runner_kernel::input::{Input, Operation};
use saga_runner_kernel::patch::{IgnoreReason, Outcome};
use saga_runner_kernel::transition::delete_obstacle;

use super::apply::Fate;
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{DeletedRow, Tombstone};

impl Run<'_> {
    /// Deletes the instance of this tombstone, or leaves it as it is. `parent_over`: whoever asks has seen that its parent has ended
    /// or is gone.
    pub fn delete(
        &mut self,
        input: &Input,
        operation: &Operation,
        parent_over: bool,
        tombstone: Tombstone,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let before = self.batch.deleted(id)?;
        let row = self.batch.ended_row_of(id, tombstone.summary)?;
        let Some(row) = row.filter(|_| before.is_none()) else {
            let is_again = before.is_some_and(|before| before.request == input.id);
            let reason = if is_again {
                IgnoreReason::Duplicate
            } else {
                IgnoreReason::Ended
            };
            return Ok(self.ignore(input, None, reason));
        };
        let record = &row.summary.record;
        let definition = self.ground.definitions.by_hash(&record.definition);
        let obstacle = delete_obstacle(definition.map(AsRef::as_ref), record, parent_over);
        let obstacle = obstacle.or_else(|| {
            let is_blocked = self.waiting(id).is_blocked();
            is_blocked.then(|| "inputs of it wait behind a dead letter or for its definition".to_owned())
        });
        if let Some(obstacle) = obstacle {
            tracing::warn!(instance = %id, request = input.id, obstacle, "the instance is not deleted");
            return Ok(self.ignore(input, None, IgnoreReason::Refused));
        }
        let deleted = DeletedRow {
            request: input.id.clone(),
            by: operation.by.clone(),
            reason: operation.reason.clone(),
            time: input.time,
            waits: self.ground.keep.archive,
            known: record.forgotten(),
        };
        self.staged.story.deleted(id, &deleted);
        if deleted.waits {
            let over = self.ground.now.plus_ms(-1);
            self.batch.expire_ended(tombstone.summary, row, over)?;
        } else {
            self.staged.uses.ended(record.definition, -1);
            self.batch
                .delete_ended_instance(tombstone.summary, row, &mut self.staged.statuses)?;
        }
        self.batch.put_deleted(id, &deleted)?;
        self.tell(input, Told::Outcome(Outcome::Applied, &[]));
        self.staged.records.give_back(id, None);
        Ok(Fate::Done)
    }
}
