//! The clock of a world: timers fire and deadlines of work come as it moves.

use saga_runner_partition::storage::rows::TimerTarget;
use saga_runner_partition::storage::{Batch, StorageError};

use super::{Given, World};
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::input::WorkOutcome;
use crate::kernel::outcome::PAST_DEADLINE;
use crate::kernel::patch::Outcome;
use crate::kernel::schedule;
use crate::kernel::work::{WorkItem, WorkRef};
use crate::offline::of::Of;

/// A timer that is set.
pub type Timer = (TimeMs, WorkRef, TimerTarget);

/// Rows of each kind that are forgotten at once: more than there are of the generations of one key.
const FORGOTTEN_MAX: usize = 10_000;

/// Work whose deadline does not come, however much time passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    All,
    /// Work of these names.
    Named(Vec<String>),
}

impl Default for Hold {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

/// What comes as time passes.
enum Due {
    Timer(Timer),
    Deadline(Box<WorkItem>),
}

impl Due {
    fn time(&self) -> TimeMs {
        match self {
            Self::Timer((due, ..)) => *due,
            Self::Deadline(item) => item.ends(),
        }
    }
}

impl World {
    /// The timer that is due next. Planned times of a schedule come where the case says so.
    #[must_use]
    pub fn next_timer(&self) -> Option<Timer> {
        let sagas = self.cast.len().max(1);
        let timers = self.store.reader().timers(None, sagas + 1).ok()?;
        let is_planned = |target: &TimerTarget| schedule::is_address(&target.instance.key);
        timers.into_iter().find(|(_, _, target)| !is_planned(target))
    }

    /// The timer of this name that an instance has set.
    #[must_use]
    pub fn timer_named(&self, instance: &InstanceId, name: &str) -> Option<Timer> {
        let timers = self.store.reader().timers(None, usize::MAX).ok()?;
        let mut own = timers.into_iter();
        own.find(|(_, _, target)| target.instance == *instance && target.name == name)
    }

    /// Lets time pass: timers fire and deadlines of work come in the order of their times, of the same time the timers first,
    /// since word of a deadline takes its way through the broker.
    pub fn advance(&mut self, ms: i64, hold: &Hold) -> Given {
        let until = self.now.plus_ms(ms);
        self.pass(until, hold, None)
    }

    /// Lets time pass until `timer` is due and would fire next.
    pub fn advance_to(&mut self, timer: &Timer, hold: &Hold) -> Given {
        let until = self.now.max(timer.0);
        self.pass(until, hold, Some(timer))
    }

    fn pass(&mut self, until: TimeMs, hold: &Hold, end: Option<&Timer>) -> Given {
        let mut given = Given::default();
        while let Some(due) = self.next_due(hold).filter(|due| due.time() <= until) {
            match due {
                Due::Timer(timer) if end.is_some_and(|end| (end.0, end.1) == (timer.0, timer.1)) => break,
                Due::Timer(timer) => given.add(self.fire(timer)),
                Due::Deadline(item) => given.add(self.give_up(&item)),
            }
        }
        self.now = until;
        given.add(self.forget());
        given
    }

    /// What has ended is forgotten when the time is over for which its saga keeps it. How long a runner keeps what no saga speaks
    /// of is not said in a case, so that stays.
    fn forget(&mut self) -> Given {
        let keep = self.definition.lifecycle.keep_ended;
        let ended = self.ended.as_ref().map(|ended| ended.record.phase);
        if ended.and_then(|phase| keep.after(phase)).is_none() {
            return Given::default();
        }
        let mut staged = self.partition.stage();
        let (partition, now) = (&self.partition, self.now);
        let forgotten = self.store.write::<_, StorageError>(|batch: &Batch<'_>| {
            partition.prune(batch, &mut staged, now, FORGOTTEN_MAX)
        });
        self.look();
        Given {
            unsteady: forgotten.err().map(|error| error.to_string()),
            ..Given::default()
        }
    }

    fn next_due(&self, hold: &Hold) -> Option<Due> {
        let timer = self.next_timer();
        let mut deadlines = self.outbox.values().filter(|item| self.has_deadline(item, hold));
        let first = deadlines.next().map(|first| {
            // Of the same time the oldest.
            deadlines.fold(
                first,
                |first, item| if item.ends() < first.ends() { item } else { first },
            )
        });
        match (timer, first) {
            (Some(timer), Some(item)) if item.ends() < timer.0 => Some(Due::Deadline(Box::new(item.clone()))),
            (Some(timer), _) => Some(Due::Timer(timer)),
            (None, item) => item.map(|item| Due::Deadline(Box::new(item.clone()))),
        }
    }

    fn has_deadline(&self, item: &WorkItem, hold: &Hold) -> bool {
        let is_held = match hold {
            Hold::All => true,
            Hold::Named(names) => names.iter().any(|name| self.is_anywhere(item, &Of::named(name))),
        };
        !is_held && !self.answered.contains(&item.command_id)
    }

    /// The deadline of work comes: its outcome is unknown.
    fn give_up(&mut self, item: &WorkItem) -> Given {
        self.now = self.now.max(item.ends());
        let mut given = self.give_result(item, WorkOutcome::timed_out(PAST_DEADLINE));
        // Nobody has said anything that could be a mistake.
        if matches!(given.outcome, Some(Outcome::Ignored(_))) {
            given.outcome = None;
        }
        given
    }

    /// Fires a timer that is set, at the time when it is due.
    pub fn fire(&mut self, (due, set_by, target): Timer) -> Given {
        self.now = self.now.max(due);
        self.transact(|run| run.fire_one(due, set_by, target, false))
    }
}
