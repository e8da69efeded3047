//! The definitions that a runner works with, indexed for routing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::Definition;
use crate::ids::{DefinitionHash, SagaName};

/// The active version of every saga, and the archived ones that instances may still run under.
#[derive(Debug, Default, Clone)]
pub struct DefinitionSet {
    active: BTreeMap<SagaName, Arc<Definition>>,
    by_hash: BTreeMap<DefinitionHash, Arc<Definition>>,
    /// What can react to an event, by event type.
    by_event: BTreeMap<String, Vec<Interest>>,
}

/// A saga that can react to an event.
#[derive(Debug, Clone)]
pub struct Interest {
    pub saga: SagaName,
    /// One version for each distinct key rule, an active one first.
    pub versions: Vec<Arc<Definition>>,
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

    /// The first copy of a version counts: how to come to an active one is told by its file, not by the archive.
    fn index(&mut self, definition: &Arc<Definition>) {
        if self.by_hash.contains_key(&definition.hash) {
            return;
        }
        self.by_hash.insert(definition.hash, Arc::clone(definition));
        for event_type in definition.event_types() {
            let interests = self.by_event.entry(event_type.to_owned()).or_default();
            let rule = |version: &Definition| version.rule_text(event_type);
            match interests.iter_mut().find(|known| known.saga == definition.name) {
                Some(known) => {
                    let own = rule(definition);
                    if known.versions.iter().all(|version| rule(version) != own) {
                        known.versions.push(Arc::clone(definition));
                    }
                }
                None => interests.push(Interest {
                    saga: definition.name.clone(),
                    versions: vec![Arc::clone(definition)],
                }),
            }
        }
    }

    /// Every version, active and archived, in the order of the hashes.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.by_hash.values()
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

    /// Whether new instances get the version with this hash.
    #[must_use]
    pub fn is_active(&self, hash: &DefinitionHash) -> bool {
        self.by_hash
            .get(hash)
            .and_then(|definition| self.active.get(&definition.name))
            .is_some_and(|active| active.hash == *hash)
    }

    /// The version with this hash, active or archived.
    #[must_use]
    pub fn by_hash(&self, hash: &DefinitionHash) -> Option<&Arc<Definition>> {
        self.by_hash.get(hash)
    }

    /// Every saga that can react to `event_type` in one of its versions.
    #[must_use]
    pub fn interested(&self, event_type: &str) -> &[Interest] {
        self.by_event.get(event_type).map_or(&[], Vec::as_slice)
    }

    /// Whether the versions of a saga disagree about the key of an event.
    #[must_use]
    pub fn is_contested(&self, saga: &SagaName, event_type: &str) -> bool {
        self.interested(event_type)
            .iter()
            .any(|interest| interest.saga == *saga && interest.versions.len() > 1)
    }

    /// Whether some message means more by these definitions than by those of before: it concerns another saga, or has
    /// another key.
    #[must_use]
    pub fn hears_more_than(&self, before: &Self) -> bool {
        self.by_event.iter().any(|(event_type, interests)| {
            let known = before.interested(event_type);
            interests.iter().any(|interest| {
                let known = known.iter().find(|known| known.saga == interest.saga);
                let has = |rule: Option<String>| {
                    known.is_some_and(|known| {
                        let mut versions = known.versions.iter();
                        versions.any(|version| version.rule_text(event_type) == rule)
                    })
                };
                let mut rules = interest.versions.iter();
                rules.any(|version| !has(version.rule_text(event_type)))
            })
        })
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
