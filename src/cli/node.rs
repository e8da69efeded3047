//! `drain`, `reload` and `breaker`: what operators ask of one process.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::account::AccountArguments;
use super::client::{Client, Heard, ServerArguments, escaped};
use super::output::{Column, Mood, OutputArguments};
use crate::app::SystemClock;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::kernel::duration::Millis;
use crate::ports::clock::Clock as _;

/// How often a waiting command looks again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub struct DrainArguments {
    /// Wait until the process has ended; progress is shown on a terminal.
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this time, e.g. 90s, 10m; the drain continues. Exit code 6.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = Millis::parse, requires = "wait")]
    timeout: Millis,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ReloadArguments {
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Subcommand)]
pub enum BreakerCommand {
    /// List the breakers of a process, with the names of their upstreams in the manifest.
    List(BreakersArguments),
    /// Hold back all calls of an upstream, until `breaker auto` or the end of the process.
    #[command(
        after_help = "Each process has breakers of its own: ask every one that runs effects.\n\nExamples:\n  \
        saga-runner breaker open bank --reason 'maintenance until 4:00'\n  \
        saga-runner breaker open bank.internal:443 --tenant acme --reason 'acme sends nonsense'\n\n\
        `saga-runner instance list --upstream bank` lists the instances that wait for it."
    )]
    Open(BreakerArguments),
    /// Make all calls of an upstream, regardless of what its breaker has counted, until `breaker auto` or the end of the process.
    Close(BreakerArguments),
    /// Let the breaker of an upstream decide again.
    Auto(BreakerArguments),
}

#[derive(Debug, Args)]
pub struct BreakersArguments {
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct BreakerArguments {
    /// The upstream as `breaker list` prints it (HOST:PORT, effect:NAME or gateway:TYPE), or its name in `upstreams` of the manifest.
    upstream: String,
    /// Only for this tenant; without it, for all.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// What an operator says about a breaker.
#[derive(Debug, Clone, Copy)]
enum Force {
    Open,
    Closed,
    Auto,
}

pub fn drain(arguments: &DrainArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let started = client.get("/info")?["started"].clone();
    let mut answer = client.post_json("/admin/drain", &arguments.account.body())?;
    let word = if answer["began_now"] == true {
        "begun"
    } else {
        "under way already"
    };
    out::note(format_args!("the drain is {word}"));
    if arguments.wait {
        wait_for_the_end(&client, &started, arguments.timeout.duration())?;
        out::note("the process has ended");
        answer["ended"] = json!(true);
    }
    arguments.output.shown(&answer, || Ok(()))
}

/// Returns once no process answers, or another one does.
fn wait_for_the_end(client: &Client, started: &Value, timeout: Duration) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let begin = clock.monotonic();
    let mut progress = out::Progress::new();
    loop {
        match client.hear("/info")? {
            Heard::Nobody => return Ok(()),
            Heard::Answer(info) if info["started"] != *started => return Ok(()),
            // A process in its drain may refuse what it is asked, and one that is suspended says nothing.
            Heard::Answer(_) | Heard::Silence => {}
        }
        let waited = clock.monotonic().saturating_sub(begin);
        if waited > timeout {
            let message = format!("still draining after {} s; the drain continues", waited.as_secs());
            return Err(Failure::new(exit::NOT_IN_TIME, message));
        }
        progress.tell(format_args!("draining for {} s", waited.as_secs()));
        std::thread::sleep(LOOK_EVERY);
    }
}

pub fn reload(arguments: &ReloadArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let answer = client.post_json("/admin/reload", &arguments.account.body())?;
    arguments.output.shown(&answer, || show_reload(&answer))?;
    let problems = answer["problems"].as_array().into_iter().flatten();
    let problems: Vec<String> = problems.map(super::output::plain).collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::new(exit::UNAVAILABLE, problems.join("; ")))
}

fn show_reload(answer: &Value) -> Result<(), Failure> {
    let text = super::output::plain;
    let changes = answer["sagas"].as_array().map_or(&[][..], Vec::as_slice);
    for change in changes {
        let saga = text(&change["saga"]);
        match (change["from"].as_str(), change["to"].as_str()) {
            (None, Some(to)) => out::line(format_args!("{saga} is new: {to}"))?,
            (Some(from), Some(to)) => out::line(format_args!("{saga} changed from {from} to {to}"))?,
            (_, None) => out::line(format_args!("{saga} was removed: no new instances start"))?,
        }
    }
    let effects_changed = answer["effects_changed"] == true;
    let effects = if effects_changed { ", effects changed" } else { "" };
    out::note(match changes.len() {
        0 if !effects_changed => format!("revision {}: nothing changed", answer["revision"]),
        count => format!(
            "revision {}: {count} saga(s) changed{effects}",
            answer["revision"]
        ),
    });
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        out::note(format_args!("warning: {}", text(warning)));
    }
    Ok(())
}

const BREAKERS: &[Column] = &[
    Column::value("UPSTREAM", "/upstream"),
    Column::value("NAMES", "/names"),
    Column::value("TENANT", "/tenant"),
    Column::value("STATE", "/state").judged(|state| match state {
        "closed" => Mood::Good,
        "half_open" => Mood::Waiting,
        "open" => Mood::Bad,
        _ => Mood::Plain,
    }),
    Column::value("FORCED", "/forced"),
];

pub fn breaker(command: &BreakerCommand) -> Result<(), Failure> {
    match command {
        BreakerCommand::List(arguments) => {
            let answer = Client::new(&arguments.server)?.get("/admin/breakers")?;
            arguments.output.list(BREAKERS, &answer)
        }
        BreakerCommand::Open(arguments) => force(arguments, Force::Open),
        BreakerCommand::Close(arguments) => force(arguments, Force::Closed),
        BreakerCommand::Auto(arguments) => force(arguments, Force::Auto),
    }
}

fn force(arguments: &BreakerArguments, force: Force) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let state = match force {
        Force::Open => "open",
        Force::Closed => "closed",
        Force::Auto => "auto",
    };
    let mut body = arguments.account.body();
    body["state"] = json!(state);
    if let Some(tenant) = &arguments.tenant {
        body["tenant"] = json!(tenant);
    }
    let upstream = &arguments.upstream;
    client.post_json(&format!("/admin/breakers/{}", escaped(upstream)), &body)?;
    out::note(match force {
        Force::Open => format!("calls of {upstream} are held back until `breaker auto` or a restart"),
        Force::Closed => format!("all calls of {upstream} are made until `breaker auto` or a restart"),
        Force::Auto => format!("the breaker of {upstream} decides"),
    });
    let forced = forced(upstream, arguments.tenant.as_deref(), state);
    arguments.output.shown(&forced, || Ok(()))
}

/// What was said, as an item of `breaker list`.
fn forced(upstream: &str, tenant: Option<&str>, state: &str) -> Value {
    let mut forced = json!({"upstream": upstream, "forced": state});
    if let Some(tenant) = tenant {
        forced["tenant"] = json!(tenant);
    }
    forced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_breaker_is_told_as_an_item_of_the_list() {
        assert_eq!(
            forced("bank:443", None, "auto"),
            json!({"upstream": "bank:443", "forced": "auto"})
        );
        assert_eq!(
            forced("bank:443", Some("acme"), "open"),
            json!({"upstream": "bank:443", "forced": "open", "tenant": "acme"})
        );
    }
}
