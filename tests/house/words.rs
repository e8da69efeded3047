//! Words that readers stumbled over do not come back: in documents, in `deploy/`, and in the texts of the command line.

use std::path::PathBuf;

use crate::docs::{files, read, root};

/// What is not written, and what is written in its place.
const WORDS: [(&str, &str); 30] = [
    ("nobody knows", "unknown outcome"),
    ("riddle", "unknown outcome"),
    ("what came of", "outcome"),
    ("taken back", "cancelled"),
    ("takes back", "cancels"),
    ("leave word", "record the intent"),
    ("left word", "recorded the intent"),
    ("in the hands of", "in progress"),
    ("in hand", "in progress, or prefetched"),
    ("at home", "locally"),
    ("left done", "uncompensated"),
    ("goes over", "migrates"),
    ("go over", "migrate"),
    ("gone over", "migrated"),
    ("bury", "dead-letter"),
    ("buried", "dead-lettered"),
    ("looked after", "checked"),
    ("looks after", "checks"),
    ("turned away", "rejected"),
    ("broken off", "aborted"),
    ("a person must", "an operator must"),
    ("sign of life", "heartbeat"),
    ("stands still", "waits, or is blocked"),
    ("makes no sense", "is invalid"),
    ("are well", "are valid"),
    ("cure", "fix"),
    ("mend", "fix"),
    ("heeds", "processes"),
    ("lead astray", "change the target of"),
    ("once and for all", "permanently"),
];

/// The text with single spaces, small, and a space at both ends, and nothing but words in it: a phrase may go over a line's end.
fn plain(text: &str) -> String {
    let mut plain = String::from(" ");
    for word in text.split(|symbol: char| !symbol.is_alphanumeric() && !"_-".contains(symbol)) {
        if !word.is_empty() {
            plain.push_str(&word.to_lowercase());
            plain.push(' ');
        }
    }
    plain
}

fn found(text: &str) -> Vec<(&'static str, &'static str)> {
    let text = plain(text);
    let is_there = |word: &str| text.contains(&format!(" {word} "));
    WORDS.into_iter().filter(|(word, _)| is_there(word)).collect()
}

fn texts() -> Vec<PathBuf> {
    let mut texts = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    texts.extend(files(&root().join("docs"), "md"));
    for extension in ["md", "yaml", "tpl"] {
        texts.extend(files(&root().join("deploy"), extension));
    }
    texts.extend(files(&root().join("src/cli"), "rs"));
    texts
}

#[test]
fn texts_say_what_happens_in_the_fields_words() {
    let mut faults = Vec::new();
    for path in texts() {
        for (word, instead) in found(&read(&path)) {
            faults.push(format!("{}: {word:?} is {instead:?}", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_phrase_is_found_at_the_end_of_a_line_and_within_no_other_word() {
    assert_eq!(found("What it did, nobody\nknows."), [WORDS[0]]);
    assert_eq!(found("A secure amendment is obscured."), []);
}
