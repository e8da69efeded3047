//! The chapters of the site are all pages, and each chapter is a page.

use std::collections::BTreeSet;
use std::path::Path;

use crate::docs::{files, read, root};

/// The chapters below which the pages of a folder are put.
const FOLDERS: [(&str, &str); 2] = [
    ("errors", "- [Error codes](errors/README.md)"),
    ("adr", "- [Decisions](adr/README.md)"),
];

/// The first heading of a page.
fn title(page: &str) -> String {
    let text = read(page);
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    heading
        .unwrap_or_else(|| panic!("{page} has no heading"))
        .replace('`', "")
}

/// A summary with the pages of the folders below their chapters.
fn filled(summary: &str) -> String {
    let is_generated = |line: &&str| {
        !FOLDERS
            .iter()
            .any(|(folder, _)| line.starts_with("  - ") && line.contains(&format!("]({folder}/")))
    };
    let mut lines: Vec<String> = Vec::new();
    for line in summary.lines().filter(is_generated) {
        lines.push(line.to_owned());
        let Some((folder, _)) = FOLDERS.iter().find(|(_, chapter)| *chapter == line) else {
            continue;
        };
        for path in files(&root().join("docs").join(folder), "md") {
            let name = path.file_name().expect("a name").to_string_lossy();
            if name != "README.md" {
                let title = title(&format!("docs/{folder}/{name}"));
                lines.push(format!("  - [{title}]({folder}/{name})"));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn chapters(summary: &str) -> BTreeSet<String> {
    let targets = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// `UPDATE_SUMMARY=1` puts the pages of errors and decisions in.
#[test]
fn the_summary_of_the_site_has_every_error_and_every_decision() {
    let path = "docs/SUMMARY.md";
    let kept = read(path);
    let summary = filled(&kept);
    if std::env::var_os("UPDATE_SUMMARY").is_some() {
        std::fs::write(root().join(path), &summary).expect("written");
    }
    assert!(
        read(path) == summary,
        "run UPDATE_SUMMARY=1 cargo test --test house site"
    );
}

#[test]
fn every_page_is_a_chapter_of_the_site() {
    let docs = root().join("docs");
    let chapters = chapters(&read("docs/SUMMARY.md"));
    for path in files(&docs, "md") {
        let page = path
            .strip_prefix(&docs)
            .expect("below docs")
            .display()
            .to_string();
        assert!(
            page == "SUMMARY.md" || chapters.contains(&page),
            "docs/SUMMARY.md has no {page}"
        );
    }
    for chapter in &chapters {
        assert!(docs.join(chapter).exists(), "{chapter} is not there");
    }
    // The site copies these from outside of docs, alone or with their folder.
    let script = read("scripts/site.sh");
    let copied: BTreeSet<&str> = script.split([' ', '(', ')', '\n']).collect();
    for outside in chapters.iter().filter_map(|chapter| chapter.strip_prefix("../")) {
        let mut paths = Path::new(outside).ancestors().filter_map(Path::to_str);
        assert!(
            paths.any(|path| copied.contains(path)),
            "scripts/site.sh does not copy {outside}"
        );
    }
}
