//! Reading the files of secrets again, so that a secret that is changed takes hold without a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::secret::{self, SecretReference};
use crate::effects::Secrets;

/// Files are not read more often than this.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Looks after the secrets until the drain. Those of the environment cannot change. Where one cannot be read, all
/// stay as they are: a pair such as user and password is never taken from two moments, as far as files allow.
pub async fn keep(
    secrets: Arc<Secrets>,
    references: BTreeMap<String, SecretReference>,
    every: Duration,
    drain: CancellationToken,
) {
    let is_file = |reference: &SecretReference| matches!(reference, SecretReference::File(_));
    if !references.values().any(is_file) {
        return;
    }
    let mut told = false;
    loop {
        tokio::select! {
            () = drain.cancelled() => return,
            () = tokio::time::sleep(every.max(EVERY_MIN)) => {}
        }
        match secret::resolve(&references) {
            Ok(read) => {
                told = false;
                if secrets.replace(&read) {
                    tracing::info!("secrets have changed and were read again");
                }
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, "secrets cannot be read again; those known stay in use");
            }
            Err(_) => {}
        }
    }
}
