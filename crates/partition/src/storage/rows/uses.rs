//! Definitions that a partition uses: how many instances run under each, and which are active.

use std::collections::BTreeMap;
use std::sync::Arc;

use saga_runner_kernel::definition::Definition;
use saga_runner_kernel::ids::DefinitionHash;
use serde::{Deserialize, Serialize};

/// Who refers to a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// Live instances that run under it.
    pub live: u64,
    /// Ended instances that ran under it and are still kept.
    pub ended: u64,
    /// Live instances that were brought over from it and may go back.
    pub left: u64,
}

impl Uses {
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.live == 0 && self.ended == 0 && self.left == 0
    }

    /// With the differences added.
    #[must_use]
    pub const fn changed(&self, change: UseChange) -> Self {
        Self {
            live: self.live.saturating_add_signed(change.live),
            ended: self.ended.saturating_add_signed(change.ended),
            left: self.left.saturating_add_signed(change.left),
        }
    }
}

/// How the uses of one version change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UseChange {
    pub live: i64,
    pub ended: i64,
    pub left: i64,
}

/// How the uses of some versions change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseChanges(BTreeMap<DefinitionHash, UseChange>);

impl UseChanges {
    /// A live instance under this version came (1) or went (-1).
    pub fn live(&mut self, hash: DefinitionHash, by: i64) {
        self.0.entry(hash).or_default().live += by;
    }

    /// An ended one came (1) or was forgotten (-1).
    pub fn ended(&mut self, hash: DefinitionHash, by: i64) {
        self.0.entry(hash).or_default().ended += by;
    }

    /// A live instance that may go back to this version came (1) or went (-1).
    pub fn left(&mut self, hash: DefinitionHash, by: i64) {
        self.0.entry(hash).or_default().left += by;
    }

    /// Versions whose uses are others than before, with the differences.
    pub fn iter(&self) -> impl Iterator<Item = (&DefinitionHash, UseChange)> {
        let changes = self.0.iter().map(|(hash, change)| (hash, *change));
        changes.filter(|(_, change)| *change != UseChange::default())
    }
}

/// The definitions that a shard works under.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveDefinitions {
    /// Rises with every change.
    pub revision: u64,
    pub sagas: BTreeMap<String, ActiveSaga>,
}

impl ActiveDefinitions {
    /// Whether these sagas, and no others, are active.
    #[must_use]
    pub fn is_of(&self, sagas: &[Arc<Definition>]) -> bool {
        self.sagas.len() == sagas.len()
            && sagas.iter().all(|definition| {
                let active = self.sagas.get(definition.name.as_str());
                active.is_some_and(|active| active.hash == definition.hash)
            })
    }
}

/// One active saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveSaga {
    pub hash: DefinitionHash,
    /// Positions of the streams when the saga became active: it gets what came after them.
    pub since: [u64; 3],
}
