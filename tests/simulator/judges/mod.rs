//! Whether what the runner promises was kept, by evidence from outside: what producers published, what upstreams were called
//! with, what stands in the streams; and by what the disks hold.

mod accounts;
pub mod archive;
mod books;
mod catching_up;
mod cups;
mod echoes;
mod lists;
mod losses;
mod messages;
mod orders;
pub mod replay;
mod small;
mod stops;
mod timers;
mod trips;

use std::collections::BTreeMap;

use saga_runner::kernel::definition::DefinitionSet;
use saga_runner::kernel::ids::{InstanceId, Key, SagaName, TenantId, shard_of};
use saga_runner::kernel::input::SourceStream;
use saga_runner::kernel::record::Record;
use saga_runner::storage::rows::{DeadLetter, HistoryRow};
use saga_runner_partition::storage::read::Found;
use saga_runner_partition::storage::{Reader, StorageError};

use crate::run::{COMMANDS, EVENTS, RESULTS, Simulation};
use crate::workload::{FORGED, TENANTS};

/// Rows of one read; more than a simulation has.
const PAGE: usize = 10_000;

pub const SAGAS: [&str; 13] = [
    "audit", "bill", "cup", "echo", "list", "minutes", "order", "part", "pay", "rounds", "stall", "trip",
    "watch",
];

/// What does not hold at the end; one line each.
pub fn judge(simulation: &Simulation) -> Vec<String> {
    // The others look at instances that have ended.
    if archive::is_kept(simulation) {
        let mut faults = archive::judge(simulation);
        faults.extend(messages::judge(simulation));
        return faults;
    }
    let mut faults = lists::judge(simulation);
    faults.extend(books::judge(simulation));
    if is_whole(simulation) {
        faults.extend(orders::judge(simulation));
        faults.extend(echoes::judge(simulation));
        faults.extend(small::judge(simulation));
        faults.extend(accounts::judge(simulation));
        faults.extend(trips::judge(simulation));
    }
    faults.extend(timers::judge(simulation));
    faults.extend(catching_up::judge(simulation));
    faults.extend(stops::judge(simulation));
    faults.extend(messages::judge(simulation));
    faults.extend(losses::judge(simulation));
    faults.extend(cups::judge(simulation));
    faults.extend(letters(simulation));
    faults
}

/// All that was acknowledged is there, and so is all that was stored of it.
fn is_whole(simulation: &Simulation) -> bool {
    !simulation.losses.has_lost(EVENTS) && simulation.losses.adopted.is_none()
}

pub fn instance(tenant: &str, saga: &str, key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse(tenant).expect("a tenant"),
        saga: SagaName::parse(saga).expect("a saga"),
        key: Key::parse(key).expect("a key"),
    }
}

fn reader_of(simulation: &Simulation, id: &InstanceId) -> Reader {
    let shard = shard_of(&id.tenant, &id.key, simulation.plan.shards);
    simulation.disks[usize::from(shard)].rows.reader()
}

/// The aggregates of a type whose events are all there, or were read before they were gone.
pub fn keys(simulation: &Simulation, kind: &str) -> Vec<(&'static str, String)> {
    let mut keys = simulation.plan.keys(kind);
    keys.retain(|(_, key)| !simulation.is_excused(kind, key));
    keys
}

/// An instance as the disks have it.
pub fn found(simulation: &Simulation, id: &InstanceId) -> Option<Found> {
    let reader = reader_of(simulation, id);
    reader.instance(id).expect("a store in memory can be read")
}

pub fn ended(simulation: &Simulation, tenant: &str, saga: &str, key: &str) -> Option<Record> {
    match found(simulation, &instance(tenant, saga, key)) {
        Some(Found::Ended(summary)) => Some(summary.record),
        Some(Found::Live(_)) | None => None,
    }
}

/// What an instance has taken, oldest first.
fn history_of(simulation: &Simulation, id: &InstanceId, record: &Record) -> Vec<HistoryRow> {
    let rows = reader_of(simulation, id).history(record.last_history, PAGE);
    let rows = rows.expect("a store in memory can be read").into_iter();
    rows.rev().map(|(_, row)| row).collect()
}

/// What each instance of a saga that has ended has taken, oldest first.
fn histories(simulation: &Simulation, tenant: &str, saga: &str) -> Vec<(InstanceId, Vec<HistoryRow>)> {
    let records = records(simulation, tenant, saga).into_iter();
    let with_history = records.map(|(id, record)| {
        let rows = history_of(simulation, &id, &record);
        (id, rows)
    });
    with_history.collect()
}

/// All instances of a saga that have ended.
fn records(simulation: &Simulation, tenant: &str, saga: &str) -> Vec<(InstanceId, Record)> {
    let (tenant, saga) = (
        TenantId::parse(tenant).expect("a tenant"),
        SagaName::parse(saga).expect("a saga"),
    );
    let mut records = Vec::new();
    for disk in &simulation.disks {
        let (page, _) = disk
            .rows
            .reader()
            .instances(&tenant, &saga, None, PAGE)
            .expect("a store in memory can be read");
        let ended = page.into_iter().filter_map(|one| match one.found {
            Found::Ended(summary) => Some((one.id, summary.record)),
            Found::Live(_) => None,
        });
        records.extend(ended);
    }
    records
}

/// What has not come to its end, one line each; none once nothing is under way any more.
pub fn open(simulation: &Simulation) -> Vec<String> {
    let mut open: Vec<String> = losses::forgotten(simulation).into_iter().collect();
    open.extend(losses::removed(simulation));
    open.extend(archive::waiting(simulation));
    for (_, event) in &simulation.stored {
        let starts = [
            ("List.Opened", "list"),
            ("Bill.Opened", "bill"),
            ("Pay.Opened", "pay"),
            ("Order.Opened", "order"),
            ("Rounds.Opened", "rounds"),
            ("Stall.Opened", "stall"),
            ("Cup.Opened", "cup"),
            ("Trip.Opened", "trip"),
        ];
        let Some((_, saga)) = starts.iter().find(|(name, _)| *name == event.name) else {
            continue;
        };
        let id = instance(event.tenant, saga, &event.key);
        // What would have begun it is gone.
        let is_there = found(simulation, &id).is_some() || archive::has(simulation, &id);
        if !is_there && !simulation.is_excused(event.kind, &event.key) {
            open.push(format!("{id} was never begun"));
        }
    }
    for (shard, disk) in simulation.disks.iter().enumerate() {
        let reader = disk.rows.reader();
        let (live, _) = reader
            // What would have ended a list is gone.
            .live(None, PAGE, |id, _| {
                !["list", "watch"].contains(&id.saga.as_str())
                    || !simulation.is_excused("List", id.key.as_str())
            })
            .expect("a store in memory can be read");
        for (id, record) in live {
            if archive::explains(simulation, &id) {
                continue;
            }
            let steps: Vec<_> = record
                .step_states()
                .map(|(_, _, step)| step.status.as_str())
                .collect();
            open.push(format!("{id} is {} with steps {steps:?}", record.phase.as_str()));
        }
        let (rows, positions) = disk
            .rows
            .write::<_, StorageError>(|batch| {
                let mut positions = BTreeMap::new();
                for (stream, name) in [
                    (SourceStream::AggregateEvents, EVENTS),
                    (SourceStream::WorkflowEvents, RESULTS),
                    (SourceStream::WorkflowCommands, COMMANDS),
                ] {
                    positions.insert(name, batch.position(stream)?.map_or(0, |row| row.sequence));
                }
                Ok((batch.outbox_rows()?, positions))
            })
            .expect("a store in memory can be read");
        if rows > 0 {
            open.push(format!("shard {shard} has {rows} row(s) in its outbox"));
        }
        let due = reader.timers_due(simulation.world.clock.true_now(), PAGE);
        let due = due.expect("a store in memory can be read");
        if due > 0 {
            open.push(format!("shard {shard} has {due} due timer(s)"));
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
    let found = reader
        .orphans(definitions, &mut |_| {})
        .expect("a store in memory can be read");
    found.into_iter().map(|line| format!("orphan: {line}")).collect()
}

/// Whatever could not be read is a dead letter, and nothing else is.
fn letters(simulation: &Simulation) -> Vec<String> {
    let mut found = Vec::new();
    let mut refused = 0;
    for (disk, tenant) in simulation
        .disks
        .iter()
        .flat_map(|disk| TENANTS.map(|tenant| (disk, tenant)))
    {
        let tenant = TenantId::parse(tenant).expect("a tenant");
        let (letters, _) = disk
            .rows
            .reader()
            .dead_letters(&tenant, None, PAGE)
            .expect("a store in memory can be read");
        // Another result than the first is a letter as well, on which the operator may not have decided yet.
        let is_of_stranger =
            |letter: &DeadLetter| letter.input.is_some() && letter.reason == "result.conflict";
        let is_forged = |letter: &DeadLetter| letter.reason == "control.subject";
        refused += letters.iter().filter(|(_, letter)| is_forged(letter)).count();
        let told = letters
            .iter()
            .filter(|(_, letter)| !is_of_stranger(letter) && !is_forged(letter));
        let told = told.map(|(_, letter)| {
            let (reason, subject) = (&letter.reason, &letter.subject);
            format!("{reason} of {subject}: {}", letter.message)
        });
        found.extend(told);
    }
    let sent = simulation.plan.garbage();
    let mut faults = forged(simulation, refused);
    // Some of it may be gone, or was read twice.
    if found.len() != sent && !simulation.losses.has_lost(EVENTS) {
        faults.push(format!(
            "{sent} message(s) could not be read, and there are {} dead letter(s): {found:?}",
            found.len()
        ));
    }
    faults
}

/// What a tenant asks for that only operators may is refused, each time, and never done.
fn forged(simulation: &Simulation, refused: usize) -> Vec<String> {
    let mut faults = Vec::new();
    for (tenant, saga) in TENANTS
        .into_iter()
        .flat_map(|tenant| SAGAS.map(|saga| (tenant, saga)))
    {
        let records = records(simulation, tenant, saga).into_iter();
        let killed = records.filter(|(_, record)| {
            let failure = record.failure.as_ref();
            failure.is_some_and(|failure| failure.code == "killed")
        });
        faults.extend(killed.map(|(id, _)| format!("{id} was killed by somebody who may not")));
    }
    let mark = format!("\"{FORGED}");
    let messages = simulation.server.archive(COMMANDS);
    let is_forged = |payload: &[u8]| std::str::from_utf8(payload).is_ok_and(|text| text.contains(&mark));
    let sent = messages.iter().filter(|one| is_forged(&one.payload)).count();
    let is_known = !simulation.losses.has_lost(COMMANDS) && simulation.losses.adopted.is_none();
    if is_known && refused != sent {
        faults.push(format!(
            "{sent} request(s) were forged, and {refused} are refused"
        ));
    }
    faults
}
