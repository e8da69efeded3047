//! Counts of instances across sagas: from the index where it tells what is asked for, else by a look at the records, a page at a time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::catalog::InForce;
use super::cursors::{forged, write_place};
use super::node::Node;
use super::pages::LOOKED_AT_MAX;
use super::search;
use crate::kernel::ids::{SagaName, TenantId};
use crate::kernel::instance_status::InstanceStatus;
use crate::ports::control::{ControlError, InstanceCount, InstanceFilter, StatusView};
use crate::storage::listed::{Entry, ListBound, StatusCount};

/// Records that are read, and kept, at a time.
const READ: usize = 500;
const READ_BYTES: usize = 4 * 1024 * 1024;

/// How far a page of a count has come.
pub(super) struct Counted {
    pub looked_at: usize,
    /// Behind which the next one begins, if there is one.
    pub next: Option<String>,
}

/// How many instances a filter asks for, in all and by status: all of them where the index tells it, else those of a page.
pub(super) async fn count(
    node: &Node,
    tenant: &TenantId,
    filter: InstanceFilter,
    after: Option<&str>,
) -> Result<InstanceCount, ControlError> {
    if filter.is_of_statuses() {
        if after.is_some() {
            return Err(forged());
        }
        return of_index(node, tenant, &filter).await;
    }
    let mut statuses = Statuses::default();
    let add = |_: &InForce, entry: Entry| statuses.add(&entry.id.saga, entry.status, 1);
    let counted = of_records(node, (tenant, &filter), after, add).await?;
    Ok(InstanceCount {
        looked_at: Some(counted.looked_at),
        next: counted.next,
        ..statuses.count(node)
    })
}

async fn of_index(
    node: &Node,
    tenant: &TenantId,
    filter: &InstanceFilter,
) -> Result<InstanceCount, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut statuses, mut incomplete) = (Statuses::default(), false);
    for shard in running.shards.all() {
        let (reader, tenant) = (shard.reader.clone(), tenant.clone());
        let (found, is_whole) = node.read(move || reader.statuses(&tenant)).await?;
        incomplete |= !is_whole;
        for found in found {
            let StatusCount {
                saga,
                status,
                instances,
            } = found;
            if filter.wants(&saga, &status) {
                statuses.add(&saga, status, instances);
            }
        }
    }
    Ok(InstanceCount {
        incomplete,
        ..statuses.count(node)
    })
}

/// Gives `add` each instance of a page that the filter asks for: at most as many are looked at as for a page of a list.
pub(super) async fn of_records(
    node: &Node,
    (tenant, filter): (&TenantId, &InstanceFilter),
    after: Option<&str>,
    mut add: impl FnMut(&InForce, Entry) + Send,
) -> Result<Counted, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut index, mut place) = search::begin(filter, after)?;
    let mut looked_at = 0;
    let shards = running.shards.all();
    while let Some(shard) = shards.iter().find(|shard| shard.index >= index)
        && looked_at < LOOKED_AT_MAX
    {
        if shard.index > index {
            (index, place) = (shard.index, None);
        }
        let bound = ListBound {
            items: READ,
            bytes: READ_BYTES,
            looked: LOOKED_AT_MAX - looked_at,
        };
        let found = search::entries(node, &shard.reader, (tenant, filter), place.take(), bound).await?;
        looked_at += found.looked_at;
        let in_force = node.catalog.now();
        for entry in found.items {
            add(&in_force, entry);
        }
        match found.next {
            Some(next) => place = Some(next),
            None => index += 1,
        }
    }
    let more = shards.iter().any(|shard| shard.index >= index);
    Ok(Counted {
        looked_at,
        next: more.then(|| write_place(index, place.as_deref())),
    })
}

type StatusNames = (String, &'static str, &'static str, &'static str, String);

/// How many instances are in each status of each saga.
#[derive(Default)]
struct Statuses(BTreeMap<StatusNames, u64>);

impl Statuses {
    fn add(&mut self, saga: &SagaName, status: InstanceStatus, instances: u64) {
        let InstanceStatus {
            phase,
            blocked_by,
            waits_for,
            error,
        } = status;
        let names = (
            saga.to_string(),
            phase.as_str(),
            blocked_by.as_str(),
            waits_for.as_str(),
            error,
        );
        *self.0.entry(names).or_insert(0) += instances;
    }

    /// All of it, the largest first.
    fn count(self, node: &Node) -> InstanceCount {
        let mut statuses: Vec<StatusView> = self
            .0
            .into_iter()
            .map(
                |((saga, phase, blocked_by, waits_for, error), instances)| StatusView {
                    saga,
                    phase,
                    blocked_by,
                    waits_for,
                    error,
                    instances,
                },
            )
            .collect();
        // Stable: those of one size stay in the order of their names.
        statuses.sort_by_key(|status| Reverse(status.instances));
        InstanceCount {
            instances: statuses.iter().map(|status| status.instances).sum(),
            statuses,
            incomplete: false,
            looked_at: None,
            next: None,
            absent_shards: node.absent_shards(),
        }
    }
}
