//! What the last look at the instances that wait for the archive has come to: for `/health`, `doctor --url` and the series.

use std::sync::{Mutex, PoisonError};

use crate::storage::Outdated;
use crate::storage::rows::EndedRow;
use crate::telemetry::Metrics;

/// What a look has found, kept until the next one.
#[derive(Debug, Default)]
pub struct Seen(Mutex<Option<Look>>);

/// Ended instances whose time is over, and that the archive has not got.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// How many; of each shard no more than a look reads.
    pub waiting: usize,
    /// How long the oldest has waited, in milliseconds.
    pub oldest_ms: i64,
    /// Why they wait.
    pub reason: Option<String>,
    /// The archive has refused them, or did not answer.
    pub is_trouble: bool,
}

impl Look {
    /// These wait.
    pub fn add(&mut self, due: &[(u64, EndedRow)], outdated: Outdated) {
        self.waiting += due.len();
        for (_, row) in due {
            let since = outdated.due_since(row).unwrap_or(outdated.now);
            self.oldest_ms = self.oldest_ms.max(outdated.now.0 - since.0);
        }
    }

    /// How many wait, and for how long.
    pub fn told(&self) -> String {
        if self.waiting == 0 {
            return "no ended instance waits for the archive".to_owned();
        }
        let (waiting, seconds) = (self.waiting, self.oldest_ms / 1_000);
        format!("at least {waiting} ended instance(s) wait for the archive, the oldest for {seconds} s")
    }
}

impl Seen {
    pub fn put(&self, look: Look, metrics: &Metrics) {
        let waiting = i64::try_from(look.waiting).unwrap_or(i64::MAX);
        metrics.archive.waiting.set(waiting);
        metrics.archive.oldest_seconds.set(look.oldest_ms / 1_000);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(look);
    }

    /// Whether the archive takes what it is to have, or why not; none before the first look.
    pub fn check(&self) -> Option<Result<String, String>> {
        let look = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let told = look.told();
        Some(match look.reason {
            None => Ok(told),
            Some(reason) if look.is_trouble => Err(format!("{told}: {reason}")),
            Some(reason) => Ok(format!("{told}: {reason}")),
        })
    }
}

/// When an operator should look at what waits, in milliseconds.
pub const WAITS_LONG_MS: i64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_told_by_how_many_wait_for_how_long_and_why() {
        let seen = Seen::default();
        let metrics = Metrics::new();
        assert_eq!(seen.check(), None);
        seen.put(Look::default(), &metrics);
        assert_eq!(
            seen.check(),
            Some(Ok("no ended instance waits for the archive".to_owned()))
        );
        let look = Look {
            waiting: 3,
            oldest_ms: 7_200_900,
            reason: Some("the archive is full".to_owned()),
            is_trouble: true,
        };
        seen.put(look.clone(), &metrics);
        let told =
            "at least 3 ended instance(s) wait for the archive, the oldest for 7200 s: the archive is full";
        assert_eq!(seen.check(), Some(Err(told.to_owned())));
        let text = metrics.render();
        assert!(text.contains("saga_runner_archive_oldest_waiting_seconds 7200"));
        let held = Look {
            is_trouble: false,
            ..look
        };
        seen.put(held, &metrics);
        assert_eq!(seen.check(), Some(Ok(told.to_owned())));
        seen.put(Look::default(), &metrics);
        assert!(
            metrics
                .render()
                .contains("saga_runner_archive_oldest_waiting_seconds 0")
        );
    }
}
