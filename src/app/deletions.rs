//! What is known here of the parent of an instance that somebody asks to delete: the shard of the instance knows the parent by name
//! only.

use super::node::Node;
use crate::kernel::envelope::{ControlMessage, ControlVerb};
use crate::kernel::ids::{InstanceId, shard_of};
use crate::kernel::record::Record;
use crate::ports::control::ControlError;
use crate::storage::read::{Found, Reader};

impl Node {
    /// Says in a request to delete an instance that its parents are over, those of earlier generations of its key included, where that
    /// is so; other requests stay as they are. A repetition says the same as the first.
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
        for parent in self.parents(id, found.record()).await? {
            let shard = shard_of(&parent.tenant, &parent.key, self.manifest.shards);
            if self.running_or_unavailable()?.shards.get(shard).is_none() {
                return Ok(false);
            }
            if let Some(Found::Live(_)) = self.found_here(&parent).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The instances that have started the generations of a key that are kept, each once.
    async fn parents(&self, id: &InstanceId, newest: &Record) -> Result<Vec<InstanceId>, ControlError> {
        let earlier = match self.reader_here(id)? {
            Some(reader) => {
                let id = id.clone();
                self.read(move || reader.earlier(&id)).await?
            }
            None => Vec::new(),
        };
        let earlier = earlier.iter().map(|(_, row)| &row.summary.record);
        let parents = earlier
            .chain([newest])
            .filter_map(|record| record.parent.as_ref());
        let mut parents: Vec<InstanceId> = parents
            .map(|parent| InstanceId {
                tenant: id.tenant.clone(),
                saga: parent.saga.clone(),
                key: parent.key.clone(),
            })
            .collect();
        parents.sort_unstable();
        parents.dedup();
        Ok(parents)
    }

    /// An instance, if this process works on its shard and it is there.
    async fn found_here(&self, id: &InstanceId) -> Result<Option<Found>, ControlError> {
        let Some(reader) = self.reader_here(id)? else {
            return Ok(None);
        };
        let id = id.clone();
        self.read(move || reader.instance(&id)).await
    }

    fn reader_here(&self, id: &InstanceId) -> Result<Option<Reader>, ControlError> {
        let shard = shard_of(&id.tenant, &id.key, self.manifest.shards);
        let shard = self.running_or_unavailable()?.shards.get(shard);
        Ok(shard.map(|shard| shard.reader.clone()))
    }
}
