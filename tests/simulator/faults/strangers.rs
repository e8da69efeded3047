//! Results from workers that do not keep to the protocol: late and doubled ones, others than the first, of commands that nobody
//! has given.

use saga_runner::ports::broker::StoredMessage;
use serde_json::{Value, json};

use crate::run::{RESULTS, Simulation};

/// By this header judges know what a stranger has published.
pub const MARK: &str = "Stranger";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stranger {
    /// The same result once more.
    Doubles,
    /// Another one for the same command.
    Contradicts,
    /// A result for a command that there never was.
    WasNeverAsked,
}

impl Simulation {
    pub fn meddle(&self, stranger: Stranger, back: usize) {
        let mut results = self.server.kept(RESULTS);
        results.retain(|message| message.subject.contains(".effect_result.") && !is_of_stranger(message));
        let Some(mut message) = results.into_iter().rev().nth(back) else {
            return;
        };
        let mut body: Value = serde_json::from_slice(&message.payload).expect("a result is JSON");
        match stranger {
            Stranger::Doubles => {}
            Stranger::Contradicts => {
                let was_done = body["result_type"] == "Succeeded";
                body["result_type"] = json!(if was_done { "Failed" } else { "Succeeded" });
                body["payload"] = if was_done {
                    json!({"class": "declined", "message": "declined"})
                } else {
                    json!({"receipt": "r-stranger"})
                };
            }
            Stranger::WasNeverAsked => {
                let (before, id) = message.subject.rsplit_once('.').expect("tokens");
                let other: String = id.chars().rev().map(|c| if c == '-' { c } else { 'a' }).collect();
                let other: String = id.chars().take(20).chain(other.chars().skip(20)).collect();
                body = serde_json::from_str(&body.to_string().replace(id, &other)).expect("JSON");
                message.subject = format!("{before}.{other}");
            }
        }
        message.headers.push((MARK.to_owned(), "1".to_owned()));
        message.payload = body.to_string().into_bytes().into();
        self.world
            .note(format_args!("a stranger {stranger:?} on {}", message.subject));
        self.server.append_message(RESULTS, message);
    }
}

pub fn is_of_stranger(message: &StoredMessage) -> bool {
    message.headers.iter().any(|(name, _)| name == MARK)
}
