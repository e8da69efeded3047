//! What an operator may set about reading.

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Settings of the intake. Each has a default that suits production.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Messages that a reader holds before they are decoded. Default 1,024.
    pub buffer: usize,
    /// Messages decoded before their inputs are mailed. Default 256.
    pub batch_messages: usize,
    /// Inputs up to which the yield of consecutive messages shares a delivery. Default 64.
    pub delivery_inputs: usize,
    /// Payload bytes up to which the yield of consecutive messages shares a delivery. Default 262,144.
    pub delivery_bytes: usize,
    /// Messages without inputs for a shard after which it is told how far the stream was read. Default 256.
    pub watermark_messages: u64,
    /// How often a stream is asked how far it reaches, and whether it has dropped what was not read. Default 1s.
    pub watermark_interval: Millis,
    /// Wait before an unanswered barrier is asked for again. Default 50ms.
    pub barrier_retry: Millis,
    /// A shard whose mailbox is full for this long gets a reader of its own. Default 250ms.
    pub detach_after: Millis,
    /// A shard this many messages behind the others at start gets a reader of its own. Default 10,000.
    pub detach_behind: u64,
    /// A shard this close behind the shared reader joins it again, in messages. Default 1,000.
    pub attach_within: u64,
    /// Inputs kept for a shard while it joins the shared reader; with more it stays apart. Default 4,096.
    pub attach_inputs: usize,
    /// A message that the broker says was sent and that does not come for this long is asked for again. Default 10s.
    pub overdue_after: Millis,
    /// First wait before a reader is opened again. Default 50ms.
    pub reopen_initial: Millis,
    /// Longest wait before a reader is opened again. A new connection ends it. Default 5s.
    pub reopen_max: Millis,
    /// Give an event without id the id `<stream>:<sequence>` instead of refusing it. Default false.
    pub event_id_from_sequence: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            buffer: 1_024,
            batch_messages: 256,
            delivery_inputs: 64,
            delivery_bytes: 256 * 1024,
            watermark_messages: 256,
            watermark_interval: Millis(1_000),
            barrier_retry: Millis(50),
            detach_after: Millis(250),
            detach_behind: 10_000,
            attach_within: 1_000,
            attach_inputs: 4_096,
            overdue_after: Millis(10_000),
            reopen_initial: Millis(50),
            reopen_max: Millis(5_000),
            event_id_from_sequence: false,
        }
    }
}
