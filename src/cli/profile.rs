//! Profiles: where commands find a runner, its tenant and a token, kept in a file of the user.
//!
//! `config.yaml` is written by people and read only; which profile is chosen stands in a file beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;

use super::output::{Column, OutputArguments, listed};
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::clients::UpstreamTlsFiles;

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// List the profiles of the profile file.
    List(ListArguments),
    /// Choose the profile that commands use without `--profile`.
    Use(UseArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct UseArguments {
    /// Name of the profile.
    name: String,
    #[command(flatten)]
    output: OutputArguments,
}

/// What a profile says. A relative path is relative to the folder of the file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// URL of the HTTP API.
    pub url: Option<String>,
    /// URL of the admin API, where it has an address of its own.
    pub admin_url: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
    /// What is trusted over https, and a client certificate.
    pub tls: UpstreamTlsFiles,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    /// The profile where none was chosen.
    default: Option<String>,
    profiles: BTreeMap<String, Profile>,
}

/// The profiles of this user.
#[derive(Debug)]
pub struct Profiles {
    folder: PathBuf,
    chosen: Option<String>,
    by_name: BTreeMap<String, Profile>,
}

/// The file of profiles, and the file that names the chosen one, in the folder.
const FILE: &str = "config.yaml";
const CHOSEN: &str = "profile";

impl Profiles {
    /// Reads the profiles of this user; none where there is no file.
    ///
    /// # Errors
    /// [`exit::CONFIG`] for a file that cannot be used.
    pub fn read() -> Result<Self, Failure> {
        match folder() {
            Some(folder) => Self::of(folder),
            None => Ok(Self {
                folder: PathBuf::new(),
                chosen: None,
                by_name: BTreeMap::new(),
            }),
        }
    }

    fn of(folder: PathBuf) -> Result<Self, Failure> {
        let path = folder.join(FILE);
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(exit::CONFIG, format!("{}: {error}", path.display()))
        };
        let written: Written = match optional(&path)? {
            None => Written::default(),
            Some(text) => serde_saphyr::from_str_with_options(&text, crate::config::yaml_options())
                .map_err(|error| wrong(&error))?,
        };
        let mut profiles = written.profiles;
        for profile in profiles.values_mut() {
            profile.resolve(&folder);
            profile.tls.check().map_err(|message| wrong(&message))?;
        }
        let chosen = optional(&folder.join(CHOSEN))?.map(|text| text.trim().to_owned());
        let chosen = chosen.filter(|name| !name.is_empty()).or(written.default);
        Ok(Self {
            folder,
            chosen,
            by_name: profiles,
        })
    }

    /// The profile of that name, else the chosen one; an empty one where none is chosen.
    ///
    /// # Errors
    /// [`exit::USAGE`] where there is none of that name.
    pub fn get(mut self, named: Option<&str>) -> Result<Profile, Failure> {
        let Some(name) = named.or(self.chosen.as_deref()).map(str::to_owned) else {
            return Ok(Profile::default());
        };
        match self.by_name.remove(&name) {
            Some(profile) => Ok(profile),
            None => Err(self.no_such(&name)),
        }
    }

    fn no_such(&self, name: &str) -> Failure {
        let names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        let path = self.folder.join(FILE);
        let known = if names.is_empty() {
            "it has none".to_owned()
        } else {
            format!("it has {}", names.join(", "))
        };
        let message = format!("{} has no profile {name}: {known}", path.display());
        Failure::new(exit::USAGE, message)
    }
}

impl Profile {
    fn resolve(&mut self, folder: &Path) {
        self.tls.resolve(folder);
        if let Some(path) = &mut self.token_file {
            *path = folder.join(&*path);
        }
    }
}

/// The folder of the files: `SAGA_RUNNER_HOME`, else `saga-runner` where this user keeps configuration.
fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable("SAGA_RUNNER_HOME") {
        return Some(PathBuf::from(folder));
    }
    let base = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
    Some(base.or_else(home)?.join("saga-runner"))
}

/// A file that need not be there.
fn optional(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::unread(path, error)),
    }
}

pub fn profile(command: &ProfileCommand) -> Result<(), Failure> {
    let profiles = Profiles::read()?;
    match command {
        ProfileCommand::List(arguments) => list(&profiles, arguments.output),
        ProfileCommand::Use(arguments) => {
            choose(&profiles, &arguments.name)?;
            let chosen = json!({"name": arguments.name, "chosen": true});
            arguments.output.shown(&chosen, || Ok(()))
        }
    }
}

const COLUMNS: &[Column] = &[
    Column::value("NAME", "/name"),
    Column::value("CHOSEN", "/chosen"),
    Column::value("URL", "/url"),
    Column::value("TENANT", "/tenant"),
    Column::value("ADMIN URL", "/admin_url").wide(),
    Column::value("TOKEN FILE", "/token_file").wide(),
];

fn list(profiles: &Profiles, output: OutputArguments) -> Result<(), Failure> {
    let items = profiles.by_name.iter().map(|(name, profile)| {
        json!({
            "name": name,
            "chosen": profiles.chosen.as_ref() == Some(name),
            "url": profile.url,
            "admin_url": profile.admin_url,
            "tenant": profile.tenant,
            "token_file": profile.token_file,
        })
    });
    output.list(COLUMNS, &listed(items.collect::<Vec<_>>()))?;
    if profiles.by_name.is_empty() {
        let path = profiles.folder.join(FILE);
        out::note(format_args!("profiles are read from {}", path.display()));
    }
    Ok(())
}

fn choose(profiles: &Profiles, name: &str) -> Result<(), Failure> {
    if !profiles.by_name.contains_key(name) {
        return Err(profiles.no_such(name));
    }
    let path = profiles.folder.join(CHOSEN);
    std::fs::write(&path, format!("{name}\n")).map_err(|error| Failure::unwritten(&path, error))?;
    out::note(format_args!("commands use the profile {name}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_profile_comes_before_the_chosen_one_and_that_before_the_default() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = || Profiles::of(dir.path().to_owned());
        assert!(folder().expect("no file").get(None).expect("empty").url.is_none());
        assert_eq!(
            folder().expect("no file").get(Some("a")).expect_err("none").code,
            exit::USAGE
        );

        let text = "default: a\nprofiles:\n  a: {url: http://a:1, token_file: a.token}\n  b: {url: http://b:1, tenant: acme}\n";
        std::fs::write(dir.path().join(FILE), text).expect("written");
        let url = |named: Option<&str>| folder().expect("read").get(named).expect("there").url;
        assert_eq!(url(None).as_deref(), Some("http://a:1"));
        let token = folder().expect("read").get(None).expect("there").token_file;
        assert_eq!(token, Some(dir.path().join("a.token")));
        choose(&folder().expect("read"), "b").expect("chosen");
        assert_eq!(url(None).as_deref(), Some("http://b:1"));
        assert_eq!(url(Some("a")).as_deref(), Some("http://a:1"));
        assert_eq!(
            choose(&folder().expect("read"), "c").expect_err("unknown").code,
            exit::USAGE
        );

        std::fs::write(dir.path().join(FILE), "profiles: {a: {token: secret}}\n").expect("written");
        let refused = folder().expect_err("a token is no part of a profile");
        assert!(
            refused.code == exit::CONFIG && !refused.message.contains("secret\""),
            "{refused}"
        );
    }
}
