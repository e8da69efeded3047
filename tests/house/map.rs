//! The tables of ARCHITECTURE.md: every file that they name exists, every item is in its file, and every test is a test.

use std::fs;
use std::path::Path;

use crate::architecture::{LAYERS, root};
use crate::questions::is_test_of;

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md")
}

/// The text under a heading, up to the next one.
fn section(title: &str) -> String {
    section_of(&page(), title)
}

fn section_of(page: &str, title: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("\n## {title}\n"))
        .unwrap_or_else(|| panic!("no section {title}"));
    rest.split("\n## ").next().unwrap_or(rest).to_owned()
}

/// The cells of the rows of a section's table, without its head.
fn rows(title: &str) -> Vec<Vec<String>> {
    rows_below(&section(title))
}

fn rows_below(section: &str) -> Vec<Vec<String>> {
    let lines = section.lines().filter(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let line = line.trim_start_matches("| ").trim_end_matches(" |");
        line.split(" | ").map(str::to_owned).collect()
    };
    lines.skip(1).map(cells).collect()
}

/// What stands between backticks and is a file or an item of one.
fn places(text: &str) -> Vec<(String, Option<String>)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_place = |name: &&str| {
        let path = name.split("::").next().unwrap_or(name);
        let is_ours = ["src/", "crates/", "tests/"]
            .iter()
            .any(|folder| path.starts_with(folder));
        is_ours
            && Path::new(path)
                .extension()
                .is_some_and(|extension| extension == "rs")
    };
    let place = |name: &str| match name.split_once("::") {
        Some((path, item)) => (path.to_owned(), Some(item.to_owned())),
        None => (name.to_owned(), None),
    };
    quoted.filter(is_place).map(place).collect()
}

/// The tests that a text names; it fails where one is none.
fn tests(text: &str) -> Vec<String> {
    let named = places(text)
        .into_iter()
        .filter_map(|(path, item)| Some((path, item?)));
    named
        .map(|(path, item)| {
            assert!(is_test_of(&path, &item), "there is no test {path}::{item}");
            item
        })
        .collect()
}

#[test]
fn every_item_that_the_architecture_names_is_in_the_file_that_it_names() {
    let places = places(&page());
    assert!(places.len() > 100, "{} places", places.len());
    for (path, item) in places {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        assert!(!text.is_empty(), "{path} does not exist");
        if let Some(item) = item {
            let forms = [
                format!("fn {item}("),
                format!("fn {item}<"),
                format!("struct {item}"),
                format!("enum {item}"),
            ];
            assert!(
                forms.iter().any(|form| text.contains(form)),
                "{path} has no {item}"
            );
        }
    }
}

#[test]
fn the_table_of_layers_is_the_one_that_the_imports_are_held_to() {
    let expected: Vec<Vec<String>> = LAYERS
        .iter()
        .map(|(layer, allowed)| {
            let allowed: Vec<String> = allowed.iter().map(|name| format!("`{name}`")).collect();
            let allowed = if allowed.is_empty() {
                "nothing".to_owned()
            } else {
                allowed.join(", ")
            };
            vec![format!("`{layer}`"), allowed]
        })
        .collect();
    assert_eq!(rows("Layers"), expected);
}

#[test]
fn each_invariant_names_its_exception_and_the_test_that_holds_it() {
    let rows = rows("Invariants");
    assert!(rows.len() > 20, "{} invariants", rows.len());
    for row in rows {
        let [_, invariant, exception, held_by] = &row[..] else {
            panic!("four cells: {row:?}");
        };
        assert!(!exception.trim().is_empty(), "{invariant}: write \"none\"");
        assert!(!tests(held_by).is_empty(), "no test: {invariant}");
    }
    assert!(
        !page().contains("**Invariant:**"),
        "an invariant stands in the table, with its exception"
    );
}

/// A text without emphasis, links and line ends.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        plain.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let plain = plain.replace("**", "").replace('[', "");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The sentences of the README's guarantees.
fn guarantees() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, rest) = readme
        .split_once("\n## What it guarantees\n")
        .expect("the guarantees");
    let text = rest.split("\n## ").next().unwrap_or(rest);
    let bullets = text.split("\n- ").skip(1).map(plain);
    let sentences = bullets.flat_map(|bullet| {
        let sentences = bullet.trim_end_matches('.').split(". ");
        let parts = sentences.flat_map(|sentence| sentence.split("; "));
        parts.map(str::to_owned).collect::<Vec<_>>()
    });
    sentences.collect()
}

#[test]
fn each_promise_of_the_readme_is_in_the_table_with_its_code_and_its_test() {
    let rows = rows("Promises");
    for row in &rows {
        let [promise, code, shown_by] = &row[..] else {
            panic!("three cells: {row:?}");
        };
        assert!(!places(code).is_empty(), "no code: {promise}");
        assert!(!tests(shown_by).is_empty(), "no test: {promise}");
    }
    let promises: Vec<String> = rows.iter().map(|row| plain(&row[0])).collect();
    let guarantees = guarantees();
    assert!(guarantees.len() > 8, "{guarantees:?}");
    for sentence in &guarantees {
        let is_there = promises.iter().any(|promise| promise.contains(sentence.as_str()));
        assert!(is_there, "not in the table of promises: {sentence}");
    }
    for promise in promises {
        let is_given = guarantees
            .iter()
            .any(|sentence| promise.contains(sentence.as_str()));
        assert!(is_given, "the README does not promise: {promise}");
    }
}

#[test]
fn every_row_of_what_survives_what_names_a_test() {
    let rows = rows("What survives what");
    assert!(rows.len() > 10, "{} rows", rows.len());
    for row in rows {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(!tests(&row[2]).is_empty(), "no test: {}", row[0]);
    }
}

#[test]
fn a_newcomers_question_is_answered_with_file_and_test() {
    let section = section("Questions of a newcomer");
    let answers: Vec<&str> = section.split("\n**").skip(1).collect();
    assert!(answers.len() >= 10, "{} questions", answers.len());
    for answer in answers {
        let (answer, shown) = answer
            .split_once("\nShown by ")
            .unwrap_or_else(|| panic!("no test: {answer}"));
        assert!(
            !places(answer).is_empty() || answer.contains("grammar/"),
            "no file: {answer}"
        );
        assert!(!tests(shown).is_empty(), "no test: {answer}");
    }
}

#[test]
fn each_question_of_a_security_review_names_a_test_or_says_what_is_missing() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    let rows = rows_below(&section_of(&page, "What a review asks"));
    assert!(rows.len() >= 18, "{} questions", rows.len());
    for row in rows {
        let [question, _, shown_by] = &row[..] else {
            panic!("three cells: {row:?}");
        };
        let is_told = !tests(shown_by).is_empty() || shown_by.starts_with("no test: ");
        assert!(is_told, "no test: {question}");
    }
}

#[test]
fn the_way_of_one_order_names_a_file_at_each_stop() {
    let section = section("One order, file by file");
    let stops = section
        .split('\n')
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    assert!(stops.clone().count() >= 8);
    let files = places(&section).len();
    assert!(files >= 20, "{files} files");
}
