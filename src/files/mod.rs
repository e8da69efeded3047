//! Files that people write for the runner: read within bounds, and refused where every user of the machine may read a secret.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

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

/// What is wrong with a file that every user of the machine may read or change; `None` for any other, also for one that is not
/// there. A group may read it, as secrets that a container is given are its group's.
#[must_use]
pub fn open_to_everybody(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o006 != 0)
        .then(|| format!("is open to every user of the machine (mode {mode:03o}); close it with chmod o-rw"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_refused_where_every_user_may_read_or_change_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        assert_eq!(open_to_everybody(&path), None, "one that is not there");
        std::fs::write(&path, "hunter2").expect("written");
        for (mode, is_open) in [
            (0o600, false),
            (0o440, false),
            (0o644, true),
            (0o604, true),
            (0o602, true),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            let told = open_to_everybody(&path);
            assert_eq!(told.is_some(), is_open, "{mode:o}: {told:?}");
            assert_eq!(read_private(&path).err(), told, "{mode:o}");
        }
    }
}
