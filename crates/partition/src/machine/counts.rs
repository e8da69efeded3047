//! What a batch adds to the figures. It counts only once the batch has committed.

use std::collections::BTreeMap;

use saga_runner_kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Input, InputBody};
use saga_runner_kernel::patch::{Note, Outcome};
use saga_runner_kernel::record::Phase;

/// Counts of one batch.
#[derive(Debug, Default)]
pub struct Counts {
    pub inputs: BTreeMap<(&'static str, &'static str), u64>,
    pub tenants: BTreeMap<TenantId, TenantCounts>,
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

/// What a batch did for one tenant.
#[derive(Debug, Default)]
pub struct TenantCounts {
    /// 0 where all that came were messages that nobody can read, which may name any tenant.
    pub inputs: u64,
    pub started: u64,
    pub ended: BTreeMap<&'static str, u64>,
    pub dead: u64,
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
        self.of_tenant(&input.instance.tenant).inputs += 1;
    }

    fn of_tenant(&mut self, tenant: &TenantId) -> &mut TenantCounts {
        self.tenants.entry(tenant.clone()).or_default()
    }

    /// The input waits behind a dead letter.
    pub fn waiting(&mut self, input: &Input) {
        self.counted(input, "waiting");
    }

    /// The input is a dead letter.
    pub fn dead(&mut self, input: &Input, reason: &str) {
        self.counted(input, "dead");
        self.letter(&input.instance.tenant, reason);
    }

    /// A message that cannot be read, and so never became an input of the tenant, is a dead letter.
    pub fn unreadable(&mut self, tenant: &TenantId, reason: &str) {
        self.letter(tenant, reason);
    }

    fn letter(&mut self, tenant: &TenantId, reason: &str) {
        self.of_tenant(tenant).dead += 1;
        *self.dead.entry(reason.to_owned()).or_default() += 1;
    }

    /// Dead letters beyond the bound are forgotten.
    pub fn forgotten(&mut self, letters: usize) {
        self.forgotten += letters as u64;
    }

    pub fn started(&mut self, id: &InstanceId) {
        *self.started.entry(id.saga.clone()).or_default() += 1;
        self.of_tenant(&id.tenant).started += 1;
    }

    pub fn ended(&mut self, id: &InstanceId, phase: Phase) {
        let phase = phase.as_str();
        *self.ended.entry((id.saga.clone(), phase)).or_default() += 1;
        *self.of_tenant(&id.tenant).ended.entry(phase).or_default() += 1;
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
