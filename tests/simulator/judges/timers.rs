//! Nothing that was stored before a timer was due comes behind it, in any instance.

use std::collections::BTreeSet;

use saga_runner::kernel::ids::TimeMs;
use saga_runner::kernel::input::SourceStream;
use saga_runner::storage::rows::{HistoryOutcome, HistoryRow};

use super::{SAGAS, histories};
use crate::run::Simulation;
use crate::workload::TENANTS;

/// How coarse times are, in milliseconds. Timers go by the broker's clock, whatever the owner's is set to.
pub const COARSE_MS: i64 = 10;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let is_adopted = simulation.losses.adopted.is_some();
    // On an older state, results of the first time stand before the events from which their commands follow.
    let counts = |stream: SourceStream| !is_adopted || stream == SourceStream::AggregateEvents;
    let mut faults = Vec::new();
    for tenant in TENANTS {
        for saga in SAGAS {
            for (id, rows) in histories(simulation, tenant, saga) {
                faults.extend(early(&rows, counts).map(|fault| format!("{id}: {fault}")));
            }
        }
    }
    faults
}

/// A timer of an instance that was too early, if there is one.
fn early(rows: &[HistoryRow], counts: impl Fn(SourceStream) -> bool) -> Option<String> {
    let mut known = BTreeSet::new();
    let mut fired: Option<(TimeMs, &str)> = None;
    for row in rows {
        match (&row.outcome, row.source) {
            // What stands behind it waits for an operator, and deadlines do not.
            (HistoryOutcome::Dead { .. }, _) => return None,
            (HistoryOutcome::Applied, None) if row.kind.starts_with("timer ") && !row.late_source => {
                fired = fired.max(Some((row.time, row.kind.as_str())));
            }
            // What was deferred had its turn before.
            (_, Some(source)) if known.insert(source) && counts(source.0) && !row.late_source => {
                let (due, timer) = fired.unwrap_or((TimeMs(i64::MIN), ""));
                if row.time.0.saturating_add(COARSE_MS) < due.0 {
                    let early = due.0 - row.time.0;
                    return Some(format!(
                        "{} was stored {early} ms before {timer} was due, and comes behind it",
                        row.kind
                    ));
                }
            }
            _ => {}
        }
    }
    None
}
