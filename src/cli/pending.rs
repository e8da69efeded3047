//! `timer` and `outbox`: what waits for its time, and what is to be done or is in progress.

use clap::{Args, Subcommand};

use super::client::{Client, CommonArguments};
use super::output::Column;
use super::pages::PageArguments;
use crate::app::exit::Failure;

#[derive(Debug, Subcommand)]
pub enum TimerCommand {
    /// List the timers of instances, of each shard those first that are due first.
    #[command(after_help = "Examples:\n  \
        saga-runner timer list --overdue\n  \
        saga-runner timer list --saga order --due-within 1h")]
    List(TimerArguments),
}

#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// List what instances have sent or will send, and what has no result yet: of each shard the oldest first.
    #[command(after_help = "Examples:\n  \
        saga-runner outbox list --unsent\n  \
        saga-runner outbox list --kind effect --name charge --older-than 10m")]
    List(OutboxArguments),
}

#[derive(Debug, Args)]
pub struct TimerArguments {
    /// Only timers of instances of this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Only timers that are due within this time from now, or overdue, e.g. 15m, 7d.
    #[arg(long, value_name = "DURATION")]
    due_within: Option<String>,
    /// Only timers that are due and have not fired.
    #[arg(long, conflicts_with = "due_within")]
    overdue: bool,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct OutboxArguments {
    /// Only work of instances of this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Only this kind: effect, command, fact, start, message.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only this effect, command, fact or saga.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only what the broker or the gateway has not taken.
    #[arg(long)]
    unsent: bool,
    /// Only work that was committed this long ago or longer, e.g. 15m, 7d.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    common: CommonArguments,
}

pub fn timer(command: &TimerCommand) -> Result<(), Failure> {
    let TimerCommand::List(arguments) = command;
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/timers", client.tenant_path(&arguments.common.tenant)?);
    let overdue = arguments.overdue.then(|| "true".to_owned());
    let query = given([
        ("saga", arguments.saga.clone()),
        ("due_within", arguments.due_within.clone()),
        ("overdue", overdue),
    ]);
    let answer = arguments.page.ask(&client, &path, &query)?;
    arguments.common.output.list(TIMERS, &answer)
}

pub fn outbox(command: &OutboxCommand) -> Result<(), Failure> {
    let OutboxCommand::List(arguments) = command;
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/outbox", client.tenant_path(&arguments.common.tenant)?);
    let sent = arguments.unsent.then(|| "false".to_owned());
    let query = given([
        ("saga", arguments.saga.clone()),
        ("kind", arguments.kind.clone()),
        ("name", arguments.name.clone()),
        ("sent", sent),
        ("older_than", arguments.older_than.clone()),
    ]);
    let answer = arguments.page.ask(&client, &path, &query)?;
    arguments.common.output.list(OUTBOX, &answer)
}

fn given<const N: usize>(query: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    let given = query.into_iter().filter_map(|(name, value)| Some((name, value?)));
    given.collect()
}

const TIMERS: &[Column] = &[
    Column::time("DUE", "/due"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("TIMER", "/name"),
    Column::value("OVERDUE", "/overdue"),
];

const OUTBOX: &[Column] = &[
    Column::time("SINCE", "/since"),
    Column::value("KIND", "/kind"),
    Column::value("NAME", "/name"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("SENT", "/sent"),
    Column::number("ATTEMPT", "/attempt"),
    Column::value("PLACE", "/path").wide(),
    Column::value("ID", "/id").wide(),
    Column::value("IDEMPOTENCY KEY", "/idempotency_key").wide(),
    Column::time("DEADLINE", "/deadline").wide(),
];
