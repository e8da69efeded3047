//! The definitions that a runner works with, indexed for routing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::Definition;
use crate::kernel::ids::{DefinitionHash, SagaName};

/// The active version of every saga, and the archived ones that instances may still run under.
#[derive(Debug, Default, Clone)]
pub struct DefinitionSet {
    active: BTreeMap<SagaName, Arc<Definition>>,
    by_hash: BTreeMap<DefinitionHash, Arc<Definition>>,
    /// Versions (active and archived) by event type they can react to.
    by_event: BTreeMap<String, Vec<Arc<Definition>>>,
}

impl DefinitionSet {
    /// Builds the set. An archived version that is also active counts once.
    #[must_use]
    pub fn new(active: Vec<Arc<Definition>>, archived: Vec<Arc<Definition>>) -> Self {
        let mut set = Self::default();
        for definition in active {
            set.index(&definition);
            set.active.insert(definition.name.clone(), definition);
        }
        for definition in archived {
            set.index(&definition);
        }
        set
    }

    fn index(&mut self, definition: &Arc<Definition>) {
        if self
            .by_hash
            .insert(definition.hash, Arc::clone(definition))
            .is_some()
        {
            return;
        }
        for event_type in definition.event_types() {
            self.by_event
                .entry(event_type.to_owned())
                .or_default()
                .push(Arc::clone(definition));
        }
    }

    /// The version that new instances of `saga` get.
    #[must_use]
    pub fn active(&self, saga: &SagaName) -> Option<&Arc<Definition>> {
        self.active.get(saga)
    }

    /// Active versions by name.
    pub fn iter_active(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.active.values()
    }

    /// The version with this hash, active or archived.
    #[must_use]
    pub fn by_hash(&self, hash: &DefinitionHash) -> Option<&Arc<Definition>> {
        self.by_hash.get(hash)
    }

    /// Every version that can react to `event_type`.
    #[must_use]
    pub fn interested(&self, event_type: &str) -> &[Arc<Definition>] {
        self.by_event.get(event_type).map_or(&[], Vec::as_slice)
    }

    /// The aggregate types in use: what comes before the first dot of the event types, sorted.
    #[must_use]
    pub fn aggregate_types(&self) -> Vec<&str> {
        let mut types: Vec<&str> = self
            .by_event
            .keys()
            .filter_map(|event_type| event_type.split_once('.'))
            .map(|(aggregate_type, _)| aggregate_type)
            .collect();
        types.dedup();
        types
    }
}
