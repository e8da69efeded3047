//! The definitions by which messages are routed, which a reload replaces while readers run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::kernel::definition::DefinitionSet;

/// The set in force. A reader that sees a new generation asks the broker for what the new set wants, and takes no
/// message that it asked for by the old one.
#[derive(Debug)]
pub struct Versions {
    set: RwLock<Arc<DefinitionSet>>,
    generation: AtomicU64,
}

impl Versions {
    #[must_use]
    pub fn new(set: Arc<DefinitionSet>) -> Self {
        Self {
            set: RwLock::new(set),
            generation: AtomicU64::new(0),
        }
    }

    #[must_use]
    pub fn now(&self) -> Arc<DefinitionSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rises with every replacement. Read before [`Versions::now`], it is never newer than the set.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The new generation.
    pub fn replace(&self, set: Arc<DefinitionSet>) -> u64 {
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = set;
        self.generation.fetch_add(1, Ordering::AcqRel) + 1
    }
}
