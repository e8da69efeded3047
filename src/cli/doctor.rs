//! `doctor`: one line for each thing that a runner needs, and how to get what is missing.

use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments};
use super::manifest::ManifestArguments;
use super::output::{Column, Format, Mood, OutputArguments, listed};
use crate::app::doctor::{self, Checked, Status};
use crate::app::exit::{self, Failure};
use crate::app::out;

/// Longest wait for what a server tells of itself.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(
    after_help = "Without --url it checks what a process with this manifest would find: definitions, secrets, the data folder with the stored state, and the broker. The state of a shard is checked if no process has it open. With --config only flags name a running process, not SAGA_RUNNER_URL or SAGA_RUNNER_PROFILE.\n\nExits with 1 if a check fails."
)]
pub struct DoctorArguments {
    // The first one: those behind it take their values out of what was parsed.
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Monitoring port of the NATS server, which tells how it syncs, e.g. http://127.0.0.1:8222.
    #[arg(long, value_name = "URL", value_parser = super::addresses::base_url)]
    nats_monitor: Option<String>,
    /// Exit with 1 for warnings, too.
    #[arg(long)]
    deny_warnings: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// Which arguments stand on the command line; the others may be in the environment.
#[derive(Debug, Clone, Copy)]
struct Flags {
    config: bool,
    url: bool,
    profile: bool,
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_flag = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        Ok(Self {
            config: is_flag("config"),
            url: is_flag("url"),
            profile: is_flag("profile"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// None of its own.
impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl DoctorArguments {
    /// Whether a running process is asked. A manifest that is given is what is checked, whichever process the environment names.
    const fn asks_a_process(&self) -> bool {
        if self.flags.config {
            self.flags.url || self.flags.profile
        } else {
            self.server.names_one()
        }
    }
}

const COLUMNS: &[Column] = &[
    Column::value("STATUS", "/status").judged(|status| match status {
        "ok" => Mood::Good,
        "warn" => Mood::Waiting,
        _ => Mood::Bad,
    }),
    Column::value("CHECK", "/check"),
    Column::value("DETAIL", "/detail"),
    Column::value("FIX", "/fix"),
];

pub fn doctor(arguments: DoctorArguments) -> Result<(), Failure> {
    let checks = if arguments.asks_a_process() {
        if arguments.nats_monitor.is_some() {
            let message = "--nats-monitor is about a manifest, and --url, SAGA_RUNNER_URL or a profile names a running process: \
                give --config, and no --url";
            return Err(Failure::new(exit::USAGE, message));
        }
        ask(&Client::new(&arguments.server)?)?
    } else {
        let monitor = arguments.nats_monitor.as_deref().map(server_tells);
        let manifest = arguments.manifest.load()?;
        let mut progress = out::Progress::new();
        doctor::examine(&manifest, monitor.as_ref(), &mut |text| progress.tell(text))?
    };
    let output = arguments.output;
    match output.format() {
        Format::Table => {
            for checked in &checks {
                out::line(told(checked))?;
            }
        }
        Format::Wide | Format::Json | Format::Jsonl | Format::Yaml => {
            let items: Vec<Value> = checks.iter().map(|checked| json!(checked)).collect();
            output.list(COLUMNS, &listed(items))?;
        }
    }
    let of = |status: Status| checks.iter().filter(|checked| checked.status == status).count();
    let (failed, warned) = (of(Status::Fail), of(Status::Warn));
    let message = format!("{} check(s): {failed} failed, {warned} warning(s)", checks.len());
    if failed > 0 || (arguments.deny_warnings && warned > 0) {
        return Err(Failure::new(exit::FINDINGS, message));
    }
    out::note(message);
    Ok(())
}

/// One check in a line: lines of programs are cut by nobody.
fn told(checked: &Checked) -> String {
    let word = match checked.status {
        Status::Ok => "ok  ",
        Status::Warn => "warn",
        Status::Fail => "FAIL",
    };
    let fix = checked
        .fix
        .as_ref()
        .map_or_else(String::new, |fix| format!(" -> {fix}"));
    let line = format!("{word}  {}: {}{fix}", checked.check, checked.detail);
    crate::app::diagnostics::plain(&line.replace('\n', "; "))
}

/// What a running process says of itself.
fn ask(client: &Client) -> Result<Vec<Checked>, Failure> {
    let health = client.get_any("/health")?;
    let mut checks = Vec::new();
    for check in health["checks"].as_array().into_iter().flatten() {
        let text = |key: &str| super::output::plain(&check[key]);
        checks.push(if check["ok"] == true {
            Checked::ok(&text("name"), text("detail"))
        } else {
            Checked::fail(
                &text("name"),
                text("detail"),
                "docs/runbooks.md has the trouble by its name",
            )
        });
    }
    let ready = client.get_any("/ready")?;
    checks.push(if ready["ready"] == true {
        Checked::ok("ready", "takes work")
    } else {
        let fix = "docs/operations.md explains each reason";
        Checked::fail("ready", super::output::plain(&ready["reasons"]), fix)
    });
    Ok(checks)
}

/// What the server tells under `/varz`.
fn server_tells(url: &str) -> Result<Value, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{url}/varz: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| wrong(&error))?;
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(crate::clients::tls::client_config(None)?)
            .timeout(PATIENCE)
            .build()
            .map_err(|error| wrong(&error))?;
        let answer = client.get(format!("{url}/varz")).send().await;
        let answer = answer.and_then(reqwest::Response::error_for_status);
        let bytes = answer.map_err(|error| wrong(&error))?.bytes().await;
        let bytes = bytes.map_err(|error| wrong(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| wrong(&error))
    })
}
