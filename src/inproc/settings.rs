//! What an operator may choose about the embedded broker.

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Bounds of the embedded broker. All of its memory and disk is covered by one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Largest size of the file that holds all streams, in bytes. Publications that do not fit are answered
    /// as unavailable. Changing it takes effect with the next start. Default 64 GiB.
    pub file_bytes_max: u64,
    /// Bytes that one stream may hold before publications are answered as unavailable. Default 16 GiB.
    pub stream_bytes_max: u64,
    /// Streams that may exist. Default 64.
    pub streams_max: u32,
    /// Publications handed over and not yet stored, in bytes; each counts for at least 1 KiB. Publishers
    /// wait when it is used up. Default 32 MiB.
    pub pending_bytes: usize,
    /// Publications stored by one commit. Default 1,024.
    pub batch_messages: usize,
    /// Bytes stored by one commit; a single publication may be larger. Default 4 MiB.
    pub batch_bytes: usize,
    /// Newest messages of each stream that are kept in memory, where readers and queues take them without
    /// touching the disk. Default 16,384.
    pub tail_messages: usize,
    /// Bytes of the newest messages of each stream that are kept in memory. Default 16 MiB.
    pub tail_bytes: usize,
    /// Time for which a message id is remembered. Default 2 minutes.
    pub duplicate_window: Millis,
    /// Message ids remembered for each stream. With more of them inside the window, the oldest are forgotten
    /// early. Default 262,144.
    pub duplicate_ids_max: usize,
    /// How long acknowledgements of queues may wait for a commit that takes them along. What a crash takes
    /// with it is delivered again. Default 200 ms.
    pub floor_interval: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            file_bytes_max: 64 << 30,
            stream_bytes_max: 16 << 30,
            streams_max: 64,
            pending_bytes: 32 << 20,
            batch_messages: 1_024,
            batch_bytes: 4 << 20,
            tail_messages: 16_384,
            tail_bytes: 16 << 20,
            duplicate_window: Millis::seconds(120),
            duplicate_ids_max: 262_144,
            floor_interval: Millis(200),
        }
    }
}
