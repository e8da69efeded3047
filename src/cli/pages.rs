//! Lists that come in pages: asked for until as many items are there as wanted.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, escaped};
use crate::app::exit::Failure;

/// Pages that one command asks for. A page may be short, or empty, although the list goes on: it ends after a number of bytes, or of
/// items that were looked at.
const PAGES_MAX: usize = 200;

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Maximum number to print.
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

    /// The items behind the cursor, as one page of `path`: `items`, and `next` where the list goes on. `query` has names and
    /// values that are not escaped yet.
    pub fn ask(&self, client: &Client, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        let filters = joined(query);
        let mut after = self.after.clone();
        let (mut left, mut items) = (usize::from(self.limit), Vec::new());
        for _ in 0..PAGES_MAX {
            let cursor = after.as_deref().map(|after| format!("&after={}", escaped(after)));
            let cursor = cursor.unwrap_or_default();
            let mut page = client.get(&format!("{path}?limit={left}{filters}{cursor}"))?;
            let found = page["items"]
                .as_array_mut()
                .map(std::mem::take)
                .unwrap_or_default();
            left = left.saturating_sub(found.len());
            items.extend(found);
            after = page["next"].as_str().map(str::to_owned);
            if left == 0 || after.is_none() {
                break;
            }
        }
        Ok(json!({"items": items, "next": after}))
    }
}

/// Parameters behind a first one.
pub fn joined(query: &[(&str, String)]) -> String {
    let parts = query
        .iter()
        .map(|(name, value)| format!("&{name}={}", escaped(value)));
    parts.collect()
}
