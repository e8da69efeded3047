//! An hour of rates: what the series have gained in each minute, kept in memory.
//!
//! The series are read once a minute and when somebody asks, as for `/metrics`; what counts knows nothing of it. At most
//! [`MINUTES_MAX`] minutes of [`EFFECTS_MAX`] effects are kept, each with 100 bytes or so: 600 kB, and nothing for an effect in a
//! minute without a call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::proto::Metric;

use super::Metrics;
use super::register::SECONDS;

/// Minutes that are kept.
pub const MINUTES_MAX: usize = 60;
/// Effects with figures of their own, the first by name; what the others have is together [`OTHERS`].
pub const EFFECTS_MAX: usize = 100;
/// The name of effects that have none of their own. No effect has it: it is no subject token.
pub const OTHERS: &str = "(others)";

/// Kinds of inputs, as `inputs_total` names them.
pub const KINDS: [&str; 4] = ["event", "result", "timer", "control"];

/// Buckets of durations; the last one has no bound.
const BUCKETS: usize = SECONDS.len() + 1;

/// What happened in a time, or since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// By [`KINDS`].
    pub inputs: [u64; KINDS.len()],
    /// Inputs that were applied.
    pub applied: u64,
    pub started: u64,
    pub ended: u64,
    pub dead_letters: u64,
    pub effects: BTreeMap<Arc<str>, Calls>,
}

/// Calls of an effect, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    pub count: u64,
    /// Those of any class but `succeeded`.
    pub failed: u64,
    /// How many took how long, by the bounds of the histogram.
    buckets: [u32; BUCKETS],
}

impl Calls {
    /// Adds those of others.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.failed += other.failed;
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.wrapping_add(more);
        }
    }

    fn since(&self, before: &Self) -> Self {
        let mut buckets = self.buckets;
        for (now, before) in buckets.iter_mut().zip(before.buckets) {
            *now = now.wrapping_sub(before);
        }
        Self {
            count: self.count.saturating_sub(before.count),
            failed: self.failed.saturating_sub(before.failed),
            buckets,
        }
    }

    /// The duration in seconds that this share of calls did not exceed, between the bounds of its bucket by proportion. `None`
    /// without a call; the longest bound where it was longer.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of calls")]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        if all == 0 {
            return None;
        }
        let wanted = share * all as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, upper) in self.buckets.iter().zip(SECONDS) {
            let count = f64::from(*count);
            if count > 0.0 && below + count >= wanted {
                return Some(lower + (upper - lower) * (wanted - below) / count);
            }
            below += count;
            lower = upper;
        }
        Some(lower)
    }
}

impl Figures {
    /// What the series say now.
    #[must_use]
    pub fn of(metrics: &Metrics) -> Self {
        let mut figures = Self::default();
        for metric in series(&metrics.inputs) {
            let count = counted(&metric);
            if let Some(at) = KINDS.iter().position(|kind| *kind == label(&metric, "kind")) {
                figures.inputs[at] += count;
            }
            if label(&metric, "outcome") == "applied" {
                figures.applied += count;
            }
        }
        let sum = |collector: &dyn Collector| series(collector).iter().map(counted).sum();
        figures.started = sum(&metrics.instances_started);
        figures.ended = sum(&metrics.instances_ended);
        figures.dead_letters = sum(&metrics.dead_letters);
        let mut effects: BTreeMap<String, Calls> = BTreeMap::new();
        for metric in series(&metrics.effect_calls) {
            let (count, calls) = (
                counted(&metric),
                effects.entry(label(&metric, "effect").to_owned()).or_default(),
            );
            calls.count += count;
            if label(&metric, "class") != "succeeded" {
                calls.failed += count;
            }
        }
        for metric in series(&metrics.effect_call_seconds) {
            let calls = effects.entry(label(&metric, "effect").to_owned()).or_default();
            calls.buckets = buckets(&metric);
        }
        for (at, (effect, calls)) in effects.into_iter().enumerate() {
            let name = if at < EFFECTS_MAX { effect.as_str() } else { OTHERS };
            figures.effects.entry(name.into()).or_default().add(&calls);
        }
        figures
    }

    /// What has been added since; effects without a call are left out.
    fn since(&self, before: &Self) -> Self {
        let mut inputs = self.inputs;
        for (now, before) in inputs.iter_mut().zip(before.inputs) {
            *now = now.saturating_sub(before);
        }
        let effects = self.effects.iter().filter_map(|(effect, now)| {
            let calls = match before.effects.get(effect) {
                Some(before) => now.since(before),
                None => *now,
            };
            (calls != Calls::default()).then(|| (Arc::clone(effect), calls))
        });
        Self {
            inputs,
            applied: self.applied.saturating_sub(before.applied),
            started: self.started.saturating_sub(before.started),
            ended: self.ended.saturating_sub(before.ended),
            dead_letters: self.dead_letters.saturating_sub(before.dead_letters),
            effects: effects.collect(),
        }
    }

    /// Adds those of another time.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.inputs.iter_mut().zip(other.inputs) {
            *sum += more;
        }
        self.applied += other.applied;
        self.started += other.started;
        self.ended += other.ended;
        self.dead_letters += other.dead_letters;
        for (effect, calls) in &other.effects {
            self.effects.entry(Arc::clone(effect)).or_default().add(calls);
        }
    }

    /// The calls of all effects.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.effects.values().fold(Calls::default(), |mut all, calls| {
            all.add(calls);
            all
        })
    }
}

/// The figures between two times, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Minute {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub figures: Figures,
}

/// The last minutes.
#[derive(Debug, Default)]
pub struct Rates {
    minutes: VecDeque<Minute>,
    /// The series where the last minute ended.
    total: Figures,
    since_ms: i64,
}

impl Rates {
    #[must_use]
    pub fn new(total: Figures, now_ms: i64) -> Self {
        Self {
            minutes: VecDeque::new(),
            total,
            since_ms: now_ms,
        }
    }

    /// A minute is over.
    pub fn turn(&mut self, total: Figures, now_ms: i64) {
        let minute = self.under_way(&total, now_ms);
        if self.minutes.len() == MINUTES_MAX {
            self.minutes.pop_front();
        }
        self.minutes.push_back(minute);
        (self.total, self.since_ms) = (total, now_ms);
    }

    /// The minutes that are kept, oldest first, and last the one under way.
    #[must_use]
    pub fn minutes(&self, total: &Figures, now_ms: i64) -> Vec<Minute> {
        let mut minutes: Vec<Minute> = self.minutes.iter().cloned().collect();
        minutes.push(self.under_way(total, now_ms));
        minutes
    }

    fn under_way(&self, total: &Figures, now_ms: i64) -> Minute {
        Minute {
            begin_ms: self.since_ms,
            end_ms: now_ms,
            figures: total.since(&self.total),
        }
    }
}

fn series(collector: &dyn Collector) -> Vec<Metric> {
    let families = collector.collect();
    families
        .iter()
        .flat_map(|family| family.get_metric().to_vec())
        .collect()
}

fn label<'m>(metric: &'m Metric, name: &str) -> &'m str {
    let found = metric.get_label().iter().find(|label| label.name() == name);
    found.map_or("", |label| label.value())
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter is a whole number that never falls"
)]
fn counted(metric: &Metric) -> u64 {
    metric.get_counter().get_value() as u64
}

/// How many lie in each bucket: the histogram adds up those below.
#[allow(
    clippy::cast_possible_truncation,
    reason = "differences of a minute fit; they are taken modulo the width"
)]
fn buckets(metric: &Metric) -> [u32; BUCKETS] {
    let histogram = metric.get_histogram();
    let (mut counts, mut below) = ([0; BUCKETS], 0);
    for (count, bucket) in counts.iter_mut().zip(histogram.get_bucket()) {
        *count = bucket.cumulative_count().saturating_sub(below) as u32;
        below = bucket.cumulative_count();
    }
    counts[BUCKETS - 1] = histogram.get_sample_count().saturating_sub(below) as u32;
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: i64 = 60_000;

    fn called(metrics: &Metrics, effect: &str, class: &str, seconds: f64) {
        metrics.effect_calls.with_label_values(&[effect, class]).inc();
        metrics
            .effect_call_seconds
            .with_label_values(&[effect])
            .observe(seconds);
    }

    #[test]
    fn a_minute_has_what_the_series_gained_in_it() {
        let metrics = Metrics::new();
        metrics.saga_activated("order");
        called(&metrics, "charge", "succeeded", 9.0);
        let mut rates = Rates::new(Figures::of(&metrics), 0);
        metrics.inputs.with_label_values(&["event", "applied"]).inc_by(3);
        metrics.inputs.with_label_values(&["event", "duplicate"]).inc();
        metrics.inputs.with_label_values(&["timer", "applied"]).inc();
        metrics.instances_started.with_label_values(&["order"]).inc_by(2);
        metrics
            .instances_ended
            .with_label_values(&["order", "failed"])
            .inc();
        metrics.dead_letters.with_label_values(&["payload.syntax"]).inc();
        called(&metrics, "charge", "succeeded", 0.003);
        called(&metrics, "charge", "transient", 0.003);
        let now = rates.minutes(&Figures::of(&metrics), 1_000);
        let [minute] = &now[..] else { panic!("{now:?}") };
        assert_eq!((minute.begin_ms, minute.end_ms), (0, 1_000));
        let figures = &minute.figures;
        assert_eq!((figures.inputs, figures.applied), ([4, 0, 1, 0], 4));
        assert_eq!((figures.started, figures.ended, figures.dead_letters), (2, 1, 1));
        let calls = figures.effects["charge"];
        assert_eq!((calls.count, calls.failed), (2, 1));
        let median = calls.quantile(0.5).expect("calls");
        assert!((0.0025..=0.005).contains(&median), "{median}");

        rates.turn(Figures::of(&metrics), MINUTE_MS);
        let minutes = rates.minutes(&Figures::of(&metrics), MINUTE_MS + 1);
        assert_eq!(minutes.len(), 2);
        assert_eq!(minutes[0].figures, *figures);
        assert_eq!(minutes[1].figures, Figures::default(), "nothing happened since");
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let metrics = Metrics::new();
        let mut rates = Rates::new(Figures::of(&metrics), 0);
        for minute in 1..=100 {
            metrics.dead_letters.with_label_values(&["fuel"]).inc_by(minute);
            rates.turn(
                Figures::of(&metrics),
                i64::try_from(minute).expect("small") * MINUTE_MS,
            );
        }
        let minutes = rates.minutes(&Figures::of(&metrics), 101 * MINUTE_MS);
        assert_eq!(minutes.len(), MINUTES_MAX + 1);
        assert_eq!(
            (minutes[0].begin_ms, minutes[0].figures.dead_letters),
            (40 * MINUTE_MS, 41)
        );
        assert!(minutes.windows(2).all(|pair| pair[0].end_ms == pair[1].begin_ms));
        let mut hour = Figures::default();
        for minute in &minutes {
            hour.add(&minute.figures);
        }
        assert_eq!(hour.dead_letters, (41..=100).sum::<u64>());
    }

    #[test]
    fn effects_beyond_the_bound_are_counted_together() {
        let metrics = Metrics::new();
        for effect in 0..EFFECTS_MAX + 5 {
            called(&metrics, &format!("effect-{effect:03}"), "succeeded", 0.1);
        }
        let figures = Figures::of(&metrics);
        assert_eq!(figures.effects.len(), EFFECTS_MAX + 1);
        assert_eq!(figures.effects[OTHERS].count, 5);
        assert_eq!(figures.calls().count, (EFFECTS_MAX + 5) as u64);
        let bytes = std::mem::size_of::<Calls>() + std::mem::size_of::<Arc<str>>();
        assert!(bytes * (EFFECTS_MAX + 1) * MINUTES_MAX <= 600_000, "{bytes}");
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_their_call() {
        let metrics = Metrics::new();
        assert_eq!(Figures::of(&metrics).calls().quantile(0.5), None);
        for call in 0..100 {
            called(
                &metrics,
                "charge",
                "succeeded",
                if call < 98 { 0.002 } else { 60.0 },
            );
        }
        let calls = Figures::of(&metrics).calls();
        let median = calls.quantile(0.5).expect("calls");
        assert!((0.001..=0.0025).contains(&median), "{median}");
        assert_eq!(calls.quantile(0.99), Some(30.0), "longer than the longest bound");
    }
}
