//! What a manifest names and a start could not use: files, folders, addresses.
//!
//! `run` asks before it opens anything, and `config check` without a run. What is opened later is opened by the functions that are
//! asked here.

use std::fs;
use std::io;
use std::path::Path;

use nix::unistd::{AccessFlags, access};

use super::{credentials, definitions, spans};
use crate::config::upstreams::{self, Schemes};
use crate::config::{BrokerKind, Manifest, Refusal, secret};
use crate::effects::Registry;
use crate::nats::ConnectError;

/// Definitions that cannot be read.
const UNREADABLE: &str = "SR0401";
/// Settings with which no connection can be made.
const UNCONNECTED: &str = "SR0302";
/// The key of what protects the connection to the gateway.
pub(super) const GATEWAY_TLS: &str = "gateway.tls";
/// A folder in which no state can be stored.
const FOLDER: &str = "SR0421";

/// What no process could use, on whichever machine: no file is read.
pub fn anywhere(manifest: &Manifest, registry: &Registry) -> Vec<Refusal> {
    let mut found = addresses(manifest, registry);
    if manifest.broker.kind == BrokerKind::Nats {
        found.extend(unconnected(&manifest.broker.nats.wrong_without_files()));
    }
    found
}

/// What `run` refuses on this machine, besides definitions that it cannot read: those of before may stand in for them.
pub fn at_start(manifest: &Manifest, registry: &Registry) -> Vec<Refusal> {
    let mut found = addresses(manifest, registry);
    if manifest.broker.kind == BrokerKind::Nats {
        found.extend(unconnected(&manifest.broker.nats.wrong()));
    }
    if manifest.mode.runs_sagas()
        && let Some(wrong) = folder(&manifest.data_dir)
    {
        found.push(Refusal::of("data_dir", FOLDER, &format!("data_dir {wrong}")));
    }
    found.extend(credentials::refusals(&manifest.http));
    found.extend(secret::refusals(manifest));
    found.extend(certificates(manifest));
    found.extend(spans::refusal(manifest));
    found
}

/// All that a start on this machine could not use.
pub fn here(manifest: &Manifest, registry: &Registry) -> Vec<Refusal> {
    let mut found = at_start(manifest, registry);
    for (key, folder) in [("sagas", &manifest.sagas), ("effects", &manifest.effects)] {
        let wrong = definitions::unreadable(folder);
        found.extend(wrong.map(|wrong| Refusal::of(key, UNREADABLE, &wrong)));
    }
    found
}

fn addresses(manifest: &Manifest, registry: &Registry) -> Vec<Refusal> {
    let schemes = if registry.is_empty() {
        Schemes::Own
    } else {
        Schemes::Any
    };
    upstreams::refusals(&manifest.upstreams, schemes)
}

fn unconnected(errors: &[ConnectError]) -> impl Iterator<Item = Refusal> {
    errors.iter().map(|error| {
        let key = format!("broker.nats.{}", error.key().unwrap_or_default());
        Refusal::of(key, UNCONNECTED, &error.to_string())
    })
}

/// The certificates and keys for connections to upstreams and to the gateway, of the processes that call them.
fn certificates(manifest: &Manifest) -> Vec<Refusal> {
    let mut found = Vec::new();
    if manifest.mode.runs_effects() {
        for (name, files) in &manifest.upstream_tls {
            found.extend(upstreams::tls_refusals(&format!("upstream_tls.{name}"), files));
        }
    }
    let gateway = manifest.gateway.as_ref().filter(|_| manifest.mode.runs_sagas());
    if let Some(files) = gateway.and_then(|gateway| gateway.tls.as_ref()) {
        found.extend(upstreams::tls_refusals(GATEWAY_TLS, files));
    }
    found
}

/// Why no state can be stored in a folder; `None` where it can. One that does not exist is created by `run`.
pub(super) fn folder(dir: &Path) -> Option<String> {
    let shown = dir.display();
    match fs::metadata(dir) {
        Ok(found) if !found.is_dir() => Some(format!("{shown} is not a folder")),
        Ok(_) => unwritable(dir).map(|error| format!("{shown}: nothing can be written there: {error}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if fs::symlink_metadata(dir).is_ok() {
                return Some(format!("{shown} is not a folder: it is a link to nothing"));
            }
            let whole = std::path::absolute(dir).ok()?;
            let above = whole.ancestors().find(|above| above.is_dir())?;
            let error = unwritable(above)?;
            let above = above.display();
            Some(format!(
                "{shown} does not exist, and `run` cannot create it: nothing can be written to {above}: {error}"
            ))
        }
        Err(error) => Some(format!(
            "{shown} does not exist, and `run` cannot create it: {error}"
        )),
    }
}

fn unwritable(dir: &Path) -> Option<io::Error> {
    let refused = access(dir, AccessFlags::W_OK | AccessFlags::X_OK).err();
    refused.map(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::clients::UpstreamTlsFiles;

    #[test]
    fn a_folder_that_run_can_create_is_fine_and_one_in_place_of_which_something_is_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let below = |name: &str| dir.path().join(name);
        assert_eq!(folder(dir.path()), None);
        assert_eq!(folder(&below("new/and/deep")), None, "it would be created");
        fs::write(below("file"), "").expect("written");
        let told = folder(&below("file")).expect("a file");
        assert!(told.ends_with("file is not a folder"), "{told}");
        let told = folder(&below("file/data")).expect("below a file");
        assert!(told.contains("`run` cannot create it: Not a directory"), "{told}");
        symlink(below("nowhere"), below("link")).expect("linked");
        let told = folder(&below("link")).expect("a link");
        assert!(told.contains("a link to nothing"), "{told}");
        symlink(dir.path(), below("good")).expect("linked");
        assert_eq!(folder(&below("good")), None);
    }

    #[test]
    fn upstreams_and_gateway_are_checked_where_a_process_calls_them() {
        let missing = UpstreamTlsFiles {
            ca_file: Some("/nowhere/ca.pem".into()),
            ..UpstreamTlsFiles::default()
        };
        let mut manifest = Manifest::named("test");
        manifest.upstream_tls.insert("bank".to_owned(), missing.clone());
        let gateway = crate::gateway::Settings::at("https://orders".to_owned());
        manifest.gateway = Some(crate::gateway::Settings {
            tls: Some(missing),
            ..gateway
        });
        for (mode, expected) in [
            (crate::config::Mode::Effect, &["upstream_tls.bank.ca_file"][..]),
            (crate::config::Mode::Saga, &["gateway.tls.ca_file"]),
            (
                crate::config::Mode::Combined,
                &["upstream_tls.bank.ca_file", "gateway.tls.ca_file"],
            ),
        ] {
            manifest.mode = mode;
            let found = certificates(&manifest);
            let keys: Vec<&str> = found.iter().map(|refusal| &*refusal.key).collect();
            assert_eq!(keys, expected, "{mode:?}");
            assert!(found.iter().all(|refusal| refusal.code == "SR0418"), "{found:?}");
        }
    }
}
