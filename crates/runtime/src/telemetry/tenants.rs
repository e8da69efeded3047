//! The series by tenant. They are few, and at most so many tenants have some: a series for each tenant of thousands would cost more
//! than it tells.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::{IntCounterVec, Registry};

use super::known::PHASES;
use super::register::counters;

/// The label of all tenants that have no series of their own.
const OTHER: &str = "other";

/// How a call of an upstream ends for its tenant.
const OUTCOMES: [&str; 2] = ["succeeded", "failed"];

/// What tenants do, by `tenant`: the name of one that has series of its own, or `other`.
#[derive(Debug)]
pub struct TenantSeries {
    pub inputs: IntCounterVec,
    pub instances_started: IntCounterVec,
    /// By `phase` as well.
    pub instances_ended: IntCounterVec,
    pub dead_letters: IntCounterVec,
    /// By `outcome` (succeeded, failed) as well.
    effect_calls: IntCounterVec,
    named: Mutex<Named>,
}

/// The tenants that have series of their own.
#[derive(Debug, Default)]
struct Named {
    max: usize,
    tenants: BTreeSet<String>,
}

impl TenantSeries {
    pub(super) fn new(r: &Registry) -> Self {
        let series = Self {
            inputs: counters(
                r,
                "tenant_inputs_total",
                "Inputs, by tenant; those beyond shard.metric_tenants are together other.",
                &["tenant"],
            ),
            instances_started: counters(
                r,
                "tenant_instances_started_total",
                "Instances started, by tenant.",
                &["tenant"],
            ),
            instances_ended: counters(
                r,
                "tenant_instances_ended_total",
                "Instances that ended, by tenant and phase.",
                &["tenant", "phase"],
            ),
            dead_letters: counters(
                r,
                "tenant_dead_letters_total",
                "Dead letters written, by tenant.",
                &["tenant"],
            ),
            effect_calls: counters(
                r,
                "tenant_effect_calls_total",
                "Calls of upstreams, by tenant and outcome.",
                &["tenant", "outcome"],
            ),
            named: Mutex::default(),
        };
        series.begin(OTHER);
        series
    }

    /// Lets at most so many tenants have series of their own, the first that are [named](Self::name). Before, none has.
    pub fn name_at_most(&self, max: usize) {
        self.lock().max = max;
    }

    /// Gives the tenant series of its own, if there is room for one more. They begin with 0.
    pub fn name(&self, tenant: &str) {
        let mut named = self.lock();
        if named.tenants.len() >= named.max || named.tenants.contains(tenant) {
            return;
        }
        named.tenants.insert(tenant.to_owned());
        drop(named);
        self.begin(tenant);
    }

    /// The label of the tenant.
    pub fn label<'t>(&self, tenant: &'t str) -> &'t str {
        if self.lock().tenants.contains(tenant) {
            tenant
        } else {
            OTHER
        }
    }

    /// Counts a call of an upstream for the tenant.
    pub fn called(&self, tenant: &str, has_succeeded: bool) {
        self.name(tenant);
        let outcome = OUTCOMES[usize::from(!has_succeeded)];
        self.effect_calls
            .with_label_values(&[self.label(tenant), outcome])
            .inc();
    }

    fn begin(&self, label: &str) {
        for series in [&self.inputs, &self.instances_started, &self.dead_letters] {
            series.with_label_values(&[label]);
        }
        for phase in PHASES {
            self.instances_ended.with_label_values(&[label, phase]);
        }
        for outcome in OUTCOMES {
            self.effect_calls.with_label_values(&[label, outcome]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    fn has(metrics: &Metrics, series: &str) {
        let (text, line) = (metrics.render(), format!("saga_runner_tenant_{series}"));
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }

    #[test]
    fn tenants_beyond_the_bound_are_counted_together() {
        let metrics = Metrics::new();
        let tenants = &metrics.tenants;
        tenants.name_at_most(2);
        for (tenant, count) in [
            ("acme", 1),
            ("globex", 2),
            ("initech", 3),
            ("acme", 4),
            ("umbrella", 5),
        ] {
            tenants.name(tenant);
            tenants
                .inputs
                .with_label_values(&[tenants.label(tenant)])
                .inc_by(count);
        }
        tenants.called("acme", true);
        tenants.called("initech", false);
        for line in [
            "inputs_total{tenant=\"acme\"} 5",
            "inputs_total{tenant=\"globex\"} 2",
            "inputs_total{tenant=\"other\"} 8",
            "effect_calls_total{outcome=\"succeeded\",tenant=\"acme\"} 1",
            "effect_calls_total{outcome=\"failed\",tenant=\"other\"} 1",
        ] {
            has(&metrics, line);
        }
    }

    #[test]
    fn all_series_of_a_tenant_begin_with_0_when_it_gets_its_name() {
        let metrics = Metrics::new();
        metrics.tenants.name("acme");
        assert_eq!(metrics.tenants.label("acme"), OTHER, "none has a name yet");
        metrics.tenants.name_at_most(1);
        metrics.tenants.name("acme");
        for tenant in ["acme", OTHER] {
            for series in ["inputs_total", "instances_started_total", "dead_letters_total"] {
                has(&metrics, &format!("{series}{{tenant=\"{tenant}\"}} 0"));
            }
            for phase in PHASES {
                let labels = format!("{{phase=\"{phase}\",tenant=\"{tenant}\"}}");
                has(&metrics, &format!("instances_ended_total{labels} 0"));
            }
            for outcome in OUTCOMES {
                let labels = format!("{{outcome=\"{outcome}\",tenant=\"{tenant}\"}}");
                has(&metrics, &format!("effect_calls_total{labels} 0"));
            }
        }
    }
}
