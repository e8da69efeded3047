//! Which seeds have run on which commit, and what they found: `tests/simulator/ledger.tsv`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One run of `make simulate LEDGER=1`.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    commit: String,
    from: u64,
    count: u64,
    found: String,
}

/// What stands where nothing was found.
const NOTHING: &str = "nothing";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulator/ledger.tsv")
}

impl Line {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('\t');
        let line = Self {
            commit: parts.next()?.to_owned(),
            from: parts.next()?.parse().ok()?,
            count: parts.next()?.parse().ok()?,
            found: parts.next()?.to_owned(),
        };
        parts.next().is_none().then_some(line)
    }

    /// The first seed behind it.
    const fn end(&self) -> u64 {
        self.from + self.count
    }
}

fn lines() -> Vec<Line> {
    let text = std::fs::read_to_string(file()).expect("the ledger can be read");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| Line::read(line).unwrap_or_else(|| panic!("no line of the ledger: {line}")))
        .collect()
}

/// The commit that runs; with a mark where the files are others.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let done = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("git runs");
        String::from_utf8(done.stdout).expect("text").trim().to_owned()
    };
    let is_changed = !git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        "src",
        "crates",
        "tests/simulator",
        ":!tests/simulator/ledger.tsv",
    ])
    .is_empty();
    let mark = if is_changed { "+" } else { "" };
    format!("{}{mark}", git(&["rev-parse", "--short=10", "HEAD"]))
}

/// Notes that these seeds have run.
pub fn append(from: u64, count: u64, failed: &[String]) {
    let first = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = if failed.is_empty() {
        NOTHING.to_owned()
    } else {
        failed.iter().map(first).collect::<Vec<_>>().join(" | ")
    };
    let mut ledger = OpenOptions::new()
        .append(true)
        .open(file())
        .expect("the ledger is there");
    writeln!(ledger, "{}\t{from}\t{count}\t{found}", commit()).expect("the ledger can be written");
}

/// What found nothing counts, each seed once.
#[test]
fn ranges_of_the_ledger_that_found_nothing_are_disjoint() {
    let mut lines = lines();
    lines.retain(|line| line.found == NOTHING);
    lines.sort_by_key(|line| line.from);
    for pair in lines.windows(2) {
        assert!(pair[0].end() <= pair[1].from, "{pair:?} overlap");
    }
    let sum: u64 = lines.iter().map(|line| line.count).sum();
    println!("{sum} seeds have found nothing");
}
