//! Instances, counted by something that they have in common: from the index of statuses, or from their records.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalog::InForce;
use super::node::Node;
use super::search;
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::ids::{InstanceId, SagaName, TenantId};
use crate::kernel::instance_status::{InstanceStatus, Waits};
use crate::kernel::record::Record;
use crate::kernel::view::pending::{self, AwaitedView, WaitsFor};
use crate::ports::control::{
    ControlError, InstanceCount, InstanceFilter, InstanceGroup, InstanceGroups, InstanceTrait, StatusView,
};
use crate::storage::listed::ListBound;
use crate::storage::read::Found;

/// Records that one request looks at, and that it reads at a time.
const LOOKED_MAX: usize = 100_000;
const LOOKED_AT_A_TIME: usize = 2_000;
/// Values that are told apart while it counts, and groups that are shown.
const VALUES_MAX: usize = 10_000;
const GROUPS_MAX: usize = 1_000;

pub(super) async fn group(
    node: &Node,
    tenant: &TenantId,
    filter: InstanceFilter,
    by: InstanceTrait,
) -> Result<InstanceGroups, ControlError> {
    if by.is_of_status() {
        let counted = search::count(node, tenant, filter).await?;
        return Ok(of_statuses(counted, by));
    }
    of_records(node, tenant, filter, by).await
}

/// How often each value was found.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, u64>,
    instances: u64,
    looked_at: usize,
    /// There were more values than are told apart.
    is_full: bool,
}

impl Tally {
    fn add(&mut self, value: String, instances: u64) {
        let has_room = self.counts.len() < VALUES_MAX;
        match self.counts.get_mut(&value) {
            Some(count) => *count += instances,
            None if has_room => drop(self.counts.insert(value, instances)),
            None => self.is_full = true,
        }
    }

    fn groups(self, by: InstanceTrait, incomplete: bool, absent_shards: Vec<u16>) -> InstanceGroups {
        let groups = self.counts.into_iter();
        let mut groups: Vec<InstanceGroup> = groups
            .map(|(value, instances)| InstanceGroup { value, instances })
            .collect();
        // Stable: those of one size stay in the order of their names.
        groups.sort_by_key(|group| Reverse(group.instances));
        let incomplete = incomplete || self.is_full || groups.len() > GROUPS_MAX;
        groups.truncate(GROUPS_MAX);
        InstanceGroups {
            by: by.as_str(),
            instances: self.instances,
            groups,
            incomplete,
            looked_at: (!by.is_of_status()).then_some(self.looked_at),
            absent_shards,
        }
    }
}

fn of_statuses(counted: InstanceCount, by: InstanceTrait) -> InstanceGroups {
    let mut tally = Tally {
        instances: counted.instances,
        ..Tally::default()
    };
    for status in counted.statuses {
        let StatusView {
            saga,
            phase,
            blocked_by,
            waits_for,
            error,
            instances,
        } = status;
        let value = match by {
            InstanceTrait::Saga => saga,
            InstanceTrait::Phase => phase.to_owned(),
            InstanceTrait::Waiting => waits_for.to_owned(),
            InstanceTrait::BlockedBy => blocked_by.to_owned(),
            _ => error,
        };
        tally.add(value, instances);
    }
    tally.groups(by, counted.incomplete, counted.absent_shards)
}

async fn of_records(
    node: &Node,
    tenant: &TenantId,
    filter: InstanceFilter,
    by: InstanceTrait,
) -> Result<InstanceGroups, ControlError> {
    search::check_countable(&filter)?;
    let running = node.running_or_unavailable()?;
    let (mut tally, mut incomplete) = (Tally::default(), false);
    'shards: for shard in running.shards.all() {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (reader, tenant, filter) = (shard.reader.clone(), tenant.clone(), filter.clone());
            let (in_force, counted, place) = (node.catalog.now(), std::mem::take(&mut tally), after.take());
            let (counted, next) = node
                .read(move || {
                    let counted = RefCell::new(counted);
                    let wanted = |saga: &SagaName, status: &InstanceStatus| filter.wants(saga, status);
                    // No record is kept: each is counted while it is read.
                    let count = |_: &InstanceId, found: &Found| {
                        count(&mut counted.borrow_mut(), &in_force, found, by);
                        false
                    };
                    let bound = ListBound {
                        items: usize::MAX,
                        bytes: usize::MAX,
                        looked: LOOKED_AT_A_TIME,
                    };
                    let found = reader.listed(&tenant, wanted, count, place.as_deref(), bound)?;
                    let mut counted = counted.into_inner();
                    counted.looked_at += found.looked_at;
                    Ok((counted, found.next))
                })
                .await?;
            tally = counted;
            if next.is_some() && tally.looked_at >= LOOKED_MAX {
                incomplete = true;
                break 'shards;
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
    }
    Ok(tally.groups(by, incomplete, node.absent_shards()))
}

fn count(tally: &mut Tally, in_force: &InForce, found: &Found, by: InstanceTrait) {
    tally.instances += 1;
    for value in values(found, in_force, by) {
        tally.add(value, 1);
    }
}

/// What an instance is counted under: each value once.
pub(super) fn values(found: &Found, in_force: &InForce, by: InstanceTrait) -> BTreeSet<String> {
    let record = found.record();
    let definition = in_force.sagas.by_hash(&record.definition);
    if let Found::Ended(_) = found {
        let failed = record.failure.as_ref().and_then(|failure| failure.step.clone());
        let is_step = by == InstanceTrait::Step;
        return failed.filter(|_| is_step).into_iter().collect();
    }
    let awaited = pending::pending(record, definition.map(AsRef::as_ref), &BTreeMap::new());
    let awaited = awaited.iter().filter(|awaited| !awaited.abandoned);
    match by {
        InstanceTrait::Step => awaited.map(|awaited| awaited.step.clone()).collect(),
        InstanceTrait::Upstream => {
            let upstreams = awaited.flat_map(|awaited| upstreams(awaited, definition, in_force));
            upstreams.collect()
        }
        InstanceTrait::Event => messages(record, definition, awaited, "event "),
        _ => messages(record, definition, awaited, "signal "),
    }
}

/// The upstreams that the effect of a step in progress calls, or that of its compensation.
fn upstreams(
    awaited: &AwaitedView,
    definition: Option<&Arc<Definition>>,
    in_force: &InForce,
) -> BTreeSet<String> {
    if !matches!(
        awaited.waits_for,
        WaitsFor::Effect | WaitsFor::Retry | WaitsFor::Operator
    ) {
        return BTreeSet::new();
    }
    let steps = definition.into_iter().flat_map(|definition| &definition.steps);
    let mut steps = steps.filter(|step| step.name == awaited.step);
    let action = steps.next().and_then(|step| {
        if awaited.compensates {
            step.compensate.as_ref().map(|compensation| &compensation.action)
        } else {
            Some(&step.action)
        }
    });
    let Some(Action::Effect { effect, .. }) = action else {
        return BTreeSet::new();
    };
    let effect = in_force.effects.iter().find(|known| known.name == *effect);
    effect.map(|effect| effect.upstreams()).unwrap_or_default()
}

/// The messages of one kind that steps wait for, and of an instance in which nothing else is in progress those that it has
/// handlers for.
fn messages<'a>(
    record: &Record,
    definition: Option<&Arc<Definition>>,
    awaited: impl Iterator<Item = &'a AwaitedView>,
    kind: &str,
) -> BTreeSet<String> {
    let mut messages: Vec<String> = awaited.flat_map(|awaited| awaited.messages.clone()).collect();
    let is_idle = record
        .listing
        .as_ref()
        .is_some_and(|listing| listing.status.waits_for == Waits::Handlers);
    if let Some(definition) = definition.filter(|_| is_idle) {
        messages.extend(pending::hears(record, definition));
    }
    let of_kind = messages.iter().filter_map(|message| message.strip_prefix(kind));
    of_kind.map(str::to_owned).collect()
}
