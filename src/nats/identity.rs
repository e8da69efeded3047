//! What proves this process to the server: read again for every connection, so that what was renewed meanwhile is used.

use std::fs;
use std::path::{Path, PathBuf};

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;

use super::error::ConnectError;
use super::settings::Secret;
use crate::files::open_to_everybody;

/// How this process proves who it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Identity {
    #[default]
    None,
    User {
        name: String,
        password: Source,
    },
    Token(Source),
    /// The seed of an nkey.
    Nkey(Source),
    /// A file with a JWT and a seed.
    Credentials(PathBuf),
    /// A JWT and the file of its seed.
    Jwt {
        jwt: Secret,
        seed: Source,
    },
}

/// Where a secret is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Here(Secret),
    File(PathBuf),
}

impl Source {
    /// Of a key and its twin that names a file.
    pub fn of(
        name: &str,
        inline: Option<&Secret>,
        file: Option<&Path>,
    ) -> Result<Option<Self>, ConnectError> {
        match (inline, file) {
            (Some(_), Some(_)) => Err(ConnectError::settings(format!(
                "{name} and {name}_file are both set; keep one"
            ))),
            (Some(secret), None) => Ok(Some(Self::Here(secret.clone()))),
            (None, Some(path)) => Ok(Some(Self::File(path.to_owned()))),
            (None, None) => Ok(None),
        }
    }

    /// `key` names the file, where there is one.
    fn read(&self, key: &str) -> Result<String, ConnectError> {
        match self {
            Self::Here(secret) => Ok(secret.reveal().to_owned()),
            Self::File(path) => read_private(key, path),
        }
    }
}

impl Identity {
    /// What the server is told that has sent `nonce`.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn prove(&self, nonce: &[u8]) -> Result<Auth, ConnectError> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::User { name, password } => {
                auth.username = Some(name.clone());
                auth.password = Some(password.read("password_file")?);
            }
            Self::Token(token) => auth.token = Some(token.read("token_file")?),
            Self::Nkey(seed) => {
                let key = key_of(&seed.read("nkey_seed_file")?, "nkey_seed")?;
                auth.nkey = Some(key.public_key());
                auth.signature = Some(signed(&key, nonce)?);
            }
            Self::Credentials(path) => {
                let text = read_private("credentials_file", path)?;
                let (jwt, seed) = parts(&text).ok_or_else(|| {
                    let path = path.display();
                    ConnectError::settings(format!(
                        "credentials_file: {path}: expected a JWT and a seed, as nsc writes them"
                    ))
                })?;
                auth.jwt = Some(jwt.to_owned());
                auth.signature = Some(signed(&key_of(seed, "credentials_file")?, nonce)?);
            }
            Self::Jwt { jwt, seed } => {
                auth.jwt = Some(jwt.reveal().to_owned());
                auth.signature = Some(signed(&key_of(&seed.read("nkey")?, "nkey")?, nonce)?);
            }
        }
        Ok(auth)
    }

    /// The same for the client, which wants its own error.
    pub fn prove_to_client(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        self.prove(nonce).map_err(AuthError::new)
    }
}

fn key_of(seed: &str, name: &str) -> Result<KeyPair, ConnectError> {
    // The library's error may repeat what it was given.
    KeyPair::from_seed(seed.trim())
        .map_err(|_| ConnectError::settings(format!("{name}: not the seed of an nkey")))
}

fn signed(key: &KeyPair, nonce: &[u8]) -> Result<Vec<u8>, ConnectError> {
    key.sign(nonce)
        .map_err(|error| ConnectError::settings(format!("the key cannot sign: {error}")))
}

/// The JWT and the seed of a credentials file: each in a block between lines of dashes.
fn parts(text: &str) -> Option<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("---") {
            inside = line.contains("BEGIN");
        } else if inside && !line.is_empty() {
            blocks.push(line);
        }
    }
    match blocks.as_slice() {
        [jwt, seed] => Some((jwt, seed)),
        _ => None,
    }
}

/// Reads a secret, which a key names and which must not be open to everybody on the machine.
fn read_private(key: &str, path: &Path) -> Result<String, ConnectError> {
    let wrong = |what: String| ConnectError::settings(format!("{key}: {}: {what}", path.display()));
    if let Some(what) = open_to_everybody(path) {
        return Err(wrong(what));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(wrong("empty".to_owned()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(mode: u32, text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_secret_is_read_from_its_file_each_time_without_the_line_end() {
        let file = file(0o600, "hunter2\n");
        let identity = Identity::Token(Source::File(file.path().to_owned()));
        assert_eq!(identity.prove(b"").unwrap().token.as_deref(), Some("hunter2"));
        fs::write(file.path(), "hunter3\n").unwrap();
        assert_eq!(identity.prove(b"").unwrap().token.as_deref(), Some("hunter3"));
    }

    #[test]
    fn a_secret_file_open_to_everybody_is_refused() {
        let file = file(0o644, "hunter2");
        let error = read_private("token_file", file.path()).unwrap_err().to_string();
        assert!(
            error.contains("nats: token_file: ") && error.contains("SR0302"),
            "{error}"
        );
        assert!(error.contains("mode 644"), "{error}");
    }

    #[test]
    fn a_text_that_is_no_seed_or_no_credentials_file_is_refused_and_not_repeated() {
        let identity = Identity::Nkey(Source::Here("SUhunter2".to_owned().into()));
        let error = identity.prove(b"").err().unwrap().to_string();
        assert!(
            error.contains("nkey_seed: not the seed") && !error.contains("hunter2"),
            "{error}"
        );
        let kept = file(
            0o600,
            "-----BEGIN NATS USER JWT-----\nhunter2\n------END NATS USER JWT------\n",
        );
        let identity = Identity::Credentials(kept.path().to_owned());
        let error = identity.prove(b"").err().unwrap().to_string();
        assert!(
            error.contains("expected a JWT and a seed") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
