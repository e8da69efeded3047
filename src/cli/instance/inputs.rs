//! `instance inputs`: what an instance has received, and what it has sent.

use clap::Args;
use serde_json::{Value, json};

use super::NameArguments;
use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::client::{Client, escaped};
use crate::cli::notes;
use crate::cli::output::plain;
use crate::kernel::ids::TimeMs;

#[derive(Debug, Args)]
pub struct InputsArguments {
    /// Maximum number of inputs to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Cursor printed by the previous call, to print the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    name: NameArguments,
}

pub fn inputs(arguments: &InputsArguments) -> Result<(), Failure> {
    let InputsArguments { limit, after, name } = arguments;
    let client = Client::new(&name.common.server)?;
    let path = format!("{}/inputs", name.path(&client)?);
    let (mut inputs, mut after) = (Vec::new(), after.clone());
    let mut answer = json!({});
    // A page ends after a number of bytes, too.
    while inputs.len() < usize::from(*limit) {
        let left = usize::from(*limit) - inputs.len();
        let cursor = after.as_deref().map(|after| format!("&after={}", escaped(after)));
        answer = client.get(&format!("{path}?limit={left}{}", cursor.unwrap_or_default()))?;
        let page = answer["inputs"].as_array_mut().map(std::mem::take);
        inputs.extend(page.unwrap_or_default());
        after = answer["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    if answer["archived"] == true {
        out::note("the instance is archived: the archive alone has it");
    }
    let told = inputs.iter().map(told).collect::<Vec<_>>().join("\n");
    answer["inputs"] = Value::Array(inputs);
    let output = name.common.output;
    output.shown(&answer, || out::line(told))?;
    if output.is_for_people()
        && let Some(next) = after
    {
        out::note(format_args!("more: --after {next}"));
    }
    Ok(())
}

/// One input in lines: what it was, what it did, what it carried, and what was sent because of it.
fn told(input: &Value) -> String {
    let time = TimeMs(input["time_ms"].as_i64().unwrap_or_default()).rfc3339();
    let (title, data) = received(&input["input"]);
    let mut lines = vec![format!("{time}  {title}  {}", plain(&input["outcome"]))];
    let notes = notes::told(&json!({"outcome": "", "notes": input["notes"]}));
    if !notes.is_empty() {
        lines.push(format!("  {notes}"));
    }
    if let Some(data) = data {
        lines.push(format!("  received {data}"));
    }
    let work = input["work"].as_array().into_iter().flatten();
    lines.extend(work.map(sent));
    lines.join("\n")
}

/// What an input was, and what it carried.
fn received(input: &Value) -> (String, Option<&Value>) {
    let Some((kind, body)) = input.as_object().and_then(|input| input.iter().next()) else {
        return (plain(input), None);
    };
    match kind.as_str() {
        "event" => (
            format!("event {}", plain(&body["event_type"])),
            Some(&body["payload"]),
        ),
        "result" => {
            let effect = body["effect"].as_str();
            let of = effect.map_or_else(
                || "verdict of the gateway".to_owned(),
                |of| format!("result of {of}"),
            );
            (of, Some(&body["outcome"]))
        }
        "timer" => (format!("timer {}", plain(&body["name"])), None),
        "signal" => (format!("signal {}", plain(&body["name"])), Some(&body["data"])),
        "start" => ("start".to_owned(), Some(&body["input"])),
        "callback" => ("callback".to_owned(), Some(&body["outcome"])),
        "missing" => (format!("{} (not kept)", plain(&body["kind"])), None),
        other => (other.replace('_', " "), Some(body)),
    }
}

/// A work item: `sent effect payments-charge (steps.charge, attempt 1, idempotency key 9f…) {"amount":5}`.
fn sent(work: &Value) -> String {
    let text = |key: &str| work[key].as_str().unwrap_or_default();
    let to = work["to"].as_str().map(|to| format!(" to {to}"));
    let payload = work.get("payload").map_or_else(
        || "(larger than storage.keep_work_bytes, not kept)".to_owned(),
        Value::to_string,
    );
    format!(
        "  sent {} {}{} ({}, attempt {}, idempotency key {}) {payload}",
        text("kind"),
        text("name"),
        to.unwrap_or_default(),
        text("path"),
        plain(&work["attempt"]),
        text("idempotency_key"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_told_with_what_it_carried_and_what_was_sent_for_it() {
        let input = json!({
            "time_ms": 1_764_000_000_000_i64,
            "outcome": "applied",
            "input": {"event": {"event_type": "Placed", "payload": {"id": "o-1"}}},
            "notes": [{"step_started": {"step": "charge", "attempt": 1}}],
            "work": [
                {"kind": "effect", "name": "pay", "path": "steps.charge", "attempt": 1, "idempotency_key": "9f", "payload": {"amount": 5}},
                {"kind": "start", "name": "refund", "to": "r-1", "path": "steps.refund", "attempt": 2, "idempotency_key": "a0"},
            ],
        });
        let time = TimeMs(1_764_000_000_000).rfc3339();
        assert_eq!(
            told(&input),
            format!(
                "{time}  event Placed  applied\n  step charge started\n  received {{\"id\":\"o-1\"}}\n  \
                 sent effect pay (steps.charge, attempt 1, idempotency key 9f) {{\"amount\":5}}\n  \
                 sent start refund to r-1 (steps.refund, attempt 2, idempotency key a0) (larger than storage.keep_work_bytes, not kept)"
            )
        );
    }

    #[test]
    fn each_kind_of_input_has_a_title() {
        let title = |input: Value| received(&input).0;
        assert_eq!(
            title(json!({"result": {"effect": "pay", "outcome": {"ok": 1}}})),
            "result of pay"
        );
        assert_eq!(
            title(json!({"result": {"outcome": {"ok": 1}}})),
            "verdict of the gateway"
        );
        assert_eq!(
            title(json!({"missing": {"kind": "timer unpaid"}})),
            "timer unpaid (not kept)"
        );
        assert_eq!(title(json!({"decide_stuck": {}})), "decide stuck");
    }
}
