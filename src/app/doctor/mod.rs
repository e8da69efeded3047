//! What `doctor` looks at: everything that a start needs, and what is stored. It changes nothing; a file that tries the disk is
//! removed again.

mod broker;
mod folder;
mod state;

use serde::Serialize;
use serde_json::Value;

use super::{StartError, archive, definitions, runtime};
use crate::config::{ConfigError, Manifest, secret};
use crate::kernel::definition::Severity;

/// Findings of definitions that are told.
const FINDINGS_TOLD: usize = 3;

/// What a check has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// It works, and may lose something or stop to work.
    Warn,
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub check: String,
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// How to get rid of it.
    pub fix: Option<String>,
}

impl Checked {
    pub fn ok(check: &str, detail: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            status: Status::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    pub fn warn(check: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            fix: Some(fix.into()),
            ..Self::ok(check, detail)
        }
    }

    pub fn fail(check: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            status: Status::Fail,
            fix: Some(fix.into()),
            ..Self::ok(check, detail)
        }
    }
}

/// Checks everything that a process with this manifest needs. `monitor` is what the server tells of itself under `/varz`, where that
/// was asked; `tell` hears what is being looked at.
///
/// # Errors
/// [`StartError::System`] where nothing could be looked at.
pub fn examine(
    manifest: &Manifest,
    monitor: Option<&Result<Value, String>>,
    tell: &mut dyn FnMut(String),
) -> Result<Vec<Checked>, StartError> {
    super::lifecycle::install_tls_provider();
    let mut checks = Vec::new();
    tell("definitions".to_owned());
    let loaded = definitions::load(manifest);
    checks.push(match &loaded {
        Ok(read) => {
            let (sagas, effects) = (read.sagas.len(), read.effects.len());
            Checked::ok(
                "definitions",
                format!("{sagas} saga(s) and {effects} effect(s) load"),
            )
        }
        Err(error) => Checked::fail(
            "definitions",
            told(error),
            "`saga-runner validate` shows every finding with its excerpt",
        ),
    });
    checks.push(secrets(manifest));
    let mut positions = Vec::new();
    if manifest.mode.runs_sagas() {
        tell("data folder".to_owned());
        checks.extend(folder::examine(manifest));
        let active = loaded.map(|read| read.sagas).unwrap_or_default();
        let shards = state::examine(manifest, &active, tell);
        checks.extend(shards.checks);
        checks.extend(
            manifest
                .storage
                .archive
                .as_ref()
                .map(|_| waiting(&shards.waiting)),
        );
        positions = shards.positions;
    }
    tell("broker".to_owned());
    checks.extend(runtime()?.block_on(broker::examine(manifest, monitor, &positions)));
    Ok(checks)
}

/// The first findings where there are some.
fn told(error: &StartError) -> String {
    let StartError::Definitions { findings, .. } = error else {
        return error.to_string();
    };
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    let first: Vec<String> = errors.take(FINDINGS_TOLD).map(ToString::to_string).collect();
    format!("{error}: {}", first.join("; "))
}

/// Whether ended instances have waited for the archive for too long.
fn waiting(look: &archive::Look) -> Checked {
    let check = "instances for the archive";
    if look.oldest_ms < archive::WAITS_LONG_MS {
        return Checked::ok(check, look.told());
    }
    let fix = "they are archived once the runner is started, if the archive takes them (docs/runbooks.md#archive-waits)";
    Checked::warn(check, look.told(), fix)
}

/// Whether the secrets of this machine are there.
fn secrets(manifest: &Manifest) -> Checked {
    let check = "secrets";
    let callbacks = manifest.callbacks.as_ref();
    let found = secret::resolve(&manifest.secrets).and_then(|found| {
        callbacks.map_or(Ok(()), |callbacks| secret::callback_key(&callbacks.key).map(drop))?;
        Ok(found.len() + usize::from(callbacks.is_some()))
    });
    match found {
        Ok(count) => Checked::ok(check, format!("{count} found")),
        Err(ConfigError::Secrets { secrets }) => {
            let told = secrets.iter().map(|(name, wrong)| format!("{name}: {wrong}"));
            let told: Vec<String> = told.collect();
            Checked::fail(
                check,
                told.join("; "),
                "provide them where the manifest points (SR0404)",
            )
        }
        Err(error) => Checked::fail(check, error.to_string(), "see the page of the code"),
    }
}
