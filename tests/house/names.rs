//! The name of a test says what is promised, and under which condition, in words that a reader can search for.

use std::fs;

use crate::architecture::{root, rust_files};
use crate::words::found_in_name;

/// A name that begins so has no subject: it says "what" or "it" in place of the thing that it is about.
const BEGINNINGS: [&str; 10] = [
    "what", "whatever", "it", "its", "who", "whoever", "whom", "whose", "nobody", "one_that",
];

/// The tests of a text that rustfmt has written: functions right below an attribute that makes them tests.
fn tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            let attribute = line.trim_start_matches("#[");
            is_test |= attribute.starts_with("test]") || attribute.starts_with("tokio::test");
            continue;
        }
        if line.starts_with("//") {
            continue;
        }
        let name = line.trim_start_matches("pub ").trim_start_matches("async ");
        if let (true, Some(name)) = (is_test, name.strip_prefix("fn ")) {
            found.extend(name.split('(').next());
        }
        is_test = false;
    }
    found
}

/// What is wrong with a name.
fn faults(name: &str) -> Vec<String> {
    let begins = |word: &&str| name.strip_prefix(*word).is_some_and(|rest| rest.starts_with('_'));
    let mut faults: Vec<String> = BEGINNINGS
        .iter()
        .filter(|word| begins(word))
        .map(|word| format!("{name} begins with {word:?}: name the thing that it is about"))
        .collect();
    let instead = found_in_name(name).into_iter();
    faults.extend(instead.map(|(word, instead)| format!("{name}: {word:?} is {instead:?}")));
    faults
}

#[test]
fn test_names_say_promise_and_condition() {
    let (mut names, mut wrong) = (0, Vec::new());
    for folder in ["src", "crates", "tests", "benches"] {
        for path in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&path).expect("readable");
            for name in tests(&text) {
                names += 1;
                let place = path.strip_prefix(root()).expect("below the root");
                wrong.extend(
                    faults(name)
                        .into_iter()
                        .map(|fault| format!("{}: {fault}", place.display())),
                );
            }
        }
    }
    assert!(names > 1_500, "{names} tests were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_without_a_subject_or_with_a_banned_word_is_refused() {
    let text = "#[test]\nfn it_works() {}\n\n    #[tokio::test(start_paused = true)]\n    /// About it.\n    async fn a_call_is_made_whoever_asks() {}\n\nfn what_helps() {}\n\n#[test]\n#[ignore]\nfn items_are_kept() {}\n";
    assert_eq!(
        tests(text),
        ["it_works", "a_call_is_made_whoever_asks", "items_are_kept"]
    );
    for (name, count) in [
        ("it_works", 1),
        ("what_is_left_is_what_nobody_knows", 2),
        ("a_call_is_made_whoever_asks", 1),
        ("a_command_that_was_taken_back_stays", 1),
        ("items_are_kept", 0),
        ("whatsoever_is_written", 0),
    ] {
        assert_eq!(faults(name).len(), count, "{name}: {:?}", faults(name));
    }
}
