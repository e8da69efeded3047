//! The rates of the last hour, as operators see them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::node::Node;
use crate::effects::Hosts;
use crate::kernel::ids::TimeMs;
use crate::ports::control::{CallRates, EffectRates, InputRates, MinuteView, RatesView, UpstreamRates};
use crate::tasks::Task;
use crate::telemetry::Metrics;
use crate::telemetry::rates::{Calls, Figures, Minute, OTHERS, Rates};

/// Upstreams with figures of their own, the first by name; what the others have is together [`OTHERS`].
const UPSTREAMS_MAX: usize = 100;
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

    /// The last hour; `hosts` says which addresses the effects call now.
    pub fn view(&self, metrics: &Metrics, now: TimeMs, hosts: &Hosts) -> RatesView {
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
            items: minutes.iter().map(|one| minute(one, hosts)).collect(),
            total: minute(&hour, hosts),
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

fn minute(minute: &Minute, hosts: &Hosts) -> MinuteView {
    let figures = &minute.figures;
    let [event, result, timer, control] = figures.inputs;
    let effects = figures.effects.iter().map(|(effect, of_effect)| EffectRates {
        effect: effect.to_string(),
        calls: calls(of_effect),
    });
    let ms = minute.end_ms.saturating_sub(minute.begin_ms).max(0);
    MinuteView {
        at: TimeMs(minute.begin_ms).rfc3339(),
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
        upstreams: upstreams(figures, hosts),
    }
}

/// The calls of the effects together that call the same address.
fn upstreams(figures: &Figures, hosts: &Hosts) -> Vec<UpstreamRates> {
    let mut by_host: BTreeMap<&str, Calls> = BTreeMap::new();
    for (effect, of_effect) in &figures.effects {
        let host = match hosts.get(&**effect) {
            Some(Some(host)) => &**host,
            // What it does is done here.
            Some(None) => continue,
            // An effect that a reload has taken away has no address any more.
            None => OTHERS,
        };
        by_host.entry(host).or_default().add(of_effect);
    }
    let mut others = by_host.remove(OTHERS);
    for behind in by_host.values().skip(UPSTREAMS_MAX) {
        others.get_or_insert_default().add(behind);
    }
    let named = by_host.into_iter().take(UPSTREAMS_MAX);
    named
        .chain(others.map(|others| (OTHERS, others)))
        .map(|(upstream, of_upstream)| UpstreamRates {
            upstream: upstream.to_owned(),
            calls: calls(&of_upstream),
        })
        .collect()
}

fn calls(calls: &Calls) -> CallRates {
    CallRates {
        count: calls.count,
        failed: calls.failed,
        p50_seconds: calls.quantile(0.5),
        p99_seconds: calls.quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_that_call_one_address_are_told_together_and_the_rest_as_others() {
        let mut figures = Figures::default();
        let mut hosts = Hosts::new();
        let mut called = Calls::default();
        (called.count, called.failed) = (2, 1);
        for number in 0..UPSTREAMS_MAX + 5 {
            for effect in ["a", "b"] {
                let name = format!("{effect}-{number:03}");
                figures.effects.insert(name.as_str().into(), called);
                hosts.insert(name, Some(format!("host-{number:03}").into()));
            }
        }
        figures.effects.insert("gone".into(), called);
        figures.effects.insert("transform".into(), called);
        hosts.insert("transform".to_owned(), None);
        let told = upstreams(&figures, &hosts);
        assert_eq!(told.len(), UPSTREAMS_MAX + 1);
        assert_eq!(
            (
                told[0].upstream.as_str(),
                told[0].calls.count,
                told[0].calls.failed
            ),
            ("host-000", 4, 2)
        );
        let others = &told[UPSTREAMS_MAX];
        assert_eq!(
            (others.upstream.as_str(), others.calls.count),
            (OTHERS, 5 * 4 + 2)
        );
    }
}
