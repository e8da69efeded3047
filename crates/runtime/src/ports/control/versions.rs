//! Versions of sagas that partitions have archived, and bringing instances from one to another.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::Serialize;

use super::ControlError;
use crate::kernel::ids::InstanceId;

/// Questions to all partitions about the versions of sagas that they use.
#[async_trait]
pub trait Versions: Send + Sync + 'static {
    /// Every version of every saga that is active or still in use.
    async fn definitions(&self) -> Result<Vec<DefinitionView>, ControlError>;

    /// One version, named by the first digits of its hash.
    async fn definition(&self, hash: &str) -> Result<DefinitionDetail, ControlError>;

    /// Brings the live instances of a saga over to the version whose hash begins with `hash`, or, to undo that,
    /// back from it; or tells what would become of them. The report may come before the end.
    async fn migrate(&self, hash: &str, request: MigrationRequest) -> Result<MigrationReport, ControlError>;

    /// Brings one instance over to a version of its saga, or back to the one that it came from; or tells what would happen to it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance or the version, [`ControlError::Invalid`] for a version of another saga,
    /// [`ControlError::Conflict`] for an instance that has ended, is at the version, or came from none.
    async fn migrate_instance(
        &self,
        id: &InstanceId,
        request: InstanceMigrationRequest,
    ) -> Result<InstanceMigration, ControlError>;

    /// How far a migration is that was begun before, by the `id` of its report.
    async fn migration(&self, id: &str) -> Result<MigrationReport, ControlError>;
}

/// What is to be done about the live instances of a saga.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MigrationRequest {
    /// Change nothing.
    pub dry_run: bool,
    /// Those that were brought over to the version go back to where they came from.
    pub undo: bool,
}

/// What is to be done about one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMigrationRequest {
    pub to: Destination,
    /// Change nothing.
    pub dry_run: bool,
}

/// The version to which one instance is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The one whose hash begins with these digits.
    Version(String),
    /// The one that it came from by a migration, by `migrate.undo`.
    Before,
}

/// What happened to one instance, or would happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceMigration {
    pub saga: String,
    pub key: String,
    /// Hash of the version that it leaves.
    pub from: String,
    /// Hash of the version that it comes to.
    pub to: String,
    /// Nothing was changed.
    pub dry_run: bool,
    /// What begins at once: the part of the definition that asks for it, and what it is.
    pub starts: Vec<String>,
    /// Why it stays with its version; empty where it is migrated, or would be.
    #[serde(skip)]
    pub problems: Vec<Problem>,
}

/// What a migration did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MigrationReport {
    /// Names the migration.
    pub id: String,
    pub saga: String,
    /// Hash of the version that instances migrate to, or, to undo that, come back from.
    pub version: String,
    pub dry_run: bool,
    pub undo: bool,
    /// False while it is at work.
    pub finished: bool,
    /// Why it was aborted before all were looked at.
    pub problem: Option<String>,
    /// Instances to look at, as they were counted at the beginning.
    pub total: u64,
    /// Instances looked at so far.
    pub seen: u64,
    /// Instances that were asked to migrate, or would be.
    pub moved: u64,
    /// What begins at once in those that migrate, by the part of the definition that asks for it, with how many of them.
    pub starts: BTreeMap<String, u64>,
    /// Instances that stay as they are.
    pub refused: u64,
    /// Why, for the first hundred of them.
    pub refusals: Vec<Refusal>,
}

impl MigrationReport {
    /// The numbers alone: moved, refused, and how many there are.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64, u64) {
        (self.moved, self.refused, self.total)
    }
}

/// An instance that cannot be migrated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `<tenant>/<saga>/<key>`
    pub instance: String,
    /// Hash of the version that it stays with.
    pub from: String,
    /// Hash of the version that it cannot go to.
    pub to: String,
    pub problems: Vec<Problem>,
}

/// Something that has no place in the other version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where the file would have to say what happens to it, as `file:line:column`; empty where no file can.
    pub at: String,
    pub message: String,
}

/// One archived version of a saga, and who uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DefinitionView {
    pub saga: String,
    /// `sha256:...`
    pub hash: String,
    /// Whether new instances get it.
    pub active: bool,
    /// Whether this process could read it; instances of a version that it could not read wait.
    pub loaded: bool,
    /// Live instances of all tenants that run under it.
    pub live: u64,
    /// Ended ones that are still kept.
    pub ended: u64,
    /// Live instances that were brought over from it and may go back.
    pub left: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DefinitionDetail {
    #[serde(flatten)]
    pub definition: DefinitionView,
    /// The text of its file.
    pub source: String,
}
