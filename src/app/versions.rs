//! Versions of sagas as operators see them: archived, active, and in use.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::node::Node;
use super::{migrate_one, migration};
use crate::kernel::ids::{DefinitionHash, InstanceId, SagaName};
use crate::ports::control::{
    ControlError, DefinitionDetail, DefinitionView, InstanceMigration, InstanceMigrationRequest,
    MigrationReport, MigrationRequest, Versions,
};
use crate::storage::rows::{ArchivedRow, Uses};

#[async_trait]
impl Versions for Node {
    async fn definitions(&self) -> Result<Vec<DefinitionView>, ControlError> {
        list(self).await
    }

    async fn definition(&self, hash: &str) -> Result<DefinitionDetail, ControlError> {
        show(self, hash).await
    }

    async fn migrate(&self, hash: &str, request: MigrationRequest) -> Result<MigrationReport, ControlError> {
        let version = named(self, hash).await?;
        migration::run(self, version, request).await
    }

    async fn migrate_instance(
        &self,
        id: &InstanceId,
        request: InstanceMigrationRequest,
    ) -> Result<InstanceMigration, ControlError> {
        migrate_one::migrate(self, id, request).await
    }

    async fn migration(&self, id: &str) -> Result<MigrationReport, ControlError> {
        migration::report(self, id).await
    }
}

/// Fewest hex digits that name a version.
const DIGITS_MIN: usize = 6;

/// What the shards have of one version, together.
struct Version {
    row: ArchivedRow,
    uses: Uses,
}

/// Every archived version of every shard, by name and active ones first.
async fn list(node: &Node) -> Result<Vec<DefinitionView>, ControlError> {
    let versions = gathered(node).await?;
    let mut views: Vec<_> = versions
        .iter()
        .map(|(hash, version)| view(node, hash, version))
        .collect();
    views.sort_by(|left, right| {
        let order = |view: &DefinitionView| (view.saga.clone(), !view.active, view.hash.clone());
        order(left).cmp(&order(right))
    });
    Ok(views)
}

/// The version whose hash begins with `hash`, with its text.
async fn show(node: &Node, hash: &str) -> Result<DefinitionDetail, ControlError> {
    let versions = gathered(node).await?;
    let hash = find(&versions, hash)?;
    let version = &versions[&hash];
    Ok(DefinitionDetail {
        definition: view(node, &hash, version),
        source: version.row.source.clone(),
    })
}

/// The version whose hash begins with `hash`.
pub(super) async fn named(node: &Node, hash: &str) -> Result<DefinitionHash, ControlError> {
    find(&gathered(node).await?, hash)
}

fn find(versions: &BTreeMap<DefinitionHash, Version>, hash: &str) -> Result<DefinitionHash, ControlError> {
    let digits = hash.strip_prefix("sha256:").unwrap_or(hash);
    if digits.len() < DIGITS_MIN || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(ControlError::Invalid(format!(
            "a version is named by at least {DIGITS_MIN} hex digits of its hash"
        )));
    }
    let wanted = format!("sha256:{}", digits.to_ascii_lowercase());
    let mut found = versions
        .keys()
        .filter(|hash| hash.to_string().starts_with(&wanted));
    let Some(hash) = found.next() else {
        return Err(ControlError::NotFound(format!("no archived definition {wanted}")));
    };
    if found.next().is_some() {
        return Err(ControlError::Invalid(format!(
            "{wanted} begins more than one hash: give more digits"
        )));
    }
    Ok(*hash)
}

/// How many live instances run under the versions that `wanted` takes.
pub(super) async fn live(
    node: &Node,
    wanted: impl Fn(&SagaName, &DefinitionHash) -> bool,
) -> Result<u64, ControlError> {
    let versions = gathered(node).await?;
    let wanted = versions
        .iter()
        .filter(|(hash, version)| wanted(&version.row.saga, hash));
    Ok(wanted.map(|(_, version)| version.uses.live).sum())
}

/// The versions that live instances run under, and how many do.
pub(super) async fn in_use(node: &Node) -> Result<Vec<(DefinitionHash, u64)>, ControlError> {
    let versions = gathered(node).await?.into_iter();
    let used = versions.filter(|(_, version)| version.uses.live > 0);
    Ok(used.map(|(hash, version)| (hash, version.uses.live)).collect())
}

async fn gathered(node: &Node) -> Result<BTreeMap<DefinitionHash, Version>, ControlError> {
    let mut versions: BTreeMap<DefinitionHash, Version> = BTreeMap::new();
    for shard in node.running_or_unavailable()?.shards.all() {
        let reader = shard.reader;
        for (hash, row, uses) in node.read(move || reader.definitions()).await? {
            let uses_before = &mut versions
                .entry(hash)
                .or_insert_with(|| Version {
                    row,
                    uses: Uses::default(),
                })
                .uses;
            uses_before.live += uses.live;
            uses_before.ended += uses.ended;
            uses_before.left += uses.left;
        }
    }
    Ok(versions)
}

fn view(node: &Node, hash: &DefinitionHash, version: &Version) -> DefinitionView {
    let sagas = &node.catalog.now().sagas;
    DefinitionView {
        saga: version.row.saga.to_string(),
        hash: hash.to_string(),
        active: sagas.is_active(hash),
        loaded: sagas.by_hash(hash).is_some(),
        live: version.uses.live,
        ended: version.uses.ended,
        left: version.uses.left,
    }
}
