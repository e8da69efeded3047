//! Pages of lists that cover all shards, bounded in items and in bytes.

use std::io;

use serde::Serialize;

use super::cursors::{forged, read_cursor, write_cursor};
use super::node::Node;
use super::{answers, letters};
use crate::kernel::ids::{InstanceId, SagaName, TenantId};
use crate::kernel::view::InstanceView;
use crate::ports::control::{ControlError, DeadLetterView, HistoryView, LetterFilter, Page, PageRequest};
use crate::storage::read::{Bound, Found};

/// What there is still room for on a page. The item that passes the bytes is on it, so that each page goes on.
pub(super) struct Room {
    items: usize,
    bytes: usize,
}

impl Room {
    pub(super) fn of(node: &Node, page: &PageRequest) -> Self {
        let most = node.manifest.http.page_bytes_max;
        Self {
            items: page.limit,
            bytes: page.bytes.map_or(most, |bytes| bytes.min(most)),
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.items == 0 || self.bytes == 0
    }

    /// No more is read than could be shown. What is stored is shorter than what is shown of it.
    pub(super) const fn bound(&self) -> Bound {
        Bound {
            items: self.items,
            bytes: self.bytes,
        }
    }

    pub(super) fn take(&mut self, item: &impl Serialize) {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(json_bytes(item));
    }
}

/// How long something is as JSON.
pub(super) fn json_bytes(item: &impl Serialize) -> usize {
    struct Count(usize);

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    serde_json::to_writer(&mut count, item).expect("a view is plain data");
    count.0
}

/// Instances that one page looks at, where not all of them are wanted.
pub(super) const LOOKED_AT_MAX: usize = 10_000;

/// Instances of a saga: of each shard the live ones, then the ended ones. `blocked`: only those that something keeps from
/// going on, or that nothing does.
pub(super) async fn instances(
    node: &Node,
    tenant: &TenantId,
    saga: &SagaName,
    blocked: Option<bool>,
    page: PageRequest,
) -> Result<Page<InstanceView>, ControlError> {
    let running = node.running_or_unavailable()?;
    let mut cursor = page.after.as_deref().map_or(Ok((0, None)), read_cursor)?;
    let mut room = Room::of(node, &page);
    let mut items = Vec::new();
    let mut looked_at = page.looked_at;
    let shards = running.shards.all();
    while let Some(shard) = shards.iter().find(|shard| shard.index >= cursor.0)
        && !room.is_over()
        && (blocked.is_none() || looked_at < LOOKED_AT_MAX)
    {
        if shard.index > cursor.0 {
            cursor = (shard.index, None);
        }
        let (reader, tenant, saga) = (shard.reader.clone(), tenant.clone(), saga.clone());
        let (after, bound) = (cursor.1.clone(), room.bound());
        let (found, next) = node
            .read(move || {
                let (found, next) = reader.instances(&tenant, &saga, after.as_ref(), bound)?;
                let with_kept = found.into_iter().map(|listed| {
                    let kept = reader.kept(&listed.id)?;
                    Ok((listed, kept))
                });
                Ok((with_kept.collect::<Result<Vec<_>, _>>()?, next))
            })
            .await?;
        let mut goes_on_behind = next;
        let count = found.len();
        looked_at += count;
        for (at, (listed, kept)) in (1..).zip(found) {
            if blocked == Some(true) && matches!(listed.found, Found::Ended(_)) {
                // Nothing keeps these, nor those behind them.
                goes_on_behind = None;
                break;
            }
            let view = node.view(&listed.id, &listed.found, kept);
            if blocked.is_some_and(|blocked| blocked != view.blocked_by.is_some()) {
                continue;
            }
            room.take(&view);
            items.push(view);
            if room.is_over() && at < count {
                goes_on_behind = Some(listed.place);
                break;
            }
        }
        cursor = match goes_on_behind {
            Some(place) => (cursor.0, Some(place)),
            None => (cursor.0 + 1, None),
        };
    }
    let more = shards.iter().any(|shard| shard.index >= cursor.0);
    Ok(Page {
        items,
        next: more.then(|| write_cursor(&cursor)),
        absent_shards: node.absent_shards(),
        looked_at: blocked.map(|_| looked_at),
    })
}

/// The history of an instance, newest entry first. A cursor is the log sequence of the last entry before.
pub(super) async fn history(
    node: &Node,
    id: &InstanceId,
    page: PageRequest,
) -> Result<Page<HistoryView>, ControlError> {
    let after = match page.after.as_deref() {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| forged())?),
    };
    let reader = node.shard(id).await?.reader;
    let (owned, limit) = (id.clone(), page.limit);
    let found = node
        .read(move || reader.history_page(&owned, after, limit))
        .await?;
    let Some((rows, mut next)) = found else {
        return Err(match after {
            Some(_) => forged(),
            None => ControlError::NotFound(answers::missing(id)),
        });
    };
    let mut room = Room::of(node, &page);
    let mut items = Vec::new();
    let count = rows.len();
    for (at, (sequence, row)) in (1..).zip(rows) {
        let view = node.history_view(row);
        room.take(&view);
        items.push(view);
        if room.is_over() && at < count {
            next = Some(sequence);
            break;
        }
    }
    Ok(Page {
        items,
        next: next.map(|sequence| sequence.to_string()),
        absent_shards: Vec::new(),
        looked_at: None,
    })
}

/// Dead letters of a tenant, of one shard after the other, oldest first.
pub(super) async fn dead_letters(
    node: &Node,
    tenant: &TenantId,
    filter: LetterFilter,
    page: PageRequest,
) -> Result<Page<DeadLetterView>, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut shard, mut after) = match page.after.as_deref() {
        None => (0, None),
        Some(text) => {
            let (shard, number) = read_letter_id(text).ok_or_else(forged)?;
            (shard, Some(number))
        }
    };
    let in_force = node.catalog.now();
    let mut room = Room::of(node, &page);
    let (mut items, mut next) = (Vec::new(), None);
    let shards = running.shards.all();
    while let Some(shown) = shards.iter().find(|shown| shown.index >= shard) {
        if shown.index > shard {
            (shard, after) = (shown.index, None);
        }
        let (reader, owned) = (shown.reader.clone(), tenant.clone());
        // Of a letter only the beginning of its message is shown.
        let bound = Bound {
            bytes: node.manifest.http.page_bytes_max,
            ..room.bound()
        };
        let (wanted, now) = (filter.clone(), node.clock.now());
        let (found, more) = node
            .read(move || {
                reader.dead_letters_of(&owned, after, bound, |letter| {
                    letters::is_wanted(&wanted, now, letter)
                })
            })
            .await?;
        let mut goes_on_behind = more;
        let count = found.len();
        for (at, (number, letter)) in (1..).zip(found) {
            let view = letters::view(shard, number, letter, &in_force.effects);
            room.take(&view);
            items.push(view);
            if room.is_over() && at < count {
                goes_on_behind = Some(number);
                break;
            }
        }
        if let Some(number) = goes_on_behind {
            next = Some(letter_id(shard, number));
            break;
        }
        (shard, after) = (shard + 1, None);
        if room.is_over() {
            // Nothing has the number 0.
            let more = shards.iter().any(|shown| shown.index >= shard);
            next = more.then(|| format!("{shard}-0"));
            break;
        }
    }
    Ok(Page {
        items,
        next,
        absent_shards: node.absent_shards(),
        looked_at: None,
    })
}

/// What a dead letter is called.
pub(super) fn letter_id(shard: u16, number: u64) -> String {
    format!("{shard}-{number}")
}

/// Shard and number of a dead letter, as its view names it.
pub(super) fn read_letter_id(text: &str) -> Option<(u16, u64)> {
    let (shard, number) = text.split_once('-')?;
    Some((shard.parse().ok()?, number.parse().ok()?))
}
