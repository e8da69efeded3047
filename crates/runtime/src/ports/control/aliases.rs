//! Aliases, each in the partition of its address.

use async_trait::async_trait;
use serde::Serialize;

use super::ControlError;
use crate::kernel::alias::Alias;
use crate::kernel::ids::{SagaName, TenantId};

/// Questions to the partition of an alias.
#[async_trait]
pub trait Aliases: Send + Sync + 'static {
    /// Who has an alias.
    async fn alias(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        alias: &Alias,
    ) -> Result<AliasView, ControlError>;
}

/// The instances that have registered a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AliasView {
    pub saga: String,
    /// Its name.
    pub alias: String,
    pub value: String,
    /// In the order in which they have registered it; an event that is matched reaches each.
    pub owners: Vec<OwnerView>,
    /// Events that wait for an instance to register it.
    pub waiting: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnerView {
    pub key: String,
    pub generation: u32,
}
