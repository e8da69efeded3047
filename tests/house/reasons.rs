//! Reasons of dead letters: each that the code gives is explained to operators, and no other.

use std::collections::BTreeSet;
use std::fs;

use saga_runner::kernel::patch::IgnoreReason;
use saga_runner::kernel::schedule::Skip;
use saga_runner::offline::expect::OTHER_INSTANCE;
use saga_runner::telemetry::DEAD_LETTER_REASONS;

use crate::architecture::{is_test, root, rust_files};

/// Words that say why something else than an input is refused: a halt, an answer to an operator, a file.
const OTHERS: [&str; 6] = [
    "data.corrupt",
    "intake.stopped",
    "relay.ended",
    "restored",
    "shard.panicked",
    "stream.",
];

/// Texts behind which a reason stands.
const BEFORE: [&str; 3] = ["reason: \"", "Defect::new(\"", "Defect::new(\n"];

#[test]
fn each_reason_of_a_dead_letter_is_explained() {
    let explained = explained();
    let mut given = BTreeSet::new();
    for file in [
        "crates/kernel/src",
        "crates/partition/src/machine",
        "crates/runtime/src/intake",
    ] {
        for text in sources(file) {
            for before in BEFORE {
                for (at, _) in text.match_indices(before) {
                    let rest = text[at + before.len()..].trim_start().trim_start_matches('"');
                    let word: String = rest.chars().take_while(|c| is_of_word(*c)).collect();
                    if rest[word.len()..].starts_with('"') {
                        given.insert(word);
                    }
                }
            }
        }
    }
    given.retain(|word| !OTHERS.iter().any(|other| word.starts_with(other)));
    let missing: Vec<&String> = given.difference(&explained).collect();
    assert!(given.len() > 30, "{given:?}");
    assert_eq!(missing, [""; 0], "docs/dead-letters.md does not explain them");
}

/// What a case may expect as `ignored`; what comes under a used id with other content is a dead letter instead.
#[test]
fn each_reason_why_an_input_changes_nothing_is_explained_to_who_writes_cases() {
    let text = fs::read_to_string(root().join("docs/testing.md")).expect("readable");
    let (_, table) = text.split_once("\n### Reasons\n").expect("a table");
    // Behind the two lines of its head.
    let rows = table.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let first = rows
        .take_while(|line| line.starts_with('|'))
        .filter_map(|row| row.split('|').nth(1));
    let explained: BTreeSet<String> = first
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let ignored = IgnoreReason::ALL
        .iter()
        .filter(|reason| **reason != IgnoreReason::Conflict);
    let mut given: BTreeSet<String> = ignored.map(|reason| reason.as_str().to_owned()).collect();
    given.extend([Skip::Missed, Skip::Overlap, Skip::QueueFull].map(|skip| skip.as_str().to_owned()));
    given.insert(OTHER_INSTANCE.to_owned());
    assert_eq!(explained, given);
}

/// Each has a counter that begins with 0; the last one is that of a command, which is no input.
#[test]
fn each_reason_that_is_explained_is_counted_from_the_start() {
    let mut expected = explained();
    expected.insert("command.invalid".to_owned());
    let counted = DEAD_LETTER_REASONS.map(str::to_owned);
    assert_eq!(BTreeSet::from(counted), expected);
}

#[test]
fn each_reason_that_is_explained_is_in_the_code() {
    let code: String = ["crates/kernel/src", "crates/partition/src", "crates/runtime/src"]
        .into_iter()
        .flat_map(sources)
        .collect();
    let gone: Vec<String> = explained()
        .into_iter()
        .filter(|word| !code.contains(&format!("\"{word}\"")))
        .collect();
    assert_eq!(gone, [""; 0]);
}

/// The texts of all files below a folder that are no tests.
fn sources(folder: &str) -> Vec<String> {
    let files = rust_files(&root().join(folder)).into_iter();
    let files = files.filter(|path| !is_test(&path.display().to_string()));
    files
        .map(|path| fs::read_to_string(path).expect("readable"))
        .collect()
}

/// What stands in the first column of the tables.
fn explained() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/dead-letters.md")).expect("readable");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let first = rows.filter_map(|line| line.split('|').nth(1));
    let words = first.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.map(str::to_owned).collect()
}

const fn is_of_word(c: char) -> bool {
    c.is_ascii_lowercase() || matches!(c, '_' | '.')
}
