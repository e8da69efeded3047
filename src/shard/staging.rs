//! What one batch changes in memory. It counts only once the transaction has committed, so that a batch that
//! found no room can be applied again from the start.

use std::collections::BTreeMap;

use super::mailbox::Released;
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::record::Record;
use crate::storage::write::Counters;
use crate::storage::{Batch, StorageError};

/// State of a batch under way.
pub(super) struct Staging {
    pub counters: Counters,
    pub positions: [u64; 3],
    /// Records read or changed by this batch: each is decoded once and written once.
    records: BTreeMap<InstanceId, Slot>,
    /// Changes of the parked instances: the dead letter that an instance waits behind, or that it waits no more.
    pub parked: BTreeMap<InstanceId, Option<u64>>,
    pub released: Released,
    /// Instances that ended.
    pub ended: usize,
    /// Inputs applied or refused so far.
    pub inputs: usize,
    /// Counters of metrics, raised after the commit.
    pub tally: Vec<Tally>,
}

/// One thing to count.
pub(super) enum Tally {
    Input {
        kind: &'static str,
        outcome: &'static str,
    },
    Started {
        saga: String,
    },
    Ended {
        saga: String,
        phase: &'static str,
    },
    Dead {
        reason: String,
    },
    Fired {
        due: TimeMs,
    },
}

struct Slot {
    record: Option<Record>,
    dirty: bool,
}

impl Staging {
    pub fn new(shard: u16, counters: Counters, positions: [u64; 3]) -> Self {
        Self {
            counters,
            positions,
            records: BTreeMap::new(),
            parked: BTreeMap::new(),
            released: Released {
                shard,
                work: Vec::new(),
                settled: Vec::new(),
                overdue: Vec::new(),
            },
            ended: 0,
            inputs: 0,
            tally: Vec::new(),
        }
    }

    /// Log sequence for the next input.
    pub const fn next_sequence(&mut self) -> u64 {
        self.counters.log_sequence += 1;
        self.counters.log_sequence
    }

    /// The record of a live instance as this batch sees it.
    pub fn record(&mut self, batch: &Batch<'_>, id: &InstanceId) -> Result<Option<Record>, StorageError> {
        if let Some(slot) = self.records.get(id) {
            return Ok(slot.record.clone());
        }
        let record = batch.record(id)?;
        let slot = Slot {
            record: record.clone(),
            dirty: false,
        };
        self.records.insert(id.clone(), slot);
        Ok(record)
    }

    pub fn put_record(&mut self, id: &InstanceId, record: Record) {
        let slot = Slot {
            record: Some(record),
            dirty: true,
        };
        self.records.insert(id.clone(), slot);
    }

    /// The instance has left the live ones; its row is gone already.
    pub fn forget_record(&mut self, id: &InstanceId) {
        let slot = Slot {
            record: None,
            dirty: false,
        };
        self.records.insert(id.clone(), slot);
    }

    /// Writes every record that changed, in key order.
    pub fn write_records(&mut self, batch: &Batch<'_>) -> Result<(), StorageError> {
        for (id, slot) in &self.records {
            if let (true, Some(record)) = (slot.dirty, &slot.record) {
                batch.put_record(id, record)?;
            }
        }
        Ok(())
    }
}
