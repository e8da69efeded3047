//! What a shared reader is asked: by shards, by private readers, and when shards are opened and closed.

use tokio::sync::oneshot;

use super::Shared;
use crate::intake::context::ShardEndpoint;
use crate::intake::identity::Place;
use crate::intake::slot::State;
use crate::ports::clock::Clock as _;

/// What a shared reader is asked.
#[derive(Debug)]
pub(in crate::intake) enum Command {
    /// Definitions have changed: ask the broker for what they want.
    Widen,
    /// A shard waits for a barrier.
    Barrier { shard: u16 },
    /// A shard refused a delivery: feed it again from behind `position`.
    Gap { shard: u16, position: u64 },
    /// A private reader is close behind. The answer is the sequence above which everything is kept for its
    /// shard from now on, `None` where it shall try again later.
    Join {
        shard: u16,
        ticket: u64,
        read: u64,
        reply: oneshot::Sender<Option<u64>>,
    },
    /// A private reader mailed all up to `read` and stops, if the answer is true.
    Joined {
        shard: u16,
        ticket: u64,
        read: u64,
        answered: u64,
        reply: oneshot::Sender<bool>,
    },
    /// Whether all that was read is in the mailbox of the shard.
    IsMailed {
        shard: u16,
        reply: oneshot::Sender<bool>,
    },
    /// A shard was opened: feed it from its position.
    Add {
        shard: Box<ShardEndpoint>,
        reply: oneshot::Sender<()>,
    },
    /// A shard is about to be closed: mail nothing to it after the answer.
    Remove { shard: u16, reply: oneshot::Sender<()> },
    /// An operator has moved the position of the shard: feed it from there.
    ReadOn {
        shard: u16,
        place: Place,
        reply: oneshot::Sender<()>,
    },
}

impl Shared {
    pub(super) async fn obey(&mut self, command: Command) {
        let command = match command {
            Command::Add { shard, reply } => {
                self.add(*shard);
                let _gone = reply.send(());
                return;
            }
            Command::Remove { shard, reply } => {
                self.remove(shard).await;
                let _gone = reply.send(());
                return;
            }
            command => command,
        };
        let (Command::Barrier { shard }
        | Command::Gap { shard, .. }
        | Command::Join { shard, .. }
        | Command::Joined { shard, .. }
        | Command::IsMailed { shard, .. }
        | Command::ReadOn { shard, .. }) = &command
        else {
            // The view finds out by itself, now that it is awake.
            return;
        };
        let Some(at) = self.slots.iter().position(|slot| slot.feed.shard == *shard) else {
            return;
        };
        match command {
            Command::Widen | Command::Add { .. } | Command::Remove { .. } => {}
            Command::Barrier { shard } => match &self.slots[at].state {
                State::Attached => {
                    if self.wanted.is_empty() {
                        self.next_probe = self.ctx.clock.monotonic();
                    }
                    self.wanted.insert(shard);
                }
                State::Detached(reader) | State::Joining(reader) => {
                    reader.barriers.send_modify(|count| *count += 1);
                }
                State::Gone => {}
            },
            Command::Gap { position, .. } => self.feed_again(at, position).await,
            Command::IsMailed { reply, .. } => {
                let slot = &self.slots[at];
                let _gone = reply.send(!slot.is_attached() || slot.feed.is_empty());
            }
            Command::ReadOn { place, reply, .. } => {
                self.read_on(at, place).await;
                let _gone = reply.send(());
            }
            Command::Join {
                ticket, read, reply, ..
            } => {
                let target = self.begin_join(at, ticket, read);
                if reply.send(target).is_err() {
                    self.slots[at].stay_detached();
                }
            }
            Command::Joined {
                ticket,
                read,
                answered,
                reply,
                ..
            } => {
                let taken = self.finish_join(at, ticket, read, answered);
                if reply.send(taken).is_err() {
                    // It mailed all that it reported before it ended.
                    tracing::debug!(ticket, "private reader ended before it was answered");
                }
            }
        }
    }
}
