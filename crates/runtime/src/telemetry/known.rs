//! What is done with the series: they are written for Prometheus, begin with 0 where their labels are known beforehand, and come
//! and go with sagas, shards and tenants.

use std::sync::PoisonError;

use prometheus::{Encoder as _, IntCounterVec, TextEncoder};

use super::metrics::Metrics;

/// Reasons of dead letters that are refused control messages: by the wrong subject, or without a principal who may.
pub const CONTROL_REFUSALS: [&str; 2] = ["control.subject", "control.principal"];

/// Why records of the audit are not stored: too many wait, the broker will never take one, the process has stopped, or too many
/// requests had no valid credentials.
pub const AUDIT_DROPS: [&str; 4] = ["queue", "refused", "stopped", "anonymous"];

/// Where rows of the outbox go.
const DESTINATIONS: [&str; 6] = ["effect", "gateway", "fact", "saga", "result", "cancellation"];

/// The tenants that have no label of their own.
const OTHER: &str = "other";

impl Metrics {
    /// All series in the Prometheus text format, those of the process included.
    #[must_use]
    pub fn render(&self) -> String {
        let mut families = self.registry.gather();
        families.extend(prometheus::gather());
        let mut out = Vec::new();
        TextEncoder::new()
            .encode(&families, &mut out)
            .expect("encoding into memory");
        String::from_utf8(out).expect("the text format is UTF-8")
    }

    /// Series with labels that are known beforehand are there from the start, so that an alert sees the first increase.
    pub(super) fn begin(&self) {
        self.build_info
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let known: [(&IntCounterVec, &[&str]); 6] = [
            (&self.audit_records_dropped, &AUDIT_DROPS),
            (&self.spans_dropped, &["queue", "export"]),
            (&self.controls_refused, &CONTROL_REFUSALS),
            (&self.definition_reloads, &["done", "refused"]),
            (
                &self.overdue_commands_checked,
                &[
                    "found",
                    "republished",
                    "resubmitted",
                    "timed_out",
                    "waiting",
                    "failed",
                ],
            ),
            (&self.jobs_ended, &["completed", "stopped", "failed"]),
        ];
        for (counter, values) in known {
            for value in values {
                counter.with_label_values(&[value]);
            }
        }
        for destination in DESTINATIONS {
            for outcome in ["stored", "already_there", "refused", "unsendable"] {
                self.messages_relayed.with_label_values(&[destination, outcome]);
            }
        }
    }

    /// A saga is active: its counters begin.
    pub fn saga_activated(&self, saga: &str) {
        self.instances_started.with_label_values(&[saga]);
        self.finally_effects_failed.with_label_values(&[saga]);
        for phase in ["completed", "failed", "cancelled", "compensation_failed"] {
            self.instances_ended.with_label_values(&[saga, phase]);
        }
        for what in ["step", "compensation"] {
            self.steps_stuck.with_label_values(&[saga, what]);
        }
    }

    /// The shard is open in this process.
    pub fn shard_opened(&self, shard: u16) {
        self.shards_open.with_label_values(&[&shard.to_string()]).set(1);
    }

    /// The shard is closed: drops its gauges, and the reason why it was `halted`.
    pub fn shard_closed(&self, shard: u16, halted: Option<&str>) {
        let shard = shard.to_string();
        self.shards_open.with_label_values(&[&shard]).set(0);
        for gauges in [
            &self.outbox_rows,
            &self.instances_blocked,
            &self.shards_catching_up,
            &self.timers_overdue,
            &self.dead_letters_present,
            &self.storage_bytes,
            &self.storage_full,
            &self.outbox_oldest_seconds,
            &self.outbox_refused,
        ] {
            // An error means that the gauge was never set.
            drop(gauges.remove_label_values(&[&shard]));
        }
        if let Some(reason) = halted {
            drop(self.shards_halted.remove_label_values(&[&shard, reason]));
        }
    }

    /// Counts inputs of a tenant. At most `named_max` tenants have a label of their own, the first that come: a series for each tenant of
    /// thousands would cost more than it tells.
    pub fn tenant_inputs(&self, tenant: &str, count: u64, named_max: usize) {
        let mut named = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !named.contains(tenant) && named.len() < named_max {
            named.insert(tenant.to_owned());
        }
        let label = if named.contains(tenant) { tenant } else { OTHER };
        self.inputs_of_tenants.with_label_values(&[label]).inc_by(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_bound_are_counted_together() {
        let metrics = Metrics::new();
        for (tenant, count) in [
            ("acme", 1),
            ("globex", 2),
            ("initech", 3),
            ("acme", 4),
            ("umbrella", 5),
        ] {
            metrics.tenant_inputs(tenant, count, 2);
        }
        let text = metrics.render();
        for line in [
            "saga_runner_tenant_inputs_total{tenant=\"acme\"} 5",
            "saga_runner_tenant_inputs_total{tenant=\"globex\"} 2",
            "saga_runner_tenant_inputs_total{tenant=\"other\"} 8",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
