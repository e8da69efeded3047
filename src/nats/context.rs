//! Contexts of the `nats` command: files that say how to reach a server and who one is.
//!
//! The format is that of NATS' ADR-21. What is set in a context and would not be done is refused, never passed over.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::ConnectError;
use super::identity::{Identity, Source};
use super::settings::Secret;
use crate::files::open_to_everybody;

/// What a context says of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    /// None where it names none.
    pub urls: Vec<String>,
    pub identity: Identity,
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub tls_first: bool,
    pub inbox_prefix: Option<String>,
}

/// The file. Keys that only concern the `nats` command itself are read and left alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    url: String,
    user: String,
    password: Option<Secret>,
    token: Option<Secret>,
    creds: String,
    nkey: String,
    user_jwt: Option<Secret>,
    user_seed: Option<Secret>,
    cert: String,
    key: String,
    ca: String,
    tls_first: bool,
    inbox_prefix: String,
    nsc: String,
    jetstream_domain: String,
    jetstream_api_prefix: String,
    socks_proxy: String,
    windows_cert_store: String,
}

/// The folder of the contexts, as the `nats` command has it.
fn folder() -> Result<PathBuf, ConnectError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
    let base = base.or_else(home);
    let base =
        base.ok_or_else(|| wrong("neither XDG_CONFIG_HOME nor HOME is set, so there are no contexts"))?;
    Ok(base.join("nats").join("context"))
}

fn wrong(what: impl std::fmt::Display) -> ConnectError {
    ConnectError::settings(format!("context: {what}"))
}

impl Context {
    /// Reads the context of that name.
    ///
    /// # Errors
    /// [`ConnectError::Settings`] where there is none, or where it says what the runner does not do.
    pub fn named(name: &str) -> Result<Self, ConnectError> {
        if name.is_empty() || name.contains(['/', '\\']) || name.contains("..") {
            return Err(wrong(format!("{name:?} is not the name of a context")));
        }
        Self::of_file(&folder()?.join(format!("{name}.json")))
    }

    fn of_file(path: &Path) -> Result<Self, ConnectError> {
        let wrong = |what: &dyn std::fmt::Display| wrong(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let mut read: Written = serde_json::from_str(&text).map_err(|error| {
            // The error may repeat a value.
            wrong(&format!(
                "not a context, line {} column {}",
                error.line(),
                error.column()
            ))
        })?;
        for (key, value) in [
            ("nsc", &read.nsc),
            ("jetstream_domain", &read.jetstream_domain),
            ("jetstream_api_prefix", &read.jetstream_api_prefix),
            ("socks_proxy", &read.socks_proxy),
            ("windows_cert_store", &read.windows_cert_store),
        ] {
            if !value.is_empty() {
                let help = if key == "nsc" { "; write creds instead" } else { "" };
                return Err(wrong(&format!(
                    "it has {key}, which saga-runner does not support{help}"
                )));
            }
        }
        let mut context = Self {
            urls: addresses(&mut read),
            ca: file(&read.ca),
            cert: file(&read.cert),
            key: file(&read.key),
            tls_first: read.tls_first,
            inbox_prefix: Some(read.inbox_prefix.clone()).filter(|prefix| !prefix.is_empty()),
            identity: Identity::None,
        };
        let holds_secret = [&read.password, &read.token, &read.user_jwt, &read.user_seed];
        if holds_secret.iter().any(|secret| secret.is_some())
            && let Some(open) = open_to_everybody(path)
        {
            return Err(wrong(&format!("it holds a secret and {open}")));
        }
        context.identity = identity(read).map_err(|message| wrong(&message))?;
        Ok(context)
    }
}

/// The servers; a user and a password in the address of one are taken out of it.
fn addresses(read: &mut Written) -> Vec<String> {
    let mut urls = Vec::new();
    for url in read.url.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
        let host = match rest.rsplit_once('@') {
            None => rest,
            Some((who, host)) => {
                match who.split_once(':') {
                    Some((user, password)) => {
                        read.user = user.to_owned();
                        read.password = Some(password.to_owned().into());
                    }
                    None => read.token = Some(who.to_owned().into()),
                }
                host
            }
        };
        urls.push(format!("{scheme}://{host}"));
    }
    urls
}

/// Who a context says one is.
fn identity(read: Written) -> Result<Identity, String> {
    let filled = |secret: Option<Secret>| secret.filter(|secret| !secret.reveal().is_empty());
    let (jwt, seed) = (filled(read.user_jwt), filled(read.user_seed).map(Source::Here));
    let (token, password) = (filled(read.token), filled(read.password));
    let nkey = file(&read.nkey).map(Source::File);
    let mut ways = Vec::new();
    match (read.user.is_empty(), password) {
        (false, Some(password)) => ways.push(Identity::User {
            name: read.user,
            password: Source::Here(password),
        }),
        // What the `nats` command takes it for.
        (false, None) => ways.push(Identity::Token(Source::Here(read.user.into()))),
        (true, None) => {}
        (true, Some(_)) => return Err("it has a password and no user".to_owned()),
    }
    ways.extend(token.map(|token| Identity::Token(Source::Here(token))));
    ways.extend(file(&read.creds).map(Identity::Credentials));
    match (jwt, seed.or(nkey)) {
        (Some(jwt), Some(seed)) => ways.push(Identity::Jwt { jwt, seed }),
        (Some(_), None) => return Err("it has user_jwt and neither user_seed nor nkey".to_owned()),
        (None, Some(seed)) => ways.push(Identity::Nkey(seed)),
        (None, None) => {}
    }
    match ways.len() {
        0 | 1 => Ok(ways.pop().unwrap_or_default()),
        _ => Err("it has more than one of user, token, creds and nkey".to_owned()),
    }
}

/// A path; `~/` is the home of this user.
fn file(written: &str) -> Option<PathBuf> {
    if written.is_empty() {
        return None;
    }
    let home = written.strip_prefix("~/").zip(std::env::var_os("HOME"));
    Some(home.map_or_else(|| written.into(), |(rest, home)| PathBuf::from(home).join(rest)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn of(text: &str, mode: u32) -> Result<Context, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("written");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("set");
        Context::of_file(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_context_gives_servers_identity_and_certificates() {
        let context = of(
            r#"{"description": "d", "url": "nats://a:4222, tls://b:4223", "creds": "/c.creds", "cert": "/c.pem", "key": "/k.pem",
                "ca": "/ca.pem", "tls_first": true, "inbox_prefix": "_I", "color_scheme": "red", "password": ""}"#,
            0o600,
        )
        .expect("a context");
        assert_eq!(context.urls, ["nats://a:4222", "tls://b:4223"]);
        assert_eq!(context.identity, Identity::Credentials("/c.creds".into()));
        let files = [&context.ca, &context.cert, &context.key].map(|path| path.clone().unwrap_or_default());
        assert_eq!(files, ["/ca.pem", "/c.pem", "/k.pem"].map(PathBuf::from));
        assert!(context.tls_first && context.inbox_prefix.as_deref() == Some("_I"));
    }

    #[test]
    fn a_user_in_an_address_is_taken_out_of_it() {
        let context = of(r#"{"url": "nats://u:p@h:4222"}"#, 0o600).expect("a context");
        assert_eq!(context.urls, ["nats://h:4222"]);
        assert!(matches!(&context.identity, Identity::User { name, .. } if name == "u"));
        let context = of(r#"{"url": "h:4222", "user": "t0ken"}"#, 0o644).expect("a context");
        assert_eq!(context.urls, ["nats://h:4222"]);
        assert!(matches!(&context.identity, Identity::Token(_)));
    }

    #[test]
    fn keys_that_are_not_supported_are_refused_by_name_and_no_secret_is_repeated() {
        for (text, mode, expected) in [
            (r#"{"nsc": "nsc://a/b/c"}"#, 0o600, "it has nsc"),
            (r#"{"jetstream_domain": "hub"}"#, 0o600, "it has jetstream_domain"),
            (r#"{"socks_proxy": "socks5://a"}"#, 0o600, "it has socks_proxy"),
            (
                r#"{"token": "hunter2", "creds": "/c"}"#,
                0o600,
                "more than one of",
            ),
            (r#"{"password": "hunter2"}"#, 0o600, "no user"),
            (r#"{"user_jwt": "hunter2"}"#, 0o600, "neither user_seed nor nkey"),
            (r#"{"token": "hunter2"}"#, 0o644, "mode 644"),
            (r#"{"token": ["hunter2"]}"#, 0o600, "not a context, line 1"),
            ("hunter2", 0o600, "not a context"),
        ] {
            let message = of(text, mode).expect_err("must be refused");
            assert!(
                message.contains(expected) && message.contains("SR0302"),
                "{text}: {message}"
            );
            assert!(!message.contains("hunter2"), "{text}: {message}");
        }
        for name in ["", "../x", "a/b"] {
            let message = Context::named(name).expect_err("no name").to_string();
            assert!(message.contains("is not the name"), "{message}");
        }
    }
}
