//! What the API proves itself by, and what its clients do: the files that the manifest names, read before anything is served.

use std::path::Path;
use std::sync::Arc;

use super::StartError;
use crate::api::auth::jwt::Jwt;
use crate::api::auth::{Door, TokensFile};
use crate::api::tls::Tls;
use crate::api::{self, open_to_everybody};
use crate::config::ConfigError;
use crate::ports::clock::Clock;

/// By what the API knows principals.
///
/// # Errors
/// [`ConfigError::Tokens`], [`ConfigError::OpenToEverybody`] and [`ConfigError::Jwt`].
pub(super) fn door(settings: &api::Settings, clock: &Arc<dyn Clock>) -> Result<Door, StartError> {
    let tokens = match &settings.tokens_file {
        None => None,
        Some(path) => {
            check_private("http.tokens_file", path)?;
            let opened = TokensFile::open(path).map_err(|wrong| {
                let path = path.clone();
                ConfigError::Tokens { path, wrong }
            });
            Some(opened?)
        }
    };
    let jwt = settings
        .jwt
        .as_ref()
        .map(|jwt| Jwt::open(jwt, Arc::clone(clock)).map_err(|wrong| ConfigError::Jwt { wrong }));
    Ok(Door::new(tokens, jwt.transpose()?))
}

/// The certificate of the API, if it has one.
///
/// # Errors
/// [`ConfigError::Tls`] and [`ConfigError::OpenToEverybody`].
pub(super) fn tls(settings: &api::Settings, clock: &Arc<dyn Clock>) -> Result<Option<Arc<Tls>>, StartError> {
    let Some(settings) = &settings.tls else {
        return Ok(None);
    };
    check_private("http.tls.key_file", &settings.key_file)?;
    let opened = Tls::open(settings, Arc::clone(clock)).map_err(|wrong| ConfigError::Tls { wrong });
    Ok(Some(Arc::new(opened?)))
}

/// Refuses a file of secrets that every user of the machine may read.
///
/// # Errors
/// [`ConfigError::OpenToEverybody`].
pub(super) fn check_private(key: &'static str, path: &Path) -> Result<(), ConfigError> {
    match open_to_everybody(path) {
        None => Ok(()),
        Some(wrong) => Err(ConfigError::OpenToEverybody {
            key,
            path: path.to_owned(),
            wrong,
        }),
    }
}
