//! `shard pending|release|discard`: what an adopted shard holds back, and decisions about it.

use clap::Args;
use serde_json::{Value, json};

use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::account::{AccountArguments, Audit, UnlessDryRun};
use crate::cli::client::{Client, ServerArguments};
use crate::cli::confirm::ConfirmArguments;
use crate::cli::output::{Column, OutputArguments, text};
use crate::cli::pages::PageArguments;
use crate::kernel::ids::CommandId;

#[derive(Debug, Args)]
pub struct PendingArguments {
    /// Number of the shard.
    shard: u16,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ReleaseArguments {
    /// Number of the shard.
    shard: u16,
    #[command(flatten)]
    decision: DecisionArguments,
}

#[derive(Debug, Args)]
pub struct DiscardArguments {
    /// Number of the shard.
    shard: u16,
    /// Ids of commands, as `shard pending` prints them.
    #[arg(long = "command", value_name = "ID", num_args = 1.., value_delimiter = ',', value_parser = command_id, required_unless_present = "all")]
    commands: Vec<String>,
    /// All held work that may have been executed already.
    #[arg(long, conflicts_with = "commands")]
    all: bool,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    decision: DecisionArguments,
}

#[derive(Debug, Args)]
struct DecisionArguments {
    #[command(flatten)]
    account: AccountArguments<Audit, UnlessDryRun>,
    /// Print what would be done, without changes.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

fn command_id(text: &str) -> Result<String, &'static str> {
    let read = serde_json::from_value::<CommandId>(json!(text));
    read.map(|id| id.to_string())
        .map_err(|_| "not the id of a command, as `shard pending` prints it")
}

const SAGAS: &[Column] = &[
    Column::value("TENANT", "/tenant"),
    Column::value("SAGA", "/saga"),
    Column::number("EFFECTS", "/effects"),
    Column::number("COMMANDS", "/commands"),
    Column::number("FACTS", "/facts"),
    Column::number("STARTS", "/starts"),
    Column::number("MESSAGES", "/messages"),
    Column::number("TIMERS", "/timers"),
    Column::number("DUE", "/timers_due"),
];
const ROWS: &[Column] = &[
    Column::value("ID", "/id"),
    Column::value("KIND", "/kind"),
    Column::value("NAME", "/name"),
    Column::value("TENANT", "/tenant"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("PLACE", "/path"),
    Column::time("SINCE", "/since"),
    Column::told("BEFORE", before).whole(),
];
const DECISIONS: &[Column] = &[
    Column::time("TIME", "/time"),
    Column::value("DECISION", "/what"),
    Column::value("DETAIL", "/detail").whole(),
    Column::value("REASON", "/reason"),
];

/// What the owner before may have done with a row.
fn before(row: &Value) -> String {
    let told = match (row["may_be_done"] == true, row["awaited"] == true) {
        (true, true) => "may have been executed, a step waits for it",
        (true, false) => "may have been sent",
        (false, _) => "not sent",
    };
    told.to_owned()
}

pub fn pending(arguments: &PendingArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let (shard, page) = (arguments.shard, arguments.page.first());
    let answer = client.get(&format!("/admin/shards/{shard}/pending?{page}"))?;
    let output = arguments.output;
    output.shown(&answer, || {
        out::line(standing(shard, &answer))?;
        for (list, columns) in [("sagas", SAGAS), ("items", ROWS), ("decisions", DECISIONS)] {
            table(output, columns, &answer[list])?;
        }
        if let Some(next) = answer["next"].as_str() {
            out::note(format_args!("more: --after {next}"));
        }
        Ok(())
    })
}

/// Whether the shard sends, and since when it does not.
fn standing(shard: u16, answer: &Value) -> String {
    let adopted = &answer["adopted"];
    let (since, lost) = (text(&adopted["since"]), &adopted["given_up"]);
    let since = format!("adopted {since}, epoch {lost} lost");
    match text(&answer["state"]) {
        "reading" => format!("shard {shard} reads its streams to their ends and sends nothing ({since})"),
        "held" => format!(
            "shard {shard} holds {} row(s) until it is released ({since})",
            answer["rows"]
        ),
        "released" => format!(
            "shard {shard} sends ({since}, released {})",
            text(&adopted["released"])
        ),
        _ => format!("shard {shard} sends: it was not adopted"),
    }
}

pub fn release(arguments: &ReleaseArguments) -> Result<(), Failure> {
    let decision = &arguments.decision;
    let answer = decide(arguments.shard, "release", decision.account.body(), decision)?;
    told(arguments.shard, decision, &answer, |done| {
        format!("{} row(s) {done}released", answer["rows"])
    })
}

pub fn discard(arguments: &DiscardArguments) -> Result<(), Failure> {
    let (shard, decision) = (arguments.shard, &arguments.decision);
    if !decision.dry_run {
        let consequence =
            format!("discarded work of shard {shard} is never sent; its outcome becomes unknown");
        arguments.confirm.agreed(&consequence, &shard.to_string())?;
    }
    let mut body = decision.account.body();
    body["commands"] = json!(arguments.commands);
    body["all"] = json!(arguments.all);
    let answer = decide(shard, "discard", body, decision)?;
    told(shard, decision, &answer, |done| {
        format!(
            "{} row(s) {done}discarded, {} of them with an unknown outcome",
            answer["rows"], answer["unknown"]
        )
    })
}

/// Sends a decision: `body` says about what, and by whom.
fn decide(shard: u16, verb: &str, mut body: Value, decision: &DecisionArguments) -> Result<Value, Failure> {
    body["dry_run"] = json!(decision.dry_run);
    Client::new(&decision.server)?.post_json(&format!("/admin/shards/{shard}/{verb}"), &body)
}

/// Prints the outcome of a decision.
fn told(
    shard: u16,
    decision: &DecisionArguments,
    answer: &Value,
    tell: impl FnOnce(&str) -> String,
) -> Result<(), Failure> {
    let output = decision.output;
    output.shown(answer, || {
        let done = if answer["done"] == true { "" } else { "would be " };
        out::line(format_args!("shard {shard}: {}", tell(done)))?;
        table(output, ROWS, &answer["items"])?;
        if answer["sends"] == false && answer["done"] == true {
            out::note(format_args!(
                "shard {shard} still sends nothing: `saga-runner shard release {shard} --reason TEXT`"
            ));
        }
        Ok(())
    })
}

/// Prints a list below what stands above it, if it has items.
fn table(output: OutputArguments, columns: &[Column], items: &Value) -> Result<(), Failure> {
    match items.as_array() {
        Some(items) if !items.is_empty() => {
            out::line(format_args!("\n{}", output.filled_table(columns, items)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_command_is_checked_before_a_runner_is_asked() {
        let id = "019b76da-a801-770e-9ef3-59eae5edc404";
        assert_eq!(command_id(id).as_deref(), Ok(id));
        for wrong in ["", "effect", "019b76da", "o-1"] {
            assert!(command_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_row_says_what_may_have_been_done_with_it() {
        let row = json!({
            "id": "c-1", "kind": "effect", "name": "pay", "tenant": "acme", "saga": "order", "key": "o-1",
            "path": "steps.pay", "since": "2026-11-26T03:00:00.000Z", "may_be_done": true, "awaited": true,
        });
        let table = OutputArguments::default().filled_table(ROWS, &[row]);
        for cell in [
            "pay",
            "acme",
            "o-1",
            "may have been executed, a step waits for it",
        ] {
            assert!(table.contains(cell), "{cell}: {table}");
        }
        let adopted = json!({"state": "held", "rows": 1, "adopted": {"since": "t", "given_up": 3}});
        assert_eq!(
            standing(2, &adopted),
            "shard 2 holds 1 row(s) until it is released (adopted t, epoch 3 lost)"
        );
    }
}
