//! Definition files that are looked at again and again: what is new of them, once it is written to its end.

use std::time::Duration;

use super::definitions::Files;

/// How often files are looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(150);

/// What was seen of the files: their contents, or why they cannot be read.
type Seen = Result<[u8; 32], String>;

/// Files that are watched. Polled: mounted volumes, editors that replace files and the symbolic links of Kubernetes look the same then.
#[derive(Debug, Default)]
pub struct Watched {
    before: Option<Seen>,
    told: Option<Seen>,
}

impl Watched {
    /// Those whose contents of now are known.
    #[must_use]
    pub fn since(files: &Files) -> Self {
        let seen = Some(Ok(files.fingerprint()));
        Self {
            before: seen.clone(),
            told: seen,
        }
    }

    /// Whether they are other ones than when it last said so, and were the same at the last two looks: what is being
    /// written is looked at when it has been.
    pub fn have_changed(&mut self, files: &Result<Files, String>) -> bool {
        let now = Some(files.as_ref().map(Files::fingerprint).map_err(Clone::clone));
        let is_settled = now == self.before || self.before.is_none();
        let is_new = is_settled && now != self.told;
        if is_new {
            self.told.clone_from(&now);
        }
        self.before = now;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernel::definition::SourceFile;

    fn files(text: &str) -> Files {
        let file = SourceFile {
            path: "a.yaml".to_owned(),
            text: Arc::from(text),
        };
        Files {
            sagas: vec![file],
            ..Files::default()
        }
    }

    #[test]
    fn a_change_is_told_once_and_when_it_has_settled() {
        let mut watched = Watched::default();
        let mut look = |text: &str| watched.have_changed(&Ok(files(text)));
        assert!(look("a"), "the first look");
        assert!(!look("a"));
        assert!(!look("ab"), "it is being written");
        assert!(!look("abc"));
        assert!(look("abc"));
        let absent = || Err("no such file".to_owned());
        assert!(!watched.have_changed(&absent()) && watched.have_changed(&absent()));
        let mut known = Watched::since(&files("a"));
        assert!(!known.have_changed(&Ok(files("a"))), "it was in force before");
    }
}
