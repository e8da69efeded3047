//! Every series the runner exports. Labels come from closed sets; no ids.

pub use prometheus::{Gauge, Histogram, IntCounter, IntGauge};
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use super::Spans;
use super::answers::AnswerSeries;
use super::archive::ArchiveSeries;
use super::audit::AuditSeries;
use super::exemplars::ExemplarStore;
use super::jobs::JobSeries;
use super::register::{
    COUNTS, PREFIX, SECONDS, counter, counters, fraction, gauge, gauges, histogram, histograms,
};
use super::storage::StorageSeries;
use super::tenants::TenantSeries;

/// Handles of all series, shared by reference.
#[derive(Debug)]
pub struct Metrics {
    pub(super) registry: Registry,
    /// What is told to whoever collects traces.
    pub spans: Spans,
    /// The newest traces of the buckets of histograms.
    pub(super) exemplars: ExemplarStore,
    /// 1, with the `version` of the program.
    pub build_info: IntGaugeVec,
    /// Inputs by `kind` (event, result, timer, control) and `outcome` (applied, deferred, waiting, dead, or the
    /// reason why it was ignored).
    pub inputs: IntCounterVec,
    pub tenants: TenantSeries,
    /// Messages read, by `stream`.
    pub messages_read: IntCounterVec,
    /// Events that no saga reacts to.
    pub events_unclaimed: IntCounter,
    /// Readers that were dropped and rebuilt, by `stream` and `reason`.
    pub readers_rebuilt: IntCounterVec,
    /// Messages between a shard's position and the end of the stream, by `stream`.
    pub stream_lag: IntGaugeVec,
    /// Messages whose body or header names another tenant than their subject: an attack or a
    /// misconfiguration.
    pub tenant_mismatches: IntCounter,
    /// Control messages that asked for what their sender may not, by `reason` ([`super::CONTROL_REFUSALS`]).
    pub controls_refused: IntCounterVec,
    /// Shards fed by a private reader.
    pub shards_detached: IntGauge,
    /// 1 for each shard that is open in this process, 0 for each that is not, by `shard`.
    pub shards_open: IntGaugeVec,
    /// How often a shard that is open in this process was claimed, by `shard`.
    pub shard_epoch: IntGaugeVec,
    /// Instances that reached an end, by `saga` and `phase`.
    pub instances_ended: IntCounterVec,
    /// Effects of `finally` that failed for good, by `saga`.
    pub finally_effects_failed: IntCounterVec,
    /// Steps and compensations whose outcome an operator has to decide, by `saga` and `what` (step, compensation).
    pub steps_stuck: IntCounterVec,
    /// Instances started, by `saga`.
    pub instances_started: IntCounterVec,
    /// One commit of a shard.
    pub commit_seconds: Histogram,
    /// Inputs in one commit.
    pub commit_inputs: Histogram,
    /// Rows in the outbox, by `shard`.
    pub outbox_rows: IntGaugeVec,
    /// Instances blocked by a dead letter or by a missing definition, by `shard`.
    pub instances_blocked: IntGaugeVec,
    /// 1 for each shard that processes the backlog of its streams in stored order, by `shard`.
    pub shards_catching_up: IntGaugeVec,
    /// Age of the oldest outbox row that was not yet sent, by `shard`.
    pub outbox_oldest_seconds: IntGaugeVec,
    /// Rows that the broker rejects and that stay in the outbox, by `shard`.
    pub outbox_refused: IntGaugeVec,
    /// Outbox rows sent, by `destination` (effect, gateway, fact, saga, result, cancellation) and `outcome`.
    pub messages_relayed: IntCounterVec,
    /// Timers that fired.
    pub timers_fired: IntCounter,
    /// Timers that fired although a source stream could not be read up to their time.
    pub timers_fired_late_source: IntCounter,
    /// Timers that are due and have not fired, by `shard`.
    pub timers_overdue: IntGaugeVec,
    /// Lateness of the earliest timer that is due and has not fired, 0 without one, by `shard`.
    pub timers_overdue_seconds: IntGaugeVec,
    /// How far the machine's clock is ahead of the broker's; negative if it is behind.
    pub clock_ahead_seconds: Gauge,
    /// Lateness of a timer that fired.
    pub timer_lateness_seconds: Histogram,
    /// Planned runs of scheduled sagas, by `saga` and `outcome` (started, queued, or `skipped_` with the reason).
    pub schedule_runs: IntCounterVec,
    /// Lateness of a planned time when it was due.
    pub schedule_lateness_seconds: Histogram,
    /// Dead letters written, by `reason`.
    pub dead_letters: IntCounterVec,
    /// Dead letters that nobody has decided about, by `shard`.
    pub dead_letters_present: IntGaugeVec,
    /// Dead letters deleted because the shard had reached `storage.keep_dead_letters`.
    pub dead_letters_evicted: IntCounter,
    /// Results by `effect` and `result` (succeeded, failed, timed_out, known).
    pub effect_results: IntCounterVec,
    /// Calls of upstreams by `effect` and `class`.
    pub effect_calls: IntCounterVec,
    /// One call of an upstream, by `effect`.
    pub effect_call_seconds: HistogramVec,
    /// Commands that this worker has prefetched or is executing, by `effect`.
    pub effect_commands_in_progress: IntGaugeVec,
    /// Commands that a worker returned to the queue, by `effect` and `reason`.
    pub effect_commands_returned: IntCounterVec,
    /// Deliveries of commands to a worker that were not their first, by `effect`.
    pub effect_commands_redelivered: IntCounterVec,
    /// Commands not yet delivered to a worker, by `consumer`.
    pub consumer_pending: IntGaugeVec,
    /// Commands delivered to a worker and not yet acknowledged, by `consumer`.
    pub consumer_unacknowledged: IntGaugeVec,
    /// Commands whose attempts were used up, by `effect` and `class` of the last failure.
    pub effect_commands_exhausted: IntCounterVec,
    /// Commands that workers did not execute because they were cancelled, by `effect`.
    pub effect_commands_cancelled: IntCounterVec,
    /// Results that workers keep in memory because the broker rejects them in every form, by `effect`.
    pub effect_results_refused: IntGaugeVec,
    /// Tenants whose circuit breaker is in this state, by `upstream` and `state` (closed, half_open, open).
    pub breakers: IntGaugeVec,
    /// Times that a breaker opened, by `upstream`.
    pub breakers_opened: IntCounterVec,
    /// 1 for the state of the gateway breaker that holds back most, else 0, by `state`.
    pub gateway_breaker: IntGaugeVec,
    /// Overdue commands that the sweeper checked, by `action`.
    pub overdue_commands_checked: IntCounterVec,
    /// Revision of the active sagas.
    pub definitions_revision: IntGauge,
    /// 1 for each active saga, by `saga` and `hash`.
    pub definitions_active: IntGaugeVec,
    /// 1 while the files are invalid and the previous definitions stay active.
    pub definitions_refused: IntGauge,
    /// Reloads of the definitions, by `outcome` (done, refused).
    pub definition_reloads: IntCounterVec,
    /// Tasks and threads that panicked, by `task`.
    pub task_panics: IntCounterVec,
    pub storage: StorageSeries,
    /// Spans that were sent.
    pub spans_exported: IntCounter,
    /// Spans that were not sent, by `reason` (queue, export).
    pub spans_dropped: IntCounterVec,
    pub jobs: JobSeries,
    pub answers: AnswerSeries,
    pub audit: AuditSeries,
    pub archive: ArchiveSeries,
    /// 1 for each halted shard, by `shard` and `reason`.
    pub shards_halted: IntGaugeVec,
    /// 1 for each shard that is fenced and sends nothing, by `shard` and `reason` (unrenewed, taken, held).
    pub shards_fenced: IntGaugeVec,
}

impl Metrics {
    /// Registers every series under [`PREFIX`].
    #[must_use]
    #[allow(clippy::too_many_lines, reason = "a list")]
    pub fn new() -> Self {
        let registry =
            Registry::new_custom(Some(PREFIX.to_owned()), None).expect("the prefix is a legal metric name");
        let r = &registry;
        let metrics = Self {
            build_info: gauges(r, "build_info", "1, with the version.", &["version"]),
            inputs: counters(
                r,
                "inputs_total",
                "Inputs, by kind and outcome.",
                &["kind", "outcome"],
            ),
            tenants: TenantSeries::new(r),
            messages_read: counters(r, "messages_read_total", "Messages read, by stream.", &["stream"]),
            events_unclaimed: counter(
                r,
                "events_unclaimed_total",
                "Events of a type that no saga reacts to.",
            ),
            readers_rebuilt: counters(
                r,
                "readers_rebuilt_total",
                "Readers that were dropped and rebuilt.",
                &["stream", "reason"],
            ),
            stream_lag: gauges(
                r,
                "stream_lag_messages",
                "Messages between a shard's position and the end of the stream.",
                &["stream"],
            ),
            tenant_mismatches: counter(
                r,
                "tenant_mismatches_total",
                "Messages whose body or header names another tenant than their subject.",
            ),
            controls_refused: counters(
                r,
                "controls_refused_total",
                "Control messages that asked for what their sender may not.",
                &["reason"],
            ),
            shards_detached: gauge(r, "shards_detached", "Shards fed by a private reader."),
            shards_open: gauges(
                r,
                "shards_open",
                "1 for each shard that is open in this process, 0 for each that is not.",
                &["shard"],
            ),
            shard_epoch: gauges(
                r,
                "shard_epoch",
                "How often a shard that is open in this process was claimed.",
                &["shard"],
            ),
            instances_ended: counters(
                r,
                "instances_ended_total",
                "Instances that ended, by phase.",
                &["saga", "phase"],
            ),
            finally_effects_failed: counters(
                r,
                "finally_effects_failed_total",
                "Effects of `finally` that failed for good.",
                &["saga"],
            ),
            steps_stuck: counters(
                r,
                "steps_stuck_total",
                "Steps and compensations that wait for an operator to decide their outcome.",
                &["saga", "what"],
            ),
            instances_started: counters(r, "instances_started_total", "Instances started.", &["saga"]),
            commit_seconds: histogram(
                r,
                "commit_seconds",
                "Duration of one commit of a shard.",
                &SECONDS,
            ),
            commit_inputs: histogram(r, "commit_inputs", "Inputs in one commit.", &COUNTS),
            outbox_rows: gauges(r, "outbox_rows", "Rows in the outbox.", &["shard"]),
            instances_blocked: gauges(
                r,
                "instances_blocked",
                "Instances blocked by a dead letter or by a missing definition.",
                &["shard"],
            ),
            shards_catching_up: gauges(
                r,
                "shards_catching_up",
                "1 for each shard that processes the backlog of its streams in stored order.",
                &["shard"],
            ),
            outbox_oldest_seconds: gauges(
                r,
                "outbox_oldest_seconds",
                "Age of the oldest outbox row that was not yet sent.",
                &["shard"],
            ),
            outbox_refused: gauges(
                r,
                "outbox_refused_rows",
                "Rows that the broker rejects and that stay in the outbox.",
                &["shard"],
            ),
            messages_relayed: counters(
                r,
                "messages_relayed_total",
                "Outbox rows sent, by destination and outcome.",
                &["destination", "outcome"],
            ),
            timers_fired: counter(r, "timers_fired_total", "Timers that fired."),
            timers_fired_late_source: counter(
                r,
                "timers_fired_late_source_total",
                "Timers that fired although a source stream could not be read up to their time.",
            ),
            timers_overdue: gauges(
                r,
                "timers_overdue",
                "Timers that are due and have not fired.",
                &["shard"],
            ),
            timers_overdue_seconds: gauges(
                r,
                "timers_overdue_seconds",
                "Lateness of the earliest timer that is due and has not fired.",
                &["shard"],
            ),
            clock_ahead_seconds: fraction(
                r,
                "clock_ahead_seconds",
                "How far the machine's clock is ahead of the broker's; negative if it is behind.",
            ),
            timer_lateness_seconds: histogram(
                r,
                "timer_lateness_seconds",
                "Time from a timer's due time to its commit.",
                &SECONDS,
            ),
            schedule_runs: counters(
                r,
                "schedule_runs_total",
                "Planned runs of scheduled sagas, by outcome.",
                &["saga", "outcome"],
            ),
            schedule_lateness_seconds: histogram(
                r,
                "schedule_lateness_seconds",
                "Time from a planned time to the commit that starts, queues or skips it.",
                &super::register::LONG_SECONDS,
            ),
            dead_letters: counters(
                r,
                "dead_letters_total",
                "Dead letters written, by reason.",
                &["reason"],
            ),
            dead_letters_present: gauges(
                r,
                "dead_letters_present",
                "Dead letters that nobody has decided about.",
                &["shard"],
            ),
            dead_letters_evicted: counter(
                r,
                "dead_letters_evicted_total",
                "Dead letters deleted because the shard had reached storage.keep_dead_letters.",
            ),
            effect_results: counters(
                r,
                "effect_results_total",
                "Results of effects, by result.",
                &["effect", "result"],
            ),
            effect_calls: counters(
                r,
                "effect_calls_total",
                "Calls of upstreams, by class of outcome.",
                &["effect", "class"],
            ),
            effect_call_seconds: histograms(
                r,
                "effect_call_seconds",
                "Duration of one call of an upstream.",
                &["effect"],
            ),
            effect_commands_in_progress: gauges(
                r,
                "effect_commands_in_progress",
                "Commands this worker has prefetched or is executing.",
                &["effect"],
            ),
            effect_commands_returned: counters(
                r,
                "effect_commands_returned_total",
                "Commands that a worker returned to the queue, by reason.",
                &["effect", "reason"],
            ),
            effect_commands_redelivered: counters(
                r,
                "effect_commands_redelivered_total",
                "Deliveries of commands to a worker that were not their first.",
                &["effect"],
            ),
            consumer_pending: gauges(
                r,
                "consumer_pending_messages",
                "Commands not yet delivered to a worker.",
                &["consumer"],
            ),
            consumer_unacknowledged: gauges(
                r,
                "consumer_unacknowledged_messages",
                "Commands delivered to a worker and not yet acknowledged.",
                &["consumer"],
            ),
            effect_commands_exhausted: counters(
                r,
                "effect_commands_exhausted_total",
                "Commands that failed because their attempts were used up, by class of the last failure.",
                &["effect", "class"],
            ),
            effect_commands_cancelled: counters(
                r,
                "effect_commands_cancelled_total",
                "Commands that workers did not execute because they were cancelled.",
                &["effect"],
            ),
            effect_results_refused: gauges(
                r,
                "effect_results_refused",
                "Results that this worker keeps in memory because the broker rejects them in every form.",
                &["effect"],
            ),
            breakers: gauges(
                r,
                "breakers",
                "Tenants whose circuit breaker is in this state.",
                &["upstream", "state"],
            ),
            breakers_opened: counters(
                r,
                "breakers_opened_total",
                "Times that a circuit breaker opened.",
                &["upstream"],
            ),
            gateway_breaker: gauges(
                r,
                "gateway_breaker",
                "1 for the state of the gateway circuit breaker that holds back most, else 0.",
                &["state"],
            ),
            overdue_commands_checked: counters(
                r,
                "overdue_commands_checked_total",
                "Overdue commands checked, by action taken.",
                &["action"],
            ),
            definitions_revision: gauge(r, "definitions_revision", "Revision of the active sagas."),
            definitions_active: gauges(
                r,
                "definitions_active",
                "1 for each active saga.",
                &["saga", "hash"],
            ),
            definitions_refused: gauge(
                r,
                "definitions_refused",
                "1 while the definition files are invalid and the previous definitions stay active.",
            ),
            definition_reloads: counters(
                r,
                "definition_reloads_total",
                "Reloads of the definitions, by outcome.",
                &["outcome"],
            ),
            task_panics: counters(
                r,
                "task_panics_total",
                "Tasks and threads that panicked.",
                &["task"],
            ),
            storage: StorageSeries::new(r),
            spans_exported: counter(r, "spans_exported_total", "Spans sent to the collector."),
            spans_dropped: counters(
                r,
                "spans_dropped_total",
                "Spans that were not sent, by reason.",
                &["reason"],
            ),
            jobs: JobSeries::new(r),
            answers: AnswerSeries::new(r),
            audit: AuditSeries::new(r),
            archive: ArchiveSeries::new(r),
            shards_halted: gauges(
                r,
                "shards_halted",
                "1 for each halted shard, by reason.",
                &["shard", "reason"],
            ),
            shards_fenced: gauges(
                r,
                "shards_fenced",
                "1 for each shard that is fenced and sends nothing, by reason.",
                &["shard", "reason"],
            ),
            spans: Spans::default(),
            exemplars: ExemplarStore::default(),
            registry,
        };
        metrics.begin();
        metrics
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_alerts_watch_are_there_before_the_first_increase() {
        let metrics = Metrics::new();
        metrics.saga_activated("order");
        let text = metrics.render();
        for line in [
            format!(
                "saga_runner_build_info{{version=\"{}\"}} 1",
                env!("CARGO_PKG_VERSION")
            ),
            "saga_runner_jobs_ended_total{outcome=\"failed\"} 0".to_owned(),
            "saga_runner_definition_reloads_total{outcome=\"refused\"} 0".to_owned(),
            "saga_runner_messages_relayed_total{destination=\"effect\",outcome=\"refused\"} 0".to_owned(),
            "saga_runner_steps_stuck_total{saga=\"order\",what=\"compensation\"} 0".to_owned(),
            "saga_runner_instances_ended_total{phase=\"failed\",saga=\"order\"} 0".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn series_carry_the_prefix() {
        let metrics = Metrics::new();
        metrics.dead_letters.with_label_values(&["payload.syntax"]).inc();
        let text = metrics.render();
        assert!(
            text.contains("saga_runner_dead_letters_total{reason=\"payload.syntax\"} 1"),
            "{text}"
        );
    }
}
