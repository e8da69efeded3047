//! What a peer was asked and what it did, and the rules that all of it has to keep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after its answer a call may still be made again, because the worker was killed before its result was stored.
const STORED_WITHIN: Duration = Duration::from_secs(5);

/// How much later than a fault its last call may be seen, because its bytes were under way.
const SEEN_WITHIN: Duration = Duration::from_millis(250);

/// What the peer does with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// Does it and says so.
    Done,
    /// Does not do it and says so. It says the same to every call with this key.
    Refused,
    /// Does it and says so after the caller has stopped waiting.
    Late,
    /// Does it and breaks the connection, or says nothing.
    Reset,
    /// Does it and says that it has failed in the middle of it.
    Broken,
    /// Does not do it and says that it may be asked again.
    Busy,
}

impl Conduct {
    /// Of a hundred pieces of work ten are refused once, five are answered late, one is cut off, two break the upstream and
    /// two find it busy.
    const fn first_for(number: u64) -> Self {
        if number % 10 == 3 {
            Self::Refused
        } else if number % 20 == 7 {
            Self::Late
        } else if number % 100 == 51 {
            Self::Reset
        } else if number % 50 == 11 {
            Self::Broken
        } else if number % 50 == 21 {
            Self::Busy
        } else {
            Self::Done
        }
    }
}

/// One call, as the peer saw it.
#[derive(Debug, Clone)]
struct Call {
    key: String,
    begun: Instant,
    /// When it was answered, if it was.
    answered: Option<Instant>,
    conduct: Conduct,
}

/// What a peer remembers. Like an upstream that heeds idempotency keys, it does the work of a key once.
#[derive(Debug, Default)]
pub struct Book {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// By the number of the piece of work, in the order in which they came.
    calls: BTreeMap<u64, Vec<Call>>,
    /// Keys whose work is done.
    done: BTreeSet<String>,
    refused: BTreeSet<String>,
    /// When the runner was killed or connections were cut.
    faults: Vec<Instant>,
}

/// Names one call until it is answered.
#[derive(Debug, Clone, Copy)]
pub struct Place(u64, usize);

/// Sums over all calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    pub pieces: usize,
    pub calls: usize,
    pub refused: usize,
    pub late: usize,
    pub reset: usize,
    pub broken: usize,
    pub busy: usize,
    /// Second calls under the same key, each in a fault window.
    pub repeated: usize,
    pub faults: usize,
}

impl Book {
    /// Enters a call and says what to do about it.
    pub fn enter(&self, number: u64, key: &str) -> (Place, Conduct) {
        let mut pages = self.pages();
        let pages = &mut *pages;
        let calls = pages.calls.entry(number).or_default();
        let conduct = if pages.done.contains(key) {
            Conduct::Done
        } else if pages.refused.contains(key) {
            Conduct::Refused
        } else if calls.is_empty() {
            Conduct::first_for(number)
        } else {
            Conduct::Done
        };
        match conduct {
            Conduct::Refused => pages.refused.insert(key.to_owned()),
            Conduct::Busy => false,
            Conduct::Done | Conduct::Late | Conduct::Reset | Conduct::Broken => {
                pages.done.insert(key.to_owned())
            }
        };
        calls.push(Call {
            key: key.to_owned(),
            begun: Instant::now(),
            answered: None,
            conduct,
        });
        (Place(number, calls.len() - 1), conduct)
    }

    /// The answer has gone out.
    pub fn answered(&self, Place(number, at): Place) {
        if let Some(call) = self
            .pages()
            .calls
            .get_mut(&number)
            .and_then(|calls| calls.get_mut(at))
        {
            call.answered = Some(Instant::now());
        }
    }

    /// The runner has been killed, or connections cut.
    pub fn fault(&self) {
        self.pages().faults.push(Instant::now());
    }

    /// Pieces of work that were done.
    pub fn done(&self) -> usize {
        self.pages().done.len()
    }

    /// Holds the calls against the rules: each piece of work is done under one key; after a refusal the next call has
    /// another key; every other repetition has the same key and falls into a fault window.
    ///
    /// # Panics
    /// Where one of them is broken.
    pub fn check(&self, patience: Duration) -> Figures {
        let pages = self.pages();
        let mut figures = Figures {
            pieces: pages.calls.len(),
            faults: pages.faults.len(),
            ..Figures::default()
        };
        for (number, calls) in &pages.calls {
            let keys: BTreeSet<&str> = calls.iter().map(|call| call.key.as_str()).collect();
            let done = keys.iter().filter(|key| pages.done.contains(**key)).count();
            assert_eq!(done, 1, "{number} was done under {done} keys: {calls:#?}");
            for call in calls {
                figures.calls += 1;
                figures.refused += usize::from(call.conduct == Conduct::Refused);
                figures.late += usize::from(call.conduct == Conduct::Late);
                figures.reset += usize::from(call.conduct == Conduct::Reset);
                figures.broken += usize::from(call.conduct == Conduct::Broken);
                figures.busy += usize::from(call.conduct == Conduct::Busy);
            }
            for pair in calls.windows(2) {
                let (before, after) = (&pair[0], &pair[1]);
                let window = pages.is_in_window(before, after, patience);
                if before.key == after.key {
                    figures.repeated += 1;
                    assert!(
                        window,
                        "{number} was repeated outside of a fault window: {calls:#?}"
                    );
                }
                // A refusal that never reached its worker is asked for again under its own key.
                let told = before.conduct == Conduct::Refused && !window;
                let changed = before.key != after.key;
                assert!(
                    !told || changed,
                    "{number} was refused and asked again: {calls:#?}"
                );
                assert!(
                    before.conduct == Conduct::Refused || !changed,
                    "{number} got a new key without a refusal: {calls:#?}"
                );
            }
        }
        figures
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// Whether what came of `before` may not have been stored when `after` came.
    fn is_in_window(&self, before: &Call, after: &Call, patience: Duration) -> bool {
        let took = before.answered.map(|answered| answered - before.begun);
        let unsaid = match before.conduct {
            Conduct::Late | Conduct::Reset | Conduct::Broken | Conduct::Busy => true,
            Conduct::Done | Conduct::Refused => false,
        };
        let unheard = unsaid || took.is_none_or(|took| took > patience);
        let end = before.answered.map(|answered| answered + STORED_WITHIN);
        let hit = |fault: &Instant| {
            *fault + SEEN_WITHIN >= before.begun
                && *fault <= after.begun
                && end.is_none_or(|end| *fault <= end)
        };
        unheard || self.faults.iter().any(hit)
    }
}
