//! What was stored before a process began is taken in the order in which it was stored, whatever stream it stands in.

use std::collections::BTreeSet;

use saga_runner::kernel::ids::{TimeMs, shard_of};
use saga_runner::kernel::input::SourceStream;
use saga_runner::storage::rows::{HistoryOutcome, HistoryRow};

use super::timers::COARSE_MS;
use super::{PAGE, SAGAS, reader_of, records};
use crate::clock::{BEGIN, ms};
use crate::plan::Action;
use crate::run::Simulation;
use crate::workload::TENANTS;

/// In which what comes too early waits, and is applied behind what was stored later.
const WAITING: &str = "watch";

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let plan = &simulation.plan;
    // While the outbox is full, events wait and results do not.
    let has_room = plan.settings["shard"]["outbox_soft"].as_u64() > Some(1_000);
    let disturbs = |action: &Action| action.concerns_owners() || matches!(action, Action::Close { .. });
    if !has_room || plan.first.is_some() || plan.actions.iter().any(|(_, action)| disturbs(action)) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for tenant in TENANTS {
        for saga in SAGAS.into_iter().filter(|saga| *saga != WAITING) {
            for (id, record) in records(simulation, tenant, saga) {
                let rows = reader_of(simulation, &id).history(record.last_history, PAGE);
                let mut rows = rows.expect("a store in memory can be read");
                rows.reverse();
                let shard = usize::from(shard_of(&id.tenant, &id.key, plan.shards));
                let fault = disorder(simulation, shard, &rows);
                faults.extend(fault.map(|fault| format!("{id}: {fault}")));
            }
        }
    }
    faults
}

/// Two inputs in another order than they were stored in, if there are two.
fn disorder(simulation: &Simulation, shard: usize, rows: &[(u64, HistoryRow)]) -> Option<String> {
    // What stands behind a dead letter waits for an operator, and some of it does not.
    if rows
        .iter()
        .any(|(_, row)| matches!(row.outcome, HistoryOutcome::Dead { .. }))
    {
        return None;
    }
    let mut known = BTreeSet::new();
    let mut last: Option<(usize, TimeMs, &str)> = None;
    for (log, row) in rows {
        let Some(source @ (SourceStream::AggregateEvents | SourceStream::WorkflowEvents, _)) = row.source
        else {
            continue;
        };
        // What was deferred had its turn before; and what could not be read in its place says so.
        if !known.insert(source) || row.late_source {
            continue;
        }
        let life = simulation
            .begins
            .partition_point(|begin| begin.logs[shard] < *log);
        let began = simulation.begins[..life].last()?.at;
        if row.time >= BEGIN.plus_ms(ms(began) - COARSE_MS) {
            continue;
        }
        if let Some((before, time, kind)) = last
            && before == life
            && time > row.time
        {
            let ms = time.0 - row.time.0;
            return Some(format!(
                "{} comes behind {kind}, which was stored {ms} ms later, in life {life}",
                row.kind
            ));
        }
        last = Some((life, row.time, &row.kind));
    }
    None
}
