//! Words that readers stumbled over do not come back: in documents, message schemas, `deploy/`, and the texts of the command line
//! and of editors.

use std::path::PathBuf;

use crate::architecture::{is_test, rust_files, without_tests};
use crate::docs::{files, read, root};

/// What is not written, and what is written in its place.
const WORDS: [(&str, &str); 36] = [
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
    ("whoever", "anyone who, or the party that is meant"),
    ("whatever", "any, or regardless of"),
    ("somebody", "the party that is meant"),
    ("anew", "again"),
    ("what became of", "the outcome of"),
    ("what becomes of", "what happens to"),
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

/// The same for a name whose words are parted by underscores.
pub(crate) fn found_in_name(name: &str) -> Vec<(&'static str, &'static str)> {
    found(&name.replace('_', " "))
}

/// Those that comments of the code do without as well; the others are still in some.
const IN_COMMENTS: [&str; 23] = [
    "nobody knows",
    "riddle",
    "what came of",
    "leave word",
    "left word",
    "in the hands of",
    "at home",
    "left done",
    "goes over",
    "go over",
    "gone over",
    "bury",
    "buried",
    "looked after",
    "looks after",
    "broken off",
    "a person must",
    "sign of life",
    "cure",
    "heeds",
    "lead astray",
    "what became of",
    "what becomes of",
];

/// The comments of a file of Rust that have a line of their own.
fn comments(text: &str) -> String {
    let lines = text.lines().map(str::trim_start);
    let comments = lines.filter(|line| line.starts_with("//"));
    comments.collect::<Vec<_>>().join("\n")
}

fn texts() -> Vec<PathBuf> {
    let mut texts = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    texts.extend(files(&root().join("docs"), "md"));
    for extension in ["md", "yaml", "tpl", "txt"] {
        texts.extend(files(&root().join("deploy"), extension));
    }
    for extension in ["rs", "yaml"] {
        texts.extend(files(&root().join("src/cli"), extension));
    }
    texts.extend(files(&root().join("docs/schemas"), "json"));
    texts.extend(files(
        &root().join("crates/language/src/definition/grammar"),
        "rs",
    ));
    for language in ["python", "typescript"] {
        texts.push(root().join("workers").join(language).join("README.md"));
    }
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
fn comments_of_production_code_say_what_happens_in_the_fields_words() {
    let mut faults = Vec::new();
    let mut lines = 0;
    for path in ["src", "crates"]
        .map(|folder| rust_files(&root().join(folder)))
        .concat()
    {
        let name = path
            .strip_prefix(root())
            .expect("below the root")
            .display()
            .to_string();
        if is_test(&name) {
            continue;
        }
        let comments = comments(&without_tests(&read(&path)).join("\n"));
        lines += comments.lines().count();
        let found = found(&comments)
            .into_iter()
            .filter(|(word, _)| IN_COMMENTS.contains(word));
        faults.extend(found.map(|(word, instead)| format!("{name}: {word:?} is {instead:?}")));
    }
    assert!(lines > 10_000, "{lines} lines of comments were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_phrase_is_found_at_the_end_of_a_line_and_within_no_other_word() {
    assert_eq!(found("What it did, nobody\nknows."), [WORDS[0]]);
    assert_eq!(found("A secure amendment is obscured."), []);
}
