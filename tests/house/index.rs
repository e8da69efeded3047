//! The index of the documentation lists every page, and README is a first read.

use std::collections::BTreeSet;

use crate::docs::{files, read, root};

/// Lines of README: two screens.
const README_LINES_MAX: usize = 95;

/// The rows of the tables of pages: file, reader, question.
fn rows(index: &str) -> Vec<[String; 3]> {
    let cells = |row: &str| -> Option<[String; 3]> {
        let cells: Vec<&str> = row
            .strip_prefix("| [")?
            .strip_suffix(" |")?
            .split(" | ")
            .collect();
        let [page, reader, question] = cells[..] else {
            panic!("a row has three cells: {row}");
        };
        let (_, file) = page.strip_suffix(')')?.split_once("](")?;
        Some([file, reader, question].map(str::to_owned))
    };
    index.lines().filter_map(cells).collect()
}

#[test]
fn the_index_lists_each_page_once_with_its_reader_and_its_question() {
    let rows = rows(&read("docs/README.md"));
    let docs = root().join("docs");
    let mut expected: BTreeSet<String> = files(&docs, "md")
        .iter()
        .map(|path| {
            path.strip_prefix(&docs)
                .expect("below docs")
                .display()
                .to_string()
        })
        .filter(|page| !page.contains('/') && !["README.md", "SUMMARY.md"].contains(&page.as_str()))
        .collect();
    expected.extend(["errors/README.md", "adr/README.md", "openapi.json"].map(str::to_owned));
    let listed: Vec<&str> = rows.iter().map(|[page, ..]| page.as_str()).collect();
    let distinct: BTreeSet<String> = listed.iter().map(|page| (*page).to_owned()).collect();
    assert_eq!(distinct, expected);
    assert_eq!(listed.len(), distinct.len(), "a page is listed twice: {listed:?}");
    for [page, reader, question] in &rows {
        assert!(!reader.trim().is_empty(), "{page}: for whom?");
        assert!(
            question.contains('?'),
            "{page}: which question does it answer? {question}"
        );
    }
}

#[test]
fn readme_is_at_most_two_screens_and_leads_to_the_index() {
    let readme = read("README.md");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines; move the rest to docs/");
    assert!(readme.contains("(docs/README.md)"), "README names the index");
}
