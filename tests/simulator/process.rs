//! One process: what it does outside it does by calls of ports. It dies at one of them, or stands still before one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::world::World;

pub struct Process {
    pub world: Arc<World>,
    /// Names it in the trace, and is never used again.
    pub number: u64,
    /// Calls of ports so far.
    calls: AtomicU64,
    /// The call at which it dies; 0: at none.
    dies_at: AtomicU64,
    is_dead: AtomicBool,
    died: Notify,
    stands_still: AtomicBool,
    goes_on: Notify,
    /// How often its connections broke because it did not answer in time.
    broken: AtomicU64,
    /// It has looked at the stream of events and opened a reader behind that.
    reads_events: AtomicBool,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.number)
    }
}

impl Process {
    pub fn new(world: &Arc<World>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            number,
            calls: AtomicU64::new(0),
            dies_at: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            died: Notify::new(),
            stands_still: AtomicBool::new(false),
            goes_on: Notify::new(),
            broken: AtomicU64::new(0),
            reads_events: AtomicBool::new(false),
        })
    }

    /// Counts a call of a port. False: the process is dead, or dies with this call.
    pub fn call(&self) -> bool {
        if self.is_dead() {
            return false;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if call == self.dies_at.load(Ordering::Relaxed) {
            self.die();
        }
        !self.is_dead()
    }

    /// Counts a call of a port, and ends only where the process lives on. What comes behind this call has not happened.
    /// Whether the process stood still meanwhile: then whatever it was connected to has given it up.
    pub async fn enter(&self) -> bool {
        if !self.call() {
            std::future::pending::<()>().await;
        }
        let stood = self.stands_still();
        self.moves().await;
        stood
    }

    /// Ends once the process does not stand still.
    pub async fn moves(&self) {
        while self.stands_still() {
            self.goes_on.notified().await;
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    pub fn stands_still(&self) -> bool {
        self.stands_still.load(Ordering::Relaxed)
    }

    /// It does nothing, and time passes.
    pub fn stand_still(&self) {
        self.world
            .note(format_args!("process {} stands still", self.number));
        self.stands_still.store(true, Ordering::Relaxed);
    }

    pub fn go_on(&self) {
        if !self.stands_still() {
            return;
        }
        self.world.note(format_args!("process {} goes on", self.number));
        self.broken.fetch_add(1, Ordering::Relaxed);
        self.stands_still.store(false, Ordering::Relaxed);
        self.goes_on.notify_waiters();
    }

    /// It has opened a reader of the events, before which it looks at their stream.
    pub fn begins_to_read_events(&self) {
        self.reads_events.store(true, Ordering::Relaxed);
    }

    /// Whether it knows which events were missing when it began.
    pub fn reads_events(&self) -> bool {
        self.reads_events.load(Ordering::Relaxed)
    }

    /// Another number than before where its connections have broken.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    /// It dies after so many further calls.
    pub fn die_after(&self, calls: u64) {
        let now = self.calls.load(Ordering::Relaxed);
        self.dies_at.store(now + calls.max(1), Ordering::Relaxed);
    }

    /// Whatever was to kill it does not.
    pub fn spare(&self) {
        self.dies_at.store(0, Ordering::Relaxed);
    }

    pub fn die(&self) {
        if self.is_dead() {
            return;
        }
        self.world.died(self.number);
        self.is_dead.store(true, Ordering::Relaxed);
        self.died.notify_waiters();
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Ends when it dies.
    pub async fn death(&self) {
        while !self.is_dead() {
            self.died.notified().await;
        }
    }
}
