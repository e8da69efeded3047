//! What the API proves itself by, and what its clients do: the files that the manifest names, read before anything is served.

use std::sync::Arc;

use super::SystemClock;
use crate::api;
use crate::api::auth::jwt::Jwt;
use crate::api::auth::{Door, TokensFile};
use crate::api::tls::Tls;
use crate::config::{ConfigError, Refusal, check_private};
use crate::ports::clock::Clock;

/// The keys of what must not be open to every user of the machine.
const TOKENS_FILE: &str = "http.tokens_file";
const KEY_FILE: &str = "http.tls.key_file";

/// By what the API knows principals.
///
/// # Errors
/// [`ConfigError::Tokens`], [`ConfigError::OpenToEverybody`] and [`ConfigError::Jwt`].
pub(super) fn door(settings: &api::Settings, clock: &Arc<dyn Clock>) -> Result<Door, ConfigError> {
    Ok(Door::new(tokens(settings)?, jwt(settings, clock)?))
}

fn tokens(settings: &api::Settings) -> Result<Option<TokensFile>, ConfigError> {
    let Some(path) = &settings.tokens_file else {
        return Ok(None);
    };
    check_private(TOKENS_FILE, path)?;
    let opened = TokensFile::open(path).map_err(|wrong| {
        let path = path.clone();
        ConfigError::Tokens { path, wrong }
    });
    opened.map(Some)
}

fn jwt(settings: &api::Settings, clock: &Arc<dyn Clock>) -> Result<Option<Jwt>, ConfigError> {
    let opened = settings
        .jwt
        .as_ref()
        .map(|jwt| Jwt::open(jwt, Arc::clone(clock)).map_err(|wrong| ConfigError::Jwt { wrong }));
    opened.transpose()
}

/// The certificate of the API, if it has one.
///
/// # Errors
/// [`ConfigError::Tls`] and [`ConfigError::OpenToEverybody`].
pub(super) fn tls(settings: &api::Settings, clock: &Arc<dyn Clock>) -> Result<Option<Arc<Tls>>, ConfigError> {
    let Some(settings) = &settings.tls else {
        return Ok(None);
    };
    check_private(KEY_FILE, &settings.key_file)?;
    let opened = Tls::open(settings, Arc::clone(clock)).map_err(|wrong| ConfigError::Tls { wrong });
    Ok(Some(Arc::new(opened?)))
}

/// What [`door`] and [`tls`] would refuse, all of it, besides what the manifest refuses by itself.
pub(super) fn refusals(settings: &api::Settings) -> Vec<Refusal> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut errors = Vec::new();
    errors.extend(tokens(settings).err());
    if settings.jwt.as_ref().is_some_and(|jwt| jwt.check().is_ok()) {
        errors.extend(jwt(settings, &clock).err());
    }
    if let Some(tls) = &settings.tls {
        let open = check_private(KEY_FILE, &tls.key_file).err();
        let wrong = tls.wrong().into_iter().map(|wrong| ConfigError::Tls { wrong });
        // A key that is open to everybody is told once.
        let is_told = |error: &ConfigError| {
            let sentence = error.to_string();
            open.is_some() && sentence.starts_with(KEY_FILE)
        };
        errors.extend(wrong.filter(|error| !is_told(error)));
        errors.extend(open);
    }
    errors.iter().map(ConfigError::refusal).collect()
}
