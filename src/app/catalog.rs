//! The definitions that this process works with now, for everybody who shows or routes by them.

use std::sync::{Arc, PoisonError, RwLock};

use crate::kernel::definition::{Definition, DefinitionSet, EffectDefinition, Loaded};

/// The definitions in force. Readers take a snapshot; a change replaces the whole.
pub(super) struct Catalog(RwLock<Arc<InForce>>);

/// One state of the catalog.
pub(super) struct InForce {
    /// Rises with every change of the active sagas; 0 before the shards are open.
    pub revision: u64,
    /// Active and archived sagas.
    pub sagas: Arc<DefinitionSet>,
    pub effects: Vec<Arc<EffectDefinition>>,
}

impl Catalog {
    pub fn new(loaded: Loaded) -> Self {
        Self(RwLock::new(Arc::new(InForce {
            revision: 0,
            sagas: Arc::new(DefinitionSet::new(loaded.sagas, Vec::new())),
            effects: loaded.effects,
        })))
    }

    pub fn now(&self) -> Arc<InForce> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, state: InForce) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

impl InForce {
    /// The active sagas, by name.
    pub fn active(&self) -> Vec<Arc<Definition>> {
        self.sagas.iter_active().cloned().collect()
    }
}
