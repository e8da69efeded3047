//! Settings of the relay.

use serde::{Deserialize, Serialize};

use crate::kernel::breaker::BreakerPolicy;
use crate::kernel::duration::Millis;

/// How fast work is handed over, and how long lost work goes unnoticed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Publications of one shard that wait for the broker's answer. Default 1,024.
    pub publish_in_flight: usize,
    /// Commands of one shard that the worker of the same process has in progress where `dispatch` is `local`; more go by
    /// the broker. Default 1,024.
    pub local_in_flight: usize,
    /// Commands of one tenant and effect that stand in the broker without a result, per shard. Default 1,000.
    pub per_tenant_in_flight: usize,
    /// Rows of one destination that a shard's relay keeps in memory; the rest stays in the outbox. Default 2,000.
    pub rows_in_memory: usize,
    /// Rows that are read from the outbox at a time. Default 1,000.
    pub refill_rows: usize,
    /// Submissions of one tenant to one type of aggregate that wait for the gateway's answer, all shards together.
    /// Default 64.
    pub gateway_in_flight: usize,
    /// Those of all tenants and types together, not counting the one that each of them always may have. Default 1,024.
    pub gateway_in_flight_all: usize,
    /// First delay before something is handed over again. Default 50ms.
    pub retry_initial: Millis,
    /// Longest delay before something is handed over again, jitter not counted. Default 15s.
    pub retry_max: Millis,
    /// When the gateway is left alone.
    pub breaker: BreakerPolicy,
    /// Rows older than this are looked up among the results before they are sent. Default 60s.
    pub recheck_after: Millis,
    /// How long after its deadline a command without result is given up. Default 30s.
    pub deadline_grace: Millis,
    /// Overdue rows that are checked at the same time. Default 16.
    pub sweep_in_flight: usize,
    /// How often the streams are trimmed. Default 1m.
    pub trim_interval: Millis,
    /// Messages of the runner's own streams that are younger than this are never trimmed; at least `recheck_after`. Default
    /// 1h.
    pub gate_horizon: Millis,
    /// With the embedded broker: how long domain events stay that all shards have read. Default 1d.
    pub events_horizon: Millis,
    /// With the embedded broker: bytes of domain events above which those that all shards have read go sooner. Default
    /// 4 GiB.
    pub events_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            publish_in_flight: 1_024,
            local_in_flight: 1_024,
            per_tenant_in_flight: 1_000,
            rows_in_memory: 2_000,
            refill_rows: 1_000,
            gateway_in_flight: 64,
            gateway_in_flight_all: 1_024,
            retry_initial: Millis(50),
            retry_max: Millis::seconds(15),
            breaker: BreakerPolicy::default(),
            recheck_after: Millis::seconds(60),
            deadline_grace: Millis::seconds(30),
            sweep_in_flight: 16,
            trim_interval: Millis::seconds(60),
            gate_horizon: Millis::seconds(3_600),
            events_horizon: Millis::seconds(24 * 3_600),
            events_bytes: 4 << 30,
        }
    }
}

impl Settings {
    /// Delays before the second, third, ... attempt, without end.
    ///
    /// With jitter a delay is up to twice its nominal length, the cap included. The seed makes the delays of
    /// one piece of work the same in every run and those of different work different.
    pub(super) fn delays(&self, seed: u64) -> impl Iterator<Item = std::time::Duration> + Send + use<> {
        use backon::BackoffBuilder as _;
        let initial = self.retry_initial.duration();
        let max = self.retry_max.duration();
        backon::ExponentialBuilder::default()
            .with_min_delay(initial)
            .with_max_delay(max)
            .with_factor(2.0)
            .with_jitter()
            .with_jitter_seed(seed)
            .without_max_times()
            .build()
    }
}
