//! When sagas start by the clock: which planned times are due, and what happens to those that were missed.
//!
//! Nothing here knows shards or instances. Which of the due times is started at once is decided where it is known
//! what still runs; see the shard.

pub mod cron;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use cron::{Cron, CronError, Zone};

use super::duration::Millis;
use super::ids::{InstanceId, Key, SagaName, TenantId, TimeMs, shard_of};

/// The key under which a saga's schedule is addressed. No instance has it.
pub const SCHEDULE_KEY: &str = "@schedule";
/// A planned time is missed when the runner comes to it more than a minute late, in milliseconds.
pub const ON_TIME_MS: i64 = 60_000;
/// Most missed runs that are made up where the file does not say how many, the latest ones.
pub const CATCH_UP: usize = 100;
/// Most missed runs that a file may have made up: each is a row of one transaction.
pub const CATCH_UP_MAX: u32 = 1_000;
/// Most runs that `overlap: queue` keeps waiting, if fewer are made up.
pub const QUEUE_MAX: usize = 100;
/// Most missed times that are counted at once.
pub const MISSED_COUNTED_MAX: u64 = 10_000;

const HOUR_MS: i64 = 3_600_000;

/// When and how instances of a saga start by themselves.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub cron: Cron,
    pub zone: Zone,
    pub catch_up: CatchUp,
    pub overlap: Overlap,
}

/// What happens to planned times that were missed. Of what runs, the oldest is first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// They are skipped.
    None,
    /// The last of them runs.
    #[default]
    Last,
    /// All of them run, up to [`CATCH_UP`].
    All,
    /// Those run that are not too old, up to so many.
    #[serde(untagged)]
    UpTo(MadeUp),
}

/// Which missed runs are made up: the latest ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MadeUp {
    /// They were planned so long ago at most; `None`: at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Millis>,
    pub max: usize,
}

/// What happens to a planned time while an earlier run is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is skipped.
    #[default]
    Skip,
    /// It runs when those before it have ended, up to [`QUEUE_MAX`] of them.
    Queue,
    /// It runs beside them.
    Allow,
}

impl CatchUp {
    /// Those that are a word in a file.
    pub const WORDS: [(&'static str, Self); 3] =
        [("none", Self::None), ("last", Self::Last), ("all", Self::All)];

    /// Most runs that are made up at once.
    #[must_use]
    pub const fn most(self) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => CATCH_UP,
            Self::UpTo(made_up) => made_up.max,
        }
    }
}

impl Overlap {
    pub const ALL: [Self; 3] = [Self::Skip, Self::Queue, Self::Allow];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Allow => "allow",
        }
    }
}

/// Why a planned time did not run. Stored by index: new ones go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// The runner came to it too late.
    Missed,
    /// An earlier run was under way.
    Overlap,
    /// As many as allowed were waiting.
    QueueFull,
    /// An operator had paused the schedule.
    Paused,
    /// It was waiting when the saga lost its schedule.
    Removed,
}

impl Skip {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Overlap => "overlap",
            Self::QueueFull => "queue_full",
            Self::Paused => "paused",
            Self::Removed => "removed",
        }
    }
}

/// What is due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// Planned times that are to run, oldest first.
    pub runs: Vec<TimeMs>,
    /// How many others there were, up to [`MISSED_COUNTED_MAX`].
    pub missed: u64,
    /// The last of those others.
    pub last_missed: Option<TimeMs>,
}

impl Schedule {
    /// The first planned time behind `after`.
    #[must_use]
    pub fn next(&self, after: TimeMs) -> Option<TimeMs> {
        self.cron.next(&self.zone, after)
    }

    /// Whether `time` is a planned time.
    #[must_use]
    pub fn plans(&self, time: TimeMs) -> bool {
        self.next(time.plus_ms(-1)) == Some(time)
    }

    /// What is due of the planned times behind `after`, up to `now`.
    #[must_use]
    pub fn due(&self, catch_up: CatchUp, after: TimeMs, now: TimeMs) -> Due {
        // What is on time runs in any case.
        let within = match catch_up {
            CatchUp::None => Some(ON_TIME_MS),
            CatchUp::Last | CatchUp::All => None,
            CatchUp::UpTo(made_up) => made_up.within.map(|within| within.as_i64().max(ON_TIME_MS)),
        };
        let from = within.map_or(after, |within| {
            after.max(now.plus_ms(within.saturating_add(1).saturating_neg()))
        });
        let runs: Vec<TimeMs> = self.latest(from, now, catch_up.most().max(1)).into();
        let before = runs.first().map_or(now, |first| first.plus_ms(-1));
        let (mut missed, mut at) = (0, after);
        while let Some(next) = self.next(at).filter(|next| *next <= before)
            && missed < MISSED_COUNTED_MAX
        {
            missed += 1;
            at = next;
        }
        let last_missed = (missed > 0)
            .then(|| self.latest(after, before, 1).pop_back())
            .flatten();
        Due {
            runs,
            missed,
            last_missed,
        }
    }

    /// The last planned times in `(after, until]`, oldest first, at most `most`.
    fn latest(&self, after: TimeMs, until: TimeMs, most: usize) -> VecDeque<TimeMs> {
        // There is no way back from an instant, so ever longer stretches are tried.
        let mut stretch = HOUR_MS;
        loop {
            let from = after.max(until.plus_ms(-stretch));
            let mut found = VecDeque::new();
            let mut at = from;
            while let Some(next) = self.next(at).filter(|next| *next <= until) {
                if found.len() == most {
                    found.pop_front();
                }
                found.push_back(next);
                at = next;
            }
            if found.len() == most || from == after {
                return found;
            }
            stretch = stretch.saturating_mul(2);
        }
    }
}

/// Where the schedule of a saga is addressed.
#[must_use]
pub fn address(tenant: &TenantId, saga: &SagaName) -> InstanceId {
    InstanceId {
        tenant: tenant.clone(),
        saga: saga.clone(),
        key: Key::parse(SCHEDULE_KEY).expect("a legal key"),
    }
}

/// The shard that runs the schedules of a tenant.
#[must_use]
pub fn owner(tenant: &TenantId, shards: u16) -> u16 {
    shard_of(tenant, &Key::parse(SCHEDULE_KEY).expect("a legal key"), shards)
}

/// Whether this is the address of a schedule.
#[must_use]
pub fn is_address(key: &Key) -> bool {
    key.as_str() == SCHEDULE_KEY
}

/// The key of the instance that runs for a planned time.
#[must_use]
pub fn run_key(planned: TimeMs) -> Key {
    Key::parse(&planned.to_string()).expect("digits and marks")
}

/// What an instance is given that runs for a planned time.
#[must_use]
pub fn run_input(planned: TimeMs) -> String {
    format!("{{\"time\":\"{planned}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str) -> Schedule {
        Schedule {
            cron: Cron::parse(cron).expect("an expression"),
            zone: Zone::utc(),
            catch_up: CatchUp::Last,
            overlap: Overlap::Skip,
        }
    }

    fn time(text: &str) -> TimeMs {
        TimeMs(
            text.parse::<jiff::Timestamp>()
                .expect("RFC 3339")
                .as_millisecond(),
        )
    }

    #[test]
    fn a_run_on_time_starts_under_every_catch_up_rule() {
        let daily = schedule("0 6 * * *");
        let (after, planned) = (time("2026-01-01T06:00:00Z"), time("2026-01-02T06:00:00Z"));
        let short = CatchUp::UpTo(MadeUp {
            within: Some(Millis(1)),
            max: 1,
        });
        let words = CatchUp::WORDS.map(|(_, catch_up)| catch_up);
        for catch_up in words.into_iter().chain([short]) {
            let due = daily.due(catch_up, after, planned.plus_ms(ON_TIME_MS));
            assert_eq!((due.runs, due.missed), (vec![planned], 0), "{catch_up:?}");
        }
    }

    #[test]
    fn after_an_outage_none_the_last_or_all_run() {
        let daily = schedule("0 6 * * *");
        let (after, now) = (time("2026-01-01T06:00:00Z"), time("2026-01-05T05:00:00Z"));
        let planned = |day: u32| time(&format!("2026-01-0{day}T06:00:00Z"));
        let found = |catch_up| daily.due(catch_up, after, now);
        let due = |runs: Vec<TimeMs>, missed, last_missed| Due {
            runs,
            missed,
            last_missed,
        };
        assert_eq!(found(CatchUp::None), due(vec![], 3, Some(planned(4))));
        assert_eq!(found(CatchUp::Last), due(vec![planned(4)], 2, Some(planned(3))));
        assert_eq!(
            found(CatchUp::All),
            due(vec![planned(2), planned(3), planned(4)], 0, None)
        );
    }

    #[test]
    fn a_long_outage_is_made_up_within_bounds() {
        let minutely = schedule("* * * * *");
        let (after, now) = (time("2025-01-01T00:00:00Z"), time("2026-01-01T00:00:30Z"));
        let due = minutely.due(CatchUp::All, after, now);
        assert_eq!(due.runs.len(), CATCH_UP);
        assert_eq!(due.runs.last(), Some(&time("2026-01-01T00:00:00Z")));
        assert_eq!(due.runs.first(), Some(&time("2025-12-31T22:21:00Z")));
        assert_eq!(due.missed, MISSED_COUNTED_MAX);
        assert_eq!(due.last_missed, Some(time("2025-12-31T22:20:00Z")));
        let due = minutely.due(CatchUp::Last, after, now);
        assert_eq!(due.runs, [time("2026-01-01T00:00:00Z")]);
    }

    #[test]
    fn only_what_is_not_too_old_is_made_up_and_of_that_the_latest() {
        let daily = schedule("0 6 * * *");
        let (after, now) = (time("2026-01-01T06:00:00Z"), time("2026-01-05T06:00:00Z"));
        let found = |within: Option<u64>, max| {
            let within = within.map(|hours| Millis(hours * 3_600_000));
            let due = daily.due(CatchUp::UpTo(MadeUp { within, max }), after, now);
            let days = due.runs.iter().map(|run| run.to_string()[8..10].to_owned());
            (days.collect::<Vec<_>>().join(" "), due.missed, due.last_missed)
        };
        let planned = |day: u32| Some(time(&format!("2026-01-0{day}T06:00:00Z")));
        assert_eq!(found(None, 9), ("02 03 04 05".to_owned(), 0, None));
        assert_eq!(
            found(Some(48), 9),
            ("03 04 05".to_owned(), 1, planned(2)),
            "48 hours are within"
        );
        assert_eq!(found(Some(47), 9), ("04 05".to_owned(), 2, planned(3)));
        assert_eq!(found(Some(47), 1), ("05".to_owned(), 3, planned(4)));
        let minutely = schedule("* * * * *");
        let more = CatchUp::UpTo(MadeUp {
            within: None,
            max: 1_000,
        });
        let due = minutely.due(more, after, now);
        assert_eq!((due.runs.len(), due.runs.last()), (1_000, Some(&now)));
        assert_eq!(due.missed, 4 * 24 * 60 - 1_000);
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let daily = schedule("0 6 * * *");
        let (after, now) = (time("2026-01-01T06:00:00Z"), time("2026-01-02T05:59:59Z"));
        assert_eq!(daily.due(CatchUp::All, after, now), Due::default());
        assert!(daily.plans(after) && !daily.plans(now));
    }
}
