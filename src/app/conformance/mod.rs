//! Whether a worker of an effect, in whatever language, keeps the protocol of docs/workers.md.
//!
//! Commands are published as the relay publishes them, and what can be seen from outside is held against the page:
//! results, acknowledgements, the shared consumer. Where the worker's command line is known, it is also killed, ended
//! and started again.

mod checks;
mod process;
mod stage;

use std::time::Duration;

use serde::Serialize;

use super::{StartError, runtime};
use crate::config::Manifest;
use crate::kernel::ids::{EffectName, TenantId};

/// What is checked, and how.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Broker, streams, group and tenancy.
    pub manifest: Manifest,
    /// Owner of the commands; empty without multi-tenancy.
    pub tenant: TenantId,
    pub effect: EffectName,
    /// JSON; `{id}` in it is another text for each command.
    pub input: String,
    /// For each check. Where the worker is killed, three times the consumer's ack wait if that is longer.
    pub timeout: Duration,
    /// Program and arguments of the worker, if it is to be started here.
    pub worker: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Passed,
    Failed,
    LeftOut,
}

/// One promise of the protocol.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub status: Status,
    pub explanation: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub effect: String,
    pub passed: bool,
    pub checks: Vec<Check>,
}

/// Runs all checks.
///
/// # Errors
/// [`StartError`] where there is no broker to check with, or the worker's program does not start.
pub fn run(spec: Spec) -> Result<Report, StartError> {
    let effect = spec.effect.to_string();
    let checks = runtime()?.block_on(checks::all(spec))?;
    Ok(Report {
        effect,
        passed: checks.iter().all(|check| check.status != Status::Failed),
        checks,
    })
}
