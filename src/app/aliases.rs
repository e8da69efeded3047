//! Aliases as operators see them.

use async_trait::async_trait;

use super::node::Node;
use crate::kernel::alias::Alias;
use crate::kernel::ids::{SagaName, TenantId};
use crate::ports::control::{AliasView, Aliases, ControlError, OwnerView};

#[async_trait]
impl Aliases for Node {
    async fn alias(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        alias: &Alias,
    ) -> Result<AliasView, ControlError> {
        show(self, tenant, saga, alias).await
    }
}

/// Who has an alias, and what waits for somebody who will.
async fn show(
    node: &Node,
    tenant: &TenantId,
    saga: &SagaName,
    alias: &Alias,
) -> Result<AliasView, ControlError> {
    let address = alias.address(tenant, saga);
    let reader = node.shard(&address).await?.reader;
    let at_most = node.manifest.limits.inbox_inputs;
    let found = move || {
        let (_, waiting) = reader.inbox(&address, at_most)?;
        Ok((reader.alias(&address)?, waiting.len()))
    };
    let (row, waiting) = node.read(found).await?;
    let owners = row.owners.into_iter().map(|owner| OwnerView {
        key: owner.key.as_str().to_owned(),
        generation: owner.generation,
    });
    Ok(AliasView {
        saga: saga.as_str().to_owned(),
        alias: alias.name.clone(),
        value: alias.value.clone(),
        owners: owners.collect(),
        waiting,
    })
}
