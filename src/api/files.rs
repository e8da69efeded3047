//! Files that are read again when they have changed: tokens, certificates, keys of an issuer.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How often the files are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was read from files, and is read again when one of them has changed.
pub struct Files<T> {
    /// The key of the manifest that names them.
    key: &'static str,
    paths: Vec<PathBuf>,
    read: Read<T>,
    state: Mutex<State<T>>,
}

/// Reads the files; a sentence where they cannot be used.
type Read<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Duration,
    /// What was logged about files that cannot be used.
    told: Option<String>,
}

/// By what a change is noticed: time, size and inode.
type Stamp = Option<(SystemTime, u64, u64)>;

impl<T> Files<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// What `read` says is wrong.
    pub fn open(
        key: &'static str,
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // Before the content: a change in between is found at the next look.
        let stamps = stamps(&paths);
        let value = Arc::new(read()?);
        Ok(Self {
            key,
            paths,
            read: Box::new(read),
            state: Mutex::new(State {
                value,
                stamps,
                looked: Duration::ZERO,
                told: None,
            }),
        })
    }

    /// What the files hold. Those that cannot be used change nothing, and are told once. `now` is the monotonic time.
    pub fn current(&self, now: Duration) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(state.looked) >= LOOK_EVERY {
            state.looked = now;
            self.look(&mut state);
        }
        Arc::clone(&state.value)
    }

    fn look(&self, state: &mut State<T>) {
        let (key, stamps) = (self.key, stamps(&self.paths));
        if stamps == state.stamps && state.told.is_none() {
            return;
        }
        match (self.read)() {
            Ok(value) => {
                tracing::info!(key, "changed files were read again");
                state.value = Arc::new(value);
                state.stamps = stamps;
                state.told = None;
            }
            Err(error) if state.told.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::error!(
                    key,
                    error,
                    "changed files cannot be used; what was read before stays in force"
                );
                state.told = Some(error);
            }
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len(), file.ino()))
    };
    paths.iter().map(stamp).collect()
}
