//! Who wants to know when something happens to an instance: requests that wait for their outcome, and watches of its history.
//!
//! They are woken by commits. A commit of a shard that nobody watches pays for one load.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saga_runner_partition::machine::watch::{Told, Watch};
use tokio::sync::watch;

use crate::kernel::ids::InstanceId;
use crate::kernel::input::Input;
use crate::kernel::transition::Trace;

/// The watched instances of a shard.
#[derive(Debug, Default)]
pub struct Watchers {
    watched: AtomicUsize,
    instances: Mutex<HashMap<InstanceId, watch::Sender<()>>>,
}

/// Waits for what happens to one instance.
#[derive(Debug)]
pub struct Watcher {
    id: InstanceId,
    watchers: Arc<Watchers>,
    told: watch::Receiver<()>,
}

impl Watchers {
    /// Watches an instance from now on, whether or not it is there.
    #[must_use]
    pub fn watch(self: &Arc<Self>, id: &InstanceId) -> Watcher {
        let mut instances = self.lock();
        let told = match instances.entry(id.clone()) {
            Entry::Occupied(known) => known.get().subscribe(),
            Entry::Vacant(new) => new.insert(watch::Sender::new(())).subscribe(),
        };
        self.watched.store(instances.len(), Ordering::Release);
        Watcher {
            id: id.clone(),
            watchers: Arc::clone(self),
            told,
        }
    }

    /// Who hears of a commit that is about to be made; `None` where nobody watches.
    pub(super) fn listen(&self) -> Option<Touched> {
        (self.watched.load(Ordering::Acquire) > 0).then(Touched::default)
    }

    /// Wakes those who watch these instances, behind the commit.
    pub(super) fn wake(&self, touched: Touched) {
        let instances = self.lock();
        for id in touched.0.into_inner() {
            if let Some(sender) = instances.get(&id) {
                sender.send_replace(());
            }
        }
    }

    /// Instances that are watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.watched.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, watch::Sender<()>>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Waits until something has happened since the last call, or since the watch began.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn changed(&mut self) {
        // The sender lives as long as this receiver does.
        let _lives = self.told.changed().await;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut instances = self.watchers.lock();
        // This receiver is still among them.
        if instances
            .get(&self.id)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            instances.remove(&self.id);
        }
        self.watchers.watched.store(instances.len(), Ordering::Release);
    }
}

/// The instances that a commit has to do with.
#[derive(Debug, Default)]
pub(super) struct Touched(RefCell<Vec<InstanceId>>);

impl Watch for Touched {
    fn told(&self, input: &Input, _: Told<'_>) {
        let mut touched = self.0.borrow_mut();
        if touched.last() != Some(&input.instance) {
            touched.push(input.instance.clone());
        }
    }

    fn trace(&self) -> Option<&dyn Trace> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::{Key, SagaName, TenantId};

    fn id(key: &str) -> InstanceId {
        InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse(key).expect("legal"),
        }
    }

    #[tokio::test]
    async fn a_watcher_hears_of_its_instance_and_nothing_is_kept_of_one_that_has_gone() {
        let watchers = Arc::new(Watchers::default());
        assert!(watchers.listen().is_none(), "nobody watches");
        let mut first = watchers.watch(&id("a"));
        let second = watchers.watch(&id("a"));
        let other = watchers.watch(&id("b"));
        assert_eq!(watchers.watched(), 2);
        let touched = watchers.listen().expect("somebody watches");
        touched.0.borrow_mut().push(id("a"));
        watchers.wake(touched);
        first.changed().await;
        assert!(second.told.has_changed().expect("its sender lives"));
        assert!(!other.told.has_changed().expect("its sender lives"));
        drop(second);
        assert_eq!(watchers.watched(), 2, "one is left of the two");
        drop((first, other));
        assert_eq!(watchers.watched(), 0);
        assert!(watchers.listen().is_none());
    }
}
