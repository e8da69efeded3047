//! Bugs for the simulator: each lies somewhere in production code, is listed, and does nothing else than ask whether it was
//! planted, so that a build with the feature and no bug is the same program as one without.

use std::collections::BTreeSet;
use std::fs;

use crate::architecture::{is_test, root, rust_files};

const HOME: &str = "crates/language/src/planted.rs";
/// Where a bug needs what is there in a build with the feature only.
const CONDITIONAL: [&str; 2] = ["crates/kernel/src/work.rs", HOME];

/// The words that follow `before` in a text.
fn behind(text: &str, before: &str) -> BTreeSet<String> {
    let parts = text.split(before).skip(1);
    parts
        .map(|part| part.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect()
}

#[test]
fn each_planted_bug_is_listed_and_lies_in_production_code() {
    let home = fs::read_to_string(root().join(HOME)).expect("readable");
    let (_, bugs) = home.split_once("pub enum Bug {").expect("the bugs");
    let (bugs, listed) = bugs.split_once("\n}\n").expect("their end");
    let declared = bugs
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("///"));
    let declared: BTreeSet<String> = declared
        .filter_map(|line| line.strip_suffix(','))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 10, "{declared:?}");
    assert_eq!(behind(listed, "Self::"), declared, "Bug::ALL");

    let (mut planted, mut conditional) = (BTreeSet::new(), Vec::new());
    for path in ["src", "crates"]
        .map(|folder| rust_files(&root().join(folder)))
        .concat()
    {
        let file = path
            .strip_prefix(root())
            .expect("below the root")
            .display()
            .to_string();
        if is_test(&file) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        planted.extend(behind(&text, "is_planted(Bug::"));
        if text.contains("feature = \"planted\"") {
            conditional.push(file);
        }
    }
    assert_eq!(planted, declared, "bugs that lie in production code");
    conditional.sort();
    assert_eq!(conditional, CONDITIONAL, "what is compiled with the feature only");
}
