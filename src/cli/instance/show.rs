//! `instance show`: an instance for people, with a table for each of its lists.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{NameArguments, judged};
use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::client::Client;
use crate::cli::notes;
use crate::cli::output::{Column, OutputArguments, plain};

const FIELDS: &[Column] = &[
    Column::value("Saga", "/saga"),
    Column::value("Key", "/key"),
    Column::value("Tenant", "/tenant"),
    Column::value("Phase", "/phase").judged(judged),
    Column::value("Machine", "/machine"),
    Column::value("Outcome", "/outcome"),
    Column::told("Failure", failure).whole(),
    Column::time("Started", "/started"),
    Column::time("Updated", "/updated"),
    Column::time("Ended", "/ended"),
    Column::time("Archived", "/archived_at"),
    Column::value("Truncated", "/truncated"),
    Column::value("Inputs left out", "/inputs_left_out"),
    Column::time("Blocked", "/blocked_by/since"),
    Column::told("Blocked by", blocked).whole(),
    Column::value("Definition", "/definition"),
    Column::number("Generation", "/generation"),
    Column::value("State", "/state"),
];
const PENDING: &[Column] = &[
    Column::value("PENDING", "/place"),
    Column::value("WAITS FOR", "/awaited"),
    Column::number("ATTEMPT", "/attempt"),
    Column::number("CALLS", "/calls"),
    Column::value("LAST ERROR", "/error"),
    Column::time("NEXT", "/next"),
    Column::time("DEADLINE", "/deadline"),
    Column::value("IDEMPOTENCY KEY", "/key").whole(),
    Column::time("SINCE", "/since").wide(),
    Column::value("COMMAND", "/command").wide(),
    Column::value("WORKER", "/worker").wide(),
];
const STEPS: &[Column] = &[
    Column::value("STEP", "/name"),
    Column::value("STATUS", "/status"),
    Column::number("ATTEMPT", "/attempt"),
    Column::value("ERROR", "/error"),
    Column::value("COMMAND", "/command_id").wide(),
    Column::value("RESULT", "/result").wide(),
];
const LEDGER: &[Column] = &[
    Column::value("LEDGER", "/step"),
    Column::value("STATUS", "/status"),
    Column::number("ATTEMPT", "/attempt"),
];
const TIMERS: &[Column] = &[Column::value("TIMER", "/name"), Column::time("DUE", "/due")];

pub fn show(name: &NameArguments) -> Result<(), Failure> {
    let client = Client::new(&name.common.server)?;
    let shown = name.get(&client, "")?;
    let output = name.common.output;
    output.shown(&shown, || tell(output, &shown))
}

fn tell(output: OutputArguments, shown: &Value) -> Result<(), Failure> {
    out::line(output.filled_fields(FIELDS, shown))?;
    let list = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    let pending: Vec<Value> = list("pending").iter().map(pending).collect();
    let history = notes::columns("HISTORY");
    for (items, columns) in [
        (pending, PENDING),
        (list("steps"), STEPS),
        (list("ledger"), LEDGER),
        (list("timers"), TIMERS),
        (list("history"), &history[..]),
    ] {
        if !items.is_empty() {
            out::line(format_args!("\n{}", output.filled_table(columns, &items)))?;
        }
    }
    Ok(())
}

/// `declined: the card was declined (step charge)`
fn failure(item: &Value) -> String {
    let failure = &item["failure"];
    let text = |key: &str| failure[key].as_str().filter(|text| !text.is_empty());
    let code = text("code").map(str::to_owned);
    let message = text("message").map(|message| format!(": {message}"));
    let step = text("step").map(|step| format!(" (step {step})"));
    [code, message, step].into_iter().flatten().collect()
}

/// What keeps an instance from going on.
fn blocked(item: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let blocked = &item["blocked_by"];
    let mut parts = Vec::new();
    if let Some(letter) = blocked["dead_letter"].as_object() {
        let told = |name: &str| letter.get(name).map(text).unwrap_or_default();
        let (id, reason, message) = (told("id"), told("reason"), told("message"));
        parts.push(format!("dead letter {id} {reason}: {message}"));
    }
    if let Some(definition) = blocked["definition"].as_str() {
        parts.push(format!("definition {definition} is not loaded"));
    }
    for timer in blocked["overdue"].as_array().into_iter().flatten() {
        parts.push(format!("timer {} is overdue", text(&timer["name"])));
    }
    if let Some(paused) = blocked["paused"].as_object() {
        let told = |name: &str| paused.get(name).map(text).unwrap_or_default();
        parts.push(format!("paused by {:?}: {}", told("by"), told("reason")));
    }
    if let Some(questions) = blocked["questions"].as_u64() {
        parts.push(format!("{questions} stuck step(s)"));
    }
    parts.join("; ")
}

/// One thing that the instance waits for, as a row of a table. A message that does not come in time is a matter of a deadline,
/// all else goes on by itself when it is due.
fn pending(item: &Value) -> Value {
    let calls = &item["calls"];
    let (next, deadline) = if item["waits_for"] == "message" {
        (&Value::Null, &item["due"])
    } else if calls["next"].is_string() {
        (&calls["next"], &item["deadline"])
    } else {
        (&item["due"], &item["deadline"])
    };
    json!({
        "place": place(item),
        "awaited": awaited(item),
        "attempt": item["attempt"],
        "calls": calls["made"],
        "error": error(item),
        "next": next,
        "deadline": deadline,
        "key": item["idempotency_key"],
        "since": item["since"],
        "command": item["command_id"],
        "worker": calls["worker"],
    })
}

/// `charge`, `resize, item 3`, `compensation of charge`
fn place(item: &Value) -> String {
    let mut place = plain(&item["step"]);
    if item["compensates"] == true {
        place = format!("compensation of {place}");
    }
    if let Some(index) = item["item"].as_u64() {
        let _infallible = write!(place, ", item {index}");
    }
    if item["abandoned"] == true {
        place.push_str(" (abandoned)");
    }
    place
}

/// What is awaited, in the words of `instance why`, and what holds the next call back.
fn awaited(item: &Value) -> String {
    let text = |key: &str| item[key].as_str();
    let mut told = match text("waits_for").unwrap_or_default() {
        "effect" => match text("effect") {
            Some(effect) => format!("the result of effect {effect}"),
            None => "the result".to_owned(),
        },
        "command" => {
            let aggregate = text("aggregate").unwrap_or("its aggregate");
            format!("the gateway's verdict on its command to {aggregate}")
        }
        "child" => match (item["child"]["key"].as_str(), item["child"]["saga"].as_str()) {
            (Some(key), Some(saga)) => format!("the end of instance {key} of saga {saga}"),
            _ => "the end of another saga".to_owned(),
        },
        "message" => {
            let messages = item["messages"].as_array().into_iter().flatten();
            messages.map(plain).collect::<Vec<_>>().join(" or ")
        }
        "retry" => "its next attempt".to_owned(),
        "delay" => "its first attempt".to_owned(),
        "operator" => "an operator".to_owned(),
        other => other.to_owned(),
    };
    if let Some(held_by) = item["calls"]["held_by"].as_str() {
        let _infallible = write!(told, ", held by {held_by}");
        if let Some(upstream) = item["calls"]["upstream"].as_str() {
            let _infallible = write!(told, " of {upstream}");
        }
    }
    told
}

/// Class and message of the last call, else the class of the last attempt.
fn error(item: &Value) -> Option<String> {
    let calls = &item["calls"];
    let of_attempt = || item["error"].as_str().map(str::to_owned);
    let error = match calls["error"]["class"].as_str() {
        Some(class) => Some(format!("{class}: {}", plain(&calls["error"]["message"]))),
        None => of_attempt(),
    };
    if calls["outcome_unknown"] != true {
        return error;
    }
    let unknown = "outcome unknown".to_owned();
    Some(error.map_or_else(|| unknown.clone(), |error| format!("{unknown}, {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(columns: &[Column], items: &[Value]) -> String {
        OutputArguments::default().filled_table(columns, items)
    }

    #[test]
    fn a_call_that_is_retried_is_one_line_with_all_that_is_known_of_it() {
        let item = json!({
            "step": "charge", "waits_for": "effect", "effect": "payment-capture", "attempt": 1,
            "command_id": "c-1", "idempotency_key": "01a2184a-c15c-7860-a167-9a7c86fd798a",
            "since": "2025-11-24T16:00:00Z", "deadline": "later",
            "calls": {
                "made": 3, "error": {"class": "transient", "message": "connection refused"},
                "next": "soon", "worker": "w-1", "held_by": "breaker", "upstream": "bank:443",
            },
        });
        assert_eq!(
            pending(&item),
            json!({
                "place": "charge",
                "awaited": "the result of effect payment-capture, held by breaker of bank:443",
                "attempt": 1, "calls": 3, "error": "transient: connection refused",
                "next": "soon", "deadline": "later", "key": "01a2184a-c15c-7860-a167-9a7c86fd798a",
                "since": "2025-11-24T16:00:00Z", "command": "c-1", "worker": "w-1",
            })
        );
        let table = told(PENDING, &[pending(&item)]);
        assert_eq!(table.lines().count(), 2, "{table}");
        for part in [
            "charge",
            "payment-capture",
            "transient: connection refused",
            "soon",
            "later",
            "01a2184a-c15c-7860-a167-9a7c86fd798a",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn a_wait_for_a_signal_has_a_deadline_and_no_columns_of_calls() {
        let item = json!({
            "step": "review", "waits_for": "message", "messages": ["signal go", "event Order.Paid"],
            "attempt": 0, "due": "in time",
        });
        let table = told(PENDING, &[pending(&item)]);
        assert!(table.contains("signal go or event Order.Paid"), "{table}");
        assert!(table.contains("DEADLINE") && table.contains("in time"), "{table}");
        for column in ["NEXT", "CALLS", "LAST ERROR", "IDEMPOTENCY KEY"] {
            assert!(!table.contains(column), "{column}: {table}");
        }
    }

    #[test]
    fn places_and_errors_tell_what_is_undone_abandoned_or_unknown() {
        let item = json!({
            "step": "charge", "compensates": true, "item": 3, "abandoned": true, "waits_for": "operator",
            "error": "timeout", "calls": {"made": 1, "outcome_unknown": true},
        });
        assert_eq!(place(&item), "compensation of charge, item 3 (abandoned)");
        assert_eq!(awaited(&item), "an operator");
        assert_eq!(error(&item).as_deref(), Some("outcome unknown, timeout"));
        assert_eq!(error(&json!({"step": "charge"})), None);
    }

    #[test]
    fn fields_without_a_value_are_left_out_and_a_failure_is_told_whole() {
        let message = ["no"; 60].join(" ");
        let shown = json!({
            "saga": "order", "key": "o-1", "phase": "failed", "generation": 1, "state": {},
            "failure": {"code": "declined", "message": message, "step": "charge", "time": "2025-11-24T16:00:00Z"},
        });
        let told = OutputArguments::default().filled_fields(FIELDS, &shown);
        for title in ["Machine", "Truncated", "Inputs left out", "Blocked", "Ended"] {
            assert!(!told.contains(title), "{title}: {told}");
        }
        assert!(
            told.contains(&format!("declined: {message} (step charge)")),
            "{told}"
        );
        assert_eq!(told.lines().count(), 6, "{told}");
    }
}
