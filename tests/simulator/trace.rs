//! What happened, in its order: printed where somebody wants to read it, and always as a hash.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct Trace(Mutex<State>);

struct State {
    hash: u64,
    count: u64,
    is_printed: bool,
    /// All lines, where they are kept.
    kept: Option<Vec<String>>,
}

/// FNV-1a.
struct Hash(u64);

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl Trace {
    pub fn new(is_printed: bool) -> Self {
        Self(Mutex::new(State {
            hash: 0xcbf2_9ce4_8422_2325,
            count: 0,
            is_printed,
            kept: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps all that comes.
    pub fn keep(&self) {
        self.lock().kept = Some(Vec::new());
    }

    /// What was kept.
    pub fn kept(&self) -> Vec<String> {
        self.lock().kept.take().unwrap_or_default()
    }

    pub fn note(&self, at: Duration, what: fmt::Arguments<'_>) {
        let mut state = self.lock();
        let mut hash = Hash(state.hash);
        let _infallible = writeln!(hash, "{}:{what}", at.as_millis());
        state.hash = hash.0;
        state.count += 1;
        if state.is_printed {
            println!("{:>9.3} {what}", at.as_secs_f64());
        }
        if let Some(kept) = &mut state.kept {
            kept.push(format!("{:>9.3} {what}", at.as_secs_f64()));
        }
    }

    /// Equal for two runs in which the same happened at the same times.
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    pub fn count(&self) -> u64 {
        self.lock().count
    }
}
