//! A world in which an instance does again what it did on a shard, as its history tells.

use saga_runner_partition::machine::crash_isolation::CrashIsolation;
use saga_runner_partition::machine::message::{LetterOrder, Order};
use saga_runner_partition::storage::StorageError;
use saga_runner_partition::storage::rows::{HistoryRow, Tombstone, WaitReason};

use super::time::Timer;
use super::{Given, World};
use crate::kernel::ids::{ClusterId, TimeMs};
use crate::kernel::input::{Input, InputBody};
use crate::kernel::record::Phase;

impl World {
    /// A world as it was for an instance that was recorded: in its cluster, and with its key used before.
    ///
    /// # Errors
    /// A sentence, where the store fails.
    pub fn as_recorded(mut self, cluster: ClusterId, generation: u32) -> Result<Self, String> {
        self.partition.cluster = cluster;
        if generation > 1 {
            let before = Tombstone {
                generation: generation - 1,
                // So long ago that it does not count.
                ended: TimeMs(0),
                until: None,
                summary: 0,
                phase: Phase::Completed,
                start: 0,
            };
            let instance = &self.instance;
            self.store
                .write::<_, StorageError>(|batch| batch.put_tombstone(instance, &before))
                .map_err(|error| error.to_string())?;
        }
        Ok(self)
    }

    /// Gives an input as it was recorded: a timer fires.
    pub fn give_recorded(&mut self, input: &Input) -> Given {
        let timer = match &input.body {
            InputBody::Timer { name } => self.timer(input.time, name),
            InputBody::Event(_) | InputBody::Result(_) | InputBody::Control(_) => None,
        };
        match timer {
            Some(timer) => self.fire(timer),
            // A timer was never set here, and that is what there is to see.
            None => self.give(input),
        }
    }

    /// The timer of this name that is due then.
    fn timer(&self, due: TimeMs, name: &str) -> Option<Timer> {
        let timers = self.store.reader().timers(None, usize::MAX).unwrap_or_default();
        let is_it = |(at, _, target): &Timer| *at == due && target.name == name;
        timers.into_iter().find(is_it)
    }

    /// An operator decides about the dead letter that an input of this id has become; `None` where there is no such one here.
    /// What is tried again behind another dead letter comes again when it is given.
    pub fn decide_as_recorded(&mut self, input_id: &str, order: &LetterOrder) -> Option<Given> {
        let (tenant, instance) = (self.instance.tenant.clone(), self.instance.clone());
        let (letters, _) = self.store.reader().dead_letters(&tenant, None, usize::MAX).ok()?;
        let is_it = |input: &Input| input.id == input_id && input.instance == instance;
        let (number, _) = letters
            .into_iter()
            .filter(|(_, letter)| letter.input.as_ref().is_some_and(is_it))
            .max_by_key(|(number, _)| *number)?;
        let given = self.transact(|run| {
            run.carry_out(Order::Decision {
                tenant: &tenant,
                number,
                order,
            })?;
            for (number, row, bytes) in run.batch.inbox(&instance)? {
                if row.input.id == input_id && row.reason == WaitReason::Blocked {
                    run.leave(&instance, number, row.reason, bytes)?;
                }
            }
            Ok(())
        });
        Some(given)
    }

    /// Gives an input that was a dead letter when it was recorded, for this reason.
    pub fn give_dead(&mut self, input: &Input, reason: &str, in_place_too: bool) -> Given {
        let timer = match &input.body {
            InputBody::Timer { name } => self.timer(input.time, name),
            InputBody::Event(_) | InputBody::Result(_) | InputBody::Control(_) => None,
        };
        let mut is_dead = false;
        let given = self.transact(|run| {
            is_dead = run.dead_letter_as_recorded(input, reason, in_place_too)?;
            match timer {
                Some((due, set_by, _)) if is_dead => run.batch.delete_timer(due, set_by).map(drop),
                Some(_) | None => Ok(()),
            }
        });
        if is_dead { given } else { self.give_recorded(input) }
    }

    /// Makes dead letters of these inputs as soon as they are let in: they wait, and were dead letters for what they did to the
    /// process. With each, whether nothing was applied in its place either.
    pub fn expect_deaths<'i>(&mut self, waiting: impl IntoIterator<Item = (&'i Input, bool)>) {
        self.partition.isolation = CrashIsolation::of_recording(waiting);
    }

    /// What the instance has taken, oldest first.
    pub fn taken(&mut self) -> &[(u64, HistoryRow)] {
        let newest = self.last().and_then(|record| record.last_history);
        let known = self.history.last().map(|(number, _)| *number);
        let mut limit = 4;
        while newest != self.history.last().map(|(number, _)| *number) {
            let Ok(mut rows) = self.store.reader().history(newest, limit) else {
                break;
            };
            let is_all = rows.len() < limit;
            match rows.iter().position(|(number, _)| Some(*number) == known) {
                Some(at) => rows.truncate(at),
                // Of another generation.
                None if is_all => self.history.clear(),
                None => {
                    limit = limit.saturating_mul(4);
                    continue;
                }
            }
            rows.reverse();
            self.history.append(&mut rows);
            break;
        }
        &self.history
    }
}
