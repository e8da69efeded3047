//! Lists of instances across sagas, from the indexes of the shards: what counts and jobs select is found here, too.

use super::catalog::InForce;
use super::cursors::{forged, read_place, write_place};
use super::groups;
use super::node::Node;
use super::pages::{LOOKED_AT_MAX, Room};
use crate::kernel::duration::Millis;
use crate::kernel::expr::{Budget, Expr, Root, Scope};
use crate::kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use crate::kernel::instance_status::InstanceStatus;
use crate::kernel::json::Json;
use crate::kernel::limits::Limits;
use crate::kernel::record::Record;
use crate::ports::control::{ControlError, InstanceFilter, InstanceSummary, Page, PageRequest};
use crate::storage::listed::{Entries, Entry, ListBound};
use crate::storage::read::Found;
use crate::storage::{Reader, by_key};

/// Instances of one shard after the other; of each, those of one saga and status after the other, or in the order of their keys
/// where the filter says what these begin with.
pub(super) async fn search(
    node: &Node,
    tenant: &TenantId,
    filter: InstanceFilter,
    page: PageRequest,
) -> Result<Page<InstanceSummary>, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut index, mut after) = begin(&filter, page.after.as_deref())?;
    let mut room = Room::of(node, &page);
    let (mut items, mut looked_at) = (Vec::new(), page.looked_at);
    let shards = running.shards.all();
    while let Some(shard) = shards.iter().find(|shard| shard.index >= index)
        && !room.is_over()
        && looked_at < LOOKED_AT_MAX
    {
        if shard.index > index {
            (index, after) = (shard.index, None);
        }
        let bound = ListBound {
            items: room.bound().items,
            bytes: room.bound().bytes,
            looked: LOOKED_AT_MAX.saturating_sub(looked_at),
        };
        let found = entries(node, &shard.reader, (tenant, &filter), after.take(), bound).await?;
        looked_at += found.looked_at;
        let mut goes_on_behind = found.next;
        let count = found.items.len();
        for (at, entry) in (1..).zip(found.items) {
            let place = entry.place.clone();
            let view = summary(entry);
            room.take(&view);
            items.push(view);
            if room.is_over() && at < count {
                goes_on_behind = Some(place);
                break;
            }
        }
        match goes_on_behind {
            Some(place) => after = Some(place),
            None => index += 1,
        }
    }
    let more = shards.iter().any(|shard| shard.index >= index);
    Ok(Page {
        items,
        next: more.then(|| write_place(index, after.as_deref())),
        absent_shards: node.absent_shards(),
        looked_at: (!filter.is_of_statuses()).then_some(looked_at),
    })
}

/// Where a list or a count by this filter begins.
///
/// # Errors
/// [`ControlError::Invalid`] for a cursor that is none of it.
pub(super) fn begin(
    filter: &InstanceFilter,
    after: Option<&str>,
) -> Result<(u16, Option<Vec<u8>>), ControlError> {
    let (index, after) = after.map_or(Ok((0, None)), read_place)?;
    if after
        .as_deref()
        .is_some_and(|place| by_key::is_place(place) != filter.key_prefix.is_some())
    {
        return Err(forged());
    }
    Ok((index, after))
}

/// What a filter asks for in one shard, behind a place.
pub(super) async fn entries(
    node: &Node,
    reader: &Reader,
    (tenant, filter): (&TenantId, &InstanceFilter),
    place: Option<Vec<u8>>,
    bound: ListBound,
) -> Result<Entries, ControlError> {
    let (reader, tenant, filter) = (reader.clone(), tenant.clone(), filter.clone());
    let (limits, now) = (node.manifest.limits.clone(), node.clock.now());
    let (in_force, last_generation) = (node.catalog.now(), filter.last_generation);
    let mut found = node
        .read(move || {
            let wanted = |saga: &SagaName, status: &InstanceStatus| filter.wants(saga, status);
            let fits = |id: &InstanceId, found: &Found| {
                fits(&filter, &limits, now, id, found) && has(&filter, &in_force, found)
            };
            let place = place.as_deref();
            match filter.key_prefix.as_deref() {
                Some(beginning) => reader.by_key(&tenant, beginning, wanted, fits, place, bound),
                None => reader.listed(&tenant, wanted, fits, place, bound),
            }
        })
        .await?;
    found
        .items
        .retain(|entry| entry.last_generation || !last_generation);
    Ok(found)
}

/// Whether an instance is asked for by what its status does not say. An expression that fails on it does not hold.
fn fits(filter: &InstanceFilter, limits: &Limits, now: TimeMs, id: &InstanceId, found: &Found) -> bool {
    let record = found.record();
    let is_past =
        |age: Option<Millis>, time: TimeMs| age.is_none_or(|age| time <= now.plus_ms(-age.as_i64()));
    is_past(filter.older_than, record.started)
        && is_past(filter.idle_for, record.updated)
        && filter
            .condition
            .as_ref()
            .is_none_or(|condition| holds(condition, limits, id, record))
}

/// Whether an instance has everything that a filter says it is in, calls or waits for.
fn has(filter: &InstanceFilter, in_force: &InForce, found: &Found) -> bool {
    let mut having = filter.having.iter();
    having.all(|(by, value)| groups::values(found, in_force, *by).contains(value))
}

fn holds(condition: &Expr, limits: &Limits, id: &InstanceId, record: &Record) -> bool {
    let Ok(state) = Json::parse(&record.data, limits.json_depth) else {
        return false;
    };
    let key = Json::Str(id.key.as_str().into());
    let scope = Scope::default().bind(Root::State, &state).bind(Root::Key, &key);
    let mut budget = Budget {
        steps: limits.expression_steps,
    };
    condition.test(&scope, &mut budget).unwrap_or(false)
}

fn summary(entry: Entry) -> InstanceSummary {
    let Entry {
        id,
        status,
        found,
        last_generation,
        ..
    } = entry;
    let record = found.record();
    InstanceSummary {
        saga: id.saga.to_string(),
        key: id.key.as_str().to_owned(),
        phase: status.phase.as_str(),
        blocked_by: status.blocked_by.as_str(),
        waits_for: status.waits_for.as_str(),
        error: status.error,
        failed_step: record.failure.as_ref().and_then(|failure| failure.step.clone()),
        generation: record.generation,
        last_generation,
        started: record.started.rfc3339(),
        updated: record.updated.rfc3339(),
        ended: match &found {
            Found::Live(_) => None,
            Found::Ended(summary) => Some(summary.ended.rfc3339()),
        },
        definition: record.definition.to_string(),
    }
}
