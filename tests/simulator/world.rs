//! What outlives all processes: time, the trace, and who may send.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saga_runner::kernel::ids::TimeMs;
use saga_runner::storage::rows::{EndedRow, HistoryRow};

use super::clock::VirtualClock;
use super::trace::Trace;

/// Shared by everything that stands behind a port.
pub struct World {
    pub clock: Arc<VirtualClock>,
    pub trace: Trace,
    evidence: Mutex<Evidence>,
}

/// An ended instance that a commit has deleted.
#[derive(Debug, Clone)]
pub struct Deleted {
    pub at: TimeMs,
    pub row: EndedRow,
    /// The newest first.
    pub history: Vec<HistoryRow>,
}

#[derive(Default)]
struct Evidence {
    /// Ids of all work that a commit has made true, and its shard.
    committed: BTreeMap<String, u16>,
    /// The process that has a shard by its owner record, and the epoch of that.
    owners: BTreeMap<u16, (u64, u64)>,
    /// The process that has written the owner record of a shard last.
    writers: BTreeMap<u16, u64>,
    /// Processes that have owned some shard.
    were_owners: BTreeSet<u64>,
    /// Work that an operator has given up.
    discarded: BTreeSet<String>,
    /// Processes that do nothing any more.
    dead: BTreeSet<u64>,
    /// What has left a runner and was not to.
    premature: Vec<String>,
    /// How often a process died by what it was to write.
    poisoned: usize,
    deleted: Vec<Deleted>,
}

impl Evidence {
    fn has_other_owner(&self, process: u64) -> bool {
        let mut owners = self.owners.values();
        owners.any(|(owner, _)| *owner != process && !self.dead.contains(owner))
    }

    /// Whether the owner record that is written makes its writer the owner. Who has lost the shard to a later epoch may find no
    /// record and write it again, but sends nothing before he has renewed it: its owner comes first.
    fn makes_owner(&mut self, process: u64, shard: u16, epoch: u64) -> bool {
        let before = self.writers.insert(shard, process);
        let known = self.owners.get(&shard);
        known.is_none_or(|(owner, latest)| {
            epoch >= *latest || before == Some(process) || self.dead.contains(owner)
        })
    }
}

impl World {
    pub fn new(is_printed: bool) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::new(VirtualClock::new()),
            trace: Trace::new(is_printed),
            evidence: Mutex::default(),
        })
    }

    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.trace.note(self.clock.passed(), what);
    }

    fn evidence(&self) -> MutexGuard<'_, Evidence> {
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A commit has made this work true.
    pub fn committed(&self, shard: u16, id: String) {
        self.evidence().committed.insert(id, shard);
    }

    /// The owner record of a shard is written.
    pub fn owns(&self, process: u64, shard: u16, epoch: u64) {
        let mut evidence = self.evidence();
        evidence.were_owners.insert(process);
        if !evidence.makes_owner(process, shard, epoch) {
            drop(evidence);
            self.note(format_args!(
                "process {process} writes the lost record of shard {shard}"
            ));
            return;
        }
        let before = evidence.owners.insert(shard, (process, epoch));
        if before.is_none_or(|(before, _)| before != process) {
            drop(evidence);
            self.note(format_args!("process {process} owns shard {shard}"));
        }
    }

    /// How many shards a process owns.
    pub fn owned_by(&self, process: u64) -> usize {
        let evidence = self.evidence();
        let owners = evidence.owners.values();
        owners.filter(|(owner, _)| *owner == process).count()
    }

    /// Work leaves a runner, by the hands of its owner or of a worker.
    pub fn leaves(&self, process: u64, id: &str, what: &str) {
        let mut evidence = self.evidence();
        if !evidence.committed.contains_key(id) {
            let told = format!("{what} ({id}) left before the commit that made it true");
            evidence.premature.push(told);
        }
        if !evidence.were_owners.contains(&process) {
            let told = format!("{what} ({id}) left process {process}, which never owned anything");
            evidence.premature.push(told);
        }
    }

    /// What only the owner of a shard sends leaves a runner.
    pub fn sent(&self, process: u64, id: &str, what: &str) {
        self.leaves(process, id, what);
        let mut evidence = self.evidence();
        if evidence.discarded.contains(id) {
            let told = format!("{what} ({id}) was sent, and an operator had discarded it");
            evidence.premature.push(told);
        }
        let shard = evidence.committed.get(id).copied();
        let owner = shard.and_then(|shard| evidence.owners.get(&shard));
        if let Some((owner, _)) = owner.filter(|(owner, _)| *owner != process) {
            let told =
                format!("{what} ({id}) was sent by process {process}, and process {owner} owns its shard");
            evidence.premature.push(told);
        }
    }

    /// An operator has given this work up.
    pub fn discarded(&self, id: String) {
        self.evidence().discarded.insert(id);
    }

    /// Another folder is at work, which knows nothing of what was decided behind it.
    pub fn forgets_what_was_discarded(&self) {
        self.evidence().discarded.clear();
    }

    /// A process does nothing any more.
    pub fn died(&self, process: u64) {
        self.note(format_args!("process {process} dies"));
        self.evidence().dead.insert(process);
    }

    /// Whether a shard is owned by another process that is alive.
    pub fn has_other_owner(&self, process: u64) -> bool {
        self.evidence().has_other_owner(process)
    }

    /// Messages of the runner's own streams are removed. Where an absent shard stands is in its owner record; while another
    /// process is at work, that may be behind what it needs.
    pub fn trimmed(&self, process: u64, stream: &str) {
        let mut evidence = self.evidence();
        if evidence.has_other_owner(process) {
            let told =
                format!("process {process} has trimmed {stream}, and another one owns some of the shards");
            evidence.premature.push(told);
        }
    }

    /// A commit has deleted this.
    pub fn deleted(&self, row: EndedRow, history: Vec<HistoryRow>) {
        let at = self.clock.true_now();
        self.note(format_args!("{} is deleted", row.instance));
        self.evidence().deleted.push(Deleted { at, row, history });
    }

    /// All that was deleted, in that order.
    pub fn all_deleted(&self) -> Vec<Deleted> {
        self.evidence().deleted.clone()
    }

    pub fn poisoned(&self) {
        self.evidence().poisoned += 1;
    }

    pub fn deaths_by_poison(&self) -> usize {
        self.evidence().poisoned
    }

    pub fn premature(&self) -> Vec<String> {
        self.evidence().premature.clone()
    }
}
