//! What a manifest says about JSON Web Tokens.

use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Most that clocks may differ.
const LEEWAY_MAX: Millis = Millis::seconds(300);

/// The issuer of tokens, and how they are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSettings {
    /// The `iss` of accepted tokens.
    pub issuer: String,
    /// What has to be in their `aud`.
    pub audience: String,
    /// File of the issuer's public keys (JWKS); in place of `jwks_url`.
    #[serde(default)]
    pub jwks_file: Option<PathBuf>,
    /// Where the issuer publishes them: https, or http on this machine.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// PEM file of the authorities that are trusted for `jwks_url`. Default: the system's.
    #[serde(default)]
    pub jwks_ca_file: Option<PathBuf>,
    /// The claim with the roles: a name, or a JSON pointer. Default `saga_runner_roles`.
    #[serde(default = "roles_claim")]
    pub roles_claim: String,
    /// The claim with the principal's name. Default `sub`.
    #[serde(default = "name_claim")]
    pub name_claim: String,
    /// How far the issuer's clock may differ; at most 5 minutes. Default 30s.
    #[serde(default = "leeway")]
    pub leeway: Millis,
    /// How often the keys are fetched. Default 5m.
    #[serde(default = "refresh")]
    pub refresh: Millis,
    /// Shortest time between two fetches, also if tokens have keys that are not known. Default 10s.
    #[serde(default = "refetch_after")]
    pub refetch_after: Millis,
    /// How long keys stay in force that cannot be fetched again. Default 24h.
    #[serde(default = "keys_age_max")]
    pub keys_age_max: Millis,
}

fn roles_claim() -> String {
    "saga_runner_roles".to_owned()
}

fn name_claim() -> String {
    "sub".to_owned()
}

const fn leeway() -> Millis {
    Millis::seconds(30)
}

const fn refresh() -> Millis {
    Millis::seconds(300)
}

const fn refetch_after() -> Millis {
    Millis::seconds(10)
}

const fn keys_age_max() -> Millis {
    Millis::seconds(24 * 60 * 60)
}

impl JwtSettings {
    /// Makes relative paths those of files below `base`.
    pub fn resolve(&mut self, base: &Path) {
        for path in [&mut self.jwks_file, &mut self.jwks_ca_file]
            .into_iter()
            .flatten()
        {
            if path.is_relative() {
                *path = base.join(&*path);
            }
        }
    }

    /// Checks what a type does not.
    ///
    /// # Errors
    /// A sentence with the key and what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for (key, text) in [
            ("issuer", &self.issuer),
            ("audience", &self.audience),
            ("roles_claim", &self.roles_claim),
            ("name_claim", &self.name_claim),
        ] {
            if text.is_empty() {
                return Err(format!("http.jwt.{key} is empty"));
            }
        }
        if self.jwks_file.is_some() == self.jwks_url.is_some() {
            return Err("http.jwt needs either jwks_file or jwks_url".to_owned());
        }
        if let Some(url) = &self.jwks_url {
            check_url(url)?;
        }
        if self.leeway > LEEWAY_MAX {
            let found = self.leeway;
            return Err(format!(
                "http.jwt.leeway may be at most {LEEWAY_MAX}, found {found}"
            ));
        }
        for (key, time) in [("refresh", self.refresh), ("refetch_after", self.refetch_after)] {
            if time < Millis::seconds(1) {
                return Err(format!("http.jwt.{key} must be at least 1s, found {time}"));
            }
        }
        if self.keys_age_max < self.refresh || self.refresh < self.refetch_after {
            return Err(
                "http.jwt.keys_age_max must be at least http.jwt.refresh, and that at least http.jwt.refetch_after"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Whoever could change the answer on the way could sign tokens.
fn check_url(text: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("http.jwt.jwks_url {what}"));
    let Ok(url) = Url::parse(text) else {
        return wrong("is no URL");
    };
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("may not hold credentials");
    }
    let is_local = match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback()),
        None => false,
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_local => Ok(()),
        _ => wrong("must begin with https://, or lead to this machine"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn settings_that_would_accept_what_they_should_not_are_refused() {
        let with = |more: Value| {
            let mut all = json!({"issuer": "a", "audience": "b", "jwks_url": "https://id.example.com/keys"});
            for (key, value) in more.as_object().expect("an object") {
                all[key] = value.clone();
            }
            let settings: JwtSettings = serde_json::from_value(all).expect("settings");
            settings.check()
        };
        for fine in [
            json!({}),
            json!({"jwks_url": "http://127.0.0.1:9/keys"}),
            json!({"jwks_url": "http://[::1]:9/keys"}),
            json!({"jwks_url": null, "jwks_file": "keys.json"}),
            json!({"leeway": "5m"}),
        ] {
            assert_eq!(with(fine.clone()), Ok(()), "{fine}");
        }
        for wrong in [
            json!({"issuer": ""}),
            json!({"audience": ""}),
            json!({"jwks_url": null}),
            json!({"jwks_file": "keys.json"}),
            json!({"jwks_url": "http://id.example.com/keys"}),
            json!({"jwks_url": "http://127.0.0.1.example.com/keys"}),
            json!({"jwks_url": "https://user:word@id.example.com/keys"}),
            json!({"jwks_url": "file:///keys"}),
            json!({"leeway": "6m"}),
            json!({"refetch_after": "0s"}),
            json!({"refresh": "2s"}),
            json!({"keys_age_max": "1m"}),
        ] {
            assert!(with(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
