//! Deletes an instance that has ended before its time, because an operator says so, with what is kept of earlier generations of its
//! key. The key stays used for as long as it would have been, and repetitions of what it had applied are recognised until then.

use saga_runner_kernel::input::{Input, Operation};
use saga_runner_kernel::patch::{IgnoreReason, Outcome};
use saga_runner_kernel::transition::delete_obstacle_of_all;

use super::apply::Fate;
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::earlier::too_many;
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
        let earlier = self.batch.earlier(id)?;
        let obstacle = delete_obstacle_of_all(
            |hash| self.ground.definitions.by_hash(hash).map(AsRef::as_ref),
            record,
            earlier.iter().map(|(_, row)| &row.summary.record),
            parent_over,
        );
        let obstacle = obstacle.or_else(|| too_many(&earlier));
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
        self.staged.story.deleted(id, &deleted, earlier.len());
        let over = self.ground.now.plus_ms(-1);
        for (number, row) in earlier.into_iter().chain([(tombstone.summary, row)]) {
            if deleted.waits {
                self.batch.expire_ended(number, row, over)?;
            } else {
                self.staged.uses.ended(row.summary.record.definition, -1);
                self.batch
                    .delete_ended_instance(number, row, &mut self.staged.statuses)?;
            }
        }
        self.batch.put_deleted(id, &deleted)?;
        self.tell(input, Told::Outcome(Outcome::Applied, &[]));
        self.staged.records.give_back(id, None);
        Ok(Fate::Done)
    }
}
