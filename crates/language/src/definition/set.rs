//! The definitions that a runner works with, indexed for routing.

use std::collections::{BTreeMap, BTreeSet};
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

/// What more is heard.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct More {
    /// Events of aggregates.
    pub events: bool,
    /// Facts of sagas.
    pub facts: bool,
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

    /// Which messages mean more by these definitions than by those of before: they concern another saga, or have another key.
    #[must_use]
    pub fn hears_more_than(&self, before: &Self) -> More {
        let mut more = More::default();
        for (event_type, interests) in &self.by_event {
            let known = before.interested(event_type);
            for interest in interests {
                let known = known.iter().find(|known| known.saga == interest.saga);
                let has = |rule: Option<String>| {
                    known.is_some_and(|known| {
                        let mut versions = known.versions.iter();
                        versions.any(|version| version.rule_text(event_type) == rule)
                    })
                };
                for version in &interest.versions {
                    if !has(version.rule_text(event_type)) {
                        let is_fact = !version.publishers(event_type).is_empty();
                        more.facts |= is_fact;
                        more.events |= !is_fact;
                    }
                }
            }
        }
        more
    }

    /// The aggregate types in use: what comes before the first dot of the event types, sorted.
    #[must_use]
    pub fn aggregate_types(&self) -> Vec<&str> {
        let of_aggregates = self.by_event.iter().filter(|(event_type, interests)| {
            let mut versions = interests.iter().flat_map(|interest| &interest.versions);
            versions.any(|version| version.publishers(event_type).is_empty())
        });
        let mut types: Vec<&str> = of_aggregates
            .filter_map(|(event_type, _)| event_type.split_once('.'))
            .map(|(aggregate_type, _)| aggregate_type)
            .collect();
        types.dedup();
        types
    }

    /// The sagas whose facts others hear.
    #[must_use]
    pub fn publishers(&self) -> BTreeSet<&SagaName> {
        let heard = self.by_event.iter().flat_map(|(event_type, interests)| {
            let versions = interests.iter().flat_map(|interest| &interest.versions);
            versions.flat_map(move |version| version.publishers(event_type))
        });
        heard.collect()
    }
}
