//! What is done with the series: they are written for Prometheus, begin with 0 where their labels are known beforehand, and come
//! and go with sagas, shards and tenants.

use prometheus::proto::MetricFamily;
use prometheus::{Encoder as _, IntCounterVec, TextEncoder};

use super::metrics::Metrics;
use super::openmetrics;

/// Reasons of dead letters that are refused control messages: by the wrong subject, or without a principal who may.
pub const CONTROL_REFUSALS: [&str; 2] = ["control.subject", "control.principal"];

/// Why records of the audit are not stored: too many wait, the broker will never take one, the process has stopped, or too many
/// requests had no valid credentials.
pub const AUDIT_DROPS: [&str; 4] = ["queue", "refused", "stopped", "anonymous"];

/// Where rows of the outbox go.
const DESTINATIONS: [&str; 6] = ["effect", "gateway", "fact", "saga", "result", "cancellation"];

/// Reasons of dead letters: those of inputs, which docs/dead-letters.md explains, and that of a command nobody can read.
pub const DEAD_LETTER_REASONS: [&str; 55] = [
    "alias.count",
    "alias.owners",
    "alias.size",
    "alias.value",
    "buffer.full",
    "callback.token",
    "command.invalid",
    "control.principal",
    "control.subject",
    "correlation.invalid",
    "correlation.missing",
    "definition.mismatch",
    "definition.missing",
    "event.schema",
    "event.version",
    "event_id.conflict",
    "event_id.invalid",
    "event_id.missing",
    "expression",
    "fuel",
    "header.duplicate",
    "inbox.overflow",
    "input.schema",
    "loop",
    "machine.loop",
    "number.range",
    "payload.depth",
    "payload.duplicate_key",
    "payload.empty",
    "payload.schema",
    "payload.size",
    "payload.syntax",
    "poison.crash",
    "poison.panic",
    "program.answer",
    "program.trap",
    "request_id.invalid",
    "request_id.missing",
    "result.conflict",
    "result.orphan",
    "start.running",
    "state.depth",
    "state.schema",
    "state.shape",
    "state.size",
    "subject.shape",
    "tenant.invalid",
    "tenant.mismatch",
    "tenant.unknown",
    "timer.count",
    "timer.range",
    "timer.value",
    "work.count",
    "work.pending",
    "work.size",
];

/// Why a reader is dropped: what its connection did, what was found in the stream, what the process wanted.
const READERS_REBUILT: [&str; 11] = [
    "broken",
    "gap",
    "lookup",
    "overdue",
    "redelivered",
    "refused",
    "regressed",
    "reload",
    "stream.gap",
    "stream.identity",
    "unopened",
];

/// What happens to a planned run.
const RUNS: [&str; 7] = [
    "started",
    "queued",
    "skipped_missed",
    "skipped_overlap",
    "skipped_queue_full",
    "skipped_paused",
    "skipped_removed",
];

/// Classes of calls that any upstream may come to; those that a definition names begin with their first call.
const CLASSES: [&str; 5] = ["ambiguous", "permanent", "throttled", "timeout", "transient"];

/// Phases in which instances end.
pub(super) const PHASES: [&str; 4] = ["completed", "failed", "cancelled", "compensation_failed"];

impl Metrics {
    /// All series in the text format of Prometheus, those of the process included.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = Vec::new();
        TextEncoder::new()
            .encode(&self.families(), &mut out)
            .expect("encoding into memory");
        String::from_utf8(out).expect("the text format is UTF-8")
    }

    /// The same series as OpenMetrics text, with exemplars.
    #[must_use]
    pub fn render_open_metrics(&self) -> String {
        openmetrics::encode(&self.families(), &self.exemplars)
    }

    fn families(&self) -> Vec<MetricFamily> {
        let mut families = self.registry.gather();
        families.extend(prometheus::gather());
        families
    }

    /// Series with labels that are known beforehand are there from the start, so that an alert sees the first increase.
    pub(super) fn begin(&self) {
        self.build_info
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let known: [(&IntCounterVec, &[&str]); 7] = [
            (&self.audit.dropped, &AUDIT_DROPS),
            (&self.dead_letters, &DEAD_LETTER_REASONS),
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
            (&self.jobs.ended, &["completed", "stopped", "failed"]),
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

    /// The process reads a stream of this name.
    pub fn stream_known(&self, stream: &str) {
        self.messages_read.with_label_values(&[stream]);
        for reason in READERS_REBUILT {
            self.readers_rebuilt.with_label_values(&[stream, reason]);
        }
    }

    /// The process carries jobs on, with these verbs.
    pub fn jobs_known(&self, verbs: &[&str]) {
        for verb in verbs {
            for outcome in ["applied", "ignored", "failed"] {
                self.jobs.instances.with_label_values(&[verb, outcome]);
            }
        }
    }

    /// Workers of this process call upstreams for the effect.
    pub fn effect_known(&self, effect: &str) {
        for class in CLASSES {
            self.effect_commands_exhausted.with_label_values(&[effect, class]);
            self.effect_calls.with_label_values(&[effect, class]);
        }
        self.effect_calls.with_label_values(&[effect, "succeeded"]);
        self.effect_commands_redelivered.with_label_values(&[effect]);
    }

    /// The runs of a saga are planned by a schedule.
    pub fn schedule_activated(&self, saga: &str) {
        for outcome in RUNS {
            self.schedule_runs.with_label_values(&[saga, outcome]);
        }
    }

    /// A saga is active: its counters begin.
    pub fn saga_activated(&self, saga: &str) {
        self.instances_started.with_label_values(&[saga]);
        self.finally_effects_failed.with_label_values(&[saga]);
        for phase in PHASES {
            self.instances_ended.with_label_values(&[saga, phase]);
        }
        for what in ["step", "compensation"] {
            self.steps_stuck.with_label_values(&[saga, what]);
        }
    }

    /// The shard is open in this process, by its claim with this epoch.
    pub fn shard_opened(&self, shard: u16, epoch: u64) {
        let shard = shard.to_string();
        self.shards_open.with_label_values(&[&shard]).set(1);
        self.shard_epoch
            .with_label_values(&[&shard])
            .set(i64::try_from(epoch).unwrap_or(i64::MAX));
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
            &self.timers_overdue_seconds,
            &self.shard_epoch,
            &self.dead_letters_present,
            &self.storage.bytes,
            &self.storage.full,
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
}
