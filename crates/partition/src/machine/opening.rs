//! How a partition is opened: from its rows, from what its streams are now, and from how it was closed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{ClusterId, InstanceId, TenantId};
use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::work::WorkRef;

use super::activation::{activate, resumable};
use super::crash_isolation::{CrashIsolation, count_death};
use super::source::{Standing, StreamState, stream_trouble, with_halt};
use super::{Keep, Partition};
use crate::storage::rows::{PositionRow, Stamp, Suspect, Waiting};
use crate::storage::{Batch, StorageError};

/// What a partition is opened with.
#[derive(Debug, Clone)]
pub struct Terms {
    pub cluster: ClusterId,
    pub definitions: Arc<DefinitionSet>,
    /// Revision of the definitions.
    pub revision: u64,
    pub scheduled_tenants: Vec<TenantId>,
    pub limits: Limits,
    pub keep: Keep,
    pub timer_hold: Millis,
    /// The source streams as they are now, by [`SourceStream::index`].
    pub streams: [StreamState; 3],
    /// What stands in the streams where the positions are, by [`SourceStream::index`].
    pub standing: [Option<Standing>; 3],
    /// Positions that a new partition begins with, by [`SourceStream::index`].
    pub initial_positions: [u64; 3],
    /// Inputs of each origin that one commit takes at most: so many may have been begun when the process died.
    pub commit_inputs: usize,
    /// The input that was noted as being applied when the last process ended.
    pub applying: Option<Suspect>,
}

/// Why a stream must not be read on: reason code and sentence.
pub type Halt = (&'static str, String);

/// Those of each stream, by [`SourceStream::index`].
pub type Halts = [Option<Halt>; 3];

/// A partition at its start.
#[derive(Debug)]
pub struct Opened {
    pub partition: Partition,
    /// Why it must not work.
    pub halts: Halts,
    /// Instances whose inputs wait and have nothing in their way any more.
    pub resumable: Vec<InstanceId>,
    /// Rows of the outbox whose calls have begun.
    pub begun: BTreeSet<WorkRef>,
    /// Log sequence up to which calls may have been made that have no mark.
    pub maybe_called: u64,
    /// There are schedules to be brought in line with the definitions.
    pub has_schedules: bool,
}

impl Partition {
    /// Reads what the last process has left, stores initial positions in a new partition, records the active definitions
    /// where its streams may be read, and takes the mark of a clean stop away. `waiting`: what its rows say of inputs that
    /// wait.
    ///
    /// # Errors
    /// [`StorageError`]: nothing has changed.
    #[allow(clippy::implicit_hasher, reason = "it is the map of the partition")]
    pub fn open(
        batch: &Batch<'_>,
        waiting: HashMap<InstanceId, Waiting>,
        terms: Terms,
    ) -> Result<Opened, StorageError> {
        let counters = batch.counters()?;
        // Not by its log: what it takes first may have killed the process each time, and then nothing is in it yet.
        let closed = batch.closed()?;
        let isolation = if closed.is_some() || is_new(batch)? {
            batch.put_suspects(&[])?;
            CrashIsolation::default()
        } else {
            let mut suspects = batch.suspects()?;
            if let Some(noted) = terms.applying {
                count_death(&mut suspects, noted);
                batch.put_suspects(&suspects)?;
            }
            CrashIsolation::after_crash(terms.commit_inputs, suspects)
        };
        batch.put_closed(None)?;
        let Standings {
            positions,
            stamps,
            halts,
        } = standings(&terms, batch)?;
        if halts.iter().all(Option::is_none) {
            activate(batch, &terms.definitions, terms.revision, positions)?;
        }
        let resumable = resumable(&terms.definitions, batch, &waiting)?;
        let has_schedules = has_schedules(&terms, batch)?;
        let count = |is: fn(&Waiting) -> bool| waiting.values().filter(|waiting| is(waiting)).count();
        let partition = Self {
            cluster: terms.cluster,
            definitions: terms.definitions,
            scheduled_tenants: terms.scheduled_tenants,
            limits: terms.limits,
            keep: terms.keep,
            timer_hold: terms.timer_hold,
            streams: terms.streams.map(|state| state.identity),
            positions,
            stamps,
            counters,
            unversioned: count(|waiting| waiting.unversioned > 0),
            blocked: count(Waiting::is_blocked),
            later: waiting.values().map(|waiting| u64::from(waiting.later)).sum(),
            waiting,
            outbox_rows: batch.outbox_rows()?,
            next_due: batch.next_due()?,
            isolation,
            held: batch.held()?,
        };
        Ok(Opened {
            partition,
            halts,
            resumable,
            begun: batch.begun()?,
            maybe_called: closed.unwrap_or(counters.log_sequence),
            has_schedules,
        })
    }
}

fn has_schedules(terms: &Terms, batch: &Batch<'_>) -> Result<bool, StorageError> {
    let mut active = terms.definitions.iter_active();
    let wanted = !terms.scheduled_tenants.is_empty() && active.any(|saga| saga.schedule.is_some());
    Ok(wanted || !batch.schedules()?.is_empty())
}

/// Whether the partition is opened for the first time.
fn is_new(batch: &Batch<'_>) -> Result<bool, StorageError> {
    for stream in SourceStream::ALL {
        if batch.position(stream)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where each stream stands, by [`SourceStream::index`].
struct Standings {
    positions: [u64; 3],
    stamps: [Option<Stamp>; 3],
    halts: Halts,
}

fn standings(terms: &Terms, batch: &Batch<'_>) -> Result<Standings, StorageError> {
    let mut positions = terms.initial_positions;
    let mut stamps = [None; 3];
    let mut halts = Halts::default();
    // All are stored together, and a partition that is begun again in place of a lost one has a log that does not begin at 0.
    let is_new = is_new(batch)?;
    for stream in SourceStream::ALL {
        let index = stream.index();
        let state = &terms.streams[index];
        match batch.position(stream)? {
            Some(row) => {
                positions[index] = row.sequence;
                stamps[index] = row.stamp;
                let found = stream_trouble(&row, state, terms.standing[index]);
                halts[index] = with_halt(found, batch.halt(stream)?);
            }
            None if is_new => {
                let at_the_end = positions[index] == state.last_sequence;
                let row = PositionRow {
                    stream: state.identity.clone(),
                    sequence: positions[index],
                    stamp: state.last_time.filter(|_| at_the_end).map(Stamp::at),
                };
                stamps[index] = row.stamp;
                batch.put_position(stream, &row)?;
            }
            None => {
                let message = format!("the shard has state and no position in {}", state.identity.name);
                halts[index] = Some(("stream.identity", message));
            }
        }
    }
    Ok(Standings {
        positions,
        stamps,
        halts,
    })
}
