//! Secrets by reference.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ConfigError, Manifest, Refusal, check_private};

/// Where the secret that proves callback tokens is named.
const CALLBACK_KEY: &str = "callbacks.key";
/// A shorter key could be guessed.
const CALLBACK_KEY_CHARS_MIN: usize = 16;

/// Where a secret is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum SecretReference {
    /// Name of an environment variable.
    Env(String),
    /// Path of a file; one newline at its end is cut off.
    File(PathBuf),
    /// A value of NATS KV, read over the runner's own connection.
    Kv(KvReference),
}

/// The place of a value in NATS KV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvReference {
    pub bucket: String,
    pub key: String,
}

/// As it stands in the manifest. Untagged, because an error of another enum repeats what it found: the secret.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a secret is written {env: VARIABLE}, {file: PATH} or {kv: {bucket: BUCKET, key: KEY}}, never as its value"
)]
enum Written {
    Env { env: String },
    File { file: PathBuf },
    Kv { kv: KvReference },
}

impl From<Written> for SecretReference {
    fn from(written: Written) -> Self {
        match written {
            Written::Env { env } => Self::Env(env),
            Written::File { file } => Self::File(file),
            Written::Kv { kv } => Self::Kv(kv),
        }
    }
}

impl From<SecretReference> for Written {
    fn from(reference: SecretReference) -> Self {
        match reference {
            SecretReference::Env(env) => Self::Env { env },
            SecretReference::File(file) => Self::File { file },
            SecretReference::Kv(kv) => Self::Kv { kv },
        }
    }
}

impl SecretReference {
    const fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Makes a relative path that of a file below `base`.
    pub fn resolve(&mut self, base: &Path) {
        if let Self::File(path) = self
            && path.is_relative()
        {
            *path = base.join(&*path);
        }
    }
}

impl KvReference {
    /// Checks that both are names as NATS allows them.
    ///
    /// # Errors
    /// A sentence that says which is not.
    pub fn check(&self) -> Result<(), String> {
        let Self { bucket, key } = self;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(format!(
                "bucket {bucket:?} may hold letters, digits, '-' and '_' only"
            ));
        }
        let legal = |c: char| plain(c) || "/=.".contains(c);
        let dotted = key.starts_with('.') || key.ends_with('.') || key.contains("..");
        if key.is_empty() || dotted || !key.chars().all(legal) {
            return Err(format!(
                "key {key:?} may hold letters, digits, '-', '_', '/', '=' and single dots within only"
            ));
        }
        Ok(())
    }
}

/// Reads the secrets that are on this machine. For those of NATS KV there has to be a connection first.
///
/// # Errors
/// [`ConfigError::OpenToEverybody`] for a file that every user of the machine may read; [`ConfigError::Secrets`] names every secret
/// that is missing or empty, never its value.
pub fn resolve(
    references: &BTreeMap<String, SecretReference>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    for (name, reference) in references {
        private(&format!("secrets.{name}"), reference)?;
    }
    read(references)
}

/// Refuses the file of a secret, named by `key`, that every user of the machine may read.
fn private(key: &str, reference: &SecretReference) -> Result<(), ConfigError> {
    match reference {
        SecretReference::File(path) => check_private(key, path),
        SecretReference::Env(_) | SecretReference::Kv(_) => Ok(()),
    }
}

fn read(references: &BTreeMap<String, SecretReference>) -> Result<BTreeMap<String, String>, ConfigError> {
    let (mut values, mut secrets) = (BTreeMap::new(), Vec::new());
    for (name, reference) in references {
        match of_machine(reference) {
            Ok(None) => {}
            Ok(Some(value)) => drop(values.insert(name.clone(), value)),
            Err(wrong) => secrets.push((name.clone(), wrong)),
        }
    }
    if secrets.is_empty() {
        Ok(values)
    } else {
        Err(ConfigError::Secrets { secrets })
    }
}

/// A secret that is on this machine; none where it is elsewhere.
fn of_machine(reference: &SecretReference) -> Result<Option<String>, String> {
    let value = match reference {
        SecretReference::Env(variable) => {
            std::env::var(variable).map_err(|_| format!("environment variable {variable} is not set"))?
        }
        SecretReference::File(path) => {
            let text = std::fs::read_to_string(path);
            without_newline(&text.map_err(|error| format!("file {}: {error}", path.display()))?)
        }
        SecretReference::Kv(_) => return Ok(None),
    };
    filled(value).map(Some)
}

/// The secret that stands at its place in NATS KV; `None`: nothing does.
///
/// # Errors
/// As [`resolve`].
pub fn of_kv(name: &str, place: &KvReference, found: Option<&[u8]>) -> Result<String, ConfigError> {
    let KvReference { bucket, key } = place;
    let bytes = found.ok_or_else(|| missing(name, format!("bucket {bucket} of NATS KV has no key {key}")))?;
    let text = std::str::from_utf8(bytes)
        .map_err(|_| missing(name, format!("key {key} of bucket {bucket} holds no text")))?;
    filled(without_newline(text)).map_err(|wrong| missing(name, wrong))
}

/// A secret that is not where it should be.
pub fn missing(name: &str, message: String) -> ConfigError {
    ConfigError::Secrets {
        secrets: vec![(name.to_owned(), message)],
    }
}

fn filled(value: String) -> Result<String, String> {
    if value.is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(value)
}

fn without_newline(text: &str) -> String {
    text.strip_suffix('\n').unwrap_or(text).to_owned()
}

/// Reads the secret that proves callback tokens.
///
/// # Errors
/// As [`resolve`], also where it has fewer than [`CALLBACK_KEY_CHARS_MIN`] characters.
pub fn callback_key(reference: &SecretReference) -> Result<String, ConfigError> {
    let name = CALLBACK_KEY;
    private(name, reference)?;
    let resolved = read(&BTreeMap::from([(name.to_owned(), reference.clone())]))?;
    let key = resolved.into_values().next().unwrap_or_default();
    if key.chars().count() < CALLBACK_KEY_CHARS_MIN {
        let wrong = format!("has fewer than {CALLBACK_KEY_CHARS_MIN} characters");
        return Err(missing(name, wrong));
    }
    Ok(key)
}

/// The files of secrets that cannot be used. Variables are those of another process, and NATS KV is asked over a connection.
pub fn refusals(manifest: &Manifest) -> Vec<Refusal> {
    let refusal = |key: &str, error: &ConfigError| Refusal::of(key, error.code(), &error.to_string());
    let mut found = Vec::new();
    for (name, reference) in &manifest.secrets {
        if reference.is_file()
            && let Err(error) = resolve(&BTreeMap::from([(name.clone(), reference.clone())]))
        {
            found.push(refusal(&format!("secrets.{name}"), &error));
        }
    }
    if let Some(callbacks) = &manifest.callbacks
        && callbacks.key.is_file()
        && let Err(error) = callback_key(&callbacks.key)
    {
        found.push(refusal(CALLBACK_KEY, &error));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes a file that only its owner may read.
    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).expect("written");
        set_mode(path, 0o600);
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn a_secret_that_every_user_may_read_is_refused_and_one_of_a_group_is_not() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("token");
        write(&path, "s3cret, and longer than a key has to be\n");
        let reference = SecretReference::File(path.clone());
        let secrets = BTreeMap::from([("token".to_owned(), reference.clone())]);
        let mut manifest = Manifest::named("test");
        manifest.secrets = secrets.clone();
        for (mode, is_refused) in [(0o640, false), (0o644, true), (0o602, true)] {
            set_mode(&path, mode);
            let told = resolve(&secrets).err().map(|error| error.to_string());
            assert_eq!(told.is_some(), is_refused, "{mode:o}: {told:?}");
            assert_eq!(callback_key(&reference).is_err(), is_refused, "{mode:o}");
            assert_eq!(refusals(&manifest).len(), usize::from(is_refused), "{mode:o}");
        }
        let refusal = refusals(&manifest).remove(0);
        assert_eq!((&*refusal.key, refusal.code), ("secrets.token", "SR0416"));
        assert!(refusal.message.starts_with("secrets.token /"), "{refusal:?}");
        assert!(!refusal.message.contains("SR0416"), "{refusal:?}");
    }

    #[test]
    fn a_key_of_callbacks_that_could_be_guessed_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("key");
        write(&path, "fifteen chars!!\n");
        let reference = SecretReference::File(path.clone());
        let refused = callback_key(&reference).expect_err("too short");
        assert_eq!(
            refused.to_string(),
            "secret callbacks.key: has fewer than 16 characters [SR0404]"
        );
        write(&path, "sixteen chars !!\n");
        assert_eq!(callback_key(&reference).expect("long enough"), "sixteen chars !!");
    }

    #[test]
    fn every_missing_secret_is_named_and_a_file_loses_its_last_newline() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("token");
        write(&path, "s3cret\n");
        let good = BTreeMap::from([("token".to_owned(), SecretReference::File(path))]);
        assert_eq!(resolve(&good).expect("there")["token"], "s3cret");

        let no_variable = SecretReference::Env("SAGA_RUNNER_TEST_NO_SUCH_VARIABLE".to_owned());
        let empty = dir.path().join("empty");
        write(&empty, "\n");
        let bad = BTreeMap::from([
            ("other".to_owned(), SecretReference::File(empty)),
            ("token".to_owned(), no_variable),
        ]);
        let message = resolve(&bad).expect_err("missing").to_string();
        let expected = "secret other: is empty [SR0404]\nsecret token: environment variable SAGA_RUNNER_TEST_NO_SUCH_VARIABLE is not set [SR0404]";
        assert_eq!(message, expected);
    }
}
