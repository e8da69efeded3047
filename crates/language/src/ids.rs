//! Identifiers, checked where they enter.
//!
//! A value of one of these types has passed its rules, so nothing behind the edge checks it again.

use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// Longest tenant, saga and effect name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest correlation id (instance key), in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest event id, in bytes.
pub const EVENT_ID_BYTES_MAX: usize = 128;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{what} is empty")]
    Empty { what: &'static str },
    #[error("{what} is {bytes} bytes long, at most {max} are allowed")]
    TooLong {
        what: &'static str,
        bytes: usize,
        max: usize,
    },
    #[error("{what} may not be '.' or '..', which no path can name")]
    Dots { what: &'static str },
    #[error("{what} may hold only {allowed}, found {found:?}")]
    Character {
        what: &'static str,
        allowed: &'static str,
        found: char,
    },
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and keeps it.
            ///
            /// # Errors
            /// [`IdError`] names the first rule that the text breaks.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                $check($what, text)?;
                Ok(Self(Arc::from(text)))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// Owner of everything below it. One subject token, `[a-z0-9][a-z0-9_-]{0,62}`; empty only where the
    /// runner is configured without multi-tenancy.
    TenantId,
    "tenant",
    check_tenant
);
text_id!(
    /// Name of a saga, one subject token: `[a-z0-9][a-z0-9_-]{0,62}`.
    SagaName,
    "saga name",
    check_name
);
text_id!(
    /// Name of an effect, one subject token: `[a-z0-9][a-z0-9_-]{0,62}`.
    EffectName,
    "effect name",
    check_name
);
text_id!(
    /// Correlation id of an instance: 1 to 256 bytes without control characters, and not `.` or `..`.
    Key,
    "correlation id",
    check_key
);
text_id!(
    /// Id that the producer gave an event: 1 to 128 bytes without control characters.
    EventId,
    "event id",
    |what, text| check_text(what, text, EVENT_ID_BYTES_MAX)
);

impl TenantId {
    /// The tenant of a runner without multi-tenancy.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::from(""))
    }

    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

fn check_tenant(what: &'static str, text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Ok(());
    }
    check_name(what, text)
}

/// The parts of a path that every client of HTTP resolves name no instance: nobody could cancel it.
fn check_key(what: &'static str, text: &str) -> Result<(), IdError> {
    if [".", ".."].contains(&text) {
        return Err(IdError::Dots { what });
    }
    check_text(what, text, KEY_BYTES_MAX)
}

fn check_name(what: &'static str, text: &str) -> Result<(), IdError> {
    const ALLOWED: &str = "a-z, 0-9, '_' and '-', beginning with a letter or digit";
    check_length(what, text, NAME_BYTES_MAX)?;
    let legal = |(at, c): &(usize, char)| match c {
        'a'..='z' | '0'..='9' => true,
        '_' | '-' => *at > 0,
        _ => false,
    };
    match text.char_indices().find(|pair| !legal(pair)) {
        None => Ok(()),
        Some((_, found)) => Err(IdError::Character {
            what,
            allowed: ALLOWED,
            found,
        }),
    }
}

fn check_text(what: &'static str, text: &str, max: usize) -> Result<(), IdError> {
    check_length(what, text, max)?;
    match text.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(found) => Err(IdError::Character {
            what,
            allowed: "printable characters",
            found,
        }),
    }
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), IdError> {
    match text.len() {
        0 => Err(IdError::Empty { what }),
        bytes if bytes > max => Err(IdError::TooLong { what, bytes, max }),
        _ => Ok(()),
    }
}

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimeMs(pub i64);

impl TimeMs {
    /// The instant `ms` milliseconds later, at the ends of the range where it would overflow.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// RFC 3339 in UTC with exactly three decimals, so that times sort as text: as answers, tables and messages have it. The bare
    /// number for instants beyond the calendar.
    #[must_use]
    pub fn rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(self.0)
            .map_or_else(|_| self.0.to_string(), |instant| format!("{instant:.3}"))
    }

    /// The time that a text in RFC 3339 names, to the millisecond.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let instant = text.parse::<jiff::Timestamp>().ok()?;
        Some(Self(instant.as_millisecond()))
    }
}

impl fmt::Display for TimeMs {
    /// RFC 3339 in UTC without a fraction that is zero; the bare number for instants beyond the calendar. Keys of scheduled runs,
    /// paths of work and values of expressions have this form, so it must stay as it is: what is derived from it would change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => instant.fmt(f),
            Err(_) => self.0.fmt(f),
        }
    }
}

/// Identity of one attempt of a piece of work: a deterministic UUID v7 (see `work` of the kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandId(pub Uuid);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// SHA-256 of a definition in its canonical form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DefinitionHash(pub [u8; 32]);

impl DefinitionHash {
    /// Reads what [`fmt::Display`] writes: `sha256:` and 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for DefinitionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DefinitionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names a cluster: random, drawn when the cluster is new and never changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// Of what is played offline, where nothing reaches the outside world.
    pub const OFFLINE: Self = Self([0; 16]);

    /// Reads what [`fmt::Display`] writes: 32 lower-case hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return None;
        }
        u128::from_str_radix(text, 16)
            .ok()
            .map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a cluster id: 32 lower-case hex digits"))
        })
    }
}

/// One run of a saga: the unit of state. Ordered by tenant, then saga, then key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId {
    pub tenant: TenantId,
    pub saga: SagaName,
    pub key: Key,
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant.is_none() {
            write!(f, "{}/{}", self.saga, self.key)
        } else {
            write!(f, "{}/{}/{}", self.tenant, self.saga, self.key)
        }
    }
}

/// The shard that owns `(tenant, key)`, in `0..shards`.
///
/// The formula is part of the stored format: BLAKE3 over `tenant 0x00 key`, its first eight bytes read
/// little-endian, modulo the number of shards. A tenant holds no zero byte, so no two pairs collide by
/// construction.
///
/// # Panics
/// Never: `shards` is checked to be at least 1 when the configuration is read; 0 is treated as 1.
#[must_use]
pub fn shard_of(tenant: &TenantId, key: &Key, shards: u16) -> u16 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(tenant.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(key.as_str().as_bytes());
    let digest = hasher.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    let shard = u64::from_le_bytes(first) % u64::from(shards.max(1));
    u16::try_from(shard).expect("a remainder of a u16 fits a u16")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_clean_subject_token() {
        for good in ["a", "order", "payments-charge", "0_x", &"a".repeat(63)] {
            assert!(SagaName::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "_a",
            "A",
            "a.b",
            "a*",
            ">",
            "a b",
            "é",
            "a\0",
            &"a".repeat(64),
        ] {
            assert!(SagaName::parse(bad).is_err(), "{bad:?}");
            assert!(bad.is_empty() || TenantId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_take_any_printable_text_up_to_their_bound() {
        for good in ["o-1", "a:b/c", "münchen", "...", "a..", &"k".repeat(256)] {
            assert!(Key::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "a\0b", ".", "..", &"k".repeat(257)] {
            assert!(Key::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_shard_of_a_key_is_frozen() {
        let tenant = TenantId::parse("acme").expect("legal");
        let shard = |key: &str| shard_of(&tenant, &Key::parse(key).expect("legal"), 8);
        assert_eq!(
            ["o-1", "o-2", "o-3", "o-4", "o-5"].map(shard),
            FROZEN_SHARDS,
            "changing this formula strands every stored instance"
        );
    }

    const FROZEN_SHARDS: [u16; 5] = [0, 0, 6, 2, 2];
}
