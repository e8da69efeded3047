//! Secrets by reference.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;

/// A shorter key could be guessed.
const CALLBACK_KEY_CHARS_MIN: usize = 16;

/// Where a secret is found.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub enum SecretReference {
    /// Name of an environment variable.
    Env(String),
    /// Path of a file; one newline at its end is cut off.
    File(PathBuf),
}

/// As it stands in the manifest. Untagged, because an error of another enum repeats what it found: the secret.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a secret is written {env: VARIABLE} or {file: PATH}, never as its value"
)]
enum Written {
    Env { env: String },
    File { file: PathBuf },
}

impl From<Written> for SecretReference {
    fn from(written: Written) -> Self {
        match written {
            Written::Env { env } => Self::Env(env),
            Written::File { file } => Self::File(file),
        }
    }
}

/// Reads every referenced secret.
///
/// # Errors
/// [`ConfigError::Secret`] names the first secret that is missing or empty, never its value.
pub fn resolve(
    references: &BTreeMap<String, SecretReference>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    references
        .iter()
        .map(|(name, reference)| {
            let missing = |message: String| ConfigError::Secret {
                name: name.clone(),
                message,
            };
            let value = match reference {
                SecretReference::Env(variable) => std::env::var(variable)
                    .map_err(|_| missing(format!("environment variable {variable} is not set")))?,
                SecretReference::File(path) => {
                    let text = std::fs::read_to_string(path)
                        .map_err(|error| missing(format!("file {}: {error}", path.display())))?;
                    text.strip_suffix('\n').map_or(text.clone(), str::to_owned)
                }
            };
            if value.is_empty() {
                return Err(missing("is empty".to_owned()));
            }
            Ok((name.clone(), value))
        })
        .collect()
}

/// Reads the secret that proves callback tokens.
///
/// # Errors
/// [`ConfigError::Secret`] where it is missing or has fewer than [`CALLBACK_KEY_CHARS_MIN`] characters.
pub fn callback_key(reference: &SecretReference) -> Result<String, ConfigError> {
    let name = "callbacks.key";
    let resolved = resolve(&BTreeMap::from([(name.to_owned(), reference.clone())]))?;
    let key = resolved.into_values().next().unwrap_or_default();
    if key.chars().count() < CALLBACK_KEY_CHARS_MIN {
        return Err(ConfigError::Secret {
            name: name.to_owned(),
            message: format!("has fewer than {CALLBACK_KEY_CHARS_MIN} characters"),
        });
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_callbacks_that_could_be_guessed_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("key");
        std::fs::write(&path, "fifteen chars!!\n").expect("written");
        let reference = SecretReference::File(path.clone());
        let refused = callback_key(&reference).expect_err("too short");
        assert_eq!(
            refused.to_string(),
            "secret callbacks.key: has fewer than 16 characters [SR0404]"
        );
        std::fs::write(&path, "sixteen chars !!\n").expect("written");
        assert_eq!(callback_key(&reference).expect("long enough"), "sixteen chars !!");
    }

    #[test]
    fn a_missing_secret_is_named_and_a_file_loses_its_last_newline() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("token");
        std::fs::write(&path, "s3cret\n").expect("written");
        let good = BTreeMap::from([("token".to_owned(), SecretReference::File(path))]);
        assert_eq!(resolve(&good).expect("there")["token"], "s3cret");

        let bad = BTreeMap::from([(
            "token".to_owned(),
            SecretReference::Env("SAGA_RUNNER_TEST_NO_SUCH_VARIABLE".to_owned()),
        )]);
        let message = resolve(&bad).expect_err("missing").to_string();
        assert!(
            message.contains("token") && message.contains("SR0404"),
            "{message}"
        );
    }
}
