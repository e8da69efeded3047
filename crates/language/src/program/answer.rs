//! What a program answers: the new state, work, and perhaps the end.
//!
//! Reading is strict. An unknown key is a mistake of the program, and it is told with its place, for
//! instance `work[2].effect`.

use crate::expr::write_sorted;
use crate::json::{Json, JsonError};

/// Longest name, type or code, in bytes.
const WORD_BYTES_MAX: usize = 128;
/// Longest message of a failure, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// An answer, in the program's own order.
#[derive(Debug, PartialEq)]
pub struct Answer {
    /// A JSON object, keys sorted.
    pub state: Vec<u8>,
    pub work: Vec<Work>,
    pub end: Option<End>,
}

/// How the program wants the instance to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Complete,
    Fail { code: String, message: String },
}

/// One thing that the program asks for. Payloads are JSON objects, keys sorted.
#[derive(Debug, PartialEq)]
pub enum Work {
    Effect {
        /// Under which the result comes back.
        name: String,
        effect: String,
        with: Vec<u8>,
        timeout_ms: Option<i64>,
    },
    Command {
        /// `None`: nobody waits for the verdict.
        name: Option<String>,
        aggregate_type: String,
        aggregate_id: String,
        command_type: String,
        payload: Vec<u8>,
        timeout_ms: Option<i64>,
    },
    Publish {
        fact_type: String,
        payload: Vec<u8>,
    },
    SetTimer {
        name: String,
        after_ms: i64,
    },
    ClearTimer {
        name: String,
    },
}

/// The keys of which work has exactly one.
const KINDS: [&str; 5] = ["effect", "command", "publish", "timer", "clear_timer"];

/// What is wrong with an answer, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("the answer cannot be read: {0}")]
    Json(#[from] JsonError),
    #[error("{at} is not {wanted}")]
    IsNot { at: String, wanted: String },
    #[error("{at} needs the key \"{key}\"")]
    Lacks { at: String, key: String },
    #[error("{at} needs one of the keys {}", KINDS.join(", "))]
    Kind { at: String },
    #[error("{at} has the key \"{}\", known are {known}", key.escape_debug())]
    UnknownKey { at: String, key: String, known: String },
    #[error("{at} \"{}\" is not a name: letters, digits, '_', '-' and '.'", name.escape_debug())]
    Name { at: String, name: String },
    #[error("complete and fail exclude each other")]
    CompleteAndFail,
    #[error("{at}.timeout_ms needs a name: without one nothing waits for the outcome")]
    TimeoutWithoutName { at: String },
}

impl AnswerError {
    fn is_not(at: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::IsNot {
            at: at.into(),
            wanted: wanted.into(),
        }
    }

    fn lacks(at: &str, key: &str) -> Self {
        Self::Lacks {
            at: at.to_owned(),
            key: key.to_owned(),
        }
    }
}

/// Reads an answer whose nesting goes at most `depth_max` levels deep.
///
/// # Errors
/// [`AnswerError`] for the first mistake.
pub fn read(bytes: &[u8], depth_max: usize) -> Result<Answer, AnswerError> {
    let json = Json::parse(bytes, depth_max)?;
    let answer = Object::new(
        &json,
        "the answer".to_owned(),
        &["state", "work", "complete", "fail"],
    )?;
    let work = match answer.get("work") {
        None => Vec::new(),
        Some(Json::List(items)) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| work(item, &format!("work[{index}]")))
                .collect::<Result<_, _>>()?
        }
        Some(_) => return Err(AnswerError::is_not("work", "a list")),
    };
    let complete = match answer.get("complete") {
        None | Some(Json::Bool(false)) => false,
        Some(Json::Bool(true)) => true,
        Some(_) => return Err(AnswerError::is_not("complete", "true or false")),
    };
    let fail = answer.get("fail").map(fail).transpose()?;
    let end = match (complete, fail) {
        (true, Some(_)) => return Err(AnswerError::CompleteAndFail),
        (true, None) => Some(End::Complete),
        (false, fail) => fail,
    };
    Ok(Answer {
        state: answer.object("state")?,
        work,
        end,
    })
}

fn fail(json: &Json<'_>) -> Result<End, AnswerError> {
    let fail = Object::new(json, "fail".to_owned(), &["code", "message"])?;
    let message = match fail.get("message") {
        None => String::new(),
        Some(Json::Str(text)) if text.len() <= MESSAGE_BYTES_MAX => text.clone().into_owned(),
        Some(_) => {
            let wanted = format!("text of at most {MESSAGE_BYTES_MAX} bytes");
            return Err(AnswerError::is_not("fail.message", wanted));
        }
    };
    Ok(End::Fail {
        code: fail.word("code")?,
        message,
    })
}

fn work(json: &Json<'_>, at: &str) -> Result<Work, AnswerError> {
    let mut kinds = KINDS.into_iter().filter(|kind| json.get(kind).is_some());
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        let at = at.to_owned();
        return Err(AnswerError::Kind { at });
    };
    let object = |keys| Object::new(json, at.to_owned(), keys);
    match kind {
        "effect" => {
            let item = object(&["effect", "name", "with", "timeout_ms"])?;
            Ok(Work::Effect {
                name: item.name("name")?,
                effect: item.word("effect")?,
                with: item.payload("with")?,
                timeout_ms: item.span("timeout_ms", 1)?,
            })
        }
        "command" => {
            let item = object(&["command", "name", "timeout_ms"])?;
            let keys = &["aggregate", "id", "type", "payload"];
            let command = Object::new(item.required("command")?, format!("{at}.command"), keys)?;
            let name = item.get("name").map(|_| item.name("name")).transpose()?;
            let timeout_ms = item.span("timeout_ms", 1)?;
            if name.is_none() && timeout_ms.is_some() {
                let at = at.to_owned();
                return Err(AnswerError::TimeoutWithoutName { at });
            }
            Ok(Work::Command {
                name,
                aggregate_type: command.word("aggregate")?,
                aggregate_id: command.word("id")?,
                command_type: command.word("type")?,
                payload: command.payload("payload")?,
                timeout_ms,
            })
        }
        "publish" => {
            let item = object(&["publish"])?;
            let fact = Object::new(
                item.required("publish")?,
                format!("{at}.publish"),
                &["type", "payload"],
            )?;
            Ok(Work::Publish {
                fact_type: fact.word("type")?,
                payload: fact.payload("payload")?,
            })
        }
        "timer" => {
            let item = object(&["timer", "after_ms"])?;
            let after_ms = item.span("after_ms", 0)?;
            Ok(Work::SetTimer {
                name: item.name("timer")?,
                after_ms: after_ms.ok_or_else(|| AnswerError::lacks(at, "after_ms"))?,
            })
        }
        _ => Ok(Work::ClearTimer {
            name: object(&["clear_timer"])?.name("clear_timer")?,
        }),
    }
}

/// A JSON object of which every key is known.
struct Object<'a, 'j> {
    json: &'a Json<'j>,
    at: String,
}

impl<'a, 'j> Object<'a, 'j> {
    fn new(json: &'a Json<'j>, at: String, keys: &[&str]) -> Result<Self, AnswerError> {
        let Json::Map(members) = json else {
            return Err(AnswerError::is_not(at, "an object"));
        };
        match members.iter().find(|(key, _)| !keys.contains(&key.as_ref())) {
            Some((key, _)) => Err(AnswerError::UnknownKey {
                at,
                key: key.clone().into_owned(),
                known: keys.join(", "),
            }),
            None => Ok(Self { json, at }),
        }
    }

    fn is_not(&self, key: &str, wanted: impl Into<String>) -> AnswerError {
        AnswerError::is_not(format!("{}.{key}", self.at), wanted)
    }

    fn get(&self, key: &str) -> Option<&'a Json<'j>> {
        self.json.get(key)
    }

    fn required(&self, key: &str) -> Result<&'a Json<'j>, AnswerError> {
        self.get(key).ok_or_else(|| AnswerError::lacks(&self.at, key))
    }

    /// Text without blanks.
    fn word(&self, key: &str) -> Result<String, AnswerError> {
        match self.required(key)? {
            Json::Str(text)
                if (1..=WORD_BYTES_MAX).contains(&text.len())
                    && !text.contains(|c: char| c.is_control() || c.is_whitespace()) =>
            {
                Ok(text.clone().into_owned())
            }
            _ => {
                let wanted = format!("text without blanks of 1 to {WORD_BYTES_MAX} bytes");
                Err(self.is_not(key, wanted))
            }
        }
    }

    /// The program's own name for work or a timer.
    fn name(&self, key: &str) -> Result<String, AnswerError> {
        let name = self.word(key)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.chars().all(allowed) {
            return Ok(name);
        }
        let at = format!("{}.{key}", self.at);
        Err(AnswerError::Name { at, name })
    }

    fn object(&self, key: &str) -> Result<Vec<u8>, AnswerError> {
        let json = self.required(key)?;
        if !matches!(json, Json::Map(_)) {
            return Err(self.is_not(key, "an object"));
        }
        let mut out = Vec::with_capacity(256);
        write_sorted(json, &mut out);
        Ok(out)
    }

    /// An object, or none, which is an empty one.
    fn payload(&self, key: &str) -> Result<Vec<u8>, AnswerError> {
        match self.get(key) {
            None => Ok(b"{}".to_vec()),
            Some(_) => self.object(key),
        }
    }

    /// Whole milliseconds.
    fn span(&self, key: &str, min: i64) -> Result<Option<i64>, AnswerError> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Int(number)) if *number >= min => Ok(Some(*number)),
            Some(_) => Err(self.is_not(key, format!("a whole number from {min} on"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_in_its_order_with_keys_sorted() {
        let text = br#"{"state":{"b":1,"a":2},"work":[
            {"effect":"pay","name":"charge","with":{"z":1,"y":2},"timeout_ms":5},
            {"command":{"aggregate":"Order","id":"o-1","type":"Order.Cancel"},"name":"cancel"},
            {"publish":{"type":"order.done","payload":{"n":1}}},
            {"timer":"unpaid","after_ms":0},{"clear_timer":"unpaid"}],"fail":{"code":"x"}}"#;
        let answer = read(text, 16).expect("an answer");
        assert_eq!(answer.state, br#"{"a":2,"b":1}"#);
        assert_eq!(answer.work.len(), 5);
        assert_eq!(
            answer.work[0],
            Work::Effect {
                name: "charge".to_owned(),
                effect: "pay".to_owned(),
                with: br#"{"y":2,"z":1}"#.to_vec(),
                timeout_ms: Some(5),
            }
        );
        let code = "x".to_owned();
        assert_eq!(
            answer.end,
            Some(End::Fail {
                code,
                message: String::new()
            })
        );
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        for (text, expected) in [
            ("", "cannot be read: payload is empty"),
            ("[]", "the answer is not an object"),
            ("{}", "the answer needs the key \"state\""),
            (r#"{"state":[]}"#, "the answer.state is not an object"),
            (
                r#"{"state":{},"stat":1}"#,
                "has the key \"stat\", known are state",
            ),
            (r#"{"state":{},"work":{}}"#, "work is not a list"),
            (
                r#"{"state":{},"work":[{}]}"#,
                "work[0] needs one of the keys effect",
            ),
            (
                r#"{"state":{},"work":[{"effect":"a","timer":"b"}]}"#,
                "work[0] needs one of",
            ),
            (
                r#"{"state":{},"work":[{"effect":"a"}]}"#,
                "work[0] needs the key \"name\"",
            ),
            (
                r#"{"state":{},"work":[{"effect":"a","name":"b:c"}]}"#,
                "\"b:c\" is not a name",
            ),
            (
                r#"{"state":{},"work":[{"effect":"a","name":"b","with":1}]}"#,
                "work[0].with is not an object",
            ),
            (
                r#"{"state":{},"work":[{"effect":"a","name":"b","timeout_ms":0}]}"#,
                "whole number from 1",
            ),
            (
                r#"{"state":{},"work":[{"timer":"a","after_ms":1.5}]}"#,
                "work[0].after_ms is not a whole",
            ),
            (
                r#"{"state":{},"work":[{"timer":"a"}]}"#,
                "work[0] needs the key \"after_ms\"",
            ),
            (
                r#"{"state":{},"work":[{"publish":{"type":"a b"}}]}"#,
                "work[0].publish.type is not text",
            ),
            (
                r#"{"state":{},"work":[{"command":{"aggregate":"A"}}]}"#,
                "work[0].command needs the key \"id\"",
            ),
            (
                r#"{"state":{},"complete":true,"fail":{"code":"x"}}"#,
                "exclude each other",
            ),
            (r#"{"state":{},"complete":1}"#, "complete is not true or false"),
            (r#"{"state":{"a":[[[[1]]]]}}"#, "nested deeper than 5"),
        ] {
            let said = read(text.as_bytes(), 5).expect_err(text).to_string();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
