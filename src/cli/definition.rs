//! `definition`: the versions of sagas that a running cluster keeps.

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use super::client::{Client, ServerArguments, escaped};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum DefinitionCommand {
    /// List the versions of sagas that are active or still in use.
    List(ListArguments),
    /// Print the source of one version.
    Show(ShowArguments),
    /// Reload the definitions of a running process, and print what changed, or the errors.
    Reload(ReloadArguments),
    /// Migrate the running instances of a saga to its active version, or to another one.
    #[command(
        after_help = "Exits with 1 if an instance cannot be migrated. Example: check first, then migrate:\n  \
        saga-runner definition migrate order --dry-run\n  \
        saga-runner definition migrate order\n\n\
        Undo it:\n  \
        saga-runner definition migrate order --undo"
    )]
    Migrate(MigrateArguments),
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
    /// Hash of the version; its first six digits suffice if they are unique.
    hash: String,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ReloadArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct MigrateArguments {
    /// Name of the saga.
    saga: String,
    /// Hash of the version to migrate to, or with --undo from; default: the active version.
    #[arg(long, value_name = "HASH")]
    to: Option<String>,
    /// Migrate instances that were migrated to the version back to where each came from.
    #[arg(long)]
    undo: bool,
    /// Print what would happen to every live instance, without changes.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn definition(command: &DefinitionCommand) -> Result<(), Failure> {
    match command {
        DefinitionCommand::List(arguments) => list(arguments),
        DefinitionCommand::Show(arguments) => show(arguments),
        DefinitionCommand::Reload(arguments) => reload(arguments),
        DefinitionCommand::Migrate(arguments) => migrate(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let query = arguments.saga.as_ref();
    let query = query.map(|saga| format!("?saga={}", escaped(saga)));
    let path = format!("/v1/definitions{}", query.unwrap_or_default());
    let answer = Client::new(&arguments.server)?.get(&path)?;
    if arguments.json {
        return out::line(format_args!("{answer:#}"));
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
    out::line(table)
}

fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let path = format!("/v1/definitions/{}", escaped(&arguments.hash));
    let answer = Client::new(&arguments.server)?.get(&path)?;
    out::note(format_args!(
        "{} {}, {} live and {} ended instance(s)",
        text(&answer["saga"]),
        text(&answer["hash"]),
        text(&answer["live"]),
        text(&answer["ended"])
    ));
    out::text(text(&answer["source"]))
}

fn reload(arguments: &ReloadArguments) -> Result<(), Failure> {
    let answer = Client::new(&arguments.server)?.post("/admin/reload")?;
    if arguments.json {
        out::line(format_args!("{answer:#}"))?;
    } else {
        show_reload(&answer)?;
    }
    let problems = answer["problems"].as_array().into_iter().flatten();
    let problems: Vec<String> = problems.map(text).collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::new(exit::UNAVAILABLE, problems.join("; ")))
}

fn show_reload(answer: &Value) -> Result<(), Failure> {
    let changes = answer["sagas"].as_array().map_or(&[][..], Vec::as_slice);
    for change in changes {
        let saga = text(&change["saga"]);
        match (change["from"].as_str(), change["to"].as_str()) {
            (None, Some(to)) => out::line(format_args!("{saga} is new: {to}"))?,
            (Some(from), Some(to)) => out::line(format_args!("{saga} changed from {from} to {to}"))?,
            (_, None) => out::line(format_args!("{saga} was removed: no new instances start"))?,
        }
    }
    let effects = if answer["effects_changed"] == true {
        ", effects changed"
    } else {
        ""
    };
    out::note(format_args!(
        "revision {}: {} saga(s) changed{effects}",
        answer["revision"],
        changes.len()
    ));
    Ok(())
}

fn migrate(arguments: &MigrateArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let hash = match &arguments.to {
        Some(hash) => escaped(hash),
        None => active(&client, &arguments.saga)?,
    };
    let path = format!(
        "/v1/definitions/{hash}/migrate?dry_run={}&undo={}",
        arguments.dry_run, arguments.undo
    );
    let mut report = client.post(&path)?;
    let poll = format!("/v1/migrations/{}", text(&report["id"]));
    while report["finished"] == false {
        out::note(format_args!(
            "{} of {} instance(s) checked, {} rejected",
            report["seen"], report["total"], report["refused"]
        ));
        // The answer comes at the end or after a moment.
        report = client.get(&poll)?;
    }
    if arguments.json {
        out::line(format_args!("{report:#}"))?;
    } else {
        show_report(arguments, &report)?;
    }
    if let Some(problem) = report["problem"].as_str() {
        return Err(Failure::software(problem));
    }
    match report["refused"].as_u64() {
        Some(0) | None => Ok(()),
        Some(refused) => Err(Failure::new(
            exit::FINDINGS,
            format!("{refused} instance(s) cannot be migrated"),
        )),
    }
}

fn show_report(arguments: &MigrateArguments, report: &Value) -> Result<(), Failure> {
    let verb = match (arguments.dry_run, arguments.undo) {
        (true, false) => "would be migrated",
        (true, true) => "would be migrated back",
        (false, false) => "migrated",
        (false, true) => "migrated back",
    };
    out::line(format_args!(
        "{} instance(s) {verb}, {} unchanged",
        report["moved"], report["refused"]
    ))?;
    let starts = report["starts"].as_object();
    for (work, count) in starts.into_iter().flatten() {
        let verb = if arguments.dry_run {
            "would start"
        } else {
            "started"
        };
        out::line(format_args!("{work} {verb} at once in {count} of them"))?;
    }
    let refusals = report["refusals"].as_array().map_or(&[][..], Vec::as_slice);
    for refusal in refusals {
        out::line(format_args!(
            "{} stays on {}",
            text(&refusal["instance"]),
            text(&refusal["from"])
        ))?;
        for problem in refusal["problems"].as_array().into_iter().flatten() {
            let (at, message) = (text(&problem["at"]), text(&problem["message"]));
            if at.is_empty() {
                out::line(format_args!("  {message}"))?;
            } else {
                out::line(format_args!("  {at}: {message}"))?;
            }
        }
    }
    let told = u64::try_from(refusals.len()).unwrap_or(u64::MAX);
    let untold = report["refused"].as_u64().unwrap_or(0).saturating_sub(told);
    if untold > 0 {
        out::line(format_args!("and {untold} more"))?;
    }
    Ok(())
}

/// Hash of the active version of a saga.
fn active(client: &Client, saga: &str) -> Result<String, Failure> {
    let answer = client.get(&format!("/v1/definitions?saga={}", escaped(saga)))?;
    let mut items = answer["items"].as_array().into_iter().flatten();
    items
        .find(|item| item["active"] == true)
        .and_then(|item| item["hash"].as_str())
        .map(str::to_owned)
        .ok_or_else(|| Failure::new(exit::NOT_FOUND, format!("saga {saga} has no active version")))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
