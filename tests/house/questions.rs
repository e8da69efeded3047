//! Questions that users ask: each answer names tests that there are.

use std::fs;

use crate::architecture::root;

#[test]
fn each_answer_to_what_happens_when_names_tests_that_there_are() {
    let text = fs::read_to_string(root().join("docs/what-happens-when.md")).expect("readable");
    let answers: Vec<&str> = text.split("\n**… ").skip(1).collect();
    assert!(answers.len() >= 40, "{} questions", answers.len());
    for answer in answers {
        let question = answer.lines().next().unwrap_or_default();
        let named: Vec<(&str, &str)> = answer
            .lines()
            .filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`')?.split_once("::"))
            .collect();
        assert!(!named.is_empty(), "no test: {question}");
        for (file, test) in named {
            assert!(
                is_test_of(file, test),
                "{question}: there is no test {file}::{test}"
            );
        }
    }
}

/// Whether a file, named from the root, has that test.
pub fn is_test_of(file: &str, test: &str) -> bool {
    let code = fs::read_to_string(root().join(file)).unwrap_or_default();
    let at = code.find(&format!("fn {test}("));
    at.is_some_and(|at| has_mark(&code[..at]))
}

/// Whether the item that begins behind this text is marked as a test.
fn has_mark(before: &str) -> bool {
    let marks = before.rsplit("\n\n").next().unwrap_or_default();
    marks.contains("#[test]") || marks.contains("test(") || marks.contains("::test]")
}
