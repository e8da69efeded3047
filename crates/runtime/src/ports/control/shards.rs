//! Which shards a process has open, and from where on they read.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use super::{ControlError, PageRequest};
use crate::ports::held::{HeldReport, HeldRequest, HeldVerb, PendingReport};

/// Questions to one process about shards.
#[async_trait]
pub trait ShardControl: Send + Sync + 'static {
    /// All shards of the cluster: those that are open in this process, and what is known of the others.
    async fn shards(&self) -> Result<Vec<ShardView>, ControlError>;

    /// Opens a shard that is not open in this process, while the others go on.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is open, or belongs to somebody
    /// else.
    async fn open_shard(&self, shard: u16) -> Result<(), ControlError>;

    /// Drains and closes a shard, while the others go on. What is meant for it waits in the streams.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is not open.
    async fn close_shard(&self, shard: u16) -> Result<(), ControlError>;

    /// All rows of a shard as they are at one moment, while it goes on.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is not open here,
    /// [`ControlError::Unavailable`] while another backup is taken.
    async fn backup(&self, shard: u16) -> Result<Backup, ControlError>;

    /// Decides from where on a shard reads a stream that is not the one that was read, or that lost what was not read; or
    /// tells what that would mean.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard or stream, [`ControlError::Conflict`] where there is nothing of
    /// the kind to accept.
    async fn accept(
        &self,
        shard: u16,
        verb: AcceptVerb,
        request: AcceptRequest,
    ) -> Result<AcceptReport, ControlError>;

    /// What a shard holds back that goes on from an adopted state.
    async fn pending(&self, shard: u16, page: PageRequest) -> Result<PendingReport, ControlError>;

    /// Lets that go, or gives some of it up; or tells what that would mean.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard or command, [`ControlError::Conflict`] where nothing is held.
    async fn decide_held(
        &self,
        shard: u16,
        verb: HeldVerb,
        request: HeldRequest,
    ) -> Result<HeldReport, ControlError>;
}

/// A file that is being written.
pub struct Backup {
    /// What it may be called.
    pub name: String,
    /// Its bytes. After an error the file is worth nothing.
    pub chunks: BoxStream<'static, std::io::Result<Bytes>>,
}

/// One shard of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShardView {
    pub shard: u16,
    /// It is open in this process.
    pub open: bool,
    /// `running`, `full`, `halted` or `stopped`; `absent` where it is not open here.
    pub state: &'static str,
    /// Why it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who has it, as its owner record says, where it is not open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// By stream the sequence up to which it has taken everything, as far as that is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, u64>,
}

/// What an operator accepts of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptVerb {
    /// Messages are gone that were not read.
    Gap,
    /// It is another stream, or has gone back.
    Rebind,
}

impl AcceptVerb {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "accept-gap",
            Self::Rebind => "rebind",
        }
    }

    /// The reason of a halt that it ends.
    #[must_use]
    pub const fn accepts(self) -> &'static str {
        match self {
            Self::Gap => "stream.gap",
            Self::Rebind => "stream.identity",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptRequest {
    /// Name of the stream.
    pub stream: String,
    /// Who asks, for the audit alone.
    #[serde(default)]
    pub by: String,
    /// Why; needed unless nothing is done.
    #[serde(default)]
    pub reason: String,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// The position to go on behind, in place of the one that is found.
    #[serde(default)]
    pub position: Option<u64>,
}

/// Messages of a stream, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sequences {
    pub from: u64,
    pub to: u64,
}

/// What is accepted, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptReport {
    pub shard: u16,
    pub stream: String,
    /// `stream.gap` or `stream.identity`.
    pub found: &'static str,
    pub detail: String,
    pub position: u64,
    pub new_position: u64,
    /// Messages that the shard never reads, and before its position those among which some are gone unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Sequences>,
    /// Messages of the stream that it reads next; those that it has read before count as repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_read: Option<Sequences>,
    /// What is accepted as lost, and what happens to the rest.
    pub lost: Vec<String>,
    /// The position was moved; false after a dry run.
    pub done: bool,
    /// What was accepted for this shard and stream before, oldest first.
    pub earlier: Vec<AcceptedView>,
}

/// What was accepted before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptedView {
    pub time: String,
    pub position: u64,
    pub new_position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Sequences>,
    pub reason: String,
}
