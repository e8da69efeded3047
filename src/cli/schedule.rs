//! `schedule`: lists, pauses and resumes the schedules of a running cluster.

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde_json::Value;

use super::client::{Client, ServerArguments, TenantArguments, escaped};
use crate::app::exit::Failure;
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// List schedules with their next and last planned times.
    List(ListArguments),
    /// Pause the schedule of a saga: planned times are skipped until it is resumed.
    Pause(NameArguments),
    /// Resume the schedule of a saga at its next planned time.
    Resume(NameArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Print JSON, with more details.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct NameArguments {
    /// Name of the saga.
    saga: String,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn schedule(command: &ScheduleCommand) -> Result<(), Failure> {
    match command {
        ScheduleCommand::List(arguments) => list(arguments),
        ScheduleCommand::Pause(arguments) => order(arguments, "pause"),
        ScheduleCommand::Resume(arguments) => order(arguments, "resume"),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let path = format!("{}/schedules", client.tenant_path(&arguments.tenant)?);
    let answer = client.get(&path)?;
    if arguments.json {
        return out::line(format_args!("{answer:#}"));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "SAGA",
        "CRON",
        "ZONE",
        "NEXT",
        "LAST STARTED",
        "LAST SKIPPED",
        "RUNNING",
        "QUEUED",
    ]);
    for item in answer["items"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let count = |value: &Value| value.as_array().map_or(0, Vec::len).to_string();
        let next = match &item["paused"] {
            Value::Bool(true) => "paused".to_owned(),
            _ => text(&item["next_local"]),
        };
        let skipped = &item["last_skipped"];
        let skipped = match skipped["time"].as_str() {
            Some(time) => format!("{time} ({})", text(&skipped["reason"])),
            None => "-".to_owned(),
        };
        table.add_row([
            text(&item["saga"]),
            text(&item["cron"]),
            text(&item["zone"]),
            next,
            text(&item["last_started"]),
            skipped,
            count(&item["running"]),
            count(&item["queued"]),
        ]);
    }
    out::line(table)
}

fn order(arguments: &NameArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let tenant = client.tenant_path(&arguments.tenant)?;
    let path = format!("{tenant}/sagas/{}/schedule/{verb}", escaped(&arguments.saga));
    let shown = client.post(&path)?;
    out::line(format_args!("{shown:#}"))
}
