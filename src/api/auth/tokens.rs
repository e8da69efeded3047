//! Bearer tokens. The file has their hashes only, so whoever reads it cannot use it.
//!
//! ```text
//! # name   roles                    hash of the token
//! ann      admin@*                  sha256:9f86d081...
//! shop     operator@acme,viewer@*   sha256:60303ae2...
//! ```
//!
//! A token has 244 random bits, so a hash without salt and without stretching cannot be inverted.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use super::{Grants, Principal};

/// Most lines with a token.
const TOKENS_MAX: usize = 1_000;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Longest name of a principal, in characters.
const NAME_CHARS_MAX: usize = 64;
/// How often the file is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What a token begins with, so that scanners for secrets find one that was published by mistake.
const PREFIX: &str = "sagarunner_";

type Hash = [u8; 32];

/// The principals of the file, which is read again when it has changed.
pub struct TokensFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    principals: Vec<(Hash, Principal)>,
    stamp: Stamp,
    looked: Duration,
}

/// By what a change is noticed.
type Stamp = Option<(SystemTime, u64)>;

impl TokensFile {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence that says what is wrong, and in which line.
    pub fn open(path: &Path) -> Result<Self, String> {
        let (principals, stamp) = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            state: Mutex::new(State {
                principals,
                stamp,
                looked: Duration::ZERO,
            }),
        })
    }

    /// Whose token this is. `now` is the monotonic time.
    pub fn find(&self, token: &str, now: Duration) -> Option<Principal> {
        let asked = hash(token);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.look_again(&mut state, now);
        // All are compared, each to its end: the time tells nothing of how much of a hash is right.
        let mut found = None;
        for (known, principal) in &state.principals {
            if is_same(known, &asked) {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// Reads a file that has changed. A wrong one changes nothing, and is told once.
    fn look_again(&self, state: &mut State, now: Duration) {
        if now.saturating_sub(state.looked) < LOOK_EVERY {
            return;
        }
        state.looked = now;
        let stamp = stamp(&self.path);
        if stamp == state.stamp {
            return;
        }
        state.stamp = stamp;
        match read(&self.path) {
            Ok((principals, stamp)) => {
                tracing::info!(principals = principals.len(), "http.tokens_file was read again");
                state.principals = principals;
                state.stamp = stamp;
            }
            Err(error) => {
                tracing::error!(
                    error,
                    "http.tokens_file has changed and is wrong; the tokens of before stay valid"
                );
            }
        }
    }
}

fn is_same(one: &Hash, other: &Hash) -> bool {
    let differing = one
        .iter()
        .zip(other)
        .fold(0, |differing, (a, b)| black_box(differing | (a ^ b)));
    differing == 0
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}

fn read(path: &Path) -> Result<(Vec<(Hash, Principal)>, Stamp), String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = std::fs::metadata(path).map_err(unreadable)?;
    if file.len() > FILE_BYTES_MAX {
        return Err(format!(
            "is {} bytes long, at most {FILE_BYTES_MAX} are allowed",
            file.len()
        ));
    }
    // Before the content: a change in between is found at the next look.
    let stamp = stamp(path);
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    Ok((parse(&text)?, stamp))
}

fn parse(text: &str) -> Result<Vec<(Hash, Principal)>, String> {
    let mut principals: Vec<(Hash, Principal)> = Vec::new();
    for (at, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = principal(line).map_err(|wrong| format!("line {at}: {wrong}"))?;
        if principals.iter().any(|(hash, _)| *hash == read.0) {
            return Err(format!("line {at}: the token is there twice"));
        }
        principals.push(read);
    }
    if principals.is_empty() || principals.len() > TOKENS_MAX {
        let found = principals.len();
        return Err(format!("expected 1 to {TOKENS_MAX} tokens, found {found}"));
    }
    Ok(principals)
}

/// Reads one line. Its text is in no message: it may be a token that was put there by mistake.
fn principal(line: &str) -> Result<(Hash, Principal), String> {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let [name, grants, hash] = parts[..] else {
        return Err("expected a name, roles and a hash".to_owned());
    };
    check_name(name)?;
    let wrong =
        || "expected sha256: and 64 hexadecimal digits; `saga-runner token new` prints the line".to_owned();
    let digits = hash.strip_prefix("sha256:").ok_or_else(wrong)?;
    let mut bytes: Hash = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return Err(wrong());
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        let pair = digits.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    let principal = Principal {
        name: Some(name.to_owned()),
        grants: Grants::parse(grants)?,
    };
    Ok((bytes, principal))
}

fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(legal) {
        return Err(format!(
            "a name has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_', '.' and '@'"
        ));
    }
    Ok(())
}

/// A token that nobody had before.
pub struct NewToken {
    /// For whoever is to use it; nothing keeps it.
    pub token: String,
    /// For the file.
    pub line: String,
}

impl NewToken {
    /// Draws a token. `roles` is `ROLE@TENANT` or `ROLE@*`, several with commas between them.
    ///
    /// # Errors
    /// A sentence that says what is wrong with name or roles.
    pub fn draw(name: &str, roles: &str) -> Result<Self, String> {
        check_name(name)?;
        Grants::parse(roles)?;
        let [one, other] = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
        let token = format!("{PREFIX}{}{}", one.simple(), other.simple());
        let mut line = format!("{name} {roles} sha256:");
        for byte in hash(&token) {
            let _infallible = write!(line, "{byte:02x}");
        }
        Ok(Self { token, line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::endpoints::{Access, Role};

    #[test]
    fn a_token_is_known_by_its_hash_and_a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let (ann, bob) = (
            NewToken::draw("ann", "viewer@acme").expect("drawn"),
            NewToken::draw("bob", "admin@*").expect("drawn"),
        );
        std::fs::write(&path, format!("# people\n\n{}\n", ann.line)).expect("written");
        let file = TokensFile::open(&path).expect("a file of tokens");
        let at = Duration::from_secs;
        let found = file.find(&ann.token, at(0)).expect("ann");
        assert_eq!(found.name.as_deref(), Some("ann"));
        assert_eq!(file.find(&bob.token, at(0)), None);
        assert_eq!(file.find("", at(0)), None);
        let hash = ann.line.rsplit(' ').next().expect("a hash");
        assert_eq!(file.find(hash, at(0)), None, "the hash is no token");

        std::fs::write(&path, format!("{}\n\n", bob.line)).expect("written");
        assert!(
            file.find(&ann.token, at(0)).is_some(),
            "not looked at within a second"
        );
        assert_eq!(file.find(&ann.token, at(2)), None, "revoked");
        let bob = file.find(&bob.token, at(2)).expect("bob");
        assert_eq!(
            bob.check(Access::Needs(Role::Admin), None)
                .map_err(|problem| problem.status),
            Ok(())
        );

        std::fs::write(&path, "nonsense").expect("written");
        assert!(file.find("x", at(4)).is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(file.find("x", at(6)).is_none());
        let state = file.state.lock().expect("not poisoned");
        assert_eq!(state.principals.len(), 1, "a wrong file changes nothing");
    }

    #[test]
    fn a_wrong_line_is_told_without_its_text() {
        let token = NewToken::draw("ann", "viewer@acme").expect("drawn");
        for wrong in [
            String::new(),
            "# nobody\n".to_owned(),
            token.token.clone(),
            format!("ann viewer@acme {}", token.token),
            "ann viewer@acme sha256:00".to_owned(),
            format!("ann viewer@acme sha256:{}", "g".repeat(64)),
            format!("ann root@acme sha256:{}", "0".repeat(64)),
            format!("a/b viewer@acme sha256:{}", "0".repeat(64)),
            format!("{0}\n{0}\n", token.line),
        ] {
            let told = parse(&wrong).expect_err("must be refused");
            assert!(!told.contains(&token.token), "{told}");
        }
    }
}
