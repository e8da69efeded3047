//! The pages of a count as one: what is counted by a look at the records comes in pages, which are added up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::app::exit::Failure;
use crate::app::out::Progress;
use crate::cli::client::{Client, escaped};
use crate::cli::pages::joined;

/// Asks for all pages of a count, and adds them up. `query` has names and values that are not escaped yet.
pub fn ask(client: &Client, path: &str, query: &[(&'static str, String)]) -> Result<Value, Failure> {
    let filters = joined(query);
    let (mut sum, mut progress) = (Sum::default(), Progress::new());
    let mut cursor = String::new();
    loop {
        let parameters = format!("{filters}{cursor}");
        let page = client.get(&format!("{path}?{}", parameters.trim_start_matches('&')))?;
        let next = page["next"]
            .as_str()
            .map(|next| format!("&after={}", escaped(next)));
        sum.add(&page);
        let Some(next) = next else { break };
        progress.tell(format_args!(
            "{} instance(s) of {} that were looked at",
            sum.instances,
            sum.looked_at.unwrap_or_default()
        ));
        cursor = next;
    }
    drop(progress);
    Ok(sum.answer())
}

/// What the pages of one count have said so far.
#[derive(Debug, Default)]
struct Sum {
    instances: u64,
    /// By which the rows are counted, and their name in the answer.
    by: Option<Value>,
    rows: Rows,
    looked_at: Option<u64>,
    incomplete: bool,
    absent_shards: BTreeSet<u64>,
}

/// The rows of statuses or groups, by everything in them but their number, in the order in which they came.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Map<String, Value>>,
    numbers: BTreeMap<String, usize>,
}

impl Rows {
    fn add(&mut self, row: &Map<String, Value>) {
        let mut names = row.clone();
        let count = names.remove("instances");
        let count = count.and_then(|count| count.as_u64()).unwrap_or_default();
        let name = Value::Object(names).to_string();
        let known = self.numbers.get(&name).copied();
        let at = known.unwrap_or(self.rows.len());
        if known.is_none() {
            self.numbers.insert(name, at);
            self.rows.push(row.clone());
        } else if let Some(row) = self.rows.get_mut(at) {
            let before = instances(row);
            row.insert("instances".to_owned(), json!(before + count));
        }
    }
}

fn instances(row: &Map<String, Value>) -> u64 {
    row.get("instances").and_then(Value::as_u64).unwrap_or_default()
}

impl Sum {
    fn add(&mut self, page: &Value) {
        self.instances += page["instances"].as_u64().unwrap_or_default();
        if let Some(looked_at) = page["looked_at"].as_u64() {
            *self.looked_at.get_or_insert(0) += looked_at;
        }
        self.incomplete |= page["incomplete"] == true;
        let absent = page["absent_shards"].as_array().into_iter().flatten();
        self.absent_shards.extend(absent.filter_map(Value::as_u64));
        let rows = page["groups"].as_array().or_else(|| page["statuses"].as_array());
        for row in rows.into_iter().flatten().filter_map(Value::as_object) {
            self.rows.add(row);
        }
        if self.by.is_none() {
            self.by = page.get("by").cloned();
        }
    }

    /// All of it as one answer, the largest first.
    fn answer(self) -> Value {
        let mut rows = self.rows.rows;
        rows.sort_by_key(|row| Reverse(instances(row)));
        let mut answer = json!({"instances": self.instances});
        match self.by {
            Some(by) => {
                answer["by"] = by;
                answer["groups"] = json!(rows);
            }
            None => answer["statuses"] = json!(rows),
        }
        if self.incomplete {
            answer["incomplete"] = json!(true);
        }
        if let Some(looked_at) = self.looked_at {
            answer["looked_at"] = json!(looked_at);
        }
        if !self.absent_shards.is_empty() {
            answer["absent_shards"] = json!(self.absent_shards);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed<const N: usize>(pages: [Value; N]) -> Value {
        let mut sum = Sum::default();
        for page in pages {
            sum.add(&page);
        }
        sum.answer()
    }

    #[test]
    fn pages_of_statuses_are_added_up_by_all_that_names_one() {
        let status =
            |saga: &str, instances: u64| json!({"saga": saga, "phase": "running", "instances": instances});
        let told = summed([
            json!({"instances": 3, "statuses": [status("ask", 2), status("lend", 1)], "looked_at": 10, "next": "a"}),
            json!({"instances": 4, "statuses": [status("lend", 4)], "looked_at": 5, "absent_shards": [3]}),
        ]);
        let expected = json!({
            "instances": 7, "statuses": [status("lend", 5), status("ask", 2)], "looked_at": 15, "absent_shards": [3],
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn pages_of_groups_keep_what_they_are_counted_by_and_that_some_are_missing() {
        let group = |value: &str, instances: u64| json!({"value": value, "instances": instances});
        let told = summed([
            json!({"instances": 1, "by": "step", "groups": [group("a", 1)], "incomplete": true, "next": "a"}),
            json!({"instances": 2, "by": "step", "groups": [group("a", 1), group("b", 1)]}),
        ]);
        let expected = json!({
            "instances": 3, "by": "step", "groups": [group("a", 2), group("b", 1)], "incomplete": true,
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn an_answer_from_the_index_stays_as_it_is() {
        let page = json!({"instances": 1, "statuses": [{"saga": "ask", "phase": "failed", "instances": 1}]});
        assert_eq!(summed([page.clone()]), page);
    }
}
