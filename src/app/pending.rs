//! Lists of timers and of the outbox: a walk over the rows of one shard after the other, bounded in what it looks at.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use serde::Serialize;

use super::cursors::forged;
use super::node::Node;
use super::pages::{LOOKED_AT_MAX, Room};
use super::shards::Shown;
use crate::kernel::alias;
use crate::kernel::ids::{SagaName, TenantId, TimeMs};
use crate::kernel::schedule;
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::control::{
    ControlError, DueTimer, OutboxFilter, OutboxItem, Page, PageRequest, PendingWork, TimerFilter,
};
use crate::shard::mailbox::Relayed;
use crate::storage::read::Bound;
use crate::storage::rows::TimerTarget;
use crate::storage::{Reader, StorageError};

/// What is read at a time.
const READ: Bound = Bound {
    items: 500,
    bytes: 4 * 1024 * 1024,
};

#[async_trait]
impl PendingWork for Node {
    async fn timers(
        &self,
        tenant: &TenantId,
        filter: TimerFilter,
        page: PageRequest,
    ) -> Result<Page<DueTimer>, ControlError> {
        let now = self.clock.now();
        let until = filter.due_within.map(|time| now.plus_ms(time.as_i64()));
        let look = |_: &Shown, (due, _): (TimeMs, WorkRef), target: TimerTarget| {
            if until.is_some_and(|until| due > until) {
                return Looked::End;
            }
            let id = target.instance;
            let is_internal = schedule::is_address(&id.key) || alias::is_address(&id.key);
            if is_internal || id.tenant != *tenant || !is_of(filter.saga.as_ref(), &id.saga) {
                return Looked::Other;
            }
            Looked::Item(DueTimer {
                due: due.rfc3339(),
                overdue: due <= now,
                name: target.name,
                saga: id.saga.to_string(),
                key: id.key.to_string(),
            })
        };
        let read = |reader: &Reader, after: Option<(TimeMs, WorkRef)>| {
            let found = reader.timers(after, READ.items)?.into_iter();
            Ok(found
                .map(|(due, set_by, target)| ((due, set_by), target))
                .collect())
        };
        walk(self, &page, read, look).await
    }

    async fn outbox(
        &self,
        tenant: &TenantId,
        filter: OutboxFilter,
        page: PageRequest,
    ) -> Result<Page<OutboxItem>, ControlError> {
        let now = self.clock.now();
        let until = filter.older_than.map(|age| now.plus_ms(-age.as_i64()));
        let look = |shown: &Shown, row: WorkRef, item: WorkItem| {
            let id = &item.instance;
            if id.tenant != *tenant
                || !is_of(filter.saga.as_ref(), &id.saga)
                || until.is_some_and(|until| item.created > until)
            {
                return Looked::Other;
            }
            let view = view(shown, row, &item);
            let is_wanted = filter.kind.as_ref().is_none_or(|kind| *kind == view.kind)
                && filter.name.as_ref().is_none_or(|name| *name == view.name)
                && filter.sent.is_none_or(|sent| sent == view.sent);
            if is_wanted {
                Looked::Item(view)
            } else {
                Looked::Other
            }
        };
        walk(self, &page, |reader, after| reader.work_after(after, READ), look).await
    }
}

fn is_of(wanted: Option<&SagaName>, saga: &SagaName) -> bool {
    wanted.is_none_or(|wanted| wanted == saga)
}

fn view(shown: &Shown, row: WorkRef, item: &WorkItem) -> OutboxItem {
    let (kind, name) = item.kind.named();
    let awaited = item.kind.awaits_result();
    OutboxItem {
        id: item.command_id,
        kind,
        name: name.to_owned(),
        saga: item.instance.saga.to_string(),
        key: item.instance.key.to_string(),
        path: item.path.clone(),
        attempt: item.attempt,
        idempotency_key: item.idempotency_key.clone(),
        since: item.created.rfc3339(),
        sent: Relayed::covers(shown.relayed.floor.load(Ordering::Acquire), row),
        awaited,
        deadline: (awaited && !item.kind.awaits_saga()).then(|| item.ends().rfc3339()),
    }
}

/// What a row is for a list.
enum Looked<V> {
    Item(V),
    /// Not asked for.
    Other,
    /// Not asked for, and neither is what comes behind it in this shard.
    End,
}

/// A place in the rows of a shard, as a cursor has it.
trait Place: Copy + Send + 'static {
    fn write(self) -> String;
    fn read(text: &str) -> Option<Self>;
}

impl Place for WorkRef {
    fn write(self) -> String {
        self.position().to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::at_position)
    }
}

impl Place for (TimeMs, WorkRef) {
    fn write(self) -> String {
        format!("{}.{}", self.0.0, self.1.write())
    }

    fn read(text: &str) -> Option<Self> {
        let (due, row) = text.split_once('.')?;
        Some((TimeMs(due.parse().ok()?), WorkRef::read(row)?))
    }
}

/// `<shard>`, or `<shard>.<place>`: where a list goes on.
fn write_cursor<P: Place>(shard: u16, after: Option<P>) -> String {
    match after {
        None => shard.to_string(),
        Some(place) => format!("{shard}.{}", place.write()),
    }
}

fn read_cursor<P: Place>(text: &str) -> Result<(u16, Option<P>), ControlError> {
    let parse = || match text.split_once('.') {
        None => Some((text.parse().ok()?, None)),
        Some((shard, place)) => Some((shard.parse().ok()?, Some(P::read(place)?))),
    };
    parse().ok_or_else(forged)
}

/// A page of those rows that `look` takes, of one open shard after the other.
async fn walk<P: Place, T: Send + 'static, V: Serialize>(
    node: &Node,
    page: &PageRequest,
    read: impl Fn(&Reader, Option<P>) -> Result<Vec<(P, T)>, StorageError> + Copy + Send + 'static,
    look: impl Fn(&Shown, P, T) -> Looked<V>,
) -> Result<Page<V>, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut shard, mut after) = page.after.as_deref().map_or(Ok((0, None)), read_cursor)?;
    let mut room = Room::of(node, page);
    let (mut items, mut looked_at) = (Vec::new(), page.looked_at);
    let shards = running.shards.all();
    while let Some(shown) = shards.iter().find(|shown| shown.index >= shard)
        && !room.is_over()
        && looked_at < LOOKED_AT_MAX
    {
        if shown.index > shard {
            (shard, after) = (shown.index, None);
        }
        let (reader, behind) = (shown.reader.clone(), after);
        let found = node.read(move || read(&reader, behind)).await?;
        let mut is_done = found.is_empty();
        for (place, row) in found {
            if room.is_over() || looked_at >= LOOKED_AT_MAX {
                break;
            }
            looked_at += 1;
            match look(shown, place, row) {
                Looked::Item(view) => {
                    room.take(&view);
                    items.push(view);
                }
                Looked::Other => {}
                Looked::End => {
                    is_done = true;
                    break;
                }
            }
            after = Some(place);
        }
        if is_done {
            (shard, after) = (shard + 1, None);
        }
    }
    let more = shards.iter().any(|shown| shown.index >= shard);
    Ok(Page {
        items,
        next: more.then(|| write_cursor(shard, after)),
        absent_shards: node.absent_shards(),
        looked_at: Some(looked_at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_forged_ones_are_refused() {
        let row = WorkRef {
            log_sequence: 70_000,
            index: 3,
        };
        let timer = (TimeMs(-5), row);
        assert_eq!(read_cursor(&write_cursor(7, Some(row))), Ok((7, Some(row))));
        assert_eq!(read_cursor(&write_cursor(7, Some(timer))), Ok((7, Some(timer))));
        assert_eq!(
            read_cursor::<WorkRef>(&write_cursor::<WorkRef>(0, None)),
            Ok((0, None))
        );
        for forged in ["", "x", "1.", "1.x", "99999999", "1.-2", "1.2.3.4"] {
            assert!(read_cursor::<WorkRef>(forged).is_err(), "{forged:?}");
            assert!(read_cursor::<(TimeMs, WorkRef)>(forged).is_err(), "{forged:?}");
        }
    }
}
