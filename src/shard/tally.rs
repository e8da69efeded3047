//! What a batch adds to the metrics. It counts only once the batch has committed.

use std::collections::BTreeMap;

use crate::kernel::ids::{SagaName, TimeMs};
use crate::kernel::input::{Input, InputBody};
use crate::kernel::patch::{Note, Outcome};
use crate::kernel::record::Phase;
use crate::telemetry::Metrics;

/// Counts of one batch.
#[derive(Debug, Default)]
pub(super) struct Tally {
    inputs: BTreeMap<(&'static str, &'static str), u64>,
    started: BTreeMap<SagaName, u64>,
    ended: BTreeMap<(SagaName, &'static str), u64>,
    finally_failed: BTreeMap<SagaName, u64>,
    /// Questions to operators, by what they are about.
    asked: BTreeMap<(SagaName, &'static str), u64>,
    dead: BTreeMap<String, u64>,
    forgotten: u64,
    /// Planned runs by what became of them.
    runs: BTreeMap<(SagaName, &'static str), u64>,
    /// How late planned times were when they were due, in milliseconds.
    runs_late: Vec<i64>,
    fired: Vec<TimeMs>,
    fired_late_source: u64,
}

impl Tally {
    pub fn input(&mut self, input: &Input, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Applied => "applied",
            Outcome::Deferred => "deferred",
            Outcome::Ignored(reason) => reason.as_str(),
        };
        *self.inputs.entry((kind(input), outcome)).or_default() += 1;
    }

    /// The input waits behind a dead letter.
    pub fn waiting(&mut self, input: &Input) {
        *self.inputs.entry((kind(input), "waiting")).or_default() += 1;
    }

    /// The input, or what never became one, is a dead letter.
    pub fn dead(&mut self, input: Option<&Input>, reason: &str) {
        if let Some(input) = input {
            *self.inputs.entry((kind(input), "dead")).or_default() += 1;
        }
        *self.dead.entry(reason.to_owned()).or_default() += 1;
    }

    /// Dead letters beyond the bound are forgotten.
    pub fn forgotten(&mut self, letters: usize) {
        self.forgotten += letters as u64;
    }

    pub fn started(&mut self, saga: &SagaName) {
        *self.started.entry(saga.clone()).or_default() += 1;
    }

    pub fn ended(&mut self, saga: &SagaName, phase: Phase) {
        *self.ended.entry((saga.clone(), phase.as_str())).or_default() += 1;
    }

    /// What happened to an instance, as far as it is counted.
    pub fn notes(&mut self, saga: &SagaName, notes: &[Note]) {
        for note in notes {
            let asked = match note {
                Note::FinallyFailed { .. } => {
                    *self.finally_failed.entry(saga.clone()).or_default() += 1;
                    continue;
                }
                Note::StepAsked { .. } => "step",
                Note::CompensationAsked { .. } => "compensation",
                _ => continue,
            };
            *self.asked.entry((saga.clone(), asked)).or_default() += 1;
        }
    }

    pub fn run(&mut self, saga: &SagaName, outcome: &'static str, count: u64) {
        *self.runs.entry((saga.clone(), outcome)).or_default() += count;
    }

    pub fn run_late(&mut self, ms: i64) {
        self.runs_late.push(ms);
    }

    pub fn fired(&mut self, due: TimeMs, late_source: bool) {
        self.fired.push(due);
        self.fired_late_source += u64::from(late_source);
    }

    pub fn count(&self, metrics: &Metrics, now: TimeMs) {
        for ((kind, outcome), count) in &self.inputs {
            metrics
                .inputs
                .with_label_values(&[*kind, *outcome])
                .inc_by(*count);
        }
        for (saga, count) in &self.started {
            metrics
                .instances_started
                .with_label_values(&[saga.as_str()])
                .inc_by(*count);
        }
        for ((saga, phase), count) in &self.ended {
            metrics
                .instances_ended
                .with_label_values(&[saga.as_str(), *phase])
                .inc_by(*count);
        }
        for (saga, count) in &self.finally_failed {
            metrics
                .finally_failed
                .with_label_values(&[saga.as_str()])
                .inc_by(*count);
        }
        for ((saga, what), count) in &self.asked {
            metrics
                .asked
                .with_label_values(&[saga.as_str(), *what])
                .inc_by(*count);
        }
        for (reason, count) in &self.dead {
            metrics
                .dead_letters
                .with_label_values(&[reason.as_str()])
                .inc_by(*count);
        }
        for ((saga, outcome), count) in &self.runs {
            metrics
                .schedule_runs
                .with_label_values(&[saga.as_str(), *outcome])
                .inc_by(*count);
        }
        for late in &self.runs_late {
            #[allow(clippy::cast_precision_loss, reason = "milliseconds of lateness")]
            metrics.schedule_lateness_seconds.observe(*late as f64 / 1_000.0);
        }
        metrics.dead_letters_forgotten.inc_by(self.forgotten);
        metrics.timers_fired.inc_by(self.fired.len() as u64);
        metrics.timers_fired_late_source.inc_by(self.fired_late_source);
        for due in &self.fired {
            #[allow(clippy::cast_precision_loss, reason = "milliseconds of lateness")]
            let late = now.0.saturating_sub(due.0).max(0) as f64 / 1_000.0;
            metrics.timer_lateness_seconds.observe(late);
        }
    }
}

pub(super) const fn kind(input: &Input) -> &'static str {
    match input.body {
        InputBody::Event(_) => "event",
        InputBody::Result(_) => "result",
        InputBody::Timer { .. } => "timer",
        InputBody::Control(_) => "control",
    }
}
