//! The rates of the last hour, as operators see them.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::node::Node;
use crate::kernel::ids::TimeMs;
use crate::ports::control::{CallRates, EffectRates, InputRates, MinuteView, RatesView, rfc3339};
use crate::tasks::Task;
use crate::telemetry::Metrics;
use crate::telemetry::rates::{Calls, Figures, Minute, Rates};

/// How long a minute is.
const MINUTE: Duration = Duration::from_mins(1);

/// The figures of a process, from its start on.
pub(super) struct Kept(Mutex<Rates>);

impl Kept {
    pub fn new(metrics: &Metrics, now: TimeMs) -> Self {
        Self(Mutex::new(Rates::new(Figures::of(metrics), now.0)))
    }

    fn turn(&self, metrics: &Metrics, now: TimeMs) {
        // Read before the lock, which requests wait for.
        let total = Figures::of(metrics);
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rates.turn(total, now.0);
    }

    pub fn view(&self, metrics: &Metrics, now: TimeMs) -> RatesView {
        let total = Figures::of(metrics);
        let minutes = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .minutes(&total, now.0);
        let mut hour = Minute {
            begin_ms: minutes.first().map_or(now.0, |minute| minute.begin_ms),
            end_ms: now.0,
            figures: Figures::default(),
        };
        for minute in &minutes {
            hour.figures.add(&minute.figures);
        }
        RatesView {
            items: minutes.iter().map(minute).collect(),
            total: minute(&hour),
        }
    }
}

/// Keeps the rates of the last hour from now on.
pub(super) fn begin(node: &Arc<Node>) {
    let node_of_task = Arc::downgrade(node);
    node.tasks
        .keep(Task::Rates, "", move || keep(Weak::clone(&node_of_task)));
}

/// Ends a minute after the other.
async fn keep(node: Weak<Node>) {
    let mut minutes = tokio::time::interval(MINUTE);
    // The first one comes at once.
    minutes.tick().await;
    loop {
        minutes.tick().await;
        let Some(node) = node.upgrade() else { return };
        node.rates.turn(&node.metrics, node.clock.now());
    }
}

fn minute(minute: &Minute) -> MinuteView {
    let figures = &minute.figures;
    let [event, result, timer, control] = figures.inputs;
    let effects = figures.effects.iter().map(|(effect, of_effect)| EffectRates {
        effect: effect.to_string(),
        calls: calls(of_effect),
    });
    let ms = minute.end_ms.saturating_sub(minute.begin_ms).max(0);
    MinuteView {
        at: rfc3339(TimeMs(minute.begin_ms)),
        seconds: Duration::from_millis(ms.unsigned_abs()).as_secs_f64(),
        inputs: InputRates {
            event,
            result,
            timer,
            control,
        },
        transitions: figures.applied,
        instances_started: figures.started,
        instances_ended: figures.ended,
        dead_letters: figures.dead_letters,
        calls: calls(&figures.calls()),
        effects: effects.collect(),
    }
}

fn calls(calls: &Calls) -> CallRates {
    CallRates {
        count: calls.count,
        failed: calls.failed,
        p50_seconds: calls.quantile(0.5),
        p99_seconds: calls.quantile(0.99),
    }
}
