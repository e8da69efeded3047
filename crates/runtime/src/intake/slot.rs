//! What a shared reader keeps of each shard that it feeds, or that has a reader of its own.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::context::ShardEndpoint;
use super::feed::Feed;
use super::identity::Place;
use crate::kernel::input::SourceStream;

/// A shard, and by whom it is fed.
pub(super) struct Slot {
    pub feed: Feed,
    pub endpoint: ShardEndpoint,
    pub state: State,
    /// An operator has said from where on it is to be fed, as soon as the stream is read again.
    pub ready: bool,
    /// Since when the mailbox has been full, and how long it was before that in this window.
    pub full_since: Option<Duration>,
    pub full_for: Duration,
}

pub(super) enum State {
    Attached,
    Detached(Detached),
    /// Still fed by its private reader, while what comes now is kept.
    Joining(Detached),
    /// The mailbox is closed, or nobody takes what is in it.
    Gone,
}

pub(super) struct Detached {
    pub ticket: u64,
    pub task: AbortOnDropHandle<()>,
    pub barriers: watch::Sender<u64>,
}

/// Where a shard stands in a stream.
pub(super) fn place_of(shard: &ShardEndpoint, stream: SourceStream) -> Place {
    Place {
        sequence: (shard.position)(stream),
        stamp: shard.stamps[stream.index()],
    }
}

impl Slot {
    pub fn new(endpoint: ShardEndpoint, stream: SourceStream, position: Place) -> Self {
        Self {
            feed: Feed::new(&endpoint, stream, position),
            state: if endpoint.halted {
                State::Gone
            } else {
                State::Attached
            },
            endpoint,
            ready: false,
            full_since: None,
            full_for: Duration::ZERO,
        }
    }

    /// Whether anybody reads for it, or is about to.
    pub const fn is_fed(&self) -> bool {
        !matches!(self.state, State::Gone)
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached)
    }

    pub fn stay_detached(&mut self) {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Joining(reader) => self.state = State::Detached(reader),
            other => self.state = other,
        }
    }
}

impl Detached {
    /// Ends the private reader and waits until it mails no more.
    pub async fn end(self) {
        self.task.abort();
        // It was cancelled, or had ended already.
        drop(self.task.await);
    }
}
