//! Exemplars: for each bucket of a series the newest observation that belongs to a trace, with the id of the trace (ADR 219).
//!
//! To note one takes a short lock and no memory; where there is no trace, nothing is done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Metrics;
use super::register::{PREFIX, SECONDS};

/// An observation that belongs to a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exemplar {
    /// Its 128 bits, as a number.
    pub trace_id: u128,
    /// What was observed, in the unit of the series.
    pub value: f64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The exemplars of one series of a histogram.
#[derive(Debug)]
pub struct Exemplars {
    bounds: &'static [f64],
    /// By bucket; the last one has no bound.
    newest: Mutex<Box<[Option<Exemplar>]>>,
}

impl Exemplars {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            newest: Mutex::new(vec![None; bounds.len() + 1].into_boxed_slice()),
        }
    }

    /// Notes an observation in place of the one before in its bucket. `trace_id` has 32 hexadecimal digits; of one that has not,
    /// nothing is noted. `now_ms` is in milliseconds since 1970.
    pub fn note(&self, value: f64, trace_id: &str, now_ms: i64) {
        if trace_id.len() != 32 {
            return;
        }
        let Ok(trace_id) = u128::from_str_radix(trace_id, 16) else {
            return;
        };
        // As the histogram chooses it.
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = bucket.unwrap_or(self.bounds.len());
        let exemplar = Exemplar {
            trace_id,
            value,
            at_ms: u64::try_from(now_ms).unwrap_or(0),
        };
        self.lock()[bucket] = Some(exemplar);
    }

    /// The newest of each bucket, by ascending bounds; the last one is that of the bucket without a bound.
    #[must_use]
    pub fn newest(&self) -> Vec<Option<Exemplar>> {
        self.lock().to_vec()
    }

    fn lock(&self) -> MutexGuard<'_, Box<[Option<Exemplar>]>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exemplars of all series that have some. It grows with the number of series, and not with what is observed.
#[derive(Debug, Default)]
pub struct ExemplarStore(Mutex<BTreeMap<String, Arc<Exemplars>>>);

impl ExemplarStore {
    /// Those of one series: `family` is its name with the prefix, `labels` are sorted by their names, and `bounds` are those of its
    /// buckets, ascending, without the infinite one.
    pub fn of(&self, family: &str, labels: &[(&str, &str)], bounds: &'static [f64]) -> Arc<Exemplars> {
        let mut all = self.lock();
        let exemplars = all
            .entry(key(family, labels))
            .or_insert_with(|| Arc::new(Exemplars::new(bounds)));
        Arc::clone(exemplars)
    }

    /// Those of a series, none where nothing notes any.
    pub(super) fn find(&self, family: &str, labels: &[(&str, &str)]) -> Option<Arc<Exemplars>> {
        self.lock().get(&key(family, labels)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Exemplars>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells a series from all others. No name and no value of a label that is used has a zero in it.
fn key(family: &str, labels: &[(&str, &str)]) -> String {
    let mut key = family.to_owned();
    for part in labels.iter().flat_map(|(name, value)| [name, value]) {
        key.push('\0');
        key.push_str(part);
    }
    key
}

impl Metrics {
    /// The exemplars of the durations of an effect's calls.
    pub fn call_exemplars(&self, effect: &str) -> Arc<Exemplars> {
        let family = format!("{PREFIX}_effect_call_seconds");
        self.exemplars.of(&family, &[("effect", effect)], &SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[f64] = &[0.1, 1.0];
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";

    fn exemplar(trace_id: &str, value: f64, at_ms: u64) -> Exemplar {
        Exemplar {
            trace_id: u128::from_str_radix(trace_id, 16).expect("hexadecimal"),
            value,
            at_ms,
        }
    }

    #[test]
    fn each_bucket_has_the_newest_observation_that_is_not_above_its_bound() {
        let exemplars = Exemplars::new(BOUNDS);
        exemplars.note(0.1, TRACE, 1);
        exemplars.note(0.05, OTHER, 2);
        exemplars.note(7.0, TRACE, 3);
        let expected = [
            Some(exemplar(OTHER, 0.05, 2)),
            None,
            Some(exemplar(TRACE, 7.0, 3)),
        ];
        assert_eq!(exemplars.newest(), expected);
    }

    #[test]
    fn a_text_that_is_no_trace_id_is_not_noted() {
        let exemplars = Exemplars::new(BOUNDS);
        for text in ["", "4bf92f35", "no trace, but as long as a trace"] {
            exemplars.note(0.05, text, 1);
        }
        assert!(exemplars.newest().iter().all(Option::is_none));
    }

    #[test]
    fn a_series_has_one_place_however_often_it_is_looked_up() {
        let store = ExemplarStore::default();
        let first = store.of("family", &[("effect", "charge")], BOUNDS);
        store
            .of("family", &[("effect", "charge")], BOUNDS)
            .note(0.05, TRACE, 1);
        assert_eq!(first.newest()[0], Some(exemplar(TRACE, 0.05, 1)));
        assert!(store.find("family", &[("effect", "refund")]).is_none());
        assert!(store.find("other", &[("effect", "charge")]).is_none());
        assert_eq!(store.lock().len(), 1);
    }
}
