//! Reads records from their stream, the newest first.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt as _, stream};

use super::super::cursors::forged;
use super::super::node::Node;
use super::super::pages::Room;
use crate::kernel::ids::TimeMs;
use crate::ports::broker::{BrokerError, StoredMessage};
use crate::ports::control::{AuditFilter, AuditRecord, ControlError, Page, PageRequest};

/// Records that one page looks at.
const LOOKED_AT_MAX: usize = 5_000;
/// Records that are read at a time.
const READ_AT_ONCE: usize = 64;
/// How long one page looks for records.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long the broker may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long whoever reads waits for records of this process that are not stored yet.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// How far the clock of a process may be ahead of the broker's, in milliseconds: so far behind `since` is looked on.
const CLOCKS_DIFFER_MS: i64 = 5 * 60 * 1_000;

/// A page of records below the sequence that the cursor names.
pub(super) async fn page(
    node: &Node,
    filter: AuditFilter,
    page: PageRequest,
) -> Result<Page<AuditRecord>, ControlError> {
    let below = page.after.as_deref().map(str::parse::<u64>).transpose();
    let below = below.map_err(|_| forged())?.unwrap_or(u64::MAX);
    let broker = node
        .broker()
        .ok_or_else(|| ControlError::Unavailable(node.waiting_for()))?;
    node.trail.settle(SETTLE_MAX).await;
    let name = &node.manifest.streams.audit.name;
    let state = in_time(broker.stream_state(name)).await?;
    let to = below.min(state.last_sequence + 1);
    let asked = (state.first_sequence..to)
        .rev()
        .take(LOOKED_AT_MAX.saturating_sub(page.looked_at));
    let mut found = stream::iter(asked)
        .map(|sequence| {
            let broker = &broker;
            async move { (sequence, in_time(broker.message_at(name, sequence)).await) }
        })
        .buffered(READ_AT_ONCE);
    let give_up_at = node.clock.monotonic() + LOOK_MAX;
    let (mut room, mut items, mut ids) = (Room::of(node, &page), Vec::new(), BTreeSet::new());
    let (mut looked_at, mut lowest) = (page.looked_at, to);
    while !room.is_over()
        && node.clock.monotonic() < give_up_at
        && let Some((sequence, message)) = found.next().await
    {
        (looked_at, lowest) = (looked_at + 1, sequence);
        // It may have been deleted meanwhile.
        let Some(message) = message? else { continue };
        if is_before(&message, filter.since) {
            lowest = state.first_sequence;
            break;
        }
        let Ok(record) = serde_json::from_slice::<AuditRecord>(&message.payload) else {
            // Only the runners write here: another version has.
            continue;
        };
        if filter.wants(&record) && ids.insert(record.id.clone()) {
            room.take(&record);
            items.push(record);
        }
    }
    Ok(Page {
        items,
        next: (lowest > state.first_sequence).then(|| lowest.to_string()),
        absent_shards: Vec::new(),
        looked_at: Some(looked_at),
    })
}

/// Whether a record was stored before the time from which they are asked for: those behind it came before, too.
fn is_before(message: &StoredMessage, since: Option<TimeMs>) -> bool {
    since.is_some_and(|since| message.time.plus_ms(CLOCKS_DIFFER_MS) < since)
}

async fn in_time<T>(asking: impl Future<Output = Result<T, BrokerError>>) -> Result<T, ControlError> {
    let unavailable = |why: String| ControlError::Unavailable(format!("the audit cannot be read: {why}"));
    match tokio::time::timeout(ANSWER_MAX, asking).await {
        Ok(answer) => answer.map_err(|error| unavailable(error.to_string())),
        Err(_) => Err(unavailable("the broker does not answer".to_owned())),
    }
}
