//! Settings of the shards.

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;
use crate::storage::HeldRow;

/// Bounds and rhythm of a shard's work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Mail that may wait for the shard. Default 4,096.
    pub mailbox: usize,
    /// Inputs after which a commit takes no further delivery; a delivery is never split. Default 512.
    pub batch_inputs: usize,
    /// Payload bytes after which a commit takes no further delivery. Default 1 MiB.
    pub batch_bytes: usize,
    /// Rows of the outbox above which domain events are held back, and due timers with them. Those that wait for another saga
    /// to end do not count: it may wait for events itself. Default 50,000.
    pub outbox_soft: u64,
    /// Deliveries of domain events that are set aside meanwhile, and of each stream while the shard catches up. Default
    /// 1,024.
    pub held_deliveries: usize,
    /// Payload bytes of domain events that are set aside meanwhile, and of each stream while the shard catches up.
    /// Default 8 MiB.
    pub held_bytes: usize,
    /// Times that an input is begun before it counts as what kills the process; an unknown outcome in the place of a
    /// result is begun as often again. Default 3.
    pub attempts: u32,
    /// Longest time that watermarks and deletions, for which nobody waits, are kept for a commit with inputs.
    /// Default 100 ms.
    pub idle_commit: Millis,
    /// How often the shard looks for work without a result. Default 5 s.
    pub sweep_every: Millis,
    /// How long after it was handed over such work counts as overdue, and how long it is then left alone.
    /// Default 30 s.
    pub sweep_after: Millis,
    /// After a start or a break inputs are taken in stored order; how long a stream that cannot be read is waited for
    /// then, before it is left out. 0: inputs are always taken as they come. Default 10 s.
    pub catch_up_wait: Millis,
    /// How long a due timer waits for streams that cannot be read. Default 10 minutes.
    pub timer_hold_max: Millis,
    /// Pause before a batch is tried again that found no room on the disk. Default 1 s.
    pub full_pause: Millis,
    /// Tenants that metrics name, those of the manifest and then the first that send something; all others together are `other`.
    /// Default 50.
    pub metric_tenants: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mailbox: 4_096,
            batch_inputs: 512,
            batch_bytes: 1 << 20,
            outbox_soft: 50_000,
            held_deliveries: 1_024,
            held_bytes: 8 << 20,
            attempts: 3,
            idle_commit: Millis(100),
            sweep_every: Millis::seconds(5),
            sweep_after: Millis::seconds(30),
            catch_up_wait: Millis::seconds(10),
            timer_hold_max: Millis::seconds(600),
            full_pause: Millis::seconds(1),
            metric_tenants: 50,
        }
    }
}

impl Settings {
    /// Rows of the outbox above which domain events are held back. While nothing leaves it, what waited for room there would
    /// wait for ever.
    #[must_use]
    pub fn outbox_soft(&self, held: Option<HeldRow>) -> u64 {
        match held {
            Some(held) if held.holds() => u64::MAX,
            Some(_) | None => self.outbox_soft,
        }
    }
}
