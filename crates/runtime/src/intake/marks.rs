//! What the readers of this process still need of the streams, whatever their shards have stored.
//!
//! A jump is innocent if the stream still begins before it when it is looked at later ([`super::guard`]). Until then nothing
//! behind it may be trimmed: what the runner has removed itself would look like a loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::kernel::input::SourceStream;

/// A reader that needs nothing.
const NOTHING: u64 = u64::MAX;

/// What all readers of a process need. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Marks(Arc<[Mutex<Vec<Weak<AtomicU64>>>; 3]>);

/// What one reader needs; nothing once it is dropped.
#[derive(Debug)]
pub(super) struct Mark(Arc<AtomicU64>);

impl Marks {
    /// The sequence of a stream behind which everything has to stay where it is, if any has to that the shards have stored.
    #[must_use]
    pub fn behind(&self, stream: SourceStream) -> Option<u64> {
        let mut marks = self.all(stream);
        let mut lowest = NOTHING;
        marks.retain(|mark| match mark.upgrade() {
            Some(mark) => {
                lowest = lowest.min(mark.load(Ordering::Acquire));
                true
            }
            None => false,
        });
        (lowest != NOTHING).then_some(lowest)
    }

    /// Up to where the streams are needed neither by the readers nor, since everything is stored, below `positions`, which are
    /// by [`SourceStream::index`].
    #[must_use]
    pub fn unneeded(&self, positions: [u64; 3]) -> [u64; 3] {
        let mut unneeded = positions;
        for stream in SourceStream::ALL {
            let position = &mut unneeded[stream.index()];
            *position = self.behind(stream).unwrap_or(*position).min(*position);
        }
        unneeded
    }

    /// For one more reader of a stream.
    pub(super) fn mark(&self, stream: SourceStream) -> Mark {
        let mark = Mark::default();
        self.all(stream).push(Arc::downgrade(&mark.0));
        mark
    }

    fn all(&self, stream: SourceStream) -> std::sync::MutexGuard<'_, Vec<Weak<AtomicU64>>> {
        self.0[stream.index()]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NOTHING)))
    }
}

impl Mark {
    /// Everything behind this sequence is needed. To be called before what was read behind it is handed over.
    pub fn set(&self, behind: Option<u64>) {
        self.0.store(behind.unwrap_or(NOTHING), Ordering::Release);
    }
}
