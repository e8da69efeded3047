//! The catalogue of bad inputs: each row names tests that there are.

use crate::docs::read;
use crate::questions::is_test_of;

#[test]
fn each_bad_input_of_the_catalogue_names_tests_that_there_are() {
    let page = read("docs/bad-inputs.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Input |"))
        .collect();
    assert!(rows.len() >= 57, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [input, result, shown_by] = cells[..] else {
            panic!("a row has three cells: {row}");
        };
        assert!(!input.trim().is_empty() && !result.trim().is_empty(), "{row}");
        let mut tests = 0;
        for name in shown_by.split('`').skip(1).step_by(2) {
            let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("no test: {name}"));
            assert!(is_test_of(file, test), "{input}: there is no test {name}");
            tests += 1;
        }
        assert!(tests > 0, "no test: {input}");
    }
}
