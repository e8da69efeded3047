//! The principals of a file: bearer tokens and names of client certificates, with their roles. The file has hashes of tokens
//! only, so whoever reads it cannot use it.
//!
//! ```text
//! # name   roles                    credential
//! ann      admin@*                  sha256:9f86d081...
//! shop     operator@acme,viewer@*   sha256:60303ae2...
//! stock    operator@acme            dns:stock.internal
//! pay      viewer@acme              uri:spiffe://example.com/ns/pay/sa/pay
//! ```
//!
//! A token has 244 random bits, so a hash without salt and without stretching cannot be inverted.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Grants, Principal};
use crate::api::files::Files;
use crate::api::tls::ClientCertificate;
use crate::files;

/// Most lines with a credential.
const PRINCIPALS_MAX: usize = 1_000;
/// Longest name of a principal, in characters.
const NAME_CHARS_MAX: usize = 64;
/// What a token begins with, so that scanners for secrets find one that was published by mistake.
const PREFIX: &str = "sagarunner_";

type Hash = [u8; 32];

/// The principals of the file, which is read again when it has changed.
pub struct TokensFile(Files<Principals>);

/// By what a principal is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Credential {
    /// The hash of its token.
    Token(Hash),
    /// A name in its certificate, as [`ClientCertificate`] writes it.
    Certificate(String),
}

#[derive(Debug)]
struct Principals(Vec<(Credential, Principal)>);

impl TokensFile {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence that says what is wrong, and in which line.
    pub fn open(path: &Path) -> Result<Self, String> {
        let read = {
            let path = path.to_owned();
            move || read(&path)
        };
        Files::open("http.tokens_file", vec![path.to_owned()], read).map(Self)
    }

    /// Whose token this is. `now` is the monotonic time.
    pub fn find(&self, token: &str, now: Duration) -> Option<Principal> {
        let asked = hash(token);
        // All are compared, each to its end: the time tells nothing of how much of a hash is right.
        let mut found = None;
        let principals = self.0.current(now);
        for (credential, principal) in &principals.0 {
            if matches!(credential, Credential::Token(known) if is_same(known, &asked)) {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// Whose certificate this is: the first line of the file that has one of its names.
    pub fn of_certificate(&self, certificate: &ClientCertificate, now: Duration) -> Option<Principal> {
        let has = |credential: &Credential| match credential {
            Credential::Token(_) => false,
            Credential::Certificate(name) => certificate.has(name),
        };
        let principals = self.0.current(now);
        let found = principals.0.iter().find(|(credential, _)| has(credential));
        found.map(|(_, principal)| principal.clone())
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

fn read(path: &Path) -> Result<Principals, String> {
    let text = String::from_utf8(files::read_private(path)?).map_err(|_| "is not UTF-8".to_owned())?;
    parse(&text)
}

fn parse(text: &str) -> Result<Principals, String> {
    let mut principals: Vec<(Credential, Principal)> = Vec::new();
    for (at, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = principal(line).map_err(|wrong| format!("line {at}: {wrong}"))?;
        if principals.iter().any(|(credential, _)| *credential == read.0) {
            return Err(format!("line {at}: the credential is there twice"));
        }
        principals.push(read);
    }
    if principals.is_empty() || principals.len() > PRINCIPALS_MAX {
        let found = principals.len();
        return Err(format!(
            "expected 1 to {PRINCIPALS_MAX} principals, found {found}"
        ));
    }
    Ok(Principals(principals))
}

/// Reads one line. Its text is in no message: it may be a token that was put there by mistake.
fn principal(line: &str) -> Result<(Credential, Principal), String> {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let [name, grants, credential] = parts[..] else {
        return Err("expected a name, roles and a hash or the name of a certificate".to_owned());
    };
    check_name(name)?;
    let principal = Principal {
        name: Some(name.to_owned()),
        grants: Grants::parse(grants)?,
    };
    Ok((self::credential(credential)?, principal))
}

fn credential(text: &str) -> Result<Credential, String> {
    match text.split_once(':') {
        Some(("sha256", digits)) => parse_hash(digits).map(Credential::Token),
        Some(("dns", name)) if !name.is_empty() && !name.contains('*') => {
            Ok(Credential::Certificate(format!("dns:{}", name.to_ascii_lowercase())))
        }
        Some(("uri", uri)) if uri.contains(':') => Ok(Credential::Certificate(text.to_owned())),
        _ => Err("expected sha256: and 64 hexadecimal digits, as `saga-runner token new` prints them, or dns:NAME or uri:URI of a client certificate".to_owned()),
    }
}

fn parse_hash(digits: &str) -> Result<Hash, String> {
    let wrong =
        || "expected sha256: and 64 hexadecimal digits; `saga-runner token new` prints the line".to_owned();
    let mut bytes: Hash = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return Err(wrong());
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        let pair = digits.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::api::endpoints::{Access, Role};

    /// Writes a file that only its owner may read.
    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("set");
    }

    #[test]
    fn a_token_is_known_by_its_hash_and_a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let (ann, bob) = (
            NewToken::draw("ann", "viewer@acme").expect("drawn"),
            NewToken::draw("bob", "admin@*").expect("drawn"),
        );
        write(&path, &format!("# people\n\n{}\n", ann.line));
        let file = TokensFile::open(&path).expect("a file of tokens");
        let at = Duration::from_secs;
        let found = file.find(&ann.token, at(0)).expect("ann");
        assert_eq!(found.name.as_deref(), Some("ann"));
        assert_eq!(file.find(&bob.token, at(0)), None);
        assert_eq!(file.find("", at(0)), None);
        let hash = ann.line.rsplit(' ').next().expect("a hash");
        assert_eq!(file.find(hash, at(0)), None, "the hash is no token");

        write(&path, &format!("{}\n\n", bob.line));
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

        write(&path, "nonsense");
        assert!(file.find("x", at(4)).is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(file.find("x", at(6)).is_none());
        assert_eq!(file.0.current(at(6)).0.len(), 1, "a wrong file changes nothing");
    }

    #[test]
    fn a_file_that_everybody_may_read_is_refused_and_one_of_a_group_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        write(&path, "ann viewer@acme dns:ann.internal\n");
        for (mode, is_refused) in [(0o600, false), (0o440, false), (0o644, true), (0o602, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            let opened = TokensFile::open(&path).err();
            assert_eq!(opened.is_some(), is_refused, "{mode:o}: {opened:?}");
        }
    }

    #[test]
    fn a_certificate_is_known_by_a_name_that_the_file_has_and_by_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        write(
            &path,
            "stock operator@acme dns:Stock.internal\npay viewer@acme uri:spiffe://example.com/pay\n",
        );
        let file = TokensFile::open(&path).expect("a file");
        let of = |names: &[&str]| {
            let certificate = ClientCertificate::of_names(names.iter().map(|name| (*name).to_owned()));
            file.of_certificate(&certificate, Duration::ZERO)
                .and_then(|principal| principal.name)
        };
        assert_eq!(of(&["dns:a", "dns:stock.internal"]).as_deref(), Some("stock"));
        assert_eq!(of(&["uri:spiffe://example.com/pay"]).as_deref(), Some("pay"));
        for names in [
            &["dns:other.internal"][..],
            &["dns:*.internal"],
            &["uri:stock.internal"],
            &["uri:spiffe://example.com/PAY"],
            &[],
        ] {
            assert_eq!(of(names), None, "{names:?}");
        }
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
            "ann viewer@acme dns:\n".to_owned(),
            "ann viewer@acme dns:*.internal\n".to_owned(),
            "ann viewer@acme uri:internal\n".to_owned(),
            "a viewer@acme dns:a.b\nb viewer@acme dns:A.b\n".to_owned(),
        ] {
            let told = parse(&wrong).expect_err("must be refused");
            assert!(!told.contains(&token.token), "{told}");
        }
    }
}
