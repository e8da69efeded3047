//! Which runner a command asks, and for whom: flags, then the environment, then the profile.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::addresses::base_url;
use super::output::OutputArguments;
use super::profile::Profile;
use crate::app::exit::{self, Failure};

/// The variable with a token; a flag would show it in the list of processes.
const TOKEN: &str = "SAGA_RUNNER_TOKEN";

/// The process that receives the request: flags, then the environment, then the profile.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArguments {
    /// URL of the HTTP API of a runner; default: that of the profile, else http://127.0.0.1:8080.
    #[arg(long, env = "SAGA_RUNNER_URL", value_name = "URL", value_parser = base_url)]
    pub(super) url: Option<String>,
    /// URL of its admin API; default: that of the profile, else the port that the runner at --url names, else the same as --url.
    #[arg(long, env = "SAGA_RUNNER_ADMIN_URL", value_name = "URL", value_parser = base_url)]
    pub(super) admin_url: Option<String>,
    /// File with the bearer token; default: SAGA_RUNNER_TOKEN, else the file of the profile.
    #[arg(long, env = "SAGA_RUNNER_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Profile with URL, tenant and token; default: the one chosen by `profile use`.
    #[arg(long, env = "SAGA_RUNNER_PROFILE", value_name = "NAME")]
    pub(super) profile: Option<String>,
}

impl ServerArguments {
    /// The flags that lead another command to the same process, without what the environment says.
    pub fn flags(&self) -> String {
        let token_file = self.token_file.as_ref().map(|path| path.display().to_string());
        let named = [
            ("--url", "SAGA_RUNNER_URL", self.url.clone()),
            ("--profile", "SAGA_RUNNER_PROFILE", self.profile.clone()),
            ("--token-file", "SAGA_RUNNER_TOKEN_FILE", token_file),
        ];
        let mut flags = String::new();
        for (flag, variable, value) in named {
            let of_variable = std::env::var(variable).ok();
            if let Some(value) = value.filter(|value| of_variable.as_ref() != Some(value)) {
                let _infallible = write!(flags, " {flag} {}", quoted(&value));
            }
        }
        flags
    }

    /// Whether a flag or a variable names a process.
    pub const fn names_one(&self) -> bool {
        self.url.is_some() || self.profile.is_some()
    }
}

/// The tenant of instances and schedules.
#[derive(Debug, Clone, Args)]
pub struct TenantArguments {
    /// Tenant; default: that of the profile. Not needed if the runner serves one tenant, or runs without tenants.
    #[arg(long, env = "SAGA_RUNNER_TENANT", value_name = "NAME")]
    tenant: Option<String>,
}

impl TenantArguments {
    /// As the command line or its environment names it.
    pub fn named(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// What commands about the things of a tenant have in common: how they print, whose things they are, and who answers.
#[derive(Debug, Clone, Args)]
pub struct CommonArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    #[command(flatten)]
    pub tenant: TenantArguments,
    #[command(flatten)]
    pub server: ServerArguments,
}

/// A word as a shell takes it for one.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with('-') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The bearer token, by flag, environment or profile.
pub(super) fn token(server: &ServerArguments, profile: &Profile) -> Result<Option<String>, Failure> {
    let variable = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let path = match (&server.token_file, variable) {
        (Some(path), _) => path,
        (None, Some(token)) => return legal(token, TOKEN).map(Some),
        // A profile's token is for its own addresses.
        (None, None) => match (&profile.token_file, &server.url, &server.admin_url) {
            (Some(path), None, None) => path,
            _ => return Ok(None),
        },
    };
    let text = std::fs::read_to_string(path).map_err(|error| Failure::unread(path, error))?;
    legal(text.trim_end().to_owned(), &path.display().to_string()).map(Some)
}

/// A token that can stand in a header.
fn legal(token: String, place: &str) -> Result<String, Failure> {
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        let message = format!("{place}: a token is one line of visible ASCII characters");
        return Err(Failure::new(exit::CONFIG, message));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_a_shell_would_read_otherwise_is_quoted() {
        assert_eq!(quoted("o-1"), "o-1");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("-x"), "'-x'");
    }

    #[test]
    fn a_token_is_one_line_of_visible_characters() {
        assert!(legal("two lines\nhere".to_owned(), "x").is_err());
        assert!(legal(String::new(), "x").is_err());
        assert_eq!(legal("t-1".to_owned(), "x").expect("legal"), "t-1");
    }
}
