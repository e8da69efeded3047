//! Durations as people write them: `500ms`, `30s`, `15m`, `1h 30m`, `7d`.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Serialize};

/// A span of time, in whole milliseconds. Days are 24 hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Months and years are refused, too: they have no fixed length.
    #[error("{0:?} is not a duration; write it like 500ms, 30s, 15m, 1h 30m or 7d")]
    Syntax(String),
    #[error("{0:?} is negative")]
    Negative(String),
}

impl Millis {
    /// Reads a duration in the friendly format of jiff, or ISO 8601.
    ///
    /// # Errors
    /// [`DurationError`] where the text is not a duration, is negative, or has months or years in it.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let wrong = || DurationError::Syntax(text.to_owned());
        let span: Span = text.parse().map_err(|_| wrong())?;
        let duration = span
            .to_duration(SpanRelativeTo::days_are_24_hours())
            .map_err(|_| wrong())?;
        u64::try_from(duration.as_millis())
            .map(Self)
            .map_err(|_| DurationError::Negative(text.to_owned()))
    }

    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1_000)
    }

    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The span as a signed number, for arithmetic on instants.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 1_000 != 0 || ms == 0 => write!(f, "{ms}ms"),
            ms if ms % 60_000 != 0 => write!(f, "{}s", ms / 1_000),
            ms if ms % 3_600_000 != 0 => write!(f, "{}m", ms / 60_000),
            ms => write!(f, "{}h", ms / 3_600_000),
        }
    }
}

impl Serialize for Millis {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_durations_in_many_ways() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(Millis::parse(text), Ok(Millis(ms)), "{text}");
        }
        for bad in ["", "30", "-5s", "5 parsecs", "1y", "2 months"] {
            assert!(Millis::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_duration_prints_as_it_would_be_written() {
        for text in ["500ms", "30s", "15m", "24h", "0ms", "90s"] {
            assert_eq!(Millis::parse(text).map(|ms| ms.to_string()).as_deref(), Ok(text));
        }
    }
}
