//! The pages of decisions: each has a status and a date at its head, and the table of all pages says the same.

use std::collections::BTreeMap;
use std::fs;

use jiff::civil::Date;

use crate::architecture::root;

/// The head of a page.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    file: String,
    title: String,
    status: String,
    date: String,
}

impl Head {
    /// The head of the page `file`, with the number of the page.
    fn read(file: &str, text: &str) -> Result<(u32, Self), String> {
        let number = file
            .get(..4)
            .filter(|_| file[4..].starts_with('-'))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| format!("{file}: the name does not begin with four digits and a hyphen"))?;
        let lines: Vec<&str> = text.lines().take(6).collect();
        let [title, "", status, "", date, ""] = lines[..] else {
            return Err(format!(
                "{file}: a page begins with title, status and date, each with an empty line behind it"
            ));
        };
        let after = |line: &str, prefix: &str| {
            line.strip_prefix(prefix)
                .map(str::to_owned)
                .ok_or_else(|| format!("{file}: {line:?} does not begin with {prefix:?}"))
        };
        let head = Self {
            file: file.to_owned(),
            title: after(title, &format!("# {number}. "))?,
            status: after(status, "Status: ")?,
            date: after(date, "Date: ")?,
        };
        let is_day = head
            .date
            .parse::<Date>()
            .is_ok_and(|day| day.to_string() == head.date);
        if !is_day {
            return Err(format!("{file}: {:?} is not a date like 2026-11-21", head.date));
        }
        Ok((number, head))
    }

    /// The pages that the status leads to, by number and file.
    fn successors(&self) -> Result<Vec<(u32, &str)>, String> {
        if self.status == "accepted" {
            return Ok(Vec::new());
        }
        let links = ["superseded by ", "amended by "]
            .into_iter()
            .find_map(|word| self.status.strip_prefix(word))
            .ok_or_else(|| format!("{}: {:?} is not a status", self.file, self.status))?;
        links
            .split(", ")
            .flat_map(|part| part.split(" and "))
            .map(|text| {
                link(text).ok_or_else(|| format!("{}: {text:?} is not a link to a decision", self.file))
            })
            .collect()
    }

    fn row(&self, number: u32) -> String {
        format!(
            "| {number} | [{}]({}) | {} | {} |",
            self.title, self.file, self.status, self.date
        )
    }
}

/// The number and the file of a link like `[ADR 7](0007-x.md)`.
fn link(text: &str) -> Option<(u32, &str)> {
    let (number, file) = text.strip_prefix("[ADR ")?.strip_suffix(')')?.split_once("](")?;
    Some((number.parse().ok()?, file))
}

/// What is wrong with the statuses of pages, all of it.
fn wrong_statuses(heads: &BTreeMap<u32, Head>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, head) in heads {
        match head.successors() {
            Ok(successors) => wrong.extend(
                successors
                    .into_iter()
                    .filter(|(other, file)| {
                        other == number || heads.get(other).is_none_or(|head| head.file != *file)
                    })
                    .map(|(other, file)| format!("{}: ADR {other} is not {file}", head.file)),
            ),
            Err(error) => wrong.push(error),
        }
    }
    wrong
}

/// The heads of all pages, by number.
fn heads() -> BTreeMap<u32, Head> {
    let folder = root().join("docs/adr");
    let mut heads = BTreeMap::new();
    for entry in fs::read_dir(&folder).expect("the folder of the decisions") {
        let name = entry.expect("readable").file_name();
        let file = name.to_str().expect("a plain name");
        if file == "README.md" {
            continue;
        }
        let text = fs::read_to_string(folder.join(file)).expect("readable");
        let (number, head) = Head::read(file, &text).unwrap_or_else(|wrong| panic!("{wrong}"));
        if let Some(other) = heads.insert(number, head) {
            panic!("{file} and {} have the same number", other.file);
        }
    }
    assert!(heads.len() > 80, "only {} decisions were found", heads.len());
    heads
}

#[test]
fn the_status_of_each_decision_is_known_and_leads_to_decisions() {
    assert_eq!(wrong_statuses(&heads()), [""; 0]);
}

#[test]
fn the_table_of_decisions_is_what_the_pages_say() {
    let table = fs::read_to_string(root().join("docs/adr/README.md")).expect("readable");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .collect();
    let expected: Vec<String> = heads().iter().map(|(number, head)| head.row(*number)).collect();
    assert_eq!(rows, expected);
}

#[test]
fn heads_that_are_not_as_they_should_be_are_refused() {
    let head = |file: &str, title: &str, status: &str, date: &str| {
        let text = format!("{title}\n\n{status}\n\n{date}\n\nWhy.\n");
        Head::read(file, &text).map(|(number, head)| BTreeMap::from([(number, head)]))
    };
    let good = |status: &str| {
        let status = format!("Status: {status}");
        head("0007-x.md", "# 7. X", &status, "Date: 2026-11-21").expect("a head")
    };
    assert_eq!(wrong_statuses(&good("accepted")), [""; 0]);
    for status in [
        "draft",
        "accepted on Monday",
        "amended by ADR 8",
        "amended by [ADR 8](0008-y.md)",
        "superseded by [ADR 7](0007-x.md)",
        "amended by [ADR x](0007-x.md)",
    ] {
        assert_eq!(wrong_statuses(&good(status)).len(), 1, "{status}");
    }
    for (file, title, status, date) in [
        ("7-x.md", "# 7. X", "Status: accepted", "Date: 2026-11-21"),
        ("0007-x.md", "# 8. X", "Status: accepted", "Date: 2026-11-21"),
        ("0007-x.md", "# 7. X", "State: accepted", "Date: 2026-11-21"),
        ("0007-x.md", "# 7. X", "Status: accepted", "Date: 2026-02-30"),
        ("0007-x.md", "# 7. X", "Status: accepted", "Date: 20261121"),
        (
            "0007-x.md",
            "# 7. X\nMore",
            "Status: accepted",
            "Date: 2026-11-21",
        ),
    ] {
        assert!(
            head(file, title, status, date).is_err(),
            "{file}, {title}, {status}, {date}"
        );
    }
}

#[test]
fn a_status_may_lead_to_several_decisions() {
    let head = |number: u32, status: &str| {
        let text = format!("# {number}. X\n\nStatus: {status}\n\nDate: 2026-11-21\n\nWhy.\n");
        Head::read(&format!("{number:04}-x.md"), &text).expect("a head")
    };
    let heads = BTreeMap::from([
        head(
            1,
            "amended by [ADR 2](0002-x.md), [ADR 3](0003-x.md) and [ADR 4](0004-x.md)",
        ),
        head(2, "superseded by [ADR 4](0004-x.md)"),
        head(3, "accepted"),
        head(4, "accepted"),
    ]);
    assert_eq!(wrong_statuses(&heads), [""; 0]);
}
