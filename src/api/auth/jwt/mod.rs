//! JSON Web Tokens of an issuer: who they name, and what they may do.
//!
//! The type of the issuer's key decides about the algorithm, never the token: `RS256` for RSA, `ES256` for P-256, `EdDSA` for
//! Ed25519. So neither `none` nor a public key that is taken for a shared secret can be chosen.

mod fetching;
mod keys;
mod settings;

pub use settings::JwtSettings;

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::fetching::Fetching;
use self::keys::Keys;
use super::{Grants, Principal};
use crate::api::files::Files;
use crate::files;
use crate::ports::clock::Clock;

/// Longest name of a principal, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Longest reason of a refusal, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Knows principals by the tokens of an issuer.
pub struct Jwt {
    settings: JwtSettings,
    keys: Source,
}

/// Where the keys of the issuer come from.
enum Source {
    File(Files<Keys>),
    Url(Fetching),
}

/// Why a token is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It is not valid; a few words that say why.
    Invalid(String),
    /// The keys of the issuer are not known, or too old.
    NoKeys,
}

impl Jwt {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// A sentence that names the key of the manifest and what is wrong.
    pub fn open(settings: &JwtSettings, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let keys = match (&settings.jwks_file, &settings.jwks_url) {
            (Some(path), _) => {
                let read = {
                    let path = path.clone();
                    move || Keys::parse(&files::read(&path)?)
                };
                let opened = Files::open("http.jwt.jwks_file", vec![path.clone()], read);
                Source::File(opened.map_err(|wrong| format!("jwks_file {}: {wrong}", path.display()))?)
            }
            (None, Some(url)) => Source::Url(Fetching::new(url, settings, clock)?),
            (None, None) => return Err("jwks_file or jwks_url is missing".to_owned()),
        };
        Ok(Self {
            settings: settings.clone(),
            keys,
        })
    }

    /// Whether a bearer token is a JSON Web Token: the runner's own have no point.
    pub fn is_one(token: &str) -> bool {
        token.matches('.').count() == 2
    }

    /// Fetches the keys of the issuer again and again, until it is told to stop.
    pub async fn keep(&self, stop: &CancellationToken) {
        if let Source::Url(fetching) = &self.keys {
            fetching.keep(stop).await;
        }
    }

    /// Whose token this is. `now` is the monotonic time. May wait for a fetch of the keys, if the token has a key that is not known.
    pub async fn find(&self, token: &str, now: Duration) -> Result<Principal, Refused> {
        let header = decode_header(token).map_err(|error| refused_as(&error))?;
        let key = header.kid.ok_or_else(|| invalid("it names no key (kid)"))?;
        if header.crit.is_some() {
            return Err(invalid("it has an extension that is not understood (crit)"));
        }
        let keys = match &self.keys {
            Source::File(files) => files.current(now),
            Source::Url(fetching) => fetching.keys(&key, now).await.ok_or(Refused::NoKeys)?,
        };
        let mut refused = invalid("its key (kid) is not one of the issuer's");
        for known in keys.named(&key) {
            let mut validation = Validation::new(known.algorithm);
            validation.set_issuer(&[&self.settings.issuer]);
            validation.set_audience(&[&self.settings.audience]);
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
            validation.validate_nbf = true;
            validation.leeway = self.settings.leeway.duration().as_secs();
            match decode::<Value>(token, &known.decoding, &validation) {
                Ok(valid) => return self.principal(&valid.claims),
                Err(error) => refused = refused_as(&error),
            }
        }
        Err(refused)
    }

    fn principal(&self, claims: &Value) -> Result<Principal, Refused> {
        let name = claim(claims, &self.settings.name_claim).and_then(Value::as_str);
        let is_legal = |name: &&str| {
            !name.is_empty()
                && name.len() <= NAME_BYTES_MAX
                && !name.chars().any(|c| c.is_control() || c == ' ')
        };
        let name = name
            .filter(is_legal)
            .ok_or_else(|| invalid("it has no name in the claim http.jwt.name_claim"))?;
        Ok(Principal {
            name: Some(name.to_owned()),
            grants: grants(claim(claims, &self.settings.roles_claim)),
        })
    }
}

/// The words of an error may repeat what the token has, and go into the log.
fn refused_as(error: &jsonwebtoken::errors::Error) -> Refused {
    Refused::Invalid(error.to_string().chars().take(REASON_CHARS_MAX).collect())
}

fn invalid(why: &str) -> Refused {
    Refused::Invalid(why.to_owned())
}

/// A claim by its name, or by a JSON pointer.
fn claim<'c>(claims: &'c Value, name: &str) -> Option<&'c Value> {
    claims.get(name).or_else(|| {
        let pointer = Some(name).filter(|name| name.starts_with('/'));
        pointer.and_then(|pointer| claims.pointer(pointer))
    })
}

/// The roles of a claim: a list, or a text with commas or spaces. What is no role of the runner is another program's.
fn grants(claim: Option<&Value>) -> Grants {
    let mut grants = Grants::default();
    let of_text = |text: &str, grants: &mut Grants| {
        for grant in text.split([',', ' ']).filter(|grant| !grant.is_empty()) {
            grants.add(grant);
        }
    };
    match claim {
        Some(Value::String(text)) => of_text(text, &mut grants),
        Some(Value::Array(items)) => {
            for item in items.iter().filter_map(Value::as_str) {
                of_text(item, &mut grants);
            }
        }
        _ => {}
    }
    grants
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kernel::envelope::Role;
    use crate::kernel::ids::TenantId;

    #[test]
    fn roles_are_read_from_a_list_or_a_text_and_those_of_others_are_left_out() {
        let acme = TenantId::parse("acme").expect("a tenant");
        let claims = json!({
            "roles": ["offline_access", "viewer@acme", "operator@acme", "root@*", "admin@A.b"],
            "text": "viewer@*, operator@acme",
            "realm_access": {"roles": ["admin@acme"]},
            "https://example.com/roles": "viewer@acme",
            "wrong": {"admin@*": true},
        });
        for (name, of_acme, everywhere) in [
            ("roles", Some(Role::Operator), None),
            ("text", Some(Role::Operator), Some(Role::Viewer)),
            ("/realm_access/roles", Some(Role::Admin), None),
            ("https://example.com/roles", Some(Role::Viewer), None),
            ("wrong", None, None),
            ("missing", None, None),
        ] {
            let grants = grants(claim(&claims, name));
            assert_eq!(grants.role(Some(&acme)), of_acme, "{name}");
            assert_eq!(grants.role(None), everywhere, "{name}");
        }
    }

    #[test]
    fn a_token_of_the_runner_is_no_json_web_token() {
        assert!(Jwt::is_one("a.b.c"));
        assert!(!Jwt::is_one("sagarunner_00"));
    }
}
