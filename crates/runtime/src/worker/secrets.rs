//! The secrets of effects, as they are now.
//!
//! A call reads them once, so that it never mixes an old and a new one. What an upstream says about a call is
//! cleaned of them before anybody else sees it: servers like to repeat the header that they refuse.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::mask::Mask;
use super::provider::CallOutcome;
use crate::kernel::json::Json;

/// Shorter values are not looked for: they would be found where they mean something else.
pub const SCRUBBED_BYTES_MIN: usize = 6;

/// Secrets by name, which may be replaced while calls are made.
pub struct Secrets(RwLock<Arc<Known>>);

/// The secrets of one moment.
pub struct Known {
    object: Json<'static>,
    mask: Mask,
}

impl Secrets {
    #[must_use]
    pub fn new(secrets: &BTreeMap<String, String>) -> Self {
        Self(RwLock::new(Arc::new(Known::of(secrets))))
    }

    /// Calls that begin from now on read these. Returns whether they differ from those before.
    pub fn replace(&self, secrets: &BTreeMap<String, String>) -> bool {
        let known = Known::of(secrets);
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let differs = current.object != known.object;
        *current = Arc::new(known);
        differs
    }

    #[must_use]
    pub fn now(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    fn of(secrets: &BTreeMap<String, String>) -> Self {
        let member = |(name, value): (&String, &String)| {
            (Cow::Owned(name.clone()), Json::Str(Cow::Owned(value.clone())))
        };
        Self {
            object: Json::Map(secrets.iter().map(member).collect()),
            mask: Mask::of(SCRUBBED_BYTES_MIN, secrets.values().map(String::as_str)),
        }
    }

    /// What expressions read as `secrets`.
    #[must_use]
    pub const fn object(&self) -> &Json<'static> {
        &self.object
    }

    /// The outcome of a call, without any secret.
    #[must_use]
    pub fn scrub(&self, outcome: CallOutcome) -> CallOutcome {
        self.mask.scrub(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::provider::CallFailure;

    fn known(values: &[(&str, &str)]) -> Known {
        let map = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Known::of(&map.collect())
    }

    #[test]
    fn a_secret_in_an_upstreams_answer_is_masked_in_every_spelling() {
        let known = known(&[
            ("a", "s3cret-token"),
            ("b", "s3cret-token-2"),
            ("quoted", "li\"ne\nbreak"),
            ("short", "on"),
            ("digits", "123456"),
        ]);
        let outcome = CallOutcome::Succeeded {
            payload: br#"{"a":"s3cret-token-2","b":"Bearer s3cret-token","c":"li\"ne\nbreak","d":["pin 123456"],"n":1234567,"on":true}"#
                .to_vec(),
        };
        let CallOutcome::Succeeded { payload } = known.scrub(outcome) else {
            panic!("it succeeded");
        };
        assert_eq!(
            String::from_utf8_lossy(&payload),
            r#"{"a":"***","b":"Bearer ***","c":"***","d":["pin ***"],"n":1234567,"on":true}"#
        );
        let failure = CallFailure::not_done("permanent", "401: no s3cret-token here");
        let CallOutcome::Failed(failure) = known.scrub(CallOutcome::Failed(failure)) else {
            panic!("it failed");
        };
        assert_eq!(failure.message, "401: no *** here");
    }

    #[test]
    fn a_replaced_secret_is_read_by_the_next_call() {
        let one = |value: &str| BTreeMap::from([("token".to_owned(), value.to_owned())]);
        let secrets = Secrets::new(&one("old-token"));
        let before = secrets.now();
        assert!(!secrets.replace(&one("old-token")), "nothing is new");
        assert!(secrets.replace(&one("new-token")));
        let read = |known: &Known| known.object().get("token").cloned();
        assert_eq!(read(&before), Some(Json::Str("old-token".into())));
        assert_eq!(read(&secrets.now()), Some(Json::Str("new-token".into())));
    }
}
