//! What outlives a process: time, the trace, and the place at which the process dies.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::clock::VirtualClock;
use super::trace::Trace;

/// Shared by everything that stands behind a port.
pub struct World {
    pub clock: Arc<VirtualClock>,
    pub trace: Trace,
    /// Calls of ports so far.
    calls: AtomicU64,
    /// The call at which the process dies; 0: at none.
    dies_at: AtomicU64,
    is_dead: AtomicBool,
    died: Notify,
    /// Ids of all work that a commit has made true.
    committed: Mutex<BTreeSet<String>>,
    /// What has left the runner and was not.
    premature: Mutex<Vec<String>>,
}

impl World {
    pub fn new(is_printed: bool) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::new(VirtualClock::new()),
            trace: Trace::new(is_printed),
            calls: AtomicU64::new(0),
            dies_at: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            died: Notify::new(),
            committed: Mutex::default(),
            premature: Mutex::default(),
        })
    }

    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.trace.note(self.clock.passed(), what);
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
    pub async fn enter(&self) {
        if !self.call() {
            std::future::pending::<()>().await;
        }
    }

    /// The process dies after so many further calls.
    pub fn die_after(&self, calls: u64) {
        let now = self.calls.load(Ordering::Relaxed);
        self.dies_at.store(now + calls.max(1), Ordering::Relaxed);
    }

    /// Whatever was to kill the process does not.
    pub fn spare(&self) {
        self.dies_at.store(0, Ordering::Relaxed);
    }

    pub fn die(&self) {
        self.note(format_args!("the process dies"));
        self.is_dead.store(true, Ordering::Relaxed);
        self.died.notify_one();
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Ends when the process dies.
    pub async fn death(&self) {
        while !self.is_dead() {
            self.died.notified().await;
        }
    }

    /// A commit has made this work true.
    pub fn committed(&self, id: String) {
        let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.insert(id);
    }

    /// Work leaves the runner.
    pub fn leaves(&self, id: &str, what: &str) {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        if !committed.contains(id) {
            let mut premature = self.premature.lock().unwrap_or_else(PoisonError::into_inner);
            premature.push(format!("{what} ({id}) left before the commit that made it true"));
        }
    }

    pub fn premature(&self) -> Vec<String> {
        self.premature
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Another process takes the place of the dead one.
    pub fn revive(&self) {
        self.is_dead.store(false, Ordering::Relaxed);
        self.dies_at.store(0, Ordering::Relaxed);
    }
}
