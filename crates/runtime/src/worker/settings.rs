//! Settings of effect workers.

use serde::{Deserialize, Serialize};

use super::consumers::Consumers;
use super::egress::Egress;
use crate::kernel::duration::Millis;

/// How commands are taken and how long answers are remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// A command that no worker reported progress on for this long goes to another one. Default 30s.
    pub ack_wait: Millis,
    /// Calls that the process makes at the same time, all effects together; half of them belong to single effects
    /// in equal parts. Default 1,024.
    pub concurrency: usize,
    /// How long a worker leaves the next attempt to others after one of its own has failed. Default 100ms.
    pub yield_retry: Millis,
    /// Commands of one consumer that all workers together may hold. Default 4,096.
    pub unacknowledged_max: usize,
    /// Recently answered commands that are remembered in memory. Default 65,536.
    pub answered_max: u64,
    /// Recent cancellations of commands that are kept in memory. Default 65,536.
    pub cancellations_max: u64,
    /// How long the first commands wait until all cancellations are read; after that each is looked up by
    /// itself before its call, until all is read. Default 2s.
    pub cancellations_wait: Millis,
    /// Commands older than this are looked up among the results before they are executed. Default 60s.
    pub recheck_after: Millis,
    /// Longest pause between two attempts to record a result that the broker refuses in every form. Default 30s.
    pub result_retry_max: Millis,
    /// Largest body of an upstream's answer, in bytes. Default 1,048,576.
    pub response_bytes: usize,
    /// How long a connection of HTTP is kept without a call whose server does not announce how long it keeps it (`Keep-Alive:
    /// timeout=`). Below what servers keep by default: those that close first lose calls. Default 2s.
    pub http_idle: Millis,
    /// Most expression steps of one call. Default 20,000.
    pub expression_steps: u64,
    /// Deepest nesting of JSON, in levels. Default 64.
    pub json_depth: usize,
    /// Most connections of one effect to its database; its `limits.concurrency` may ask for fewer. Default 16.
    pub sql_connections: usize,
    /// How often the files of secrets, and those of NATS KV, are read again, from 1s. Default 10s.
    pub secrets_every: Millis,
    /// Which consumers bring the commands.
    pub consumers: Consumers,
    /// Where calls may go.
    pub egress: Egress,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ack_wait: Millis::seconds(30),
            concurrency: 1_024,
            yield_retry: Millis(100),
            unacknowledged_max: 4_096,
            answered_max: 65_536,
            cancellations_max: 65_536,
            cancellations_wait: Millis::seconds(2),
            recheck_after: Millis::seconds(60),
            result_retry_max: Millis::seconds(30),
            response_bytes: 1024 * 1024,
            http_idle: Millis::seconds(2),
            expression_steps: 20_000,
            json_depth: 64,
            sql_connections: 16,
            secrets_every: Millis::seconds(10),
            consumers: Consumers::default(),
            egress: Egress::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Of the common servers gunicorn closes first, after 2 s; Node, uvicorn and Apache after 5 s.
    #[test]
    fn idle_connections_are_given_up_before_common_servers_close_them() {
        assert!(Settings::default().http_idle.duration() <= Duration::from_secs(2));
    }
}
