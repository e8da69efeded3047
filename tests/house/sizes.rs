//! How large a production module and a function may become, and which are larger today.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::architecture::{is_test, root, rust_files, without_tests};

/// Lines of a module without its unit tests.
const MODULE_LINES_MAX: usize = 500;
/// Lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 80;
/// A row is deleted once its module or function has become shorter than the limit by this share: one that is about as long
/// as it may be would need its row again with the next line.
const CLEARLY_SHORTER: usize = 10;

/// One kind of thing, whose cases are worth reading beside each other.
const CASES: &str = "one list of cases";

/// Functions above the limit, with the reason. This list may only become shorter.
const FUNCTIONS: &[(&str, &str)] = &[
    ("crates/kernel/src/recorded.rs::input", CASES),
    ("crates/kernel/src/recorded.rs::of", CASES),
    ("crates/language/src/definition/canonical.rs::bytes", CASES),
    ("crates/language/src/expr/functions/mod.rs::call", CASES),
    ("crates/language/src/schema/canonical.rs::rules", CASES),
    ("crates/runtime/src/telemetry/metrics.rs::new", CASES),
];

/// The production modules by their path from the root, without their unit tests.
fn modules() -> BTreeMap<String, String> {
    let files = ["src", "crates"].map(|folder| rust_files(&root().join(folder)));
    let mut modules = BTreeMap::new();
    for path in files.into_iter().flatten() {
        let name = path.strip_prefix(root()).expect("below the root");
        let name = name.display().to_string();
        if !is_test(&name) && !name.contains("/benches/") {
            let text = fs::read_to_string(&path).expect("readable");
            modules.insert(name, without_tests(&text).join("\n"));
        }
    }
    assert!(modules.len() > 300, "{} modules were found", modules.len());
    modules
}

/// The functions of a text that rustfmt has written, with their lines; one within another counts for the outer one.
fn functions(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String, usize)> = None;
    for (at, line) in text.lines().enumerate() {
        if let Some((name, margin, start)) = &open {
            let rest = line.strip_prefix(margin.as_str()).unwrap_or_default();
            if rest == "}" {
                found.push((name.clone(), at - start + 1));
            }
            // A declaration has no body.
            if rest == "}" || rest.starts_with(')') && rest.ends_with(';') {
                open = None;
            }
            continue;
        }
        let indented = line.trim_start();
        let is_code = !indented.starts_with("//") && !line.ends_with(';') && !line.ends_with('}');
        let name = indented.split_once("fn ").filter(|(before, _)| {
            let words = ["pub", "const", "async", "unsafe"];
            // As in `pub(in crate::api)`.
            let is_visibility = |word: &str| word.starts_with("pub(") || word.starts_with("crate::");
            before
                .split_whitespace()
                .all(|word| words.contains(&word) || is_visibility(word))
        });
        if let Some((_, rest)) = name.filter(|_| is_code) {
            let name = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_');
            let margin = &line[..line.len() - indented.len()];
            open = Some((name.collect(), margin.to_owned(), at));
        }
    }
    found
}

/// Compares lengths, by name, with the limit and with the rows of those that may exceed it. A row of something that does not
/// exist is let pass, so that a module can move in one change and its row in another.
fn held_to(lengths: &BTreeMap<String, usize>, max: usize, listed: &[(&str, &str)], what: &str) {
    let known: BTreeSet<&str> = listed.iter().map(|(name, _)| *name).collect();
    assert_eq!(known.len(), listed.len(), "each {what} is listed once");
    let is_listed = |name: &str| known.contains(name);
    let strays: Vec<_> = lengths
        .iter()
        .filter(|(name, lines)| **lines > max && !is_listed(name))
        .collect();
    assert!(strays.is_empty(), "too long, split the {what}: {strays:#?}");
    let stale: Vec<_> = lengths
        .iter()
        .filter(|(name, lines)| **lines < max - max / CLEARLY_SHORTER && is_listed(name))
        .collect();
    assert!(
        stale.is_empty(),
        "short enough, delete the row of the {what}: {stale:#?}"
    );
}

#[test]
fn no_module_is_longer_than_five_hundred_lines() {
    let lengths: BTreeMap<String, usize> = modules()
        .into_iter()
        .map(|(name, text)| (name, text.lines().count()))
        .collect();
    held_to(&lengths, MODULE_LINES_MAX, &[], "module");
}

#[test]
fn no_function_is_longer_than_eighty_lines_without_a_reason() {
    let mut lengths = BTreeMap::new();
    for (module, text) in modules() {
        for (name, lines) in functions(&text) {
            // Of several with one name in a module, the longest counts.
            let longest: &mut usize = lengths.entry(format!("{module}::{name}")).or_default();
            *longest = lines.max(*longest);
        }
    }
    held_to(&lengths, FUNCTION_LINES_MAX, FUNCTIONS, "function");
}

#[test]
fn functions_are_measured_from_their_signature_to_their_closing_brace() {
    let text = "impl X {\n    pub(in crate::x) async fn a(\n        b: u8,\n    ) -> u8 {\n        fn c() {\n        }\n        b\n    }\n}\n\n/// A fn that is none.\nfn d() {}\n\ntrait E {\n    fn f(\n        &self,\n    );\n}\n\nfn g() {\n}\n";
    assert_eq!(functions(text), [("a".to_owned(), 7), ("g".to_owned(), 2)]);
}
