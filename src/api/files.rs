//! Files that are read again when they have changed: tokens, certificates, keys of an issuer.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
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

/// Reads a file of a bounded size.
///
/// # Errors
/// A sentence that says what is wrong, without the path.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!(
            "is {bytes} bytes long, at most {FILE_BYTES_MAX} are allowed"
        ));
    }
    std::fs::read(path).map_err(unreadable)
}

/// As [`read`], for what not everybody on the machine may know.
///
/// # Errors
/// As [`read`], and for a file that everybody may read.
pub fn read_private(path: &Path) -> Result<Vec<u8>, String> {
    match open_to_everybody(path) {
        Some(wrong) => Err(wrong),
        None => read(path),
    }
}

/// What is wrong with a file that every user of the machine may read or change; `None` for any other. A group may read it, as
/// secrets that a container is given are its group's.
pub fn open_to_everybody(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o006 != 0)
        .then(|| format!("is open to every user of the machine (mode {mode:03o}); close it with chmod o-rw"))
}
