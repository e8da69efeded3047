//! Processor time and memory, as Linux tells them.

use std::path::Path;
use std::time::Duration;

use procfs::WithCurrentSystemInfo as _;
use procfs::process::Process;
use tokio::time::Instant;

/// Readings at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    at: Instant,
    cpu: Duration,
    server_cpu: Duration,
}

/// What passed between two readings.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    pub wall: Duration,
    pub cpu: Duration,
    pub server_cpu: Duration,
}

impl Usage {
    /// Reads this process and, if named, the server's.
    pub fn now(server: Option<u32>) -> Self {
        Self {
            at: Instant::now(),
            cpu: Process::myself().map(|me| cpu(&me)).unwrap_or_default(),
            server_cpu: server
                .and_then(|pid| i32::try_from(pid).ok())
                .and_then(|pid| Process::new(pid).ok())
                .map(|server| cpu(&server))
                .unwrap_or_default(),
        }
    }

    pub fn until(&self, later: &Self) -> Spent {
        Spent {
            wall: later.at - self.at,
            cpu: later.cpu.saturating_sub(self.cpu),
            server_cpu: later.server_cpu.saturating_sub(self.server_cpu),
        }
    }
}

fn cpu(process: &Process) -> Duration {
    let Ok(stat) = process.stat() else {
        return Duration::ZERO;
    };
    let ticks = stat.utime + stat.stime;
    Duration::from_millis(ticks * 1_000 / procfs::ticks_per_second())
}

/// Resident memory of this process, 0 where the system does not tell.
pub fn rss_bytes() -> u64 {
    Process::myself()
        .and_then(|me| me.stat())
        .map(|stat| stat.rss_bytes().get())
        .unwrap_or_default()
}

/// Bytes that the files below `folder` take on disk, a subfolder of the name `without` left out.
pub fn folder_bytes(folder: &Path, without: Option<&str>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                let skipped = without.is_some_and(|name| path.ends_with(name));
                if skipped { 0 } else { folder_bytes(&path, without) }
            } else {
                entry.metadata().map_or(0, |data| data.blocks() * 512)
            }
        })
        .sum()
}
