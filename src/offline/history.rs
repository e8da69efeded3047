//! Recorded histories: read, replayed against a definition, turned into a case.

mod as_case;
mod replay;

use serde::Deserialize;

pub use as_case::case;
pub use replay::{Divergence, replay};

use crate::kernel::recorded::Recorded;

const DEAD: &str = "dead";
const DEFERRED: &str = "deferred";

/// Inputs of one instance, oldest first.
pub type History = Vec<Recorded>;

/// What the API answers.
#[derive(Debug, Deserialize)]
struct Answer {
    inputs: Vec<Recorded>,
    #[serde(default)]
    next: Option<String>,
}

/// Reads one answer of the API, or one recorded input on each line, and sorts them by instance.
///
/// # Errors
/// A sentence with the line that cannot be read.
pub fn read(text: &str) -> Result<Vec<History>, String> {
    let inputs = match serde_json::from_str::<Answer>(text) {
        Ok(Answer { next: Some(_), .. }) => {
            return Err(
                "it is one page of a longer history: take all pages, as `replay --from URL` does".to_owned(),
            );
        }
        Ok(answer) => answer.inputs,
        Err(_) => text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(at, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1)))
            .collect::<Result<Vec<Recorded>, String>>()?,
    };
    let mut histories: Vec<History> = Vec::new();
    let name = |input: &Recorded| {
        (
            input.tenant.clone(),
            input.saga.clone(),
            input.key.clone(),
            input.generation,
        )
    };
    for input in inputs {
        match histories
            .iter_mut()
            .find(|history| name(&history[0]) == name(&input))
        {
            Some(history) => history.push(input),
            None => histories.push(vec![input]),
        }
    }
    Ok(histories)
}
