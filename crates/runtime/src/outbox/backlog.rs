//! What a relay knows of its shard's outbox: which rows wait, which may go next, and up to where everything
//! was handed over.
//!
//! Pure bookkeeping. Rows come in the order of commitment. A destination whose rows do not fit into memory
//! gets a *gap*: its later rows stay in the outbox until there is room, and no other destination notices.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::kernel::ids::{EffectName, InstanceId, TenantId, TimeMs};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};

pub type Row = (WorkRef, WorkItem);

/// What bounds rows in memory separately.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    Effect(TenantId, EffectName),
    /// Commands to aggregates. Those of an instance keep their order whatever the aggregate, so it is the tenant that
    /// has rows of its own.
    Gateway(TenantId),
    Facts,
    /// Other sagas.
    Sagas,
    /// Results of effects that were carried out here, for whoever listens.
    Results,
    /// Word to the workers.
    Cancellations,
}

impl Destination {
    pub fn of(item: &WorkItem) -> Self {
        match &item.kind {
            WorkKind::Effect { effect, .. } => Self::Effect(item.instance.tenant.clone(), effect.clone()),
            WorkKind::Command { .. } => Self::Gateway(item.instance.tenant.clone()),
            WorkKind::Fact { .. } => Self::Facts,
            WorkKind::Result { .. } => Self::Results,
            WorkKind::Cancel { .. } => Self::Cancellations,
            WorkKind::Saga { .. } => Self::Sagas,
        }
    }
}

/// What a refill is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Everything,
    One(Destination),
}

/// Rows that are in the outbox and not in memory.
#[derive(Debug)]
struct Gap {
    /// Everything up to here was seen.
    after: WorkRef,
    /// From where to read; before `after` while the fate of standing commands is looked up.
    cursor: WorkRef,
    /// Look up the fate of all standing commands with the next refill.
    resync: bool,
    /// Rows that were released since the refill was asked for; the answer may not have them.
    held: Option<Vec<Row>>,
    /// Some of those were lost.
    overflowed: bool,
}

impl Gap {
    const fn new(after: WorkRef) -> Self {
        Self {
            after,
            cursor: after,
            resync: false,
            held: None,
            overflowed: false,
        }
    }

    fn hold(&mut self, row: Row, rows_max: usize) {
        match &mut self.held {
            Some(held) if held.len() < rows_max => held.push(row),
            Some(_) => self.overflowed = true,
            // The refill is still to be asked for, and will bring it.
            None => {}
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Rows in memory that are not handed over.
    rows: usize,
    /// Effect commands on their way or in the broker, without result.
    standing: usize,
    /// Effect commands that wait for one of those to get its result.
    waiting: VecDeque<Row>,
    gap: Option<Gap>,
}

#[derive(Debug)]
pub struct Backlog {
    per_tenant_in_flight: usize,
    rows_in_memory: usize,
    /// Highest row seen.
    horizon: WorkRef,
    /// Rows in memory that are not handed over, with their age.
    pending: BTreeMap<WorkRef, TimeMs>,
    queues: BTreeMap<Destination, Queue>,
    /// Rows behind the one that is on its way, per instance and ordered destination.
    chains: HashMap<(Destination, InstanceId), VecDeque<Row>>,
    standing: BTreeMap<WorkRef, Destination>,
    gap: Option<Gap>,
    publications: VecDeque<Row>,
    submissions: VecDeque<Row>,
}

impl Backlog {
    /// Begins behind `floor`: everything up to it was handed over in an earlier life.
    pub fn new(floor: WorkRef, per_tenant_in_flight: usize, rows_in_memory: usize) -> Self {
        Self {
            per_tenant_in_flight: per_tenant_in_flight.max(1),
            rows_in_memory: rows_in_memory.max(1),
            horizon: floor,
            pending: BTreeMap::new(),
            queues: BTreeMap::new(),
            chains: HashMap::new(),
            standing: BTreeMap::new(),
            gap: Some(Gap::new(floor)),
            publications: VecDeque::new(),
            submissions: VecDeque::new(),
        }
    }

    /// Takes new rows of a commit.
    pub fn release(&mut self, rows: Vec<Row>) {
        for row in rows {
            match &mut self.gap {
                Some(gap) => gap.hold(row, self.rows_in_memory),
                None => self.admit(row),
            }
        }
    }

    /// A release was lost: from here on rows are missing, and results may have come unnoticed.
    pub fn spill(&mut self) {
        let gap = self.gap.get_or_insert_with(|| Gap::new(self.horizon));
        gap.resync = true;
        gap.overflowed = gap.held.is_some();
    }

    /// Looks up the fate of standing commands if others wait for their places: a completion may have gone
    /// unnoticed.
    pub fn resync(&mut self) {
        if self.queues.values().any(|queue| !queue.waiting.is_empty()) {
            self.spill();
        }
    }

    /// Takes a row back into memory that was handed over and yet did not arrive.
    pub fn again(&mut self, row: Row) {
        if !self.pending.contains_key(&row.0) {
            self.keep(row);
        }
    }

    /// Rows whose result was applied: their places are free.
    pub fn complete(&mut self, rows: &[WorkRef]) {
        for row in rows {
            match self.standing.remove(row) {
                Some(destination) => self.leave(&destination),
                // Completed while it still waited: it is skipped when its turn comes.
                None => drop(self.pending.remove(row)),
            }
        }
    }

    /// The refill that is wanted most: from where, and what for. Counts as asked for.
    pub fn ask(&mut self) -> Option<(Scope, WorkRef)> {
        if let Some(gap) = &mut self.gap {
            if std::mem::take(&mut gap.resync) {
                let first = self.standing.keys().next().copied();
                gap.cursor = first.map_or(gap.after, |first| before(first).min(gap.after));
            }
            gap.held = Some(Vec::new());
            gap.overflowed = false;
            return Some((Scope::Everything, gap.cursor));
        }
        let room = self.rows_in_memory / 2;
        self.queues.iter_mut().find_map(|(destination, queue)| {
            let gap = queue.gap.as_mut().filter(|_| queue.rows <= room)?;
            gap.held = Some(Vec::new());
            gap.overflowed = false;
            Some((Scope::One(destination.clone()), gap.cursor))
        })
    }

    /// Takes the answer: the rows behind the cursor, all of them if there are fewer than `limit`.
    pub fn refilled(&mut self, scope: &Scope, rows: Vec<Row>, limit: usize) {
        let complete = rows.len() < limit;
        match scope {
            Scope::Everything => self.refilled_all(rows, complete),
            Scope::One(destination) => self.refilled_one(destination, rows, complete),
        }
    }

    /// A refill that was asked for will not be answered.
    pub fn refill_failed(&mut self, scope: &Scope) {
        let gap = match scope {
            Scope::Everything => self.gap.as_mut(),
            Scope::One(destination) => self
                .queues
                .get_mut(destination)
                .and_then(|queue| queue.gap.as_mut()),
        };
        if let Some(gap) = gap {
            gap.held = None;
        }
    }

    /// The next row for the broker.
    pub fn next_publication(&mut self) -> Option<Row> {
        self.publications.pop_front()
    }

    /// The next row for the gateway.
    pub fn next_submission(&mut self) -> Option<Row> {
        self.submissions.pop_front()
    }

    /// The destination has a row of this instance: the next one behind it may go.
    pub fn arrived(&mut self, destination: &Destination, instance: &InstanceId) {
        let chain = (destination.clone(), instance.clone());
        let next = match self.chains.get_mut(&chain) {
            Some(waiting) => waiting.pop_front(),
            None => return,
        };
        match next {
            Some(row) => self.ready(row),
            None => drop(self.chains.remove(&chain)),
        }
    }

    /// The row was handed over, and whoever has to know was told.
    pub fn hand_over(&mut self, row: WorkRef, destination: &Destination) {
        self.pending.remove(&row);
        if let Some(queue) = self.queues.get_mut(destination) {
            queue.rows = queue.rows.saturating_sub(1);
        }
        self.forget_if_empty(destination);
    }

    /// Whether the row is in memory and not handed over.
    pub fn holds(&self, row: WorkRef) -> bool {
        self.pending.contains_key(&row)
    }

    /// Everything up to here was handed over.
    pub fn floor(&self) -> WorkRef {
        let gaps = self.queues.values().filter_map(|queue| queue.gap.as_ref());
        gaps.chain(&self.gap)
            .map(|gap| gap.after)
            .chain(self.pending.keys().next().map(|first| before(*first)))
            .min()
            .unwrap_or(self.horizon)
            .min(self.horizon)
    }

    /// Creation time of the oldest row in memory.
    pub fn oldest(&self) -> Option<TimeMs> {
        self.pending.values().next().copied()
    }

    /// A row that was never seen before, or one of a gap.
    fn admit(&mut self, row: Row) {
        self.horizon = self.horizon.max(row.0);
        let queue = self.queues.entry(Destination::of(&row.1)).or_default();
        match &mut queue.gap {
            Some(gap) => gap.hold(row, self.rows_in_memory),
            None if queue.rows >= self.rows_in_memory => queue.gap = Some(Gap::new(before(row.0))),
            None => self.keep(row),
        }
    }

    fn keep(&mut self, row: Row) {
        let destination = Destination::of(&row.1);
        self.pending.insert(row.0, row.1.created);
        let queue = self.queues.entry(destination.clone()).or_default();
        queue.rows += 1;
        if let Destination::Effect(..) = destination {
            queue.waiting.push_back(row);
            self.promote(&destination);
            return;
        }
        match self.chains.entry((destination, row.1.instance.clone())) {
            std::collections::hash_map::Entry::Occupied(mut chain) => chain.get_mut().push_back(row),
            std::collections::hash_map::Entry::Vacant(chain) => {
                chain.insert(VecDeque::new());
                self.ready(row);
            }
        }
    }

    /// Lets effect commands go as long as there are free places.
    fn promote(&mut self, destination: &Destination) {
        let Some(queue) = self.queues.get_mut(destination) else {
            return;
        };
        while queue.standing < self.per_tenant_in_flight {
            let Some(row) = queue.waiting.pop_front() else {
                break;
            };
            if !self.pending.contains_key(&row.0) {
                queue.rows = queue.rows.saturating_sub(1);
                continue;
            }
            if self.standing.insert(row.0, destination.clone()).is_none() {
                queue.standing += 1;
            }
            self.publications.push_back(row);
        }
    }

    fn ready(&mut self, row: Row) {
        match row.1.kind {
            WorkKind::Command { .. } => self.submissions.push_back(row),
            WorkKind::Effect { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => {
                self.publications.push_back(row);
            }
        }
    }

    fn leave(&mut self, destination: &Destination) {
        if let Some(queue) = self.queues.get_mut(destination) {
            queue.standing = queue.standing.saturating_sub(1);
        }
        self.promote(destination);
        self.forget_if_empty(destination);
    }

    fn forget_if_empty(&mut self, destination: &Destination) {
        let empty = |queue: &Queue| queue.rows == 0 && queue.standing == 0 && queue.gap.is_none();
        if self.queues.get(destination).is_some_and(empty) {
            self.queues.remove(destination);
        }
    }

    fn refilled_all(&mut self, rows: Vec<Row>, complete: bool) {
        let Some(mut gap) = self.gap.take() else {
            return;
        };
        let through = rows.last().map_or(gap.cursor, |(row, _)| *row);
        self.complete_vanished(&gap, &rows, if complete { gap.after } else { through });
        for row in rows.into_iter().filter(|(row, _)| *row > gap.after) {
            if !self.holds(row.0) {
                self.admit(row);
            }
        }
        let seen = through.max(gap.after);
        let held = gap.held.take().unwrap_or_default();
        if complete && !gap.overflowed {
            for row in held.into_iter().filter(|(row, _)| *row > seen) {
                self.admit(row);
            }
            return;
        }
        // What was held comes again with the next answer.
        self.gap = Some(Gap {
            cursor: if complete { seen } else { through },
            resync: gap.resync,
            ..Gap::new(seen)
        });
    }

    /// Frees the places of standing commands that are no longer in the outbox.
    fn complete_vanished(&mut self, gap: &Gap, rows: &[Row], through: WorkRef) {
        let through = through.min(gap.after);
        if gap.cursor >= through {
            return;
        }
        let there: std::collections::BTreeSet<WorkRef> = rows.iter().map(|(row, _)| *row).collect();
        let vanished: Vec<WorkRef> = self
            .standing
            .range(gap.cursor..=through)
            .map(|(row, _)| *row)
            .filter(|row| *row > gap.cursor && !there.contains(row))
            .collect();
        self.complete(&vanished);
    }

    fn refilled_one(&mut self, destination: &Destination, rows: Vec<Row>, complete: bool) {
        let Some(mut gap) = self
            .queues
            .get_mut(destination)
            .and_then(|queue| queue.gap.take())
        else {
            return;
        };
        let through = rows.last().map_or(gap.cursor, |(row, _)| *row);
        let held = if complete && !gap.overflowed {
            gap.held.take().unwrap_or_default()
        } else {
            if let Some(queue) = self.queues.get_mut(destination) {
                queue.gap = Some(Gap::new(through));
            }
            Vec::new()
        };
        let later = held.into_iter().filter(|(row, _)| *row > through);
        for row in rows.into_iter().chain(later) {
            if Destination::of(&row.1) == *destination && !self.holds(row.0) {
                self.admit_into(row);
            }
        }
        self.forget_if_empty(destination);
    }

    /// Keeps a row of a refill while there is room; the first one that does not fit begins the gap again.
    fn admit_into(&mut self, row: Row) {
        let queue = self.queues.entry(Destination::of(&row.1)).or_default();
        if queue.rows < self.rows_in_memory {
            self.keep(row);
            return;
        }
        let start = before(row.0);
        let earlier = queue.gap.as_ref().map_or(start, |gap| gap.after.min(start));
        queue.gap = Some(Gap::new(earlier));
    }
}

/// The name just below `row`, whether or not a row has it.
pub const fn before(row: WorkRef) -> WorkRef {
    WorkRef::at_position(row.position().saturating_sub(1))
}

#[cfg(test)]
mod tests;
