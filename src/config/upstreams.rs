//! Upstreams: whether any provider could call their addresses, and what protects the connections to them.

use std::collections::BTreeMap;

use super::{ConfigError, Refusal, check_private};
use crate::clients::{UpstreamTls, UpstreamTlsFiles, url_with_host};
use crate::kernel::definition::sql_database::DatabaseUrl;

/// An address that no provider can call.
const CODE: &str = "SR0419";

/// Which schemes addresses may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schemes {
    /// Those that the runner's own providers call.
    Own,
    /// Others, too: a team has compiled in providers, which know them.
    Any,
}

/// The addresses that cannot be called, by the names of their upstreams. No sentence repeats one: it may hold a password.
pub fn refusals(upstreams: &BTreeMap<String, String>, schemes: Schemes) -> Vec<Refusal> {
    let refused = upstreams.iter().filter_map(|(name, address)| {
        let key = format!("upstreams.{name}");
        // As effects read it.
        let wrong = wrong(address.trim_end_matches('/'), schemes)?;
        Some(Refusal::of(&*key, CODE, &format!("{key} {wrong}")))
    });
    refused.collect()
}

fn wrong(address: &str, schemes: Schemes) -> Option<String> {
    let Some((scheme, _)) = address.split_once(':') else {
        return Some("is no URL; write one like https://host or postgres://user@host/name".to_owned());
    };
    match &*scheme.to_ascii_lowercase() {
        "http" | "https" | "smtp" | "smtps" => {
            let has_host = url_with_host(address).is_some();
            (!has_host).then(|| format!("is no URL with a host, as in {scheme}://host"))
        }
        "postgres" | "postgresql" | "mysql" | "mariadb" | "sqlite" => {
            let error = DatabaseUrl::parse(address).err()?;
            Some(format!("cannot be used: {error}"))
        }
        _ if schemes == Schemes::Any => None,
        _ => Some(
            "has a scheme that no provider calls; expected http, https, postgres, mysql, sqlite, smtp or smtps"
                .to_owned(),
        ),
    }
}

/// Reads the certificates and the key that `key` names, as `upstream_tls.bank`.
///
/// # Errors
/// [`ConfigError::OpenToEverybody`] and [`ConfigError::UpstreamTls`].
pub fn read_tls(key: &str, files: &UpstreamTlsFiles) -> Result<UpstreamTls, ConfigError> {
    check_key(key, files)?;
    files.read().map_err(|wrong| unusable(key, wrong))
}

/// What is wrong with the files that [`read_tls`] would read, all of it.
pub fn tls_refusals(key: &str, files: &UpstreamTlsFiles) -> Vec<Refusal> {
    let open = check_key(key, files).err();
    // A key that is open to everybody is told once.
    let is_told = |wrong: &str| open.is_some() && wrong.starts_with("key_file ");
    let wrong = files.wrong().into_iter().filter(|wrong| !is_told(wrong));
    let mut errors: Vec<ConfigError> = wrong.map(|wrong| unusable(key, wrong)).collect();
    errors.extend(open);
    errors.iter().map(ConfigError::refusal).collect()
}

fn check_key(key: &str, files: &UpstreamTlsFiles) -> Result<(), ConfigError> {
    match &files.key_file {
        Some(path) => check_private(&format!("{key}.key_file"), path),
        None => Ok(()),
    }
}

fn unusable(key: &str, wrong: String) -> ConfigError {
    ConfigError::UpstreamTls {
        key: key.to_owned(),
        wrong,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn told(address: &str, schemes: Schemes) -> Option<String> {
        let upstreams = BTreeMap::from([("bank".to_owned(), address.to_owned())]);
        refusals(&upstreams, schemes).pop().map(|refusal| {
            assert_eq!((&*refusal.key, refusal.code), ("upstreams.bank", CODE));
            refusal.message
        })
    }

    #[test]
    fn an_address_that_no_provider_can_call_is_refused_and_not_repeated() {
        for (address, expected) in [
            ("", "is no URL"),
            ("bank.hunter2.example", "is no URL"),
            ("bank:8080", "has a scheme that no provider calls"),
            ("htps://me:hunter2@bank", "has a scheme that no provider calls"),
            ("http://", "no URL with a host, as in http://host"),
            ("https:///hunter2", "no URL with a host"),
            ("https://bank:port", "no URL with a host"),
            ("smtp:", "no URL with a host"),
            ("postgres://me:hunter2@bank/ledger", "holds no password"),
            ("mysql://me@bank", "the name of the database"),
            ("sqlite:ledger.db", "the whole path of a file"),
        ] {
            let told = told(address, Schemes::Own).unwrap_or_else(|| panic!("{address} is let pass"));
            assert!(
                told.starts_with("upstreams.bank ") && told.contains(expected),
                "{address}: {told}"
            );
            assert!(!told.contains("hunter2"), "{told}");
        }
        for address in [
            "http://127.0.0.1:7070",
            "https://bank/v1/",
            "HTTPS://[::1]:1",
            "smtps://mail",
            "postgresql://me@bank/ledger?sslmode=require",
            "sqlite:///var/ledger.db",
        ] {
            assert_eq!(told(address, Schemes::Own), None, "{address}");
        }
    }

    #[test]
    fn a_key_that_every_user_may_read_is_told_once_beside_other_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("key.pem");
        std::fs::write(&key, "no key").expect("written");
        let files = UpstreamTlsFiles {
            ca_file: Some(folder.path().join("none.pem")),
            cert_file: None,
            key_file: Some(key.clone()),
        };
        let told = |mode: u32| -> Vec<(String, &'static str)> {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("set");
            let found = tls_refusals("gateway.tls", &files).into_iter();
            found.map(|refusal| (refusal.key, refusal.code)).collect()
        };
        let ca = ("gateway.tls.ca_file".to_owned(), "SR0418");
        let key = |code| ("gateway.tls.key_file".to_owned(), code);
        assert_eq!(told(0o644), [ca.clone(), key("SR0416")]);
        assert_eq!(told(0o600), [ca, key("SR0418")]);
    }

    #[test]
    fn providers_of_a_team_may_have_schemes_of_their_own() {
        for address in ["kafka://a:9092,b:9092", "bank:8080"] {
            assert_eq!(told(address, Schemes::Any), None, "{address}");
        }
        assert!(told("http://", Schemes::Any).is_some());
        assert!(told("bank", Schemes::Any).is_some());
    }
}
