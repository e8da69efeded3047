//! The streams and queues that exist. Everyone reads it, only the writer changes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use super::queue::QueueShared;
use super::stream::Stream;

#[derive(Default)]
pub(super) struct Registry {
    streams: RwLock<HashMap<String, Arc<Stream>>>,
    queues: RwLock<BTreeMap<(u32, String), Arc<QueueShared>>>,
}

impl Registry {
    pub fn stream(&self, name: &str) -> Option<Arc<Stream>> {
        self.streams
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        streams.values().cloned().collect()
    }

    pub fn put_stream(&self, stream: Arc<Stream>) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.insert(stream.name().to_owned(), stream);
    }

    pub fn remove_stream(&self, stream: &Stream) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.remove(stream.name());
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|(id, _), _| *id != stream.id);
    }

    pub fn queue(&self, stream: &Stream, durable: &str) -> Option<Arc<QueueShared>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&(stream.id, durable.to_owned())).cloned()
    }

    pub fn queues(&self) -> Vec<Arc<QueueShared>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().collect()
    }

    pub fn put_queue(&self, queue: Arc<QueueShared>) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert((queue.stream().id, queue.durable().to_owned()), queue);
    }
}
