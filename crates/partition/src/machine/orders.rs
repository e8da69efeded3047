//! Carries out what a partition is told.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::Input;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::apply::Turn;
use super::catch_up::{self, InOrder};
use super::message::{Answer, Applied, Arrival, Delivery, Fire, Order, Refused};
use super::staging::Run;
use super::timers::timer_input;
use crate::storage::StorageError;
use crate::storage::rows::TimerTarget;

impl Run<'_> {
    /// Carries out one order; the answer, where somebody has asked.
    ///
    /// # Errors
    /// [`StorageError`]: nothing of the transaction is to remain.
    pub fn carry_out(&mut self, order: Order<'_>) -> Result<Option<Answer>, StorageError> {
        match order {
            Order::Delivery(delivery) => {
                for arrival in &delivery.inputs {
                    match arrival {
                        Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => {
                            self.take(input, Turn::FIRST)?;
                        }
                        Arrival::Unreadable(message) => self.unreadable(delivery.stream, message)?,
                    }
                }
                self.staged.positions[delivery.stream.index()] = delivery.sequence;
                self.staged.stamps[delivery.stream.index()] = delivery.stamp;
                Ok(None)
            }
            Order::InOrder(delivery, in_order) => self.deliver_in_order(delivery, in_order).map(|()| None),
            Order::Local(input, publish) => {
                let applied = self.verdict(input)?;
                publish.map_or(Ok(()), |item| self.publish(item, applied))?;
                Ok(None)
            }
            Order::Delivered(rows) => {
                for row in rows {
                    self.delete_work(*row)?;
                }
                Ok(None)
            }
            Order::Archived(numbers) => self.archived(numbers).map(|()| None),
            Order::CallBegins(row) => {
                let stands = self.batch.begin_work(row)?;
                let completed = || Refused::Conflict("the command is completed".into());
                Ok(Some(stands.then_some(()).ok_or_else(completed)))
            }
            Order::NotCalled(row) => self.batch.forget_begun(row).map(|()| None),
            Order::Decision {
                tenant,
                number,
                order,
            } => self.decide(tenant, number, order).map(Some),
            Order::Resume { instance, at_most } => self.resume(instance, at_most).map(|()| None),
            Order::Schedules => self.reconcile_schedules().map(|()| None),
            Order::Pause {
                tenant,
                saga,
                paused,
                principal,
            } => self.pause_schedule(tenant, saga, paused, principal).map(Some),
            Order::CaughtUp => self.caught_up().map(|()| None),
            Order::Release { reason } => self.release(reason).map(Some),
            Order::Discard { rows, reason } => self.discard(rows, reason).map(Some),
            Order::Timers(fire) => self.fire(fire).map(|()| None),
        }
    }

    /// Takes the messages of a delivery one by one, each behind the timers that were due before it was stored. Where more
    /// of these fire than one transaction should have, it takes no more.
    fn deliver_in_order(&mut self, delivery: &Delivery, in_order: InOrder) -> Result<(), StorageError> {
        let stream = delivery.stream.index();
        // What comes before it may have been left for the next transaction.
        if self.staged.stopped || delivery.after > self.staged.positions[stream] {
            self.staged.stopped = true;
            return Ok(());
        }
        let turn = Turn {
            late_source: in_order.incomplete,
            ..Turn::FIRST
        };
        let mut under_way = None;
        let mut stands = None;
        for arrival in &delivery.inputs {
            let sequence = catch_up::sequence_of(arrival, delivery.sequence);
            if under_way != Some(sequence) {
                if let Some(whole) = under_way {
                    self.staged.positions[stream] = whole;
                    self.staged.stamps[stream] = stands;
                }
                stands = catch_up::stamp_of(arrival);
                if !self.fire_before(catch_up::timers_before(arrival), in_order)? {
                    self.staged.stopped = true;
                    return Ok(());
                }
                under_way = Some(sequence);
            }
            match arrival {
                Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => self.take(input, turn)?,
                Arrival::Unreadable(message) => self.unreadable(delivery.stream, message)?,
            }
        }
        self.staged.positions[stream] = delivery.sequence;
        self.staged.stamps[stream] = delivery.stamp;
        Ok(())
    }

    /// Fires what was due before an input of the time `before`, in its order; false: not all of it.
    fn fire_before(&mut self, before: TimeMs, in_order: InOrder) -> Result<bool, StorageError> {
        let until = in_order.until(before, self.ground.now);
        loop {
            if self.staged.next_due.is_none_or(|due| due > until) {
                return Ok(true);
            }
            let Some((due, set_by, target)) = self.batch.due_timers(until, 1)?.pop() else {
                self.staged.next_due = self.batch.next_due()?;
                return Ok(true);
            };
            if self.staged.fired_between >= in_order.timers_max {
                return Ok(false);
            }
            self.staged.fired_between += 1;
            self.fire_one(due, set_by, target, due > in_order.covered)?;
        }
    }

    /// Takes what this process itself says; the time that its input has.
    pub fn verdict(&mut self, input: &Input) -> Result<TimeMs, StorageError> {
        let last = self.staged.counters.last_time;
        if input.time >= last {
            self.take(input, Turn::FIRST)?;
            return Ok(input.time);
        }
        // Local time never runs behind what the shard has seen.
        let input = Input {
            time: last,
            ..Input::clone(input)
        };
        self.take(&input, Turn::FIRST)?;
        Ok(last)
    }

    /// Puts a result into the outbox for whoever listens, which an input of the time `applied` has applied.
    pub fn publish(&mut self, item: &WorkItem, applied: TimeMs) -> Result<(), StorageError> {
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        let item = WorkItem {
            created: applied,
            ..item.clone()
        };
        self.put_work(row, item)
    }

    fn fire(&mut self, fire: Fire) -> Result<(), StorageError> {
        // One by one: a timer may set one that is due before the next.
        for _ in 0..fire.limit {
            let Some((due, set_by, target)) = self.batch.due_timers(fire.until, 1)?.pop() else {
                break;
            };
            self.fire_one(due, set_by, target, fire.late_source)?;
        }
        Ok(())
    }

    /// Fires one timer, unless one of the same instance that fired before has cleared it.
    ///
    /// # Errors
    /// [`StorageError`]: nothing of the transaction is to remain.
    pub fn fire_one(
        &mut self,
        due: TimeMs,
        set_by: WorkRef,
        target: TimerTarget,
        late_source: bool,
    ) -> Result<(), StorageError> {
        if !self.batch.delete_timer(due, set_by)? {
            return Ok(());
        }
        self.staged.counts.fired(due, late_source);
        let turn = Turn {
            late_source,
            ..Turn::FIRST
        };
        self.take(&timer_input(target.instance, target.name, due), turn)
    }
}
