//! The worked processes of the documents: whole files that validate without a warning, and cases that hold on the real
//! binary, whatever goes wrong. The files below one heading of the second order are a project.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::doc_examples::{document, shipped_effects, yaml_blocks};

/// Where a block belongs that is a whole file, in a project.
pub fn place(block: &str) -> Option<String> {
    let value = |key: &str| block.lines().find_map(|line| line.strip_prefix(key));
    if block.lines().any(|line| line == "cases:") {
        return value("saga: ").map(|saga| format!("sagas/{saga}.test.yaml"));
    }
    let folder = match value("kind: ")? {
        "Saga" => "sagas",
        _ => "effects",
    };
    value("name: ").map(|name| format!("{folder}/{name}.yaml"))
}

/// The files of one chapter, by their places. Of a file that comes twice the later version counts.
type Files = BTreeMap<String, String>;

/// Each chapter that has files, by its heading. A version that another one follows makes a project of its own.
fn chapters(page: &str) -> Vec<(String, Files)> {
    let mut found = Vec::new();
    for chapter in document(page).split("\n## ").skip(1) {
        let title = chapter.lines().next().unwrap_or_default().to_owned();
        let mut files = Files::new();
        for block in yaml_blocks(chapter) {
            let Some(place) = place(&block) else {
                continue;
            };
            if files.contains_key(&place) {
                found.push((format!("{title}, before"), files.clone()));
            }
            files.insert(place, block);
        }
        if !files.is_empty() {
            found.push((title, files));
        }
    }
    found
}

/// Writes a project, with the shipped effects where it has none of its own.
fn write(files: &Files) -> TempDir {
    let project = tempfile::tempdir().expect("a folder");
    for folder in ["sagas", "effects"] {
        fs::create_dir(project.path().join(folder)).expect("a folder");
    }
    for path in shipped_effects() {
        let name = path.file_name().expect("a file");
        fs::copy(&path, project.path().join("effects").join(name)).expect("copied");
    }
    for (place, text) in files {
        fs::write(project.path().join(place), text).expect("written");
    }
    project
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .env_clear()
        .stdin(Stdio::null())
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("the binary starts")
}

/// What is wrong with a project: its findings, or the cases that do not hold.
fn faults(files: &Files) -> Option<String> {
    let project = write(files);
    let has_cases = files.keys().any(|place| place.ends_with(".test.yaml"));
    let mut told = vec![run(project.path(), &["validate", ".", "--deny-warnings"])];
    if has_cases {
        told.push(run(project.path(), &["test", "sagas", "--chaos"]));
    }
    let failed = told.into_iter().find(|output| !output.status.success())?;
    let text = [failed.stdout, failed.stderr].concat();
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn assert_played(page: &str) {
    let chapters = chapters(page);
    let has_cases = |files: &Files| files.keys().any(|place| place.ends_with(".test.yaml"));
    assert!(
        chapters.iter().any(|(_, files)| has_cases(files)),
        "{page} has no cases"
    );
    for (title, files) in chapters {
        if let Some(faults) = faults(&files) {
            panic!("{page}, {title}:\n{faults}");
        }
    }
}

#[test]
fn the_processes_of_the_guide_are_whole_and_their_cases_hold() {
    let page = document("docs/guide.md");
    for block in yaml_blocks(&page) {
        assert!(place(&block).is_some(), "no whole file:\n{block}");
    }
    for (title, files) in chapters("docs/guide.md") {
        let has = |end: &str| files.keys().any(|place| place.ends_with(end));
        assert!(
            has(".test.yaml") || title.ends_with(", before"),
            "{title} has no cases"
        );
    }
    assert_played("docs/guide.md");
}

#[test]
fn the_processes_of_the_pages_for_those_who_come_from_elsewhere_are_played() {
    for page in [
        "docs/from-temporal.md",
        "docs/from-step-functions.md",
        "docs/from-masstransit.md",
        "docs/from-serverless-workflow.md",
    ] {
        assert_played(page);
    }
}

#[test]
fn a_worked_process_that_does_not_do_what_its_cases_say_is_found() {
    let (_, mut files) = chapters("docs/guide.md").swap_remove(0);
    let cases = files
        .get_mut("sagas/purchase.test.yaml")
        .expect("the first saga has cases");
    *cases = cases.replace("failure: declined", "failure: refused");
    let told = faults(&files).expect("a finding");
    assert!(told.contains("FAILED purchase: a declined card"), "{told}");
}
