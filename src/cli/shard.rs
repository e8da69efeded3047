//! `shard`: which shards a process has open, opening and closing one, what an operator says where a stream is not as a running
//! cluster has read it, and about what a shard holds back that goes on from an adopted state.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, escaped};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum ShardCommand {
    /// List the shards of the cluster: those that the process has open, and who has the others.
    List(ListArguments),
    /// Open a shard that the process has not open, while the others go on.
    Open(OneArguments),
    /// Drain and close a shard, while the others go on. What is meant for it waits in the streams.
    Close(OneArguments),
    /// Go on behind messages of a stream that are gone and were not read (`stream.gap`).
    AcceptGap(AcceptArguments),
    /// Go on in a stream that is not the one that was read, or has gone back (`stream.identity`).
    Rebind(AcceptArguments),
    /// Print what a shard holds back that goes on from an adopted state.
    Pending(PendingArguments),
    /// Let a shard send what it holds back.
    Release(ReleaseArguments),
    /// Give up what a shard holds back: steps that wait for it go on with an unknown outcome.
    Discard(DiscardArguments),
}

#[derive(Debug, Args)]
pub struct PendingArguments {
    /// The shard.
    shard: u16,
    /// Most rows that are printed.
    #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Go on behind the rows that were printed before.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ReleaseArguments {
    /// The shard.
    shard: u16,
    #[command(flatten)]
    decision: DecisionArguments,
}

#[derive(Debug, Args)]
pub struct DiscardArguments {
    /// The shard.
    shard: u16,
    /// Ids as `shard pending` prints them.
    #[arg(long = "command", value_name = "ID", num_args = 1.., value_delimiter = ',', required_unless_present = "all")]
    commands: Vec<String>,
    /// Everything that may have been carried out already.
    #[arg(long, conflicts_with = "commands")]
    all: bool,
    #[command(flatten)]
    decision: DecisionArguments,
}

#[derive(Debug, Args)]
pub struct DecisionArguments {
    /// Why, for the record. Needed unless with --dry-run.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Change nothing, and tell what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct OneArguments {
    shard: u16,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct AcceptArguments {
    /// The shard; all open ones that need it where none is named.
    shard: Option<u16>,
    /// Name of the stream.
    #[arg(long, value_name = "NAME")]
    stream: String,
    /// Why, for the record. Needed unless with --dry-run.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Change nothing, and tell what would be skipped, read again and lost.
    #[arg(long)]
    dry_run: bool,
    /// Go on behind this message instead of where the dry run says.
    #[arg(long, value_name = "SEQUENCE")]
    position: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn shard(command: &ShardCommand) -> Result<(), Failure> {
    match command {
        ShardCommand::List(arguments) => list(arguments),
        ShardCommand::Open(arguments) => order(arguments, "open"),
        ShardCommand::Close(arguments) => order(arguments, "close"),
        ShardCommand::AcceptGap(arguments) => accept(arguments, "accept-gap"),
        ShardCommand::Rebind(arguments) => accept(arguments, "rebind"),
        ShardCommand::Pending(arguments) => pending(arguments),
        ShardCommand::Release(arguments) => {
            decide(arguments.shard, "release", json!({}), &arguments.decision)
        }
        ShardCommand::Discard(arguments) => {
            let what = json!({"commands": arguments.commands, "all": arguments.all});
            decide(arguments.shard, "discard", what, &arguments.decision)
        }
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let answer = Client::new(&arguments.server)?.get("/admin/shards")?;
    if arguments.json {
        return out::line(format_args!("{:#}", answer["items"]));
    }
    for shard in answer["items"].as_array().into_iter().flatten() {
        let state = shard["state"].as_str().unwrap_or_default();
        let told = shard["reason"].as_str().or_else(|| shard["owner"].as_str());
        let told = told.map(|told| format!(": {told}")).unwrap_or_default();
        out::line(format_args!("shard {} {state}{told}", shard["shard"]))?;
    }
    Ok(())
}

fn order(arguments: &OneArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let shard = arguments.shard;
    let answer = client.post_and_wait(&format!("/admin/shards/{shard}/{verb}"), |waited| {
        let seconds = waited.as_secs();
        out::note(format_args!(
            "shard {shard} is not {} yet after {seconds} s; it goes on also if this command is broken off",
            if verb == "open" { "open" } else { "closed" }
        ));
    })?;
    let state = if answer["open"] == true { "open" } else { "closed" };
    out::line(format_args!("shard {} is {state}", answer["shard"]))
}

fn accept(arguments: &AcceptArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let mut body = json!({
        "stream": arguments.stream,
        "reason": arguments.reason.as_deref().unwrap_or_default(),
        "dry_run": arguments.dry_run,
    });
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
    if arguments.json {
        return out::line(format_args!("{answer:#}"));
    }
    let verb = if answer["done"] == true {
        "goes on"
    } else {
        "would go on"
    };
    out::line(format_args!(
        "shard {} {verb} behind message {} of {} (its position was {})",
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
    if arguments.json {
        return out::line(format_args!("{answer:#}"));
    }
    let shard = arguments.shard;
    let adopted = &answer["adopted"];
    let since = || {
        format!(
            "adopted {}, epoch {} given up",
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
            "shard {shard} holds back {} row(s) until it is released ({})",
            answer["rows"],
            since()
        ),
        "released" => format!(
            "shard {shard} sends ({}, released {})",
            since(),
            text(&adopted["released"])
        ),
        _ => format!("shard {shard} sends: it goes on from no adopted state"),
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
        out::note(format_args!("there are more: --after {next}"));
    }
    Ok(())
}

/// Asks for a decision of `what`.
fn decide(shard: u16, verb: &str, what: Value, arguments: &DecisionArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let mut body = what;
    body["reason"] = arguments.reason.as_deref().unwrap_or_default().into();
    body["dry_run"] = arguments.dry_run.into();
    let answer = client.post_json(&format!("/admin/shards/{shard}/{verb}"), &body)?;
    if arguments.json {
        return out::line(format_args!("{answer:#}"));
    }
    let done = if answer["done"] == true { "" } else { "would be " };
    let what = match verb {
        "release" => format!("{} row(s) {done}released", answer["rows"]),
        _ => format!(
            "{} row(s) {done}given up, {} of them with an unknown outcome",
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
            (true, true) => "may have been carried out, a step waits for it",
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

/// These parts of a name, as far as they are there.
fn named(value: &Value, parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().filter_map(|part| value[part].as_str()).collect();
    parts.join("/")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
