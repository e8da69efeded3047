//! What a shard finds when it opens its state, and whether the streams are still the ones it knows.

use std::collections::{BTreeSet, HashMap};

use saga_runner_partition::machine::activation::{activate, resumable};
use saga_runner_partition::machine::careful::Careful;

use super::mailbox::Stamp;
use super::{ShardSpec, Standing};
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::input::SourceStream;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::work::WorkRef;
use crate::ports::broker::StreamState;
use crate::storage::rows::{HaltRow, PositionRow, Waiting};
use crate::storage::write::Counters;
use crate::storage::{Batch, HeldRow, StorageError};

/// The state at the start of the thread.
#[derive(Debug)]
pub(super) struct Opening {
    pub positions: [u64; 3],
    pub stamps: [Option<Stamp>; 3],
    pub counters: Counters,
    pub waiting: HashMap<InstanceId, Waiting>,
    /// Instances whose definition was missing and is loaded now.
    pub resumable: Vec<InstanceId>,
    pub outbox_rows: u64,
    /// Rows of the outbox whose calls have begun.
    pub begun: BTreeSet<WorkRef>,
    /// Calls of rows up to here may have been made without a mark.
    pub maybe_called: u64,
    pub next_due: Option<TimeMs>,
    pub careful: Careful,
    /// What it holds back, where it goes on from an adopted state.
    pub held: Option<HeldRow>,
    /// There are schedules to be brought in line with the definitions.
    pub has_schedules: bool,
    /// Why the shard must not work, by [`SourceStream::index`].
    pub halts: Halts,
}

/// Reads the state, stores initial positions in a new shard, and records the active definitions.
pub(super) fn open(spec: &ShardSpec) -> Result<Opening, StorageError> {
    let waiting = spec.store.reader().waiting()?;
    spec.store.write(|batch| {
        let counters = batch.counters()?;
        // Not by its log: what it takes first may have killed the process each time, and then nothing is in it yet.
        let closed = batch.closed()?;
        let careful = if closed.is_some() || is_new(batch)? {
            batch.put_suspects(&[])?;
            Careful::default()
        } else {
            // A commit that has nearly enough takes one more delivery.
            let inputs_max = spec.settings.batch_inputs + spec.delivery_inputs;
            Careful::after_crash(inputs_max, batch.suspects()?)
        };
        batch.put_closed(None)?;
        let (positions, stamps, halts) = positions(spec, batch)?;
        if halts.iter().all(Option::is_none) {
            activate(batch, &spec.definitions, spec.revision, positions)?;
        }
        Ok::<_, StorageError>(Opening {
            positions,
            stamps,
            counters,
            resumable: resumable(&spec.definitions, batch, &waiting)?,
            waiting,
            outbox_rows: batch.outbox_rows()?,
            begun: batch.begun()?,
            maybe_called: closed.unwrap_or(counters.log_sequence),
            next_due: batch.next_due()?,
            careful,
            held: batch.held()?,
            has_schedules: has_schedules(spec, batch)?,
            halts,
        })
    })
}

fn has_schedules(spec: &ShardSpec, batch: &Batch<'_>) -> Result<bool, StorageError> {
    let mut active = spec.definitions.iter_active();
    let wanted = !spec.scheduled_tenants.is_empty() && active.any(|saga| saga.schedule.is_some());
    Ok(wanted || !batch.schedules()?.is_empty())
}

/// Whether the shard is opened for the first time.
fn is_new(batch: &Batch<'_>) -> Result<bool, StorageError> {
    for stream in SourceStream::ALL {
        if batch.position(stream, 0)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

type Halt = Option<(&'static str, String)>;

/// What is wrong with the streams of a shard.
pub(super) type Halts = [Halt; 3];

type Stamps = [Option<Stamp>; 3];

fn positions(spec: &ShardSpec, batch: &Batch<'_>) -> Result<([u64; 3], Stamps, Halts), StorageError> {
    let mut positions = spec.initial_positions;
    let mut stamps = [None; 3];
    let mut halts = Halts::default();
    // All are stored together, and a shard that is begun anew in place of a lost one has a log that does not begin at 0.
    let is_new = is_new(batch)?;
    for stream in SourceStream::ALL {
        let state = &spec.streams[stream.index()];
        let end = state.last_time;
        match batch.position(stream, 0)? {
            Some(row) => {
                positions[stream.index()] = row.sequence;
                stamps[stream.index()] = row.stamp;
                let found = stream_trouble(&row, state, spec.standing[stream.index()]);
                halts[stream.index()] = match found {
                    Some(found) => Some(found),
                    None => batch.halt(stream)?.map(HaltRow::reason),
                };
            }
            None if is_new => {
                let row = PositionRow {
                    stream_name: state.identity.name.clone(),
                    stream_created_ns: state.identity.created_ns,
                    sequence: positions[stream.index()],
                    stamp: end
                        .filter(|_| positions[stream.index()] == state.last_sequence)
                        .map(Stamp::at),
                };
                stamps[stream.index()] = row.stamp;
                batch.put_position(stream, 0, &row)?;
            }
            None => {
                let message = format!("the shard has state and no position in {}", state.identity.name);
                halts[stream.index()] = Some(("stream.identity", message));
            }
        }
    }
    Ok((positions, stamps, halts))
}

/// Why a position does not belong to a stream, if it does not: reason code and sentence.
#[must_use]
pub fn stream_trouble(
    row: &PositionRow,
    state: &StreamState,
    standing: Option<Standing>,
) -> Option<(&'static str, String)> {
    let name = &state.identity.name;
    if row.stream_name != *name || row.stream_created_ns != state.identity.created_ns {
        return Some((
            "stream.identity",
            format!(
                "stream {name} is not the one that positions are kept for: it was created anew or renamed"
            ),
        ));
    }
    if row.sequence > state.last_sequence {
        return Some((
            "stream.identity",
            format!(
                "stream {name} ends at {}, and {} was applied already: it was rolled back",
                state.last_sequence, row.sequence
            ),
        ));
    }
    if let (Some(known), Some(found)) = (row.stamp, standing.filter(|found| found.sequence == row.sequence))
        && !known.matches(&found.stamp)
        && !is_planted(Bug::ReusedSequence)
    {
        let message = Stamp::mismatch(name, row.sequence, &known, &found.stamp);
        return Some(("stream.identity", message));
    }
    if row.sequence + 1 < state.first_sequence {
        return Some((
            "stream.gap",
            format!(
                "stream {name} begins at {}, and only {} was applied: messages between are gone",
                state.first_sequence, row.sequence
            ),
        ));
    }
    None
}
