//! Aliases: values that an instance has registered, by which events find it beside its key.
//!
//! An alias is stored where its address says, in the shard of that address. Owners tell it that they have
//! it and that they have it no more; an event that is matched by it is forwarded to each of them.

use serde::{Deserialize, Serialize};

use super::ids::{InstanceId, Key, SagaName, TenantId};
use super::json::Json;

/// What the addresses of aliases begin with. No instance has such a key.
const PREFIX: &str = "@alias/";
/// Longest name of an alias, in bytes, as definitions allow it.
const NAME_BYTES_MAX: usize = 128;
/// Longest value of an alias, in bytes: with its name it makes a key.
pub const VALUE_BYTES_MAX: usize = 120;
/// Longest time that an event waits for its alias where the saga does not say, in milliseconds.
pub const WAIT_MS_MAX: i64 = 60_000;

/// A value under the name that the saga gives to values of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Alias {
    pub name: String,
    /// 1 to [`VALUE_BYTES_MAX`] bytes without control characters.
    pub value: String,
}

/// How an event came to an instance that no key rule has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Via {
    pub alias: Alias,
    /// The generation that has registered it.
    pub generation: u32,
}

/// Why a value is not that of an alias.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    #[error("the alias {name} is neither a string nor an integer")]
    Kind { name: String },
    #[error(
        "the alias {name} has 1 to {VALUE_BYTES_MAX} bytes without control characters, found {bytes} bytes"
    )]
    Text { name: String, bytes: usize },
}

impl Alias {
    /// The alias that a value makes; none where it is null.
    ///
    /// # Errors
    /// [`AliasError`] where the value is of the wrong kind, empty, too long, or has control characters.
    pub fn new(name: &str, value: &Json<'_>) -> Result<Option<Self>, AliasError> {
        let value = match value {
            Json::Null => return Ok(None),
            Json::Str(text) => text.clone().into_owned(),
            Json::Int(number) => number.to_string(),
            Json::Bool(_) | Json::Double(_) | Json::List(_) | Json::Map(_) => {
                let name = name.to_owned();
                return Err(AliasError::Kind { name });
            }
        };
        let alias = Self {
            name: name.to_owned(),
            value,
        };
        if alias.is_legal() {
            return Ok(Some(alias));
        }
        Err(AliasError::Text {
            bytes: alias.value.len(),
            name: alias.name,
        })
    }

    /// Whether it has a name and a value that make an address. One that was not made by [`Alias::new`] may have
    /// come from anybody.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        let (name, value) = (&self.name, &self.value);
        let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let named = word && !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        named && !value.is_empty() && value.len() <= VALUE_BYTES_MAX && !value.contains(char::is_control)
    }

    /// The key under which it is addressed.
    ///
    /// # Panics
    /// If it is not [legal](Alias::is_legal).
    #[must_use]
    pub fn key(&self) -> Key {
        Key::parse(&format!("{PREFIX}{}/{}", self.name, self.value)).expect("name and value make a legal key")
    }

    /// The alias that is addressed by `key`.
    #[must_use]
    pub fn of(key: &Key) -> Option<Self> {
        let (name, value) = key.as_str().strip_prefix(PREFIX)?.split_once('/')?;
        let alias = Self {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        alias.is_legal().then_some(alias)
    }

    /// Where it is addressed.
    #[must_use]
    pub fn address(&self, tenant: &TenantId, saga: &SagaName) -> InstanceId {
        InstanceId {
            tenant: tenant.clone(),
            saga: saga.clone(),
            key: self.key(),
        }
    }
}

/// Whether this is, or looks like, the address of an alias.
#[must_use]
pub fn is_address(key: &Key) -> bool {
    key.as_str().starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(value: &Json<'_>) -> Result<Option<Alias>, AliasError> {
        Alias::new("tracking", value)
    }

    #[test]
    fn an_address_names_its_alias() {
        let text = Json::Str("T/1: münchen".into());
        let found = alias(&text).expect("a value").expect("not null");
        assert_eq!(found.key().as_str(), "@alias/tracking/T/1: münchen");
        assert_eq!(Alias::of(&found.key()), Some(found));
        for key in [
            "o-1",
            "@schedule",
            "@alias/",
            "@alias/tracking",
            "@alias/a b/c",
            "@alias//c",
            "@aliases/a/b",
        ] {
            assert_eq!(Alias::of(&Key::parse(key).expect("legal")), None, "{key}");
        }
    }

    #[test]
    fn a_value_is_a_text_or_an_integer_of_bounded_size() {
        assert_eq!(alias(&Json::Null), Ok(None));
        let number = alias(&Json::Int(-7)).expect("a value").expect("not null");
        assert_eq!(number.value, "-7");
        let long = "x".repeat(VALUE_BYTES_MAX);
        let name = "n".repeat(128);
        let longest = Alias::new(&name, &Json::Str(long.clone().into())).expect("fits");
        assert_eq!(longest.expect("not null").key().as_str().len(), 256);
        for (name, value) in [("", "a"), ("a/b", "c"), ("a", ""), (&"n".repeat(129), "a")] {
            let (name, value) = (name.to_owned(), value.to_owned());
            assert!(!Alias { name, value }.is_legal());
        }
        for bad in [
            Json::Str("".into()),
            Json::Str(format!("{long}x").into()),
            Json::Str("a\nb".into()),
            Json::Bool(true),
            Json::Double(1.5),
            Json::List(Vec::new()),
        ] {
            assert!(alias(&bad).is_err(), "{bad:?}");
        }
    }
}
