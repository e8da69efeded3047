//! The secrets of effects, as they are now.
//!
//! A call reads them once, so that it never mixes an old and a new one. What an upstream says about a call is
//! cleaned of them before anybody else sees it: servers like to repeat the header that they refuse.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::provider::CallOutcome;
use crate::kernel::json::Json;

/// Shorter values are not looked for: they would be found where they mean something else.
const SCRUBBED_BYTES_MIN: usize = 6;
/// Deepest nesting of a result that is looked through, in levels.
const DEPTH_MAX: usize = 256;
/// What stands in the place of a secret.
const MASK: &str = "***";

/// Secrets by name, which may be replaced while calls are made.
pub struct Secrets(RwLock<Arc<Known>>);

/// The secrets of one moment.
pub struct Known {
    object: Json<'static>,
    mask: Mask,
}

/// Finds values that nobody may see, and puts asterisks in their place.
pub struct Mask {
    /// The values in each spelling in which they may come back, the longest first, so that of two values of which
    /// one holds the other none is left in part.
    spellings: Vec<String>,
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
            mask: Mask::of(secrets.values().map(String::as_str)),
        }
    }

    /// What expressions read as `secrets`.
    #[must_use]
    pub const fn object(&self) -> &Json<'static> {
        &self.object
    }

    /// What came of a call, without any secret.
    #[must_use]
    pub fn scrub(&self, outcome: CallOutcome) -> CallOutcome {
        self.mask.scrub(outcome)
    }
}

impl Mask {
    /// Short values are left out.
    #[must_use]
    pub fn of<'v>(values: impl IntoIterator<Item = &'v str>) -> Self {
        let mut spellings: Vec<String> = values
            .into_iter()
            .filter(|value| value.len() >= SCRUBBED_BYTES_MIN)
            .flat_map(spellings)
            .collect();
        spellings.sort_by_key(|text| (std::cmp::Reverse(text.len()), text.clone()));
        spellings.dedup();
        Self { spellings }
    }

    /// What came of a call, without any of the values.
    #[must_use]
    pub fn scrub(&self, outcome: CallOutcome) -> CallOutcome {
        match outcome {
            CallOutcome::Succeeded { payload } => CallOutcome::Succeeded {
                payload: self.clean_json(payload),
            },
            CallOutcome::Failed(mut failure) => {
                failure.message = self.clean(failure.message);
                CallOutcome::Failed(failure)
            }
        }
    }

    /// Only texts are masked: digits of a number that look like a secret are part of the number.
    fn clean_json(&self, payload: Vec<u8>) -> Vec<u8> {
        let holds = |text: &str| self.spellings.iter().any(|spelling| text.contains(&**spelling));
        if !std::str::from_utf8(&payload).is_ok_and(holds) {
            return payload;
        }
        match Json::parse(&payload, DEPTH_MAX) {
            Ok(value) => {
                let mut bytes = Vec::with_capacity(payload.len());
                self.masked(value).write(&mut bytes);
                bytes
            }
            // It is no result either, and its text goes nowhere but into the message that says so.
            Err(_) => self
                .clean(String::from_utf8_lossy(&payload).into_owned())
                .into_bytes(),
        }
    }

    fn masked<'a>(&self, value: Json<'a>) -> Json<'a> {
        match value {
            Json::Str(text) => Json::Str(Cow::Owned(self.clean(text.into_owned()))),
            Json::List(items) => Json::List(items.into_iter().map(|item| self.masked(item)).collect()),
            Json::Map(members) => {
                let member = |(name, value)| (name, self.masked(value));
                Json::Map(members.into_iter().map(member).collect())
            }
            plain => plain,
        }
    }

    fn clean(&self, text: String) -> String {
        let mut text = text;
        for spelling in &self.spellings {
            if text.contains(spelling.as_str()) {
                text = text.replace(spelling.as_str(), MASK);
            }
        }
        text
    }
}

/// A value as it is, and as it stands in JSON.
fn spellings(value: &str) -> [String; 2] {
    let quoted = serde_json::to_string(value).expect("a string is always JSON");
    let inner = quoted[1..quoted.len() - 1].to_owned();
    [value.to_owned(), inner]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::provider::CallFailure;

    fn known(values: &[(&str, &str)]) -> Known {
        let map = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Known::of(&map.collect())
    }

    #[test]
    fn what_an_upstream_repeats_is_masked_in_every_spelling() {
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
