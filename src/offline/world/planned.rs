//! Instances that start by the clock. The schedule of the saga starts them, as on a shard: it knows what still runs, and hears
//! the end of it. Which of its planned times come is said by the case.

use super::time::{Hold, Timer};
use super::{Given, World};
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::patch::Outcome;
use crate::kernel::schedule;
use crate::kernel::work::{WorkItem, WorkKind};

impl World {
    /// Lets time pass until `planned`, which then comes for the schedule of the saga that is looked at; if it is over, it comes
    /// late. From then on the run of that time is looked at. `None`: the schedule has handled that time.
    pub fn plan(&mut self, planned: TimeMs, hold: &Hold) -> Option<Given> {
        let InstanceId { tenant, saga, .. } = self.instance.clone();
        let address = schedule::address(&tenant, &saga);
        let key = schedule::run_key(planned);
        self.look_at(InstanceId { tenant, saga, key });
        let mut given = Given::default();
        if self.now < planned {
            given.add(self.advance(planned.0.saturating_sub(self.now.0), hold));
        }
        // What a case sees of the planned time is its own, not that of what has come before.
        (given.outcome, given.at_alias, given.elsewhere) = (None, None, None);
        let mut is_next = false;
        given.add(self.transact(|run| {
            is_next = run.plan_as_told(&address, planned)?;
            Ok(())
        }));
        if !is_next {
            return None;
        }
        given.add(self.fire(self.planned_timer(&address)?));
        if given.outcome.is_none() {
            let rows = self.store.reader().schedules().unwrap_or_default();
            let mut rows = rows.into_iter();
            let (_, _, row) =
                rows.find(|(tenant, saga, _)| (tenant, saga) == (&address.tenant, &address.saga))?;
            if row.queue.contains(&planned) {
                given.outcome = Some(Outcome::Deferred);
            } else {
                given.skipped = row.last_skipped.map(|(_, skip)| skip);
            }
        }
        Some(given)
    }

    fn planned_timer(&self, address: &InstanceId) -> Option<Timer> {
        let timers = self.store.reader().timers(None, usize::MAX).ok()?;
        let mut timers = timers.into_iter();
        timers.find(|(_, _, target)| target.instance == *address)
    }
}

/// Whether it is between a schedule and a run of it.
#[must_use]
pub fn is_of_schedule(item: &WorkItem) -> bool {
    let to = match &item.kind {
        WorkKind::Saga { key, .. } => schedule::is_address(key),
        WorkKind::Effect { .. }
        | WorkKind::Command { .. }
        | WorkKind::Fact { .. }
        | WorkKind::Result { .. }
        | WorkKind::Cancel { .. } => false,
    };
    to || schedule::is_address(&item.instance.key)
}
