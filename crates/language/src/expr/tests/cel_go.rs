//! The extensions of CEL give what cel-go gives, by a table that it has written (`cel_go/table.tsv`).

use super::super::types::{Env, FaultKind};
use super::*;

const TABLE: &str = include_str!("cel_go/table.tsv");
/// Lines without which the table was not read.
const LINES_MIN: usize = 1_500;

/// Why what is given differs from cel-go's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excuse {
    /// Here an integer against a double is an error.
    MixedNumbers,
    /// Here an empty text is found nowhere behind the end, as in later versions of cel-go.
    EmptyText,
    /// Here what `cel.bind` binds is evaluated even where nothing reads it.
    Unused,
}

fn excuse(text: &str, ours: &Result<String, String>) -> Option<Excuse> {
    match ours {
        Err(message) if message.contains("an integer and a double") => Some(Excuse::MixedNumbers),
        Err(message) if message.contains("a double and an integer") => Some(Excuse::MixedNumbers),
        _ if text.contains("ndexOf('', ") => Some(Excuse::EmptyText),
        _ if text.starts_with("cel.bind(x, 1 / 0,") => Some(Excuse::Unused),
        _ => None,
    }
}

fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').expect("an expression and what it gives"))
}

#[test]
fn extensions_give_what_cel_go_gives() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (text, theirs) in lines() {
        seen += 1;
        let ours = run(text);
        let same = match (&ours, theirs) {
            (ours, "error") => ours.is_err(),
            (Ok(ours), theirs) => {
                let mut sorted = Vec::new();
                write_sorted(&parse(theirs), &mut sorted);
                ours.as_bytes() == sorted
            }
            _ => false,
        };
        if !same && excuse(text, &ours).is_none() {
            wrong.push(format!("{text}\n ours   {ours:?}\n theirs {theirs}"));
        }
    }
    assert!(seen >= LINES_MIN, "{seen} lines");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the loader refuses about an expression fails when it is evaluated, and the type that it tells is the one of the value.
#[test]
fn types_of_extensions_are_those_of_their_values() {
    let mut wrong = Vec::new();
    for (text, _) in lines() {
        let Ok(value) = run(text) else { continue };
        let expr = Expr::compile(text, &ROOTS).expect(text);
        let mut faults = Vec::new();
        let told = expr.type_in(&Env::default(), &mut faults);
        faults.retain(|fault| fault.kind == FaultKind::Overload);
        let given = types::Type::of_json(&parse(&value));
        // An instant is a text in its value and something more in its type.
        let fits = given.fits(&told).is_ok() || told.fits(&given).is_ok();
        if !faults.is_empty() || !fits {
            wrong.push(format!("{text} gives {value}, told {told:?}, {faults:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
