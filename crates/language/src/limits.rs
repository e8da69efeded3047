//! One table of limits, used everywhere. Configuration may lower them, never raise them.

use serde::{Deserialize, Serialize};

use super::alias::WAIT_MS_MAX;

/// Most aliases of one instance, with any configuration.
pub const ALIASES_MAX: usize = 16;

/// Bounds on what one message, record or transition may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest encoded instance record, in bytes. Default 262,144.
    pub record_bytes: usize,
    /// Largest message payload, in bytes. Default 1,048,576.
    pub payload_bytes: usize,
    /// Deepest nesting of JSON, in levels. Default 64.
    pub json_depth: usize,
    /// Most work items of one transition. Default 128.
    pub work_items: usize,
    /// Most expression steps of one transition. Default 20,000.
    pub expression_steps: u64,
    /// Most inputs that wait for one instance. Default 1,000.
    pub inbox_inputs: usize,
    /// Most bytes of inputs that wait for one instance. Default 8,388,608.
    pub inbox_bytes: usize,
    /// Most events in one shard that wait for an instance to begin. Default 10,000.
    pub early_inputs: usize,
    /// Most bytes of them. Default 67,108,864.
    pub early_bytes: usize,
    /// Longest timer, in milliseconds. Default five years.
    pub timer_ms: i64,
    /// Most hops of a chain of messages that cause each other. Default 32.
    pub hops: u32,
    /// Most aliases of one instance. Default 16.
    pub aliases: usize,
    /// Most instances that have one alias. Default 100.
    pub alias_owners: usize,
    /// Longest time that an event waits for its alias where its saga does not say, in milliseconds. Default one
    /// minute.
    pub alias_wait_ms: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_bytes: 256 * 1024,
            payload_bytes: 1024 * 1024,
            json_depth: 64,
            work_items: 128,
            expression_steps: 20_000,
            inbox_inputs: 1_000,
            inbox_bytes: 8 * 1024 * 1024,
            early_inputs: 10_000,
            early_bytes: 64 * 1024 * 1024,
            timer_ms: 5 * 365 * 24 * 3_600_000,
            hops: 32,
            aliases: ALIASES_MAX,
            alias_owners: 100,
            alias_wait_ms: WAIT_MS_MAX,
        }
    }
}
