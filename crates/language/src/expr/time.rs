//! Instants and spans of time in expressions, UTC only.
//!
//! They exist during an evaluation; what leaves it is text: RFC 3339, and seconds such as `90s` or `0.5s`.

use std::fmt::Write as _;

use jiff::tz::Offset;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

use super::EvalError;

/// Years that RFC 3339 can write.
const YEARS: std::ops::RangeInclusive<i16> = 1..=9999;

/// Reads an RFC 3339 instant.
pub(super) fn parse_timestamp(text: &str) -> Result<Timestamp, EvalError> {
    text.parse()
        .ok()
        .filter(|_| !text.contains('['))
        .and_then(in_range)
        .ok_or_else(|| {
            EvalError::Other(format!(
                "timestamp() cannot read {}; write it like 2026-01-31T15:00:00Z",
                shown(text)
            ))
        })
}

/// Reads a duration as people write it elsewhere in a definition: `90s`, `1h 30m`, `7d`; negative ones, too.
pub(super) fn parse_duration(text: &str) -> Result<SignedDuration, EvalError> {
    text.parse()
        .and_then(|span: Span| span.to_duration(SpanRelativeTo::days_are_24_hours()))
        .map_err(|_| {
            EvalError::Other(format!(
                "duration() cannot read {}; write it like 500ms, 30s, 1h 30m or 7d",
                shown(text)
            ))
        })
}

/// The start of a text, for messages.
pub(super) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(40).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("{start:?}")
}

/// The duration in seconds, which every reader of durations here takes.
pub(super) fn duration_text(duration: SignedDuration) -> String {
    let (seconds, nanos) = (
        duration.as_secs().unsigned_abs(),
        duration.subsec_nanos().unsigned_abs(),
    );
    let mut text = String::new();
    if duration.is_negative() {
        text.push('-');
    }
    write!(text, "{seconds}").expect("writing to a string");
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('s');
    text
}

pub(super) fn shifted(
    timestamp: Timestamp,
    duration: SignedDuration,
    operation: &str,
) -> Result<Timestamp, EvalError> {
    timestamp
        .checked_add(duration)
        .ok()
        .and_then(in_range)
        .ok_or_else(|| overflow(operation))
}

fn in_range(timestamp: Timestamp) -> Option<Timestamp> {
    YEARS
        .contains(&Offset::UTC.to_datetime(timestamp).year())
        .then_some(timestamp)
}

pub(super) fn overflow(operation: &str) -> EvalError {
    EvalError::Overflow {
        operation: operation.to_owned(),
    }
}

/// A part of an instant or the whole length of a duration, as CEL counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    FullYear,
    /// From 0.
    Month,
    /// Day of the month from 1.
    Date,
    /// Day of the month from 0.
    DayOfMonth,
    /// From 0 on Sunday.
    DayOfWeek,
    /// From 0.
    DayOfYear,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

impl Part {
    pub fn of_timestamp(self, timestamp: Timestamp) -> i64 {
        let time = Offset::UTC.to_datetime(timestamp);
        match self {
            Self::FullYear => time.year().into(),
            Self::Month => i64::from(time.month()) - 1,
            Self::Date => time.day().into(),
            Self::DayOfMonth => i64::from(time.day()) - 1,
            Self::DayOfWeek => time.weekday().to_sunday_zero_offset().into(),
            Self::DayOfYear => i64::from(time.day_of_year()) - 1,
            Self::Hours => time.hour().into(),
            Self::Minutes => time.minute().into(),
            Self::Seconds => time.second().into(),
            Self::Milliseconds => time.millisecond().into(),
        }
    }

    /// Nothing for the parts that only an instant has.
    pub fn of_duration(self, duration: SignedDuration) -> Option<i64> {
        match self {
            Self::Hours => Some(duration.as_hours()),
            Self::Minutes => Some(duration.as_mins()),
            Self::Seconds => Some(duration.as_secs()),
            Self::Milliseconds => i64::try_from(duration.as_millis()).ok(),
            Self::FullYear
            | Self::Month
            | Self::Date
            | Self::DayOfMonth
            | Self::DayOfWeek
            | Self::DayOfYear => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::Millis;

    #[test]
    fn durations_that_leave_are_read_wherever_durations_are() {
        for (text, leaves) in [
            ("1h 30m", "5400s"),
            ("1h30m", "5400s"),
            ("500ms", "0.5s"),
            ("7d", "604800s"),
            ("0s", "0s"),
            ("1.25s", "1.25s"),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration_text(duration), leaves);
            assert_eq!(parse_duration(leaves), Ok(duration));
            assert_eq!(Millis::parse(leaves), Millis::parse(text));
        }
        assert_eq!(parse_duration("-90s").map(duration_text).as_deref(), Ok("-90s"));
        for wrong in ["", "5", "1 parsec", "1 month"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instants_are_rfc_3339_in_utc() {
        for (text, leaves) in [
            ("2026-01-31T15:00:00Z", "2026-01-31T15:00:00Z"),
            ("2026-01-31T15:00:00.5+02:00", "2026-01-31T13:00:00.5Z"),
        ] {
            assert_eq!(
                parse_timestamp(text).map(|at| at.to_string()).as_deref(),
                Ok(leaves)
            );
        }
        for wrong in [
            "",
            "2026-01-31",
            "2026-01-31T15:00:00",
            "2026-01-31T15:00:00+01:00[Europe/Berlin]",
            "+012026-01-31T15:00:00Z",
        ] {
            assert!(parse_timestamp(wrong).is_err(), "{wrong}");
        }
        let last = parse_timestamp("9999-12-30T22:00:00Z").expect("in range");
        assert!(shifted(last, SignedDuration::from_secs(3_600), "`+`").is_err());
    }
}
