//! The folder of the data: whose it is, how much room it has, and whether what is written to it stays.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use super::Checked;
use crate::app::{SystemClock, unusable};
use crate::config::Manifest;
use crate::ports::clock::Clock as _;

/// With less room a shard cannot grow its file.
const ROOM_MIN: u64 = 64 << 20;
/// With less room somebody should look.
const ROOM_LOW: u64 = 1 << 30;
/// A commit waits for as long as this.
const SLOW: Duration = Duration::from_millis(100);
/// How often the disk is tried.
const TRIES: usize = 3;

pub(super) fn examine(manifest: &Manifest) -> Vec<Checked> {
    let dir = &manifest.data_dir;
    let is_there = dir.is_dir();
    let mut checks = vec![permissions(dir, is_there)];
    // The one that is there already, in which the first start would make the folder.
    let Some(present) = existing(dir) else {
        return checks;
    };
    checks.push(room(&present));
    checks.push(sync(&present));
    checks
}

fn existing(dir: &Path) -> Option<PathBuf> {
    let dir = std::path::absolute(dir).ok()?;
    dir.ancestors().find(|path| path.is_dir()).map(Path::to_owned)
}

fn permissions(dir: &Path, is_there: bool) -> Checked {
    let check = "data folder";
    let shown = dir.display();
    if let Some(wrong) = unusable::folder(dir) {
        return Checked::fail(check, wrong, "correct `data_dir`, or its permissions (SR0421)");
    }
    if !is_there {
        return Checked::ok(
            check,
            format!("{shown} does not exist yet; the first start creates it"),
        );
    }
    let mode = match fs::metadata(dir) {
        Ok(metadata) => metadata.permissions().mode() & 0o777,
        Err(error) => return Checked::fail(check, format!("{shown}: {error}"), "correct its permissions"),
    };
    if mode & 0o022 != 0 {
        return Checked::fail(
            check,
            format!("other users may write to {shown} (mode {mode:03o})"),
            format!("chmod go-w {shown}"),
        );
    }
    Checked::ok(check, format!("{shown}, mode {mode:03o}"))
}

fn room(dir: &Path) -> Checked {
    match statvfs(dir) {
        Ok(found) => judge(found.blocks_available().saturating_mul(found.fragment_size())),
        Err(error) => Checked::fail("disk", format!("{}: {error}", dir.display()), "check the mount"),
    }
}

fn judge(free: u64) -> Checked {
    let detail = format!("{} MiB free", free >> 20);
    let fix = "make room, or enlarge the volume: a shard's file grows by 16 MiB at a time";
    if free < ROOM_MIN {
        Checked::fail("disk", detail, fix)
    } else if free < ROOM_LOW {
        Checked::warn("disk", detail, fix)
    } else {
        Checked::ok("disk", detail)
    }
}

/// Writes a file, has it synced, and removes it.
fn sync(dir: &Path) -> Checked {
    let path = dir.join(format!(".saga-runner-doctor-{}", std::process::id()));
    let tried = try_sync(&path);
    // Also after a failure; what cannot be removed could not be made.
    let _removed = fs::remove_file(&path);
    judge_sync(dir, tried)
}

fn judge_sync(dir: &Path, tried: io::Result<Duration>) -> Checked {
    let check = "fsync";
    let fix = "commits need a disk that takes writes and syncs them; a network file system is not one";
    match tried {
        Ok(took) if took > SLOW => Checked::warn(
            check,
            format!("a write took {} ms to be synced", took.as_millis()),
            fix,
        ),
        Ok(took) => Checked::ok(
            check,
            format!("a write is synced in {:.1} ms", took.as_secs_f64() * 1_000.0),
        ),
        Err(error) => Checked::fail(check, format!("{}: {error}", dir.display()), fix),
    }
}

/// The shortest of some tries: the others waited for somebody else's writes.
fn try_sync(path: &Path) -> io::Result<Duration> {
    let clock = SystemClock::new();
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begin = clock.monotonic();
        file.write_all(&[0; 4096])?;
        file.sync_all()?;
        shortest = shortest.min(clock.monotonic().saturating_sub(begin));
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn little_room_is_warned_of_and_none_fails() {
        for (free, expected) in [
            (0, Status::Fail),
            (ROOM_MIN - 1, Status::Fail),
            (ROOM_MIN, Status::Warn),
            (ROOM_LOW, Status::Ok),
        ] {
            assert_eq!(judge(free).status, expected, "{free}");
        }
    }

    #[test]
    fn a_slow_disk_is_warned_of_and_one_that_syncs_nothing_fails() {
        let dir = Path::new("/data");
        let of = |tried| judge_sync(dir, tried);
        for (took, expected) in [
            (Duration::ZERO, Status::Ok),
            (SLOW, Status::Ok),
            (SLOW + Duration::from_millis(1), Status::Warn),
            (Duration::from_secs(9), Status::Warn),
        ] {
            let checked = of(Ok(took));
            assert_eq!(checked.status, expected, "{took:?}");
            assert_eq!(checked.fix.is_some(), expected == Status::Warn, "{took:?}");
        }
        assert!(of(Ok(Duration::from_millis(1234))).detail.contains("1234 ms"));
        let checked = of(Err(io::Error::other("no space")));
        assert_eq!(checked.status, Status::Fail);
        assert!(
            checked.detail.contains("/data") && checked.detail.contains("no space"),
            "{}",
            checked.detail
        );
    }

    #[test]
    fn a_disk_is_tried_with_a_file_that_is_removed_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let checked = sync(dir.path());
        assert_ne!(checked.status, Status::Fail, "{}", checked.detail);
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
        // What is there already is somebody's, and is not written over.
        let path = dir.path().join("theirs");
        std::fs::write(&path, "theirs").expect("written");
        assert!(try_sync(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("readable"), b"theirs");
        assert_eq!(sync(Path::new("/proc/self")).status, Status::Fail);
    }
}
