//! Spans for whoever collects traces: what was done when, in which trace.
//!
//! They wait in a bounded queue for whoever sends them. Where it is full, a span is counted and forgotten: nothing waits for
//! them. Nothing is collected before [`Spans::collect`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;

/// Something that was done, as part of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub name: &'static str,
    pub kind: SpanKind,
    /// W3C `traceparent` whose parent is this span.
    pub traceparent: String,
    /// The span that this one is part of, 16 hexadecimal digits; none for the first of its trace.
    pub parent: Option<String>,
    /// `traceparent` of another trace that has to do with it.
    pub link: Option<String>,
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    pub took: Duration,
    pub attributes: Vec<(&'static str, String)>,
    /// Error class, where it failed.
    pub error: Option<String>,
}

/// What a span does for the one that caused it, in the terms of OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request is answered.
    Server,
    /// A message is processed.
    Consumer,
    /// An upstream is called.
    Client,
}

/// The spans that nobody has taken yet.
#[derive(Debug, Default)]
pub struct Spans(OnceLock<Queue>);

#[derive(Debug)]
struct Queue {
    waiting: Mutex<VecDeque<Span>>,
    room: usize,
    /// Traces are collected whose id, as a number, is below this.
    below: u64,
    dropped: IntCounter,
    drawn: AtomicU64,
}

impl Spans {
    /// Collects from now on: `sample_ratio` of all traces, 0 to 1, and at most `queue_max` spans that nobody has taken. `seed` is a random
    /// number, from which the ids of spans are made.
    pub fn collect(&self, queue_max: usize, sample_ratio: f64, seed: u64, dropped: IntCounter) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "the cast saturates, and a share of all ids need not be exact"
        )]
        let below = (sample_ratio.clamp(0.0, 1.0) * IDS as f64) as u64;
        let _first = self.0.set(Queue {
            waiting: Mutex::default(),
            room: queue_max,
            below,
            dropped,
            drawn: AtomicU64::new(seed),
        });
    }

    /// Whether spans are collected at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether the spans of a trace are collected: its flags say so, and its id is among those that the ratio takes, which are the same
    /// in every process.
    #[must_use]
    pub fn takes(&self, traceparent: &str) -> bool {
        let Some(queue) = self.0.get() else {
            return false;
        };
        let part = |from: usize, to: usize| {
            let text = traceparent.get(from..to)?;
            u64::from_str_radix(text, 16).ok()
        };
        let is_sampled = part(53, 55).is_some_and(|flags| flags & 1 == 1);
        is_sampled && part(19, 35).is_some_and(|id| id >> 1 < queue.below)
    }

    /// Hands a span over, if its trace is collected and there is room.
    pub fn push(&self, span: Span) {
        let Some(queue) = self.0.get().filter(|_| self.takes(&span.traceparent)) else {
            return;
        };
        let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < queue.room {
            waiting.push_back(span);
        } else {
            queue.dropped.inc();
        }
    }

    /// Takes the oldest spans, at most `limit`.
    #[must_use]
    pub fn take(&self, limit: usize) -> Vec<Span> {
        let Some(queue) = self.0.get() else {
            return Vec::new();
        };
        let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(limit);
        waiting.drain(..count).collect()
    }

    /// An id for a span that nobody else names.
    #[must_use]
    pub fn draw(&self) -> u64 {
        let drawn = self
            .0
            .get()
            .map_or(0, |queue| queue.drawn.fetch_add(STEP, Ordering::Relaxed));
        // The finish of SplitMix64.
        let bits = (drawn ^ (drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)).max(1)
    }
}

/// Ids that the ratio chooses from: the last 63 bits of a trace id, as OpenTelemetry's ratio sampler has them.
const IDS: u64 = 1 << 63;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    fn span(trace: &str, flags: &str) -> Span {
        Span {
            name: "apply",
            kind: SpanKind::Consumer,
            traceparent: format!("00-{trace}-00f067aa0ba902b7-{flags}"),
            parent: None,
            link: None,
            began_ms: 0,
            took: Duration::ZERO,
            attributes: Vec::new(),
            error: None,
        }
    }

    fn dropped() -> IntCounter {
        IntCounter::new("dropped", "dropped").expect("legal")
    }

    const LOW: &str = "4bf92f3577b34da61000000000000000";
    const HIGH: &str = "4bf92f3577b34da6f000000000000000";

    #[test]
    fn a_full_queue_drops_and_counts_what_comes_and_blocks_nobody() {
        let (spans, counter) = (Spans::default(), dropped());
        spans.push(span(LOW, "01"));
        assert!(spans.take(9).is_empty() && !spans.is_on());
        spans.collect(2, 1.0, 7, counter.clone());
        for _ in 0..5 {
            spans.push(span(HIGH, "01"));
        }
        assert_eq!(
            (counter.get(), spans.take(1).len(), spans.take(9).len()),
            (3, 1, 1)
        );
        assert_ne!(spans.draw(), spans.draw());
    }

    #[test]
    fn the_ratio_and_the_flags_choose_traces_by_their_ids() {
        let spans = Spans::default();
        spans.collect(9, 0.5, 7, dropped());
        for (trace, flags, taken) in [
            (LOW, "01", true),
            (LOW, "03", true),
            (LOW, "00", false),
            (HIGH, "01", false),
            ("short", "01", false),
        ] {
            spans.push(span(trace, flags));
            assert_eq!(spans.take(9).len(), usize::from(taken), "{trace} {flags}");
        }
    }
}
