//! Other definitions come into force while the shard works.

use saga_runner_partition::machine::activation::{activate, resumable};

use super::batch::{Activation, Item};
use super::shard_loop::{End, ShardLoop};
use crate::kernel::input::SourceStream;
use crate::storage::StorageError;

impl ShardLoop {
    /// Works under other definitions from now on: all that lies behind the positions is taken as they route it. Instances
    /// that waited for one of them go on.
    pub(super) fn activate(&mut self, activation: Activation) -> Result<(), End> {
        let Activation {
            definitions,
            revision,
            routed_by,
            reply,
        } = activation;
        let positions = self.partition.positions;
        let resumable = self.store.write(|batch| {
            activate(batch, &definitions, revision, positions)?;
            resumable(&definitions, batch, &self.partition.waiting)
        });
        match resumable {
            Ok(resumable) => {
                let [aggregate_events, workflow_events, workflow_commands] = positions;
                tracing::info!(
                    shard = self.index,
                    revision,
                    aggregate_events,
                    workflow_events,
                    workflow_commands,
                    "other definitions are in force from here on"
                );
                self.status.set_outdated(false);
                let more = definitions.hears_more_than(&self.partition.definitions);
                if more.events {
                    self.held.clear();
                    self.read_again(SourceStream::AggregateEvents, routed_by);
                }
                if more.facts {
                    self.read_again(SourceStream::WorkflowEvents, routed_by);
                }
                self.partition.definitions = definitions;
                self.revision = revision;
                for id in resumable {
                    self.gathered.push(Item::Resume(id));
                }
                self.gathered.push(Item::Schedules(reply));
            }
            // Without room everything stays as it is until the next start or reload.
            Err(error @ StorageError::Full(_)) => {
                self.status.set_outdated(true);
                if let Some(reply) = reply {
                    // Whoever asked may have gone.
                    let _gone = reply.send(Err(self.unavailable(&error.to_string())));
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Gives up what was read of a stream and is not applied: other definitions have routed it, and left out what
    /// concerns a saga that is new. It is fed again, as any that is still on its way.
    fn read_again(&mut self, stream: SourceStream, routed_by: u64) {
        if let Some(catching_up) = &mut self.catching_up {
            catching_up.merge.forget(stream);
        }
        let position = self.partition.positions[stream.index()];
        if self.progress.rerouted(stream, position, routed_by) {
            let notice = self.gap(stream);
            self.unsent.push(notice);
        }
    }
}
