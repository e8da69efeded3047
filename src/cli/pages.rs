//! Lists that come in pages: asked for until as many items are there as wanted. And what an answer lacks.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, escaped};
use crate::app::exit::Failure;
use crate::app::out;

/// Pages that one command asks for. A page may be short, or empty, although the list goes on: it ends after a number of bytes, or of
/// items that were looked at.
const PAGES_MAX: usize = 200;

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Maximum number of items to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Cursor printed by the previous call, to print the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl PageArguments {
    /// The cursor behind which is begun.
    pub fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// The parameters of one page alone.
    pub fn first(&self) -> String {
        let after = self.after.as_deref();
        let after = after.map(|after| format!("&after={}", escaped(after)));
        format!("limit={}{}", self.limit, after.unwrap_or_default())
    }

    /// The items behind the cursor, as one page of `path`: `items`, `next` where the list goes on, and `absent_shards` where
    /// items may be missing, of which a warning tells. `query` has names and values that are not escaped yet.
    pub fn ask(&self, client: &Client, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        let filters = joined(query);
        let mut after = self.after.clone();
        let mut left = usize::from(self.limit);
        let mut read = Read::default();
        for _ in 0..PAGES_MAX {
            let cursor = after.as_deref().map(|after| format!("&after={}", escaped(after)));
            let cursor = cursor.unwrap_or_default();
            let page = client.get(&format!("{path}?limit={left}{filters}{cursor}"))?;
            left = left.saturating_sub(read.add(page));
            after.clone_from(&read.next);
            if left == 0 || after.is_none() {
                break;
            }
        }
        let answer = read.answer();
        warn_of_absent_shards(&answer);
        let saga = query.iter().find(|(name, _)| *name == "saga");
        if let Some((_, saga)) = saga.filter(|_| answer["items"] == json!([])) {
            note_an_unknown_saga(client, saga);
        }
        Ok(answer)
    }
}

/// Says of what was not found because no saga has this name, that it is for that. Those who may not ask for definitions are not told.
pub fn note_an_unknown_saga(client: &Client, saga: &str) {
    let versions = client.get(&format!("/v1/definitions?saga={}", escaped(saga)));
    if versions.is_ok_and(|versions| versions["items"] == json!([])) {
        out::note(format_args!(
            "no saga has the name {saga}; `saga-runner definition list` prints the names"
        ));
    }
}

/// What the pages of one list have said so far.
#[derive(Debug, Default)]
struct Read {
    items: Vec<Value>,
    next: Option<String>,
    /// Those that were absent at any page.
    absent_shards: BTreeSet<u64>,
    archived: bool,
}

impl Read {
    /// Adds a page; the number of its items.
    fn add(&mut self, mut page: Value) -> usize {
        self.next = page["next"].as_str().map(str::to_owned);
        self.absent_shards.extend(absent_shards(&page));
        self.archived |= page["archived"] == true;
        let found = page["items"].as_array_mut().map(std::mem::take);
        let found = found.unwrap_or_default();
        let count = found.len();
        self.items.extend(found);
        count
    }

    /// All of it as one page.
    fn answer(self) -> Value {
        let mut answer = json!({"items": self.items, "next": self.next});
        if !self.absent_shards.is_empty() {
            answer["absent_shards"] = json!(self.absent_shards);
        }
        if self.archived {
            answer["archived"] = json!(true);
        }
        answer
    }
}

fn absent_shards(answer: &Value) -> BTreeSet<u64> {
    let absent = answer["absent_shards"].as_array().into_iter().flatten();
    absent.filter_map(Value::as_u64).collect()
}

/// Warns of an answer that lacks what some shards hold, in every output format. Once for each command.
pub fn warn_of_absent_shards(answer: &Value) {
    if let Some(warning) = warning(&absent_shards(answer)) {
        out::note(warning);
    }
}

fn warning(absent: &BTreeSet<u64>) -> Option<String> {
    let shards = ranges(absent);
    match absent.len() {
        0 => None,
        1 => Some(format!(
            "warning: shard {shards} is absent, not open in the process that answered: what it holds is not in this answer"
        )),
        _ => Some(format!(
            "warning: shards {shards} are absent, not open in the process that answered: what they hold is not in this answer"
        )),
    }
}

/// `0-3, 7`
fn ranges(numbers: &BTreeSet<u64>) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let told = ranges.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Parameters behind a first one.
pub fn joined(query: &[(&str, String)]) -> String {
    let parts = query
        .iter()
        .map(|(name, value)| format!("&{name}={}", escaped(value)));
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_one_answer_with_every_shard_that_was_absent_at_any_of_them() {
        let mut read = Read::default();
        assert_eq!(
            read.add(json!({"items": [1, 2], "next": "a", "absent_shards": [3]})),
            2
        );
        assert_eq!(read.next.as_deref(), Some("a"));
        assert_eq!(read.add(json!({"items": [], "next": "b"})), 0);
        assert_eq!(read.add(json!({"items": [3], "absent_shards": [0, 3]})), 1);
        assert_eq!(
            read.answer(),
            json!({"items": [1, 2, 3], "next": null, "absent_shards": [0, 3]})
        );
    }

    #[test]
    fn an_answer_that_lacks_nothing_says_nothing_of_shards() {
        let mut read = Read::default();
        assert_eq!(read.add(json!({"items": [1], "archived": true})), 1);
        let answer = read.answer();
        assert_eq!(answer, json!({"items": [1], "next": null, "archived": true}));
        assert_eq!(warning(&absent_shards(&answer)), None);
    }

    #[test]
    fn a_warning_names_the_absent_shards_by_ranges() {
        let told = |absent: Value| warning(&absent_shards(&json!({"absent_shards": absent})));
        let one = told(json!([0])).expect("a warning");
        assert!(one.starts_with("warning: shard 0 is absent,"), "{one}");
        assert!(one.ends_with("what it holds is not in this answer"), "{one}");
        let many = told(json!([7, 0, 1, 2, 9, 10])).expect("a warning");
        assert!(
            many.starts_with("warning: shards 0-2, 7, 9-10 are absent,"),
            "{many}"
        );
    }
}
