//! Timers of instances with aliases: events that are matched by an alias are read by the shard of its address, so the
//! barrier of the timer's own shard proves nothing about them.
//!
//! Such a timer asks each alias before it is applied. At the address the question becomes a timer that was due at the same
//! instant, which fires behind the barrier of that shard, so behind all events of before; its answer goes the way that these
//! were forwarded, and stands behind them. Meanwhile what was stored later than the timer was due waits, as far as it has a
//! place in the order of the instance. Without an answer the timer fires in the end, and says so.

use saga_runner_kernel::children::SagaMessage;
use saga_runner_kernel::ids::{InstanceId, Key, TimeMs};
use saga_runner_kernel::input::{Input, InputBody, Question};
use saga_runner_kernel::limits::ALIASES_MAX;
use saga_runner_kernel::patch::{Outcome, TimerRow};
use saga_runner_kernel::record::Registered;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::aliases::told;
use super::apply::{Fate, Turn};
use super::inbox::end_of_wait;
use super::staging::Run;
use crate::storage::StorageError;
use crate::storage::rows::{InboxRow, WaitReason, encode_waiting};

/// What the names of timers begin with at which an alias answers.
const ASKED: &str = "asked/";
/// Aliases that one question can tell apart.
const SLOTS: usize = 64;
const _: () = assert!(ALIASES_MAX <= SLOTS, "a timer asks every alias");

/// What happens to an input before it is applied.
pub enum Asked {
    /// Nothing has to be waited for.
    Nobody,
    /// It waits.
    Waits,
    /// It would have to wait, and there is no room for it in the inbox of its instance.
    NoRoom,
}

impl Run<'_> {
    /// Lets a timer wait until the aliases of its instance have forwarded what was stored before.
    pub fn ask(&mut self, input: &Input, turn: Turn) -> Result<Asked, StorageError> {
        if !matches!(input.body, InputBody::Timer { .. }) || turn.behind_aliases || turn.late_source {
            return Ok(Asked::Nobody);
        }
        let id = &input.instance;
        let record = self.staged.records.take(self.batch, id)?;
        let (aliases, generation) = record.as_ref().map_or_else(Default::default, |record| {
            (record.aliases.clone(), record.generation)
        });
        self.staged.records.give_back(id, record);
        if aliases.is_empty() {
            return Ok(Asked::Nobody);
        }
        let Some(unasked) = SLOTS.checked_sub(aliases.len()) else {
            return Ok(Asked::NoRoom);
        };
        let until = self
            .ground
            .now
            .max(input.time)
            .plus_ms(self.ground.timer_hold.as_i64());
        let reason = WaitReason::Asked {
            due: input.time,
            until,
            open: u64::MAX >> unasked,
            late: false,
        };
        let row = encode_waiting(reason, input);
        let mut waiting = self.waiting(id);
        if !self.fits(waiting, row.len()) {
            return Ok(Asked::NoRoom);
        }
        let log_sequence = self.next_sequence();
        // It keeps its place before those that came later.
        let number = turn.deferred_as.unwrap_or(log_sequence);
        waiting.add(reason, row.len());
        self.set_waiting(id, waiting);
        self.batch.put_inbox(id, number, row)?;
        self.set_timer(id, &end_of_wait(number, until))?;
        // One that has refused the instance may accept it at any time.
        for (slot, Registered { alias, .. }) in (0_u8..).zip(&aliases) {
            let question = Question {
                due: input.time,
                number,
                slot,
            };
            let row = WorkRef {
                log_sequence,
                index: u16::from(slot),
            };
            let path = format!("aliases.ask.{number}.{slot}");
            let message = SagaMessage::AskAlias(question);
            self.tell_now(
                row,
                told(
                    self.ground.cluster,
                    input,
                    generation,
                    path,
                    &alias.key(),
                    message,
                ),
            )?;
        }
        Ok(Asked::Waits)
    }

    /// An owner of an alias asks it: it is answered behind all events up to the instant.
    pub fn asked(&mut self, input: &Input, owner: &Key, question: Question) -> Result<Outcome, StorageError> {
        let log_sequence = self.next_sequence();
        let timer = TimerRow {
            due: question.due,
            set_by: WorkRef {
                log_sequence,
                index: 0,
            },
            name: format!("{ASKED}{}/{}/{owner}", question.number, question.slot),
            fired: 0,
        };
        self.set_timer(&input.instance, &timer)?;
        Ok(Outcome::Applied)
    }

    /// The shard of the alias has read all of that.
    pub fn answer(
        &mut self,
        timer: &Input,
        owner: &Key,
        question: Question,
        turn: Turn,
    ) -> Result<Outcome, StorageError> {
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        let path = format!("aliases.read.{}.{}.{owner}", question.number, question.slot);
        let message = SagaMessage::AliasRead {
            question,
            late: turn.late_source,
        };
        self.tell_now(row, told(self.ground.cluster, timer, 1, path, owner, message))?;
        Ok(Outcome::Applied)
    }

    /// An alias has answered; the timer is applied behind the last one.
    pub fn answered(&mut self, input: &Input, question: Question, is_late: bool) -> Result<(), StorageError> {
        let id = &input.instance;
        let rows = self.batch.inbox(id)?;
        let found = rows.into_iter().find(|(number, ..)| *number == question.number);
        let Some((number, row, bytes)) = found else {
            return Ok(());
        };
        let WaitReason::Asked {
            due,
            until,
            open,
            late,
        } = row.reason
        else {
            return Ok(());
        };
        if due != question.due {
            return Ok(());
        }
        let (open, late) = (open & !(1 << (question.slot & 63)), late || is_late);
        if open == 0 {
            return self.proceed(id, number, &row, bytes, late);
        }
        let reason = WaitReason::Asked {
            due,
            until,
            open,
            late,
        };
        let mut waiting = self.waiting(id);
        waiting.remove(row.reason, bytes);
        let row = encode_waiting(reason, &row.input);
        waiting.add(reason, row.len());
        self.set_waiting(id, waiting);
        self.batch.put_inbox(id, number, row)
    }

    /// Applies a timer that has waited for its aliases, then what has waited behind it.
    pub fn proceed(
        &mut self,
        id: &InstanceId,
        number: u64,
        row: &InboxRow,
        bytes: usize,
        late: bool,
    ) -> Result<(), StorageError> {
        if self.waiting(id).behind.is_some() {
            // Behind the dead letter it has its place among the others.
            let row = InboxRow {
                input: row.input.clone(),
                ..*row
            };
            return self.wait_as(id, std::iter::once((number, row, bytes)), WaitReason::Blocked);
        }
        self.leave(id, number, row.reason, bytes)?;
        self.staged.counts.fired_late_source += u64::from(late);
        let turn = Turn {
            behind_aliases: true,
            late_source: late,
            ..Turn::FIRST
        };
        if self.apply_now(&row.input, turn)? == Fate::Poison || self.waiting(id).asks.is_some() {
            return Ok(());
        }
        if self.ground.isolation.is_needed_at_all() {
            self.staged.resumable.push(id.clone());
            return Ok(());
        }
        self.drain(id, usize::MAX)
    }

    /// Puts a message into the outbox that is told at this instant.
    pub fn tell_now(&mut self, row: WorkRef, item: WorkItem) -> Result<(), StorageError> {
        let now = self.ground.now;
        let given = item.deadline.0.saturating_sub(item.created.0);
        let item = WorkItem {
            created: now,
            deadline: now.plus_ms(given),
            ..item
        };
        self.put_work(row, item)
    }
}

/// Whom an alias answers at a timer of this name, which is due at `due`.
pub fn read_timer(name: &str, due: TimeMs) -> Option<(Key, Question)> {
    let mut parts = name.strip_prefix(ASKED)?.splitn(3, '/');
    let number = parts.next()?.parse().ok()?;
    let slot = parts.next()?.parse().ok()?;
    let key = Key::parse(parts.next()?).ok()?;
    Some((key, Question { due, number, slot }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_timer_names_the_address_to_answer() {
        let question = Question {
            due: TimeMs(7),
            number: 12,
            slot: 3,
        };
        let read = read_timer("asked/12/3/o/1", TimeMs(7));
        assert_eq!(read, Some((Key::parse("o/1").expect("a key"), question)));
        assert_eq!(read_timer("early/12", TimeMs(7)), None);
        assert_eq!(read_timer("asked/12/x/o", TimeMs(7)), None);
    }
}
