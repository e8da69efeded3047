//! Tells what a batch has done: adds what it has counted to the metrics, and audits what it has refused.

use saga_runner_partition::machine::counts::Counts;

use super::mailbox::{Arrival, Delivery, Unreadable};
use crate::kernel::ids::TimeMs;
use crate::kernel::patch::IgnoreReason;
use crate::telemetry::{CONTROL_REFUSALS, Metrics, TenantSeries};

/// Refused messages of one commit that have a line of their own.
const AUDITED_MAX: usize = 8;

/// Says in the log which control messages of a commit were refused since their sender may not ask for what they ask for. All of them
/// are dead letters and counted; whoever publishes them without end does not fill the log.
pub(super) fn audit<'a>(shard: u16, deliveries: impl Iterator<Item = &'a Delivery>) {
    let all = deliveries.flat_map(|delivery| &delivery.inputs);
    let refused = all.filter_map(|arrival| match arrival {
        Arrival::Unreadable(found) if CONTROL_REFUSALS.contains(&found.reason) => Some(found),
        Arrival::Unreadable(_) | Arrival::Input(_) | Arrival::Applied(_) => None,
    });
    let mut untold: u64 = 0;
    for (at, found) in refused.enumerate() {
        if at >= AUDITED_MAX {
            untold += 1;
            continue;
        }
        let Unreadable {
            tenant,
            subject,
            reason,
            message: detail,
            sequence,
            ..
        } = found;
        tracing::warn!(
            target: "audit", shard, tenant = tenant.as_str(), subject, sequence, reason, detail,
            "a control message was refused"
        );
    }
    if untold > 0 {
        tracing::warn!(target: "audit", shard, untold, "further control messages were refused");
    }
}

/// Series of inputs are there from the start, so that the first one of each kind is seen.
pub(super) fn begin(metrics: &Metrics) {
    let ignored = IgnoreReason::ALL.map(IgnoreReason::as_str);
    for kind in ["event", "result", "timer", "control"] {
        let outcomes = ["applied", "deferred", "waiting", "dead"];
        for outcome in outcomes.iter().chain(&ignored) {
            metrics.inputs.with_label_values(&[kind, outcome]);
        }
    }
}

/// Adds what was done for each tenant.
fn count_tenants(counts: &Counts, series: &TenantSeries) {
    for (tenant, done) in &counts.tenants {
        let tenant = tenant.as_str();
        // What nobody can read takes no tenant's place: it may name as many as it likes.
        if done.inputs > 0 {
            series.name(tenant);
        }
        let label = series.label(tenant);
        for (counter, count) in [
            (&series.inputs, done.inputs),
            (&series.instances_started, done.started),
            (&series.dead_letters, done.dead),
        ] {
            counter.with_label_values(&[label]).inc_by(count);
        }
        for (phase, count) in &done.ended {
            series
                .instances_ended
                .with_label_values(&[label, *phase])
                .inc_by(*count);
        }
    }
}

pub(super) fn count(counts: &Counts, metrics: &Metrics, now: TimeMs) {
    count_tenants(counts, &metrics.tenants);
    for ((kind, outcome), count) in &counts.inputs {
        metrics
            .inputs
            .with_label_values(&[*kind, *outcome])
            .inc_by(*count);
    }
    for (saga, count) in &counts.started {
        metrics
            .instances_started
            .with_label_values(&[saga.as_str()])
            .inc_by(*count);
    }
    for ((saga, phase), count) in &counts.ended {
        metrics
            .instances_ended
            .with_label_values(&[saga.as_str(), *phase])
            .inc_by(*count);
    }
    for (saga, count) in &counts.finally_failed {
        metrics
            .finally_effects_failed
            .with_label_values(&[saga.as_str()])
            .inc_by(*count);
    }
    for ((saga, what), count) in &counts.asked {
        metrics
            .steps_stuck
            .with_label_values(&[saga.as_str(), *what])
            .inc_by(*count);
    }
    for (reason, count) in &counts.dead {
        metrics
            .dead_letters
            .with_label_values(&[reason.as_str()])
            .inc_by(*count);
        if CONTROL_REFUSALS.contains(&reason.as_str()) {
            metrics
                .controls_refused
                .with_label_values(&[reason.as_str()])
                .inc_by(*count);
        }
    }
    for ((saga, outcome), count) in &counts.runs {
        metrics
            .schedule_runs
            .with_label_values(&[saga.as_str(), *outcome])
            .inc_by(*count);
    }
    for late in &counts.runs_late {
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of lateness")]
        metrics.schedule_lateness_seconds.observe(*late as f64 / 1_000.0);
    }
    metrics.dead_letters_evicted.inc_by(counts.forgotten);
    metrics.timers_fired.inc_by(counts.fired.len() as u64);
    metrics.timers_fired_late_source.inc_by(counts.fired_late_source);
    for due in &counts.fired {
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of lateness")]
        let late = now.0.saturating_sub(due.0).max(0) as f64 / 1_000.0;
        metrics.timer_lateness_seconds.observe(late);
    }
}
