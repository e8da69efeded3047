//! A store that hands on what each of its transactions has changed.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::rows::Suspect;
use super::{Capture, Decision, ReadWork, Snapshots, StorageError, Transactions, WriteSet, WriteWork};

/// Takes the write sets of a store, in the order of its commits.
pub trait Log: Debug + Send + Sync {
    /// This was committed. What changes no row of the partition is not told.
    fn append(&self, set: WriteSet);
}

/// A store, and where its write sets go. Nothing that is written passes beside it.
#[derive(Debug)]
pub struct Captured {
    store: Arc<dyn Transactions>,
    log: Arc<dyn Log>,
}

impl Captured {
    #[must_use]
    pub fn new(store: Arc<dyn Transactions>, log: Arc<dyn Log>) -> Self {
        Self { store, log }
    }
}

impl Snapshots for Captured {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        self.store.read(work)
    }
}

impl Transactions for Captured {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        let mut set = None;
        self.store.transact(&mut |rows| {
            let capture = Capture::new(rows);
            let decision = work(&capture);
            set = (decision == Decision::Commit).then(|| capture.into_set());
            decision
        })?;
        if let Some(set) = set.filter(|set| !set.is_empty()) {
            self.log.append(set);
        }
        Ok(())
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        self.store.note_applying(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.store.applying()
    }

    fn last_sync(&self) -> Option<Duration> {
        self.store.last_sync()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::storage::tables::{LOCAL, META};
    use crate::storage::{Memory, WriteRows};

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<WriteSet>>);

    impl Log for Kept {
        fn append(&self, set: WriteSet) {
            self.0.lock().expect("nobody panics").push(set);
        }
    }

    #[test]
    fn committed_changes_are_captured_and_aborted_or_local_ones_are_not() {
        let (store, log) = (Memory::bounded(100), Arc::new(Kept::default()));
        let captured = Captured::new(Arc::new(store.clone()), Arc::clone(&log) as Arc<dyn Log>);
        let put = |table: usize, bytes: usize, decision: Decision| {
            captured.transact(
                &mut |rows: &dyn WriteRows| match rows.put(table, b"k", vec![1; bytes]) {
                    Ok(()) => decision,
                    Err(_) => Decision::Abort,
                },
            )
        };
        put(META, 10, Decision::Abort).expect("given up");
        put(META, 1_000, Decision::Commit).expect("given up for want of room");
        put(LOCAL, 10, Decision::Commit).expect("commits");
        assert!(log.0.lock().expect("nobody panics").is_empty());
        put(META, 10, Decision::Commit).expect("commits");
        let sets = std::mem::take(&mut *log.0.lock().expect("nobody panics"));
        let replica = Memory::default();
        let applied = replica.write_rows(|rows| sets.iter().try_for_each(|set| set.apply(rows)));
        applied.expect("there is room");
        assert_eq!(
            (sets.len(), replica.rows()),
            (1, vec![(META, (b"k".to_vec(), vec![1; 10]))])
        );
    }
}
