//! Cron expressions: five fields, and the instants that they name in a time zone.
//!
//! Nothing here asks for the time. The rules of the zones are part of the binary, so that the same binary gives the
//! same instants on every machine.

use std::ops::Range;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan as _};

use crate::expr::nearest_by;
use crate::ids::TimeMs;

/// Longest expression, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Days that are looked through for the next instant: 29 February comes again after at most eight years.
const DAYS_MAX: usize = 9 * 366;
/// Minutes that are looked through within days that fit: every hour of those has one that fits.
const STEPS_MAX: usize = 10_000;
const MINUTE_MS: i64 = 60_000;

const MONTHS: &[&str] = &[
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// One of the five fields: what it is called, its range, and the names of its values from the first one on.
struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        first: 0,
        last: 59,
        names: &[],
    },
    Field {
        name: "hour",
        first: 0,
        last: 23,
        names: &[],
    },
    Field {
        name: "day of the month",
        first: 1,
        last: 31,
        names: &[],
    },
    Field {
        name: "month",
        first: 1,
        last: 12,
        names: MONTHS,
    },
    // 7 is Sunday as well.
    Field {
        name: "day of the week",
        first: 0,
        last: 7,
        names: WEEKDAYS,
    },
];

const ALL_HOURS: u64 = (1 << 24) - 1;

/// A cron expression that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    /// As it was written, with one space between fields.
    text: String,
    /// One bit for each value.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Days of the month and of the week are both named: a day of either kind fits.
    either: bool,
}

/// What is wrong with an expression, and where in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CronError {
    pub at: Range<usize>,
    pub message: String,
}

impl Cron {
    /// Reads minute, hour, day of the month, month and day of the week.
    ///
    /// # Errors
    /// [`CronError`] for the first field that is invalid.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let whole = |message: String| CronError {
            at: 0..text.len(),
            message,
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(whole(format!(
                "a cron expression has at most {TEXT_BYTES_MAX} bytes"
            )));
        }
        let words = words(text);
        if words.len() != FIELDS.len() {
            return Err(whole(format!(
                "a cron expression has five fields (minute, hour, day of the month, month, day of the week), this one has {}",
                words.len()
            )));
        }
        let mut sets = [0_u64; 5];
        for ((set, field), at) in sets.iter_mut().zip(&FIELDS).zip(&words) {
            *set = field.read(&text[at.clone()], at)?;
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let named = |index: usize| !text[words[index].clone()].starts_with('*');
        let cron = Self {
            text: words
                .iter()
                .map(|at| &text[at.clone()])
                .collect::<Vec<_>>()
                .join(" "),
            minutes,
            hours,
            days,
            months,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            either: named(2) && named(4),
        };
        // The calendar is the same in all zones.
        match cron.next(&Zone::utc(), TimeMs(0)) {
            Some(_) => Ok(cron),
            None => Err(whole(
                "no day fits: the months that are named do not have such a day".to_owned(),
            )),
        }
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first instant behind `after`, if there is one within nine years.
    ///
    /// A wall-clock time that does not exist on a day stands for the moment when the clock is set forward; one that
    /// exists twice stands for the first of the two. Where every hour fits, no hour is named: the expression then
    /// means the real minutes, each of which has one reading, and none is left out or added.
    #[must_use]
    pub fn next(&self, zone: &Zone, after: TimeMs) -> Option<TimeMs> {
        let instant = if self.hours == ALL_HOURS {
            self.next_minute(&zone.zone, after)
        } else {
            self.next_time(&zone.zone, Timestamp::from_millisecond(after.0).ok()?)
        };
        instant.map(|instant| TimeMs(instant.as_millisecond()))
    }

    /// Goes through real minutes.
    fn next_minute(&self, zone: &TimeZone, TimeMs(after): TimeMs) -> Option<Timestamp> {
        let mut at = after
            .div_euclid(MINUTE_MS)
            .checked_add(1)?
            .checked_mul(MINUTE_MS)?;
        for _ in 0..STEPS_MAX {
            let instant = Timestamp::from_millisecond(at).ok()?;
            let local = zone.to_datetime(instant);
            if !self.is_on(local.date()) {
                let day = self.next_day(local.date())?;
                at = day.to_zoned(zone.clone()).ok()?.timestamp().as_millisecond();
                continue;
            }
            if has(self.minutes, local.minute()) && local.second() == 0 {
                return Some(instant);
            }
            at = at.checked_add(MINUTE_MS)?;
        }
        None
    }

    /// Goes through readings of the wall clock.
    fn next_time(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let local = zone.to_datetime(after);
        let mut day = local.date();
        if !self.is_on(day) {
            day = self.next_day(day)?;
        }
        // After the first day of a leap there is always one more to look at.
        for _ in 0..STEPS_MAX {
            let first = if day == local.date() { local.hour() } else { 0 };
            for hour in (first..24).filter(|hour| has(self.hours, *hour)) {
                for minute in (0..60).filter(|minute| has(self.minutes, *minute)) {
                    let instant = first_instant(zone, day.at(hour, minute, 0, 0))?;
                    if instant > after {
                        return Some(instant);
                    }
                }
            }
            day = self.next_day(day)?;
        }
        None
    }

    /// The first day behind `day` that fits.
    fn next_day(&self, day: Date) -> Option<Date> {
        let mut day = day;
        for _ in 0..DAYS_MAX {
            day = if has(self.months, day.month()) {
                day.tomorrow().ok()?
            } else {
                day.first_of_month().checked_add(1.month()).ok()?
            };
            if self.is_on(day) {
                return Some(day);
            }
        }
        None
    }

    fn is_on(&self, day: Date) -> bool {
        let of_month = has(self.days, day.day());
        let of_week = has(self.weekdays, day.weekday().to_sunday_zero_offset());
        let fits = if self.either {
            of_month || of_week
        } else {
            of_month && of_week
        };
        fits && has(self.months, day.month())
    }
}

fn has(set: u64, value: i8) -> bool {
    set >> value & 1 == 1
}

/// When a wall clock first shows `time`, or, if it never does, when it is set forward past it.
fn first_instant(zone: &TimeZone, time: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(time).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(time).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // By the later offset the reading lies before the change, by less than the length of the gap.
            let before_change = after.to_timestamp(time).ok()?;
            zone.following(before_change)
                .next()
                .map(|change| change.timestamp())
        }
    }
}

/// Places of the words between blanks.
fn words(text: &str) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut begin = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c == ' ' || c == '\t', begin) {
            (true, Some(from)) => {
                words.push(from..at);
                begin = None;
            }
            (false, None) => begin = Some(at),
            (true, None) | (false, Some(_)) => {}
        }
    }
    words
}

impl Field {
    /// Reads `*`, `*/n`, `a`, `a-b`, `a-b/n`, and lists of these.
    fn read(&self, text: &str, at: &Range<usize>) -> Result<u64, CronError> {
        let mut set = 0;
        let mut begin = at.start;
        for part in text.split(',') {
            let place = begin..begin + part.len();
            set |= self.part(part).map_err(|message| CronError {
                // A part without text has no place of its own.
                at: if part.is_empty() { at.clone() } else { place },
                message: format!("{}: {message}", self.name),
            })?;
            begin += part.len() + 1;
        }
        Ok(set)
    }

    fn part(&self, text: &str) -> Result<u64, String> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step)?)),
            None => (text, None),
        };
        let (first, last) = if range == "*" {
            // The week has seven days; Sunday is 0 or 7.
            (self.first, if self.last == 7 { 6 } else { self.last })
        } else if let Some((first, last)) = range.split_once('-') {
            let (first, last) = (self.value(first)?, self.value(last)?);
            if first > last {
                return Err(format!("the range {range} goes backwards"));
            }
            (first, last)
        } else if step.is_some() {
            return Err(format!(
                "\"{}\": a step follows * or a range, such as */5 or 10-20/5",
                text.escape_debug()
            ));
        } else {
            let value = self.value(range)?;
            (value, value)
        };
        let step = step.unwrap_or(1);
        let values = (first..=last).step_by(step as usize);
        Ok(values.fold(0, |set, value| set | 1 << value))
    }

    fn step(&self, text: &str) -> Result<u32, String> {
        let step = number(text).filter(|step| (1..=self.last).contains(step));
        step.ok_or_else(|| {
            format!(
                "\"{}\" is not a step, allowed are 1 to {}",
                text.escape_debug(),
                self.last
            )
        })
    }

    fn value(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().position(|name| text.eq_ignore_ascii_case(name));
        let named = named
            .and_then(|at| u32::try_from(at).ok())
            .map(|at| at + self.first);
        let found = named.or_else(|| number(text));
        let found = found.filter(|value| (self.first..=self.last).contains(value));
        found.ok_or_else(|| {
            let others = match (self.names.first(), self.names.last()) {
                (Some(first), Some(last)) => format!(", or {first} to {last}"),
                _ => String::new(),
            };
            format!(
                "\"{}\" is not allowed; allowed are {} to {}{others}",
                text.escape_debug(),
                self.first,
                self.last
            )
        })
    }
}

/// Digits alone.
fn number(text: &str) -> Option<u32> {
    let digits = text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A time zone, by its name in the IANA database.
#[derive(Debug, Clone)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    #[must_use]
    pub fn utc() -> Self {
        Self {
            name: "UTC".to_owned(),
            zone: TimeZone::UTC,
        }
    }

    /// The zone of this name, written as the database writes it.
    ///
    /// # Errors
    /// The nearest name, if one is near.
    pub fn named(name: &str) -> Result<Self, Option<String>> {
        if name == "UTC" {
            return Ok(Self::utc());
        }
        let zones = TimeZoneDatabase::bundled();
        match zones.get(name) {
            Ok(zone) if zone.iana_name() == Some(name) => Ok(Self {
                name: name.to_owned(),
                zone,
            }),
            Ok(zone) => Err(zone.iana_name().map(str::to_owned)),
            Err(_) => {
                let names: Vec<_> = zones.available().map(|name| name.to_string()).collect();
                // Every city is near to some other in a list of hundreds: only a slip counts.
                let city = name.rsplit('/').next().unwrap_or(name);
                let edits = (city.chars().count() / 4).max(1);
                Err(nearest_by(name, edits, names.iter().map(String::as_str)).map(str::to_owned))
            }
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The instant as the clocks of the zone show it, with the zone's offset.
    #[must_use]
    pub fn shown(&self, TimeMs(instant): TimeMs) -> String {
        Timestamp::from_millisecond(instant).map_or_else(
            |_| instant.to_string(),
            |instant| {
                instant
                    .display_with_offset(self.zone.to_offset(instant))
                    .to_string()
            },
        )
    }
}

#[cfg(test)]
mod tests;
