//! `schedule`: lists, pauses and resumes the schedules of a running cluster.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::account::AccountArguments;
use super::client::{Client, CommonArguments, escaped};
use super::output::{Column, plain};
use crate::app::exit::Failure;

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
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct NameArguments {
    /// Name of the saga.
    saga: String,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    common: CommonArguments,
}

pub fn schedule(command: &ScheduleCommand) -> Result<(), Failure> {
    match command {
        ScheduleCommand::List(arguments) => list(arguments),
        ScheduleCommand::Pause(arguments) => order(arguments, "pause"),
        ScheduleCommand::Resume(arguments) => order(arguments, "resume"),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/schedules", client.tenant_path(&arguments.common.tenant)?);
    let answer = client.get(&path)?;
    arguments.common.output.list(COLUMNS, &answer)
}

const COLUMNS: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::value("CRON", "/cron"),
    Column::value("ZONE", "/zone"),
    Column::told("NEXT", |item| match item["paused"] {
        Value::Bool(true) => "paused".to_owned(),
        _ => plain(&item["next_local"]),
    }),
    Column::time("LAST STARTED", "/last_started"),
    Column::told("LAST SKIPPED", |item| {
        let skipped = &item["last_skipped"];
        match skipped["time"].as_str() {
            Some(time) => format!("{time} ({})", plain(&skipped["reason"])),
            None => String::new(),
        }
    }),
    Column::length("RUNNING", "/running"),
    Column::length("QUEUED", "/queued"),
    Column::told("PAUSED", paused).whole(),
];

/// Since when it is paused, by whom and why; nothing where it is not, or that was not noted.
fn paused(item: &Value) -> String {
    let pause = &item["pause"];
    let Some(since) = pause["since"].as_str() else {
        return String::new();
    };
    let part = |name: &str, before: &str| match pause[name].as_str() {
        Some(text) if !text.is_empty() => format!("{before}{text}"),
        _ => String::new(),
    };
    format!("{since}{}{}", part("by", " by "), part("reason", ": "))
}

/// What is told of one schedule.
const FIELDS: &[Column] = &[
    Column::value("Saga", "/saga"),
    Column::value("Cron", "/cron"),
    Column::value("Zone", "/zone"),
    Column::value("Paused", "/paused"),
    Column::told("Since", paused),
    Column::time("Next", "/next"),
];

fn order(arguments: &NameArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let tenant = client.tenant_path(&arguments.common.tenant)?;
    let path = format!("{tenant}/sagas/{}/schedule/{verb}", escaped(&arguments.saga));
    let shown = client.post_json(&path, &arguments.account.body())?;
    arguments.common.output.object(FIELDS, &shown)
}
