//! `shard`: what an operator says where a stream is not as a running cluster has read it.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, escaped};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum ShardCommand {
    /// Go on behind messages of a stream that are gone and were not read (`stream.gap`).
    AcceptGap(AcceptArguments),
    /// Go on in a stream that is not the one that was read, or has gone back (`stream.identity`).
    Rebind(AcceptArguments),
}

#[derive(Debug, Args)]
pub struct AcceptArguments {
    /// The shard; all that need it where none is named.
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
        ShardCommand::AcceptGap(arguments) => accept(arguments, "accept-gap"),
        ShardCommand::Rebind(arguments) => accept(arguments, "rebind"),
    }
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
    let shards = client.get("/info")?["shards"].as_u64().unwrap_or_default();
    let (mut refused, mut told) = (None, false);
    for shard in 0..shards {
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
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
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
