//! An operator decides from where on a stream is read.

use std::sync::atomic::Ordering;

use saga_runner_partition::machine::Partition;
use saga_runner_partition::machine::activation::activate;

use super::mailbox::{HaltRow, Refused, Reposition};
use super::shard_loop::{End, ShardLoop};
use super::status::ShardState;
use crate::kernel::input::SourceStream;
use crate::storage::StorageError;

impl ShardLoop {
    /// Takes an operator's word.
    ///
    /// # Errors
    /// [`End`], as for a commit.
    pub fn reposition(&mut self, order: Reposition) -> Result<(), End> {
        let answer = self.move_position(&order)?;
        let _gone = order.reply.send(answer);
        Ok(())
    }

    /// The same while the shard is halted; whether it can go on.
    pub(super) fn resume_after(&mut self, order: Reposition, reason: &'static str) -> bool {
        let answer = match self.move_position(&order) {
            Ok(Ok(())) => {
                self.halts[order.stream.index()] = None;
                self.resume(reason)
            }
            Ok(Err(refused)) => Err(refused),
            Err(End::Halt(_, message)) => Err(self.unavailable(&message)),
            Err(End::Stopped) => Err(self.unavailable("stopped")),
        };
        // Before whoever asked goes on, so that he finds the state that he is told of.
        let _gone = order.reply.send(answer);
        self.status.state() == ShardState::Running
    }

    /// Keeps why a stream must not be read on: the shard does not work after a restart before an operator has decided.
    pub(super) fn keep_halt(&mut self, stream: SourceStream, halt: &HaltRow) {
        let kept = self
            .store
            .write::<_, StorageError>(|batch| Partition::keep_halt(batch, stream, halt));
        if let Err(error) = kept {
            tracing::error!(
                shard = self.index,
                message = halt.message,
                %error,
                "a restart will not know that messages were lost: let an operator accept it before"
            );
        }
    }

    /// Lets the shard work where nothing is wrong with its streams any more.
    fn resume(&mut self, reason: &'static str) -> Result<(), Refused> {
        if let Some((reason, message)) = self.halts.iter().flatten().next().cloned() {
            self.status.set_state(ShardState::Halted { reason, message });
            return Ok(());
        }
        let (definitions, revision) = (&self.partition.definitions, self.revision);
        let positions = self.partition.positions;
        self.store
            .write(|batch| activate(batch, definitions, revision, positions))
            .map_err(|error: StorageError| {
                self.unavailable(&format!("it cannot go on before a restart: {error}"))
            })?;
        self.status.resume(self.index, reason, &self.metrics);
        Ok(())
    }

    fn move_position(&mut self, order: &Reposition) -> Result<Result<(), Refused>, End> {
        let (stream, index) = (order.stream, order.stream.index());
        let at = self.partition.positions[index];
        if at != order.expected {
            let message = format!("the position is {at} by now: look again");
            return Ok(Err(Refused::Conflict(message.into())));
        }
        if self.progress.taken(stream) != at {
            // Set aside until the outbox has room, or until what was stored before it has come.
            let message = "what was read is not applied yet: try again";
            return Ok(Err(self.unavailable(message)));
        }
        let written = self.store.write::<_, StorageError>(|batch| {
            Partition::reposition(batch, stream, &order.to, &order.accepted)
        });
        match written {
            Ok(()) => {}
            Err(StorageError::Full(message)) => return Ok(Err(self.unavailable(&message))),
            Err(error) => return Err(error.into()),
        }
        self.partition.moved(stream, &order.to);
        self.progress.moved(stream, order.to.sequence);
        self.barriers.forget(stream);
        self.status.moved(self.partition.positions);
        if stream != SourceStream::AggregateEvents {
            // Commands and results may be gone that the broker had acknowledged: all that was handed over is looked for.
            let floor = self.relayed.floor.load(Ordering::Acquire);
            self.sweep.at_once(floor, self.clock.monotonic());
        }
        Ok(Ok(()))
    }
}
