//! `consumers list` and `consumers delete`.

use clap::{Args, Subcommand};
use serde_json::json;

use super::confirm::ConfirmArguments;
use super::manifest::ManifestArguments;
use super::output::{Column, Mood, OutputArguments, listed};
use crate::app;
use crate::app::consumers::Line;
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum ConsumersCommand {
    /// List worker consumers and orphans; exits with 1 if any is misconfigured.
    List(ListArguments),
    /// Delete an orphaned consumer that no worker reads from.
    Delete(DeleteArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// Name of the consumer.
    name: String,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    manifest: ManifestArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub fn consumers(command: ConsumersCommand) -> Result<(), Failure> {
    match command {
        ConsumersCommand::List(arguments) => list(arguments),
        ConsumersCommand::Delete(arguments) => {
            let name = arguments.name;
            let consequence = format!("consumer {name} and what it remembers of its position are deleted");
            arguments.confirm.agreed(&consequence, &name)?;
            app::consumers::delete(&arguments.manifest.load()?, &name)?;
            let deleted = json!({"name": name, "deleted": true});
            arguments
                .output
                .shown(&deleted, || out::line(format_args!("{name} deleted")))
        }
    }
}

fn list(arguments: ListArguments) -> Result<(), Failure> {
    let lines = app::consumers::report(&arguments.manifest.load()?)?;
    let all: Vec<_> = lines.iter().map(as_json).collect();
    arguments.output.list(COLUMNS, &listed(all))?;
    let differences: usize = lines.iter().map(|line| line.differences.len()).sum();
    if differences > 0 {
        return Err(Failure::new(
            exit::FINDINGS,
            format!("{differences} difference(s) that prevent workers from receiving commands"),
        ));
    }
    Ok(())
}

const COLUMNS: &[Column] = &[
    Column::value("NAME", "/name"),
    Column::told("DELIVERS", |item| match item["delivers"].as_str() {
        Some(what) => what.to_owned(),
        None => "orphaned".to_owned(),
    })
    .judged(|what| match what {
        "orphaned" => Mood::Waiting,
        _ => Mood::Plain,
    }),
    Column::number("PENDING", "/pending"),
    Column::number("UNACKNOWLEDGED", "/unacknowledged"),
    Column::value("EXISTS", "/exists"),
    Column::value("DIFFERENCES", "/differences").judged(|differences| match differences {
        "-" => Mood::Plain,
        _ => Mood::Bad,
    }),
    Column::value("BOUND", "/bound").wide(),
    Column::value("EXTERNAL", "/external").wide(),
    Column::value("FILTERS", "/filters").wide(),
];

fn as_json(line: &Line) -> serde_json::Value {
    json!({
        "name": line.name,
        "delivers": line.delivers,
        "unused": line.delivers.is_none(),
        "filters": line.filters,
        "bound": line.bound,
        "external": line.external,
        "exists": line.state.is_some(),
        "pending": line.state.map(|state| state.pending),
        "unacknowledged": line.state.map(|state| state.unacknowledged),
        "differences": line.differences,
    })
}
