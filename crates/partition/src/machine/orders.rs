//! Carries out what a partition is told.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::Input;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::apply::Turn;
use super::message::{Answer, Arrival, Fire, Order, Refused};
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
                        Arrival::Input(input) => self.take(input, Turn::FIRST)?,
                        Arrival::Unreadable(message) => self.unreadable(delivery.stream, message)?,
                    }
                }
                self.staged.positions[delivery.stream.index()] = delivery.sequence;
                self.staged.stamps[delivery.stream.index()] = delivery.stamp;
                Ok(None)
            }
            Order::Local(input, publish) => {
                self.verdict(input)?;
                publish.map_or(Ok(()), |item| self.publish(item))?;
                Ok(None)
            }
            Order::Delivered(rows) => {
                for row in rows {
                    self.batch.delete_work(*row)?;
                }
                Ok(None)
            }
            Order::CallBegins(row) => {
                let stands = self.batch.begin_work(row)?;
                let settled = || Refused::Conflict("the command is settled".into());
                Ok(Some(stands.then_some(()).ok_or_else(settled)))
            }
            Order::NotCalled(row) => self.batch.forget_begun(row).map(|()| None),
            Order::Decision {
                tenant,
                number,
                decision,
            } => self.decide(tenant, number, decision).map(Some),
            Order::Resume { instance, at_most } => self.resume(instance, at_most).map(|()| None),
            Order::Schedules => self.reconcile_schedules().map(|()| None),
            Order::Pause { tenant, saga, paused } => self.pause_schedule(tenant, saga, paused).map(Some),
            Order::Timers(fire) => self.fire(fire).map(|()| None),
        }
    }

    fn verdict(&mut self, input: &Input) -> Result<(), StorageError> {
        let last = self.staged.counters.last_time;
        if input.time >= last {
            return self.take(input, Turn::FIRST);
        }
        // Local time never runs behind what the shard has seen.
        let input = Input {
            time: last,
            ..Input::clone(input)
        };
        self.take(&input, Turn::FIRST)
    }

    /// Puts a message into the outbox that no transition has asked for.
    fn publish(&mut self, item: &WorkItem) -> Result<(), StorageError> {
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        self.batch.put_work(row, item)?;
        self.staged.work.push((row, item.clone()));
        Ok(())
    }

    fn fire(&mut self, fire: Fire) -> Result<(), StorageError> {
        for (due, set_by, target) in self.batch.due_timers(fire.until, fire.limit)? {
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
        self.staged.tally.fired(due, late_source);
        let turn = Turn {
            late_source,
            ..Turn::FIRST
        };
        self.take(&timer_input(target.instance, target.name, due), turn)
    }
}
