//! Whether what the runner promises was kept, by evidence from outside: what producers published, what upstreams were called
//! with, what stands in the streams; and by what the disks hold.

mod books;
mod lists;
mod messages;

use std::collections::BTreeMap;

use saga_runner::kernel::definition::DefinitionSet;
use saga_runner::kernel::ids::{InstanceId, Key, SagaName, TenantId, shard_of};
use saga_runner::kernel::input::SourceStream;
use saga_runner::kernel::record::Record;
use saga_runner_partition::storage::read::Found;
use saga_runner_partition::storage::{Reader, StorageError};

use crate::owners::orphans;
use crate::run::{EVENTS, RESULTS, Simulation, TENANT};

/// Rows of one read; more than a simulation has.
const PAGE: usize = 10_000;

/// What does not hold at the end; one line each.
pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = lists::judge(simulation);
    faults.extend(books::judge(simulation));
    faults.extend(messages::judge(simulation));
    faults.extend(letters(simulation));
    faults
}

pub fn instance(saga: &str, key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse(TENANT).expect("a tenant"),
        saga: SagaName::parse(saga).expect("a saga"),
        key: Key::parse(key).expect("a key"),
    }
}

/// An instance as the disks have it.
pub fn found(simulation: &Simulation, id: &InstanceId) -> Option<Found> {
    let shard = shard_of(&id.tenant, &id.key, simulation.plan.shards);
    let reader = simulation.disks[usize::from(shard)].rows.reader();
    reader.instance(id).expect("a store in memory can be read")
}

pub fn ended(simulation: &Simulation, saga: &str, key: &str) -> Option<Record> {
    match found(simulation, &instance(saga, key)) {
        Some(Found::Ended(summary)) => Some(summary.record),
        Some(Found::Live(_)) | None => None,
    }
}

/// What has not come to its end, one line each; none once nothing is under way any more.
pub fn open(simulation: &Simulation) -> Vec<String> {
    let mut open = Vec::new();
    for (kind, saga) in [("List", "list"), ("Bill", "bill"), ("Pay", "pay")] {
        for key in simulation.plan.keys(kind) {
            match found(simulation, &instance(saga, &key)) {
                None => open.push(format!("{saga}/{key} was never begun")),
                Some(Found::Live(record)) => {
                    let steps: Vec<_> = record
                        .step_states()
                        .map(|(_, _, step)| step.status.as_str())
                        .collect();
                    open.push(format!(
                        "{saga}/{key} is {} with steps {steps:?}",
                        record.phase.as_str()
                    ));
                }
                Some(Found::Ended(_)) => {}
            }
        }
    }
    for (shard, disk) in simulation.disks.iter().enumerate() {
        let (rows, positions) = disk
            .rows
            .write::<_, StorageError>(|batch| {
                let mut positions = BTreeMap::new();
                for (stream, name) in [
                    (SourceStream::AggregateEvents, EVENTS),
                    (SourceStream::WorkflowEvents, RESULTS),
                ] {
                    positions.insert(name, batch.position(stream, 0)?.map_or(0, |row| row.sequence));
                }
                Ok((batch.outbox_rows()?, positions))
            })
            .expect("a store in memory can be read");
        if rows > 0 {
            open.push(format!("shard {shard} has {rows} row(s) in its outbox"));
        }
        for (stream, position) in positions {
            let end = simulation.server.last(stream);
            if position < end {
                open.push(format!(
                    "shard {shard} has read {stream} up to {position} of {end}"
                ));
            }
        }
    }
    open
}

/// What is open on a disk must have something behind it that will move it, whenever the process dies.
pub fn orphaned(reader: &Reader, definitions: &DefinitionSet) -> Vec<String> {
    let found = orphans(reader, definitions).expect("a store in memory can be read");
    found.into_iter().map(|line| format!("orphan: {line}")).collect()
}

/// Whatever could not be read is a dead letter, and nothing else is.
fn letters(simulation: &Simulation) -> Vec<String> {
    let tenant = TenantId::parse(TENANT).expect("a tenant");
    let mut unreadable = 0;
    for disk in &simulation.disks {
        let (letters, _) = disk
            .rows
            .reader()
            .dead_letters(&tenant, None, PAGE)
            .expect("a store in memory can be read");
        unreadable += letters.len();
    }
    let sent = simulation.plan.garbage();
    if unreadable == sent {
        return Vec::new();
    }
    vec![format!(
        "{sent} message(s) could not be read, and there are {unreadable} dead letter(s)"
    )]
}
