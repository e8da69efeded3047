//! `instance pause|resume|kill|delete|restart|retry|try-now|fire-timer|cancel-timer|migrate|signal`: what operators do to one
//! instance.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Asks, NameArguments, RequestArguments, StuckArguments, ask, decide, request};
use crate::app::exit::Failure;
use crate::cli::account::{AccountArguments, Audit, History, Required, Signal, UnlessDryRun};
use crate::cli::client::{Client, escaped};
use crate::cli::confirm::ConfirmArguments;
use crate::cli::given;
use crate::cli::output::Column;

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Pause an instance: its inputs and timers wait until it is resumed; calls under way continue.
    Pause(OperationArguments),
    /// Resume a paused instance: what waited is applied in order.
    Resume(OperationArguments),
    /// End an instance at once, without compensation; asks for confirmation.
    #[command(
        after_help = "Example: give up an instance whose money was returned by hand:\n  \
        saga-runner instance kill order o-1 --yes --reason 'refunded by hand, ticket 4711'"
    )]
    Kill(KillArguments),
    /// Begin an ended instance again from its input alone; asks for confirmation.
    Restart(RestartArguments),
    /// Delete an ended instance and its history before its retention ends; asks for confirmation.
    #[command(
        after_help = "Earlier generations of the key are deleted with it. The key stays used for as long as the instance would have been kept. An instance that runs, undoes something, has a \
        call of unknown outcome, or whose parent has not ended, is not deleted. Needs the role admin.\n\nExample:\n  \
        saga-runner instance delete order o-1 --reason 'erasure request 4711' --yes --wait"
    )]
    Delete(DeleteArguments),
    /// Make the next attempt of a step or compensation that backs off now.
    TryNow(TryNowArguments),
    /// Fire a timer of an instance now, before it is due.
    FireTimer(TimerArguments),
    /// Cancel a timer of an instance: it does not fire.
    CancelTimer(TimerArguments),
    /// Migrate one instance to another version of its saga, or back.
    #[command(
        after_help = "An instance in which something has no place in the version stays as it is: exit code 5, with the reasons.\n\nExamples:\n  \
        saga-runner instance migrate order o-1 --to 3f9a2c --dry-run\n  \
        saga-runner instance migrate order o-1 --to 3f9a2c --reason 'ticket 4711'\n  \
        saga-runner instance migrate order o-1 --undo --reason 'ticket 4712'\n\n\
        `saga-runner definition list` shows the versions. `definition migrate` and `job start migrate` are for many instances."
    )]
    Migrate(MigrateArguments),
    /// Send a signal to an instance.
    #[command(after_help = "Examples:\n  \
        saga-runner instance signal order o-1 approve --data '{\"by\": \"ada\"}' --reason 'ticket 4711' --wait\n  \
        saga-runner instance signal order o-1 approve --data @approval.json --request-id 7f3a")]
    Signal(SignalArguments),
}

#[derive(Debug, Args)]
pub struct OperationArguments {
    #[command(flatten)]
    account: AccountArguments<History>,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct SignalArguments {
    #[command(flatten)]
    request: RequestArguments,
    /// Name of the signal.
    #[arg(value_name = "SIGNAL")]
    signal: String,
    /// What it carries, as a JSON object, or @FILE to read it from a file.
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    data: String,
    #[command(flatten)]
    account: AccountArguments<Signal>,
}

#[derive(Debug, Args)]
pub struct KillArguments {
    #[command(flatten)]
    account: AccountArguments<History, Required>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct DeleteArguments {
    #[command(flatten)]
    account: AccountArguments<Audit, Required>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct RestartArguments {
    #[command(flatten)]
    account: AccountArguments<History>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct RetryArguments {
    /// The instance has ended: begin it again from where it failed, which has to be confirmed.
    #[arg(long, conflicts_with_all = ["step", "item"])]
    ended: bool,
    /// This step of unknown outcome was done, with this result (without one: {}).
    #[arg(long, value_name = "STEP[=JSON]", requires = "ended", value_parser = done)]
    done: Vec<Value>,
    /// This step of unknown outcome was not done.
    #[arg(long, value_name = "STEP", requires = "ended")]
    not_done: Vec<String>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    stuck: StuckArguments,
}

fn done(text: &str) -> Result<Value, serde_json::Error> {
    let (step, result) = match text.split_once('=') {
        None => (text, json!({})),
        Some((step, result)) => (step, serde_json::from_str(result)?),
    };
    Ok(json!({"step": step, "as": "done", "result": result}))
}

/// Retries what is stuck, or begins an instance that has ended again.
pub fn retry(arguments: &RetryArguments) -> Result<(), Failure> {
    if !arguments.ended {
        return decide(&arguments.stuck, "retry");
    }
    let key = &arguments.stuck.request.name.key;
    let consequence = format!(
        "{key} begins again from where it failed: steps that are not done run again, and so does `finally`"
    );
    arguments.confirm.agreed(&consequence, key)?;
    let not_done = arguments.not_done.iter();
    let not_done = not_done.map(|step| json!({"step": step, "as": "not_done"}));
    let resolved: Vec<Value> = arguments.done.iter().cloned().chain(not_done).collect();
    let mut body = arguments.stuck.account.body();
    body["ended"] = json!(true);
    body["resolved"] = json!(resolved);
    ask(&arguments.stuck.request, "retry", body)
}

#[derive(Debug, Args)]
pub struct TryNowArguments {
    /// Only this step and its compensation; without it, everything that backs off.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    #[command(flatten)]
    account: AccountArguments<History>,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct MigrateArguments {
    /// The version: its hash as `definition list` prints it, or at least its first 6 digits.
    #[arg(long, value_name = "HASH", required_unless_present = "undo")]
    to: Option<String>,
    /// Go back to the version that it came from by a migration, as `migrate.undo` of its version says.
    #[arg(long, conflicts_with = "to")]
    undo: bool,
    /// Change nothing: say what would start at once, or why it cannot be migrated.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    account: AccountArguments<Audit, UnlessDryRun>,
    #[command(flatten)]
    name: NameArguments,
}

#[derive(Debug, Args)]
pub struct TimerArguments {
    /// Name of the timer, as `instance show` prints it.
    #[arg(long, value_name = "NAME")]
    timer: String,
    #[command(flatten)]
    account: AccountArguments<History>,
    #[command(flatten)]
    request: RequestArguments,
}

pub fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Pause(arguments) => ask(&arguments.request, "pause", arguments.account.body()),
        Verb::Resume(arguments) => ask(&arguments.request, "resume", arguments.account.body()),
        Verb::Kill(arguments) => {
            let key = &arguments.request.name.key;
            let consequence =
                format!("{key} ends at once: nothing is compensated, and `finally` does not run");
            arguments.confirm.agreed(&consequence, key)?;
            ask(&arguments.request, "kill", arguments.account.body())
        }
        Verb::Delete(arguments) => delete(arguments),
        Verb::Restart(arguments) => {
            let key = &arguments.request.name.key;
            let consequence = format!("all steps of {key} run again under new idempotency keys");
            arguments.confirm.agreed(&consequence, key)?;
            ask(&arguments.request, "restart", arguments.account.body())
        }
        Verb::TryNow(arguments) => {
            let mut body = arguments.account.body();
            body["step"] = json!(arguments.step);
            ask(&arguments.request, "try-now", body)
        }
        Verb::FireTimer(arguments) => of_timer(arguments, "fire"),
        Verb::CancelTimer(arguments) => of_timer(arguments, "cancel"),
        Verb::Migrate(arguments) => migrate(arguments),
        Verb::Signal(arguments) => {
            let data = given::object("--data", &arguments.data)?;
            let path = format!("signals/{}", escaped(&arguments.signal));
            let mut body = arguments.account.body();
            body["data"] = data;
            ask(&arguments.request, &path, body)
        }
    }
}

fn delete(arguments: &DeleteArguments) -> Result<(), Failure> {
    let key = &arguments.request.name.key;
    let consequence = format!("{key} is deleted with its history");
    arguments.confirm.agreed(&consequence, key)?;
    request(&arguments.request, Asks::Delete, arguments.account.body())
}

const MIGRATED: &[Column] = &[
    Column::value("Saga", "/saga"),
    Column::value("Key", "/key"),
    Column::value("From", "/from"),
    Column::value("To", "/to"),
    Column::value("Dry run", "/dry_run"),
    Column::value("Starts at once", "/starts"),
];

fn migrate(arguments: &MigrateArguments) -> Result<(), Failure> {
    let name = &arguments.name;
    let client = Client::new(&name.common.server)?;
    let path = format!("{}/migrate", name.path(&client)?);
    let mut body = arguments.account.body();
    body["to"] = json!(arguments.to);
    body["undo"] = json!(arguments.undo);
    body["dry_run"] = json!(arguments.dry_run);
    let answer = client.post_json(&path, &body)?;
    name.common.output.object(MIGRATED, &answer)
}

fn of_timer(arguments: &TimerArguments, verb: &str) -> Result<(), Failure> {
    let path = format!("timers/{}/{verb}", escaped(&arguments.timer));
    ask(&arguments.request, &path, arguments.account.body())
}
