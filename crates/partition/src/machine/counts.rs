//! What a batch adds to the figures. It counts only once the batch has committed.

use std::collections::BTreeMap;

use saga_runner_kernel::ids::{SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Input, InputBody};
use saga_runner_kernel::patch::{Note, Outcome};
use saga_runner_kernel::record::Phase;

/// Counts of one batch.
#[derive(Debug, Default)]
pub struct Counts {
    pub inputs: BTreeMap<(&'static str, &'static str), u64>,
    pub tenants: BTreeMap<TenantId, u64>,
    pub started: BTreeMap<SagaName, u64>,
    pub ended: BTreeMap<(SagaName, &'static str), u64>,
    pub finally_failed: BTreeMap<SagaName, u64>,
    /// Questions to operators, by what they are about.
    pub asked: BTreeMap<(SagaName, &'static str), u64>,
    pub dead: BTreeMap<String, u64>,
    pub forgotten: u64,
    /// Planned runs by their outcome.
    pub runs: BTreeMap<(SagaName, &'static str), u64>,
    /// How late planned times were when they were due, in milliseconds.
    pub runs_late: Vec<i64>,
    pub fired: Vec<TimeMs>,
    pub fired_late_source: u64,
}

impl Counts {
    pub fn input(&mut self, input: &Input, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Applied => "applied",
            Outcome::Deferred => "deferred",
            Outcome::Ignored(reason) => reason.as_str(),
        };
        self.counted(input, outcome);
    }

    /// Counts the input by what it is, and by its tenant.
    fn counted(&mut self, input: &Input, outcome: &'static str) {
        *self.inputs.entry((kind(input), outcome)).or_default() += 1;
        let tenant = &input.instance.tenant;
        if let Some(count) = self.tenants.get_mut(tenant) {
            *count += 1;
        } else {
            self.tenants.insert(tenant.clone(), 1);
        }
    }

    /// The input waits behind a dead letter.
    pub fn waiting(&mut self, input: &Input) {
        self.counted(input, "waiting");
    }

    /// The input, or what never became one, is a dead letter.
    pub fn dead(&mut self, input: Option<&Input>, reason: &str) {
        if let Some(input) = input {
            self.counted(input, "dead");
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
}

pub const fn kind(input: &Input) -> &'static str {
    match input.body {
        InputBody::Event(_) => "event",
        InputBody::Result(_) => "result",
        InputBody::Timer { .. } => "timer",
        InputBody::Control(_) => "control",
    }
}
