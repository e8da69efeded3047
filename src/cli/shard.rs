//! `shard`: lists, opens and closes shards, repositions one in a stream that lost messages, and decides about what an adopted
//! shard holds.

mod held;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::account::{AccountArguments, Audit, UnlessDryRun};
use super::backup::{self, BackupArguments, RestoreArguments};
use super::client::{Client, ServerArguments};
use super::confirm::ConfirmArguments;
use super::output::{Column, Mood, OutputArguments, text};
use crate::app::exit::{self, Failure};
use crate::app::out;

const GAP_EXAMPLE: &str = "\
Example: see what would be skipped, read again and lost, then continue:
  saga-runner shard accept-gap --stream EVENTS --dry-run
  saga-runner shard accept-gap --stream EVENTS --reason 'purged by mistake, INC-4711' --yes";

const REBIND_EXAMPLE: &str = "\
Example: see what would be skipped, read again and lost, then continue:
  saga-runner shard rebind --stream EVENTS --dry-run
  saga-runner shard rebind --stream EVENTS --reason 'node 2 lost power, INC-4711' --yes";

#[derive(Debug, Subcommand)]
pub enum ShardCommand {
    /// List the shards of the cluster: those open in this process, and the owners of the others.
    List(ListArguments),
    /// Open a shard in this process, while the others continue.
    Open(OneArguments),
    /// Drain and close a shard, while the others continue; its messages wait in the streams.
    Close(OneArguments),
    /// Write all rows of an open shard to a file, while the shard continues.
    #[command(after_help = backup::BACKUP_EXAMPLE)]
    Backup(BackupArguments),
    /// Restore a backup to the data folder of this manifest, before a runner is started on it.
    #[command(after_help = backup::RESTORE_EXAMPLE)]
    Restore(RestoreArguments),
    /// Continue after messages of a stream that were deleted before they were read (`stream.gap`).
    #[command(after_help = GAP_EXAMPLE)]
    AcceptGap(AcceptArguments),
    /// Continue in a stream that was created again or was rolled back (`stream.identity`).
    #[command(after_help = REBIND_EXAMPLE)]
    Rebind(AcceptArguments),
    /// List the work that an adopted shard holds.
    Pending(held::PendingArguments),
    /// Release an adopted shard: it sends the work that it holds.
    Release(held::ReleaseArguments),
    /// Discard held work: steps that wait for it continue with an unknown outcome.
    #[command(
        after_help = "Example: see what would be dropped, then drop it, and let the rest go:\n  \
        saga-runner shard discard 0 --command 019b76da-a801-770e-9ef3-59eae5edc404 --dry-run\n  \
        saga-runner shard discard 0 --command 019b76da-a801-770e-9ef3-59eae5edc404 --reason 'paid by hand, INC-4711' --yes\n  \
        saga-runner shard release 0 --reason 'compared with the bank, INC-4711'"
    )]
    Discard(held::DiscardArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct OneArguments {
    /// Number of the shard.
    shard: u16,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct AcceptArguments {
    /// Number of the shard; default: all open shards that need it.
    shard: Option<u16>,
    /// Name of the stream.
    #[arg(long, value_name = "NAME")]
    stream: String,
    #[command(flatten)]
    account: AccountArguments<Audit, UnlessDryRun>,
    /// Print what would be skipped, read again and lost, without changes.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArguments,
    /// Continue after this message, instead of at the position that the dry run prints.
    #[arg(long, value_name = "SEQUENCE")]
    position: Option<u64>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn shard(command: &ShardCommand) -> Result<(), Failure> {
    match command {
        ShardCommand::List(arguments) => list(arguments),
        ShardCommand::Open(arguments) => order(arguments, "open"),
        ShardCommand::Close(arguments) => order(arguments, "close"),
        ShardCommand::Backup(arguments) => backup::backup(arguments),
        ShardCommand::Restore(arguments) => backup::restore(arguments),
        ShardCommand::AcceptGap(arguments) => accept(arguments, "accept-gap"),
        ShardCommand::Rebind(arguments) => accept(arguments, "rebind"),
        ShardCommand::Pending(arguments) => held::pending(arguments),
        ShardCommand::Release(arguments) => held::release(arguments),
        ShardCommand::Discard(arguments) => held::discard(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let answer = Client::new(&arguments.server)?.get("/admin/shards")?;
    arguments.output.list(COLUMNS, &answer)
}

const COLUMNS: &[Column] = &[
    Column::number("SHARD", "/shard"),
    Column::value("STATE", "/state").judged(|state| match state {
        "running" => Mood::Good,
        "full" => Mood::Waiting,
        "halted" | "stopped" => Mood::Bad,
        _ => Mood::Plain,
    }),
    Column::value("OWNER", "/owner"),
    Column::value("REASON", "/reason"),
];

fn order(arguments: &OneArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let shard = arguments.shard;
    let path = format!("/admin/shards/{shard}/{verb}");
    let answer = client.post_and_wait(&path, &arguments.account.body(), |waited| {
        let seconds = waited.as_secs();
        out::note(format_args!(
            "shard {shard} is not {} yet after {seconds} s; it continues even if you interrupt this command",
            if verb == "open" { "open" } else { "closed" }
        ));
    })?;
    arguments.output.shown(&answer, || {
        let state = if answer["open"] == true { "open" } else { "closed" };
        out::line(format_args!("shard {} is {state}", answer["shard"]))
    })
}

fn accept(arguments: &AcceptArguments, verb: &str) -> Result<(), Failure> {
    if !arguments.dry_run {
        let consequence = format!(
            "messages of {} that were deleted before they were read are given up; --dry-run prints which",
            arguments.stream
        );
        arguments.confirm.agreed(&consequence, &arguments.stream)?;
    }
    let client = Client::new(&arguments.server)?;
    let mut body = arguments.account.body();
    body["stream"] = json!(arguments.stream);
    body["dry_run"] = json!(arguments.dry_run);
    if let Some(position) = arguments.position {
        body["position"] = position.into();
    }
    let ask = |shard: u64| client.post_json(&format!("/admin/shards/{shard}/{verb}"), &body);
    if let Some(shard) = arguments.shard {
        return tell(arguments, &ask(u64::from(shard))?);
    }
    let answer = client.get("/admin/shards")?;
    let shards = answer["items"].as_array().into_iter().flatten();
    let open = shards.filter(|shard| shard["open"] == true);
    let mut told = false;
    for shard in open.filter_map(|shard| shard["shard"].as_u64()) {
        match ask(shard) {
            Ok(answer) => {
                tell(arguments, &answer)?;
                told = true;
            }
            // Another shard may need it.
            Err(failure) if failure.code == exit::CONFLICT => {
                out::note(format_args!("shard {shard}: {failure}"));
            }
            Err(failure) => return Err(failure),
        }
    }
    if told {
        return Ok(());
    }
    Err(Failure::new(
        exit::CONFLICT,
        "no shard that is open in this process needs it",
    ))
}

fn tell(arguments: &AcceptArguments, answer: &Value) -> Result<(), Failure> {
    if !arguments.output.is_for_people() {
        return arguments.output.document(answer);
    }
    let verb = if answer["done"] == true {
        "continues"
    } else {
        "would continue"
    };
    out::line(format_args!(
        "shard {} {verb} after message {} of {} (its position was {})",
        answer["shard"],
        answer["new_position"],
        text(&answer["stream"]),
        answer["position"]
    ))?;
    out::line(format_args!(
        "  {}: {}",
        text(&answer["found"]),
        text(&answer["detail"])
    ))?;
    let range = |value: &Value| format!("messages {} to {}", value["from"], value["to"]);
    if !answer["skipped"].is_null() {
        out::line(format_args!("  never read: {}", range(&answer["skipped"])))?;
    }
    if !answer["to_read"].is_null() {
        out::line(format_args!("  read next: {}", range(&answer["to_read"])))?;
    }
    for lost in answer["lost"].as_array().into_iter().flatten() {
        out::line(format_args!("  {}", text(lost)))?;
    }
    Ok(())
}
