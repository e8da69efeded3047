//! `shard`: lists, opens and closes shards, repositions one in a stream that lost messages, and decides about what an adopted
//! shard holds.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::account::{AccountArguments, Audit, UnlessDryRun};
use super::backup::{self, BackupArguments, RestoreArguments};
use super::client::{Client, ServerArguments, escaped};
use super::confirm::ConfirmArguments;
use super::output::{Column, Mood, OutputArguments};
use crate::app::exit::{self, Failure};
use crate::app::out;

const EXAMPLE: &str = "\
Example: see what would be skipped, read again and lost, then continue:
  saga-runner shard accept-gap --stream EVENTS --dry-run
  saga-runner shard accept-gap --stream EVENTS --reason 'purged by mistake' --yes

`shard rebind` has the same flags.";

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
    #[command(after_help = EXAMPLE)]
    AcceptGap(AcceptArguments),
    /// Continue in a stream that was created again or was rolled back (`stream.identity`).
    #[command(after_help = EXAMPLE)]
    Rebind(AcceptArguments),
    /// List the work that an adopted shard holds.
    Pending(PendingArguments),
    /// Release an adopted shard: it sends the work that it holds.
    Release(ReleaseArguments),
    /// Discard held work: steps that wait for it continue with an unknown outcome.
    Discard(DiscardArguments),
}

#[derive(Debug, Args)]
pub struct PendingArguments {
    /// Number of the shard.
    shard: u16,
    /// Maximum number of rows to print.
    #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Cursor printed by the previous call, to print the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
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
    #[arg(long = "command", value_name = "ID", num_args = 1.., value_delimiter = ',', required_unless_present = "all")]
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
pub struct DecisionArguments {
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
        ShardCommand::Pending(arguments) => pending(arguments),
        ShardCommand::Release(arguments) => {
            let body = arguments.decision.account.body();
            decide(arguments.shard, "release", body, &arguments.decision)
        }
        ShardCommand::Discard(arguments) => {
            let shard = arguments.shard;
            if !arguments.decision.dry_run {
                let consequence =
                    format!("discarded work of shard {shard} is never sent; its outcome becomes unknown");
                arguments.confirm.agreed(&consequence, &shard.to_string())?;
            }
            let mut body = arguments.decision.account.body();
            body["commands"] = json!(arguments.commands);
            body["all"] = json!(arguments.all);
            decide(shard, "discard", body, &arguments.decision)
        }
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
    let ask = |shard: u64| {
        client.post_json(
            &format!("/admin/shards/{}/{verb}", escaped(&shard.to_string())),
            &body,
        )
    };
    if let Some(shard) = arguments.shard {
        return tell(arguments, &ask(u64::from(shard))?);
    }
    let answer = client.get("/admin/shards")?;
    let shards = answer["items"].as_array().into_iter().flatten();
    let open = shards.filter(|shard| shard["open"] == true);
    let (mut refused, mut told) = (None, false);
    for shard in open.filter_map(|shard| shard["shard"].as_u64()) {
        match ask(shard) {
            Ok(answer) => {
                tell(arguments, &answer)?;
                told = true;
            }
            // Another shard may need it.
            Err(failure) if failure.code == exit::CONFLICT => {
                out::note(format_args!("shard {shard}: {failure}"));
                refused = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    match refused {
        Some(failure) if !told => Err(failure),
        _ => Ok(()),
    }
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

fn pending(arguments: &PendingArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let mut path = format!(
        "/admin/shards/{}/pending?limit={}",
        arguments.shard, arguments.limit
    );
    if let Some(after) = &arguments.after {
        path.push_str("&after=");
        path.push_str(&escaped(after));
    }
    let answer = client.get(&path)?;
    if !arguments.output.is_for_people() {
        return arguments.output.document(&answer);
    }
    let shard = arguments.shard;
    let adopted = &answer["adopted"];
    let since = || {
        format!(
            "adopted {}, epoch {} lost",
            text(&adopted["since"]),
            adopted["given_up"]
        )
    };
    out::line(match text(&answer["state"]) {
        "reading" => format!(
            "shard {shard} reads its streams to their ends and sends nothing ({})",
            since()
        ),
        "held" => format!(
            "shard {shard} holds {} row(s) until it is released ({})",
            answer["rows"],
            since()
        ),
        "released" => format!(
            "shard {shard} sends ({}, released {})",
            since(),
            text(&adopted["released"])
        ),
        _ => format!("shard {shard} sends: it was not adopted"),
    })?;
    for saga in answer["sagas"].as_array().into_iter().flatten() {
        out::line(format_args!(
            "  {}: {} effect(s), {} command(s), {} fact(s), {} start(s), {} message(s); {} timer(s), {} due",
            named(saga, &["tenant", "saga"]),
            saga["effects"],
            saga["commands"],
            saga["facts"],
            saga["starts"],
            saga["messages"],
            saga["timers"],
            saga["timers_due"]
        ))?;
    }
    rows(&answer)?;
    for decision in answer["decisions"].as_array().into_iter().flatten() {
        out::line(format_args!(
            "  {} {}: {} ({})",
            text(&decision["time"]),
            text(&decision["what"]),
            text(&decision["detail"]),
            text(&decision["reason"])
        ))?;
    }
    if let Some(next) = answer["next"].as_str() {
        out::note(format_args!("more rows: --after {next}"));
    }
    Ok(())
}

/// Sends a decision: `body` says about what, and by whom.
fn decide(shard: u16, verb: &str, mut body: Value, arguments: &DecisionArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    body["dry_run"] = json!(arguments.dry_run);
    let answer = client.post_json(&format!("/admin/shards/{shard}/{verb}"), &body)?;
    if !arguments.output.is_for_people() {
        return arguments.output.document(&answer);
    }
    let done = if answer["done"] == true { "" } else { "would be " };
    let what = match verb {
        "release" => format!("{} row(s) {done}released", answer["rows"]),
        _ => format!(
            "{} row(s) {done}discarded, {} of them with an unknown outcome",
            answer["rows"], answer["unknown"]
        ),
    };
    out::line(format_args!("shard {shard}: {what}"))?;
    rows(&answer)?;
    if answer["sends"] == false && answer["done"] == true {
        out::note(format_args!(
            "shard {shard} still sends nothing: `saga-runner shard release {shard} --reason TEXT`"
        ));
    }
    Ok(())
}

fn rows(answer: &Value) -> Result<(), Failure> {
    for row in answer["items"].as_array().into_iter().flatten() {
        let doubt = match (row["may_be_done"] == true, row["awaited"] == true) {
            (true, true) => "may have been executed, a step waits for it",
            (true, false) => "may have been sent",
            (false, _) => "not sent before",
        };
        out::line(format_args!(
            "  {} {} {} of {} at {}, since {}: {doubt}",
            text(&row["id"]),
            text(&row["kind"]),
            text(&row["name"]),
            named(row, &["tenant", "saga", "key"]),
            text(&row["path"]),
            text(&row["since"])
        ))?;
    }
    Ok(())
}

/// Joins the parts of a name that are present.
fn named(value: &Value, parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().filter_map(|part| value[part].as_str()).collect();
    parts.join("/")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
