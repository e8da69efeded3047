//! Reading secrets: those of NATS KV once there is a connection, and what may change again and again, so that a
//! secret that is changed takes hold without a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::ConfigError;
use crate::config::secret::{self, SecretReference};
use crate::effects::Secrets;
use crate::ports::messenger::{Messenger, MessengerError};

/// Secrets are not read more often than this.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Why secrets cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Later they may be.
    #[error("secrets of NATS KV: {0}")]
    Unavailable(String),
}

/// Whether a secret is where only a connection leads.
pub fn need_connection(references: &BTreeMap<String, SecretReference>) -> bool {
    references
        .values()
        .any(|reference| matches!(reference, SecretReference::Kv(_)))
}

/// Reads all secrets, those of NATS KV over `messenger`.
pub async fn read(
    references: &BTreeMap<String, SecretReference>,
    messenger: Option<&dyn Messenger>,
) -> Result<BTreeMap<String, String>, SecretsError> {
    let mut values = secret::resolve(references)?;
    for (name, reference) in references {
        let SecretReference::Kv(place) = reference else {
            continue;
        };
        // The manifest is refused where the broker is not NATS.
        let messenger =
            messenger.ok_or_else(|| secret::missing(name, "the broker is not NATS".to_owned()))?;
        let found = match messenger.value(&place.bucket, &place.key).await {
            Ok(found) => found,
            Err(MessengerError::Refused(why) | MessengerError::Unheard(why)) => {
                return Err(secret::missing(name, why).into());
            }
            Err(MessengerError::Unavailable(why) | MessengerError::Unknown(why)) => {
                return Err(SecretsError::Unavailable(why));
            }
        };
        values.insert(name.clone(), secret::of_kv(name, place, found.as_deref())?);
    }
    Ok(values)
}

/// Reloads the secrets until the drain. Those of the environment cannot change. Where one cannot be read, all
/// stay as they are: a pair such as user and password is never taken from two moments, as far as files and NATS allow.
pub async fn keep(
    secrets: Arc<Secrets>,
    references: BTreeMap<String, SecretReference>,
    messenger: Option<Arc<dyn Messenger>>,
    every: Duration,
    drain: CancellationToken,
) {
    let may_change = |reference: &SecretReference| !matches!(reference, SecretReference::Env(_));
    if !references.values().any(may_change) {
        return;
    }
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            () = drain.cancelled() => return,
            () = tokio::time::sleep(every.max(EVERY_MIN)) => {}
        }
        match read(&references, messenger.as_deref()).await {
            Ok(read) => {
                told = false;
                if secrets.replace(&read) {
                    tracing::info!("changed secrets were read");
                }
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, "cannot read secrets; the known ones stay in use");
            }
            Err(_) => {}
        }
    }
}
