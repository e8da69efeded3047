//! Boolean parameters: a function has at most one, and a call says by a name what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::architecture::{is_test, production, root, rust_files};

/// Arguments beside which a bare `true` or `false` says nothing.
const ARGUMENTS_MIN: usize = 3;

/// Functions that are called with a bare `true` or `false` among so many arguments. This list may only become shorter.
const BARE: &[&str] = &[
    "crates/language/src/definition/texts.rs::string",
    "crates/language/src/expr/eval.rs::logic",
    "crates/language/src/expr/loops.rs::quantify",
    "crates/language/src/expr/types/check.rs::logic",
    "crates/language/src/expr/types/check/members.rs::fault_at",
    "crates/partition/src/machine/catch_up.rs::take",
    "crates/partition/src/machine/inbox.rs::proceed",
    "crates/partition/src/storage/listed.rs::expect",
    "crates/runtime/src/worker/result.rs::error",
    "src/app/jobs/send.rs::ask",
    "src/app/migration.rs::misfits",
    "src/demo/orders.rs::start",
    // The binding of MDBX declares it.
    "src/mdbx/raw.rs::mdbx_drop",
    "src/offline/branches.rs::step",
    "src/offline/world/time.rs::fire_one",
    "src/offline/world/transactions.rs::finish",
    "src/offline/world/transactions.rs::fire_one",
];

/// The production modules by their path from the root, without unit tests and comments.
fn modules() -> BTreeMap<String, String> {
    let files = ["src", "crates"].map(|folder| rust_files(&root().join(folder)));
    let mut modules = BTreeMap::new();
    for path in files.into_iter().flatten() {
        let name = path.strip_prefix(root()).expect("below the root");
        let name = name.display().to_string();
        if !is_test(&name) && !name.contains("/benches/") {
            let text = fs::read_to_string(&path).expect("readable");
            modules.insert(name, production(&text).join("\n"));
        }
    }
    assert!(modules.len() > 300, "{} modules were found", modules.len());
    modules
}

/// Whether the word before a parenthesis is declared there and not called.
fn is_declared(before: &str, name: &str) -> bool {
    before[..before.len() - name.len()].trim_end().ends_with("fn")
}

/// Everything in a text of the form `name(a, b)`: whether it is a declaration, the name, and the parts between commas that are
/// in no further parentheses.
fn lists(text: &str) -> Vec<(bool, String, Vec<String>)> {
    let mut found = Vec::new();
    for (open, _) in text.match_indices('(') {
        let before = &text[..open];
        // As in `fn f<'a>(`.
        let generics = before.ends_with('>').then(|| before.rfind('<')).flatten();
        let before = generics.map_or(before, |at| &before[..at]);
        let word = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
        let name = &before[word.map_or(0, |at| at + 1)..];
        let is_word = name.starts_with(|c: char| c.is_lowercase());
        if !is_word {
            continue;
        }
        let (mut depth, mut parts, mut part) = (0_usize, Vec::new(), String::new());
        for c in text[open + 1..].chars() {
            match c {
                ')' if depth == 0 => break,
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(std::mem::take(&mut part));
                    continue;
                }
                _ => {}
            }
            part.push(c);
        }
        parts.push(part);
        let parts = parts.iter().map(|part| part.trim().to_owned());
        let parts = parts.filter(|part| !part.is_empty()).collect();
        found.push((is_declared(before, name), name.to_owned(), parts));
    }
    found
}

fn is_bare(argument: &str) -> bool {
    ["true", "false"].contains(&argument)
}

#[test]
fn a_function_has_at_most_one_boolean_parameter() {
    let mut several = Vec::new();
    let mut with_one = 0;
    for (module, text) in modules() {
        for (is_declared, name, parts) in lists(&text) {
            let booleans = parts.iter().filter(|part| part.ends_with(": bool")).count();
            with_one += usize::from(is_declared && booleans == 1);
            if is_declared && booleans > 1 {
                several.push(format!("{module}::{name}"));
            }
        }
    }
    assert!(with_one > 50, "{with_one} functions with one were found");
    assert_eq!(several, [""; 0], "an enum says which of them is which");
}

#[test]
fn no_bare_boolean_stands_among_several_arguments() {
    let mut bare = BTreeSet::new();
    for (module, text) in modules() {
        for (is_declared, name, parts) in lists(&text) {
            if !is_declared && parts.len() >= ARGUMENTS_MIN && parts.iter().any(|part| is_bare(part)) {
                bare.insert(format!("{module}::{name}"));
            }
        }
    }
    let listed: BTreeSet<String> = BARE.iter().map(|name| (*name).to_owned()).collect();
    let strays: Vec<_> = bare.difference(&listed).collect();
    assert!(strays.is_empty(), "name the choice with an enum: {strays:#?}");
    let stale: Vec<_> = listed.difference(&bare).collect();
    assert!(stale.is_empty(), "delete these rows: {stale:#?}");
}

#[test]
fn parameters_and_arguments_are_told_apart() {
    let text = "fn f<'a>(a: &'a str, b: bool, c: bool) {}\ng(h(1, 2), [3, 4], true);";
    let of = |name: &str| {
        let found = lists(text).into_iter().find(|(_, found, _)| found == name);
        found.map(|(is_declared, _, parts)| (is_declared, parts.len()))
    };
    assert_eq!(of("f"), Some((true, 3)));
    assert_eq!(of("g"), Some((false, 3)));
    assert_eq!(of("h"), Some((false, 2)));
}
