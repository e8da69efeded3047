//! `definition`: the versions of sagas that a running cluster keeps.

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use super::client::{Client, ServerArguments};
use super::exit::Failure;

#[derive(Debug, Subcommand)]
pub enum DefinitionCommand {
    /// List the versions that are active or still in use.
    List(ListArguments),
    /// Print the text of one version.
    Show(ShowArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Only this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ShowArguments {
    /// The hash; its first six digits are enough where they name one version.
    hash: String,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn definition(command: &DefinitionCommand) -> Result<(), Failure> {
    match command {
        DefinitionCommand::List(arguments) => list(arguments),
        DefinitionCommand::Show(arguments) => show(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    // A name is one token, so it needs no escapes; what is no name finds nothing.
    let query = arguments.saga.as_ref().map(|saga| format!("?saga={saga}"));
    let path = format!("/v1/definitions{}", query.unwrap_or_default());
    let answer = Client::new(&arguments.server)?.get(&path)?;
    if arguments.json {
        println!("{answer:#}");
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["SAGA", "HASH", "STATE", "LIVE", "ENDED"]);
    for item in answer["items"].as_array().into_iter().flatten() {
        let state = match (item["active"].as_bool(), item["loaded"].as_bool()) {
            (Some(true), _) => "active",
            (_, Some(true)) => "archived",
            _ => "unreadable",
        };
        table.add_row([
            text(&item["saga"]),
            text(&item["hash"]),
            state.to_owned(),
            text(&item["live"]),
            text(&item["ended"]),
        ]);
    }
    for column in [3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    Ok(())
}

fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let path = format!("/v1/definitions/{}", arguments.hash);
    let answer = Client::new(&arguments.server)?.get(&path)?;
    eprintln!(
        "{} {}, {} live and {} ended instance(s)",
        text(&answer["saga"]),
        text(&answer["hash"]),
        text(&answer["live"]),
        text(&answer["ended"])
    );
    print!("{}", text(&answer["source"]));
    Ok(())
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
