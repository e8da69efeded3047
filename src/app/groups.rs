//! Instances, counted by something that they have in common: from the index of statuses, or from their records.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalog::InForce;
use super::counts;
use super::node::Node;
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::ids::TenantId;
use crate::kernel::instance_status::Waits;
use crate::kernel::record::Record;
use crate::kernel::view::pending::{self, AwaitedView, WaitsFor};
use crate::ports::control::{
    ControlError, InstanceCount, InstanceFilter, InstanceGroup, InstanceGroups, InstanceTrait, StatusView,
};
use crate::storage::listed::Entry;
use crate::storage::read::Found;

/// Values that are told apart while it counts, and groups that are shown.
const VALUES_MAX: usize = 10_000;
const GROUPS_MAX: usize = 1_000;

/// Instances by something that they have in common: all of them where the index tells it, else those of a page.
pub(super) async fn group(
    node: &Node,
    tenant: &TenantId,
    filter: InstanceFilter,
    by: InstanceTrait,
    after: Option<&str>,
) -> Result<InstanceGroups, ControlError> {
    if by.is_of_status() {
        let counted = counts::count(node, tenant, filter, after).await?;
        return Ok(of_statuses(counted, by));
    }
    let mut tally = Tally::default();
    let add = |in_force: &InForce, entry: Entry| tally.add_instance(&entry.found, in_force, by);
    let counted = counts::of_records(node, (tenant, &filter), after, add).await?;
    Ok(InstanceGroups {
        looked_at: Some(counted.looked_at),
        next: counted.next,
        absent_shards: node.absent_shards(),
        ..tally.groups(by)
    })
}

/// How often each value was found.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, u64>,
    instances: u64,
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

    fn add_instance(&mut self, found: &Found, in_force: &InForce, by: InstanceTrait) {
        self.instances += 1;
        for value in values(found, in_force, by) {
            self.add(value, 1);
        }
    }

    fn groups(self, by: InstanceTrait) -> InstanceGroups {
        let groups = self.counts.into_iter();
        let mut groups: Vec<InstanceGroup> = groups
            .map(|(value, instances)| InstanceGroup { value, instances })
            .collect();
        // Stable: those of one size stay in the order of their names.
        groups.sort_by_key(|group| Reverse(group.instances));
        let incomplete = self.is_full || groups.len() > GROUPS_MAX;
        groups.truncate(GROUPS_MAX);
        InstanceGroups {
            by: by.as_str(),
            instances: self.instances,
            groups,
            incomplete,
            looked_at: None,
            next: None,
            absent_shards: Vec::new(),
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
    let groups = tally.groups(by);
    InstanceGroups {
        incomplete: groups.incomplete || counted.incomplete,
        looked_at: counted.looked_at,
        next: counted.next,
        absent_shards: counted.absent_shards,
        ..groups
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
