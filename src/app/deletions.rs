//! What is known here of the parent of an instance that somebody asks to delete: the shard of the instance knows the parent by name
//! only.

use super::node::Node;
use crate::kernel::envelope::{ControlMessage, ControlVerb};
use crate::kernel::ids::{InstanceId, shard_of};
use crate::ports::control::ControlError;
use crate::storage::read::Found;

impl Node {
    /// Says in a request to delete an instance that its parent is over, where that is so; other requests stay as they are. A
    /// repetition says the same as the first.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where it cannot be read.
    pub(super) async fn with_parent(
        &self,
        id: &InstanceId,
        message: ControlMessage,
    ) -> Result<ControlMessage, ControlError> {
        let ControlVerb::Delete { .. } = message.verb else {
            return Ok(message);
        };
        let parent_over = self.is_parent_over(id).await?;
        Ok(ControlMessage {
            verb: ControlVerb::Delete { parent_over },
            ..message
        })
    }

    pub(super) async fn is_parent_over(&self, id: &InstanceId) -> Result<bool, ControlError> {
        let Some(found) = self.found_here(id).await? else {
            // It is not here; or it is gone, and with it what its parent may need.
            let shard = shard_of(&id.tenant, &id.key, self.manifest.shards);
            return Ok(self.running_or_unavailable()?.shards.get(shard).is_some());
        };
        let Some(parent) = found.record().parent.clone() else {
            return Ok(true);
        };
        let parent = InstanceId {
            tenant: id.tenant.clone(),
            saga: parent.saga,
            key: parent.key,
        };
        let shard = shard_of(&parent.tenant, &parent.key, self.manifest.shards);
        if self.running_or_unavailable()?.shards.get(shard).is_none() {
            return Ok(false);
        }
        let found = self.found_here(&parent).await?;
        Ok(!matches!(found, Some(Found::Live(_))))
    }

    /// An instance, if this process works on its shard and it is there.
    async fn found_here(&self, id: &InstanceId) -> Result<Option<Found>, ControlError> {
        let shard = shard_of(&id.tenant, &id.key, self.manifest.shards);
        let Some(shard) = self.running_or_unavailable()?.shards.get(shard) else {
            return Ok(None);
        };
        let (reader, id) = (shard.reader.clone(), id.clone());
        self.read(move || reader.instance(&id)).await
    }
}
