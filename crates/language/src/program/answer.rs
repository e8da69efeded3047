//! What a program answers: the new state, work, and perhaps the end.
//!
//! Reading is strict. A key that nobody knows is a mistake of the program, and it is told with its place, for
//! instance `work[2].effect`.

use crate::expr::write_sorted;
use crate::json::Json;

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

/// Reads an answer whose nesting goes at most `depth_max` levels deep.
///
/// # Errors
/// The place of the first mistake, and what it is.
pub fn read(bytes: &[u8], depth_max: usize) -> Result<Answer, String> {
    let json =
        Json::parse(bytes, depth_max).map_err(|error| format!("the answer cannot be read: {error}"))?;
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
        Some(_) => return Err("work is not a list".to_owned()),
    };
    let complete = match answer.get("complete") {
        None | Some(Json::Bool(false)) => false,
        Some(Json::Bool(true)) => true,
        Some(_) => return Err("complete is neither true nor false".to_owned()),
    };
    let fail = answer.get("fail").map(fail).transpose()?;
    let end = match (complete, fail) {
        (true, Some(_)) => return Err("complete and fail exclude each other".to_owned()),
        (true, None) => Some(End::Complete),
        (false, fail) => fail,
    };
    Ok(Answer {
        state: answer.object("state")?,
        work,
        end,
    })
}

fn fail(json: &Json<'_>) -> Result<End, String> {
    let fail = Object::new(json, "fail".to_owned(), &["code", "message"])?;
    let message = match fail.get("message") {
        None => String::new(),
        Some(Json::Str(text)) if text.len() <= MESSAGE_BYTES_MAX => text.clone().into_owned(),
        Some(_) => {
            return Err(format!(
                "fail.message is not text of at most {MESSAGE_BYTES_MAX} bytes"
            ));
        }
    };
    Ok(End::Fail {
        code: fail.word("code")?,
        message,
    })
}

fn work(json: &Json<'_>, at: &str) -> Result<Work, String> {
    const KINDS: [&str; 5] = ["effect", "command", "publish", "timer", "clear_timer"];
    let mut kinds = KINDS.into_iter().filter(|kind| json.get(kind).is_some());
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        return Err(format!("{at} needs one of the keys {}", KINDS.join(", ")));
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
                return Err(format!(
                    "{at}.timeout_ms means nothing without a name: nobody waits for it"
                ));
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
                after_ms: after_ms.ok_or_else(|| format!("{at} needs the key \"after_ms\""))?,
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
    fn new(json: &'a Json<'j>, at: String, keys: &[&str]) -> Result<Self, String> {
        let Json::Map(members) = json else {
            return Err(format!("{at} is not an object"));
        };
        match members.iter().find(|(key, _)| !keys.contains(&key.as_ref())) {
            Some((key, _)) => Err(format!(
                "{at} has the key \"{}\", known are {}",
                key.escape_debug(),
                keys.join(", ")
            )),
            None => Ok(Self { json, at }),
        }
    }

    fn get(&self, key: &str) -> Option<&'a Json<'j>> {
        self.json.get(key)
    }

    fn required(&self, key: &str) -> Result<&'a Json<'j>, String> {
        self.get(key)
            .ok_or_else(|| format!("{} needs the key \"{key}\"", self.at))
    }

    /// Text without blanks.
    fn word(&self, key: &str) -> Result<String, String> {
        match self.required(key)? {
            Json::Str(text)
                if (1..=WORD_BYTES_MAX).contains(&text.len())
                    && !text.contains(|c: char| c.is_control() || c.is_whitespace()) =>
            {
                Ok(text.clone().into_owned())
            }
            _ => Err(format!(
                "{}.{key} is not text without blanks of 1 to {WORD_BYTES_MAX} bytes",
                self.at
            )),
        }
    }

    /// The program's own name for work or a timer.
    fn name(&self, key: &str) -> Result<String, String> {
        let name = self.word(key)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.chars().all(allowed) {
            return Ok(name);
        }
        Err(format!(
            "{}.{key} \"{}\" is not a name: letters, digits, '_', '-' and '.'",
            self.at,
            name.escape_debug()
        ))
    }

    fn object(&self, key: &str) -> Result<Vec<u8>, String> {
        let json = self.required(key)?;
        if !matches!(json, Json::Map(_)) {
            return Err(format!("{}.{key} is not an object", self.at));
        }
        let mut out = Vec::with_capacity(256);
        write_sorted(json, &mut out);
        Ok(out)
    }

    /// An object, or none, which is an empty one.
    fn payload(&self, key: &str) -> Result<Vec<u8>, String> {
        match self.get(key) {
            None => Ok(b"{}".to_vec()),
            Some(_) => self.object(key),
        }
    }

    /// Whole milliseconds.
    fn span(&self, key: &str, min: i64) -> Result<Option<i64>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Int(number)) if *number >= min => Ok(Some(*number)),
            Some(_) => Err(format!("{}.{key} is not a whole number from {min} on", self.at)),
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
            (r#"{"state":{},"complete":1}"#, "neither true nor false"),
            (r#"{"state":{"a":[[[[1]]]]}}"#, "nested deeper than 5"),
        ] {
            let said = read(text.as_bytes(), 5).expect_err(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
