//! Settings of the shards.

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Bounds and rhythm of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Inputs after which a commit takes no further delivery. Default 512.
    pub batch_inputs: usize,
    /// Payload bytes after which a commit takes no further delivery. Default 1 MiB.
    pub batch_bytes: usize,
    /// Mails that the mailbox holds. Default 4,096.
    pub mailbox: usize,
    /// Rows of the outbox above which no domain events are taken. Default 50,000.
    pub outbox_soft: u64,
    /// Deliveries of domain events that are set aside meanwhile. Default 1,024.
    pub held_deliveries: usize,
    /// Bytes of domain events that are set aside meanwhile. Default 8 MiB.
    pub held_bytes: usize,
    /// Longest time that deletions and watermarks, for which nobody waits, wait for an input to be committed
    /// with. Default 50 ms.
    pub idle_commit: Millis,
    /// How often rows without a result are looked for. Default 5 s.
    pub sweep_every: Millis,
    /// How long after it was handed over a row counts as overdue, and how long it is then left alone. Default
    /// 30 s.
    pub sweep_after: Millis,
    /// How long a due timer waits for the streams to be read up to its time; then it fires without.
    /// Default 10 minutes.
    pub timer_hold_max: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_inputs: 512,
            batch_bytes: 1 << 20,
            mailbox: 4_096,
            outbox_soft: 50_000,
            held_deliveries: 1_024,
            held_bytes: 8 << 20,
            idle_commit: Millis(50),
            sweep_every: Millis::seconds(5),
            sweep_after: Millis::seconds(30),
            timer_hold_max: Millis::seconds(600),
        }
    }
}
