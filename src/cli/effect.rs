//! `effect conformance`: whether a worker of an effect keeps the protocol of docs/workers.md.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::OverrideArguments;
use crate::app::conformance::{self, Report, Spec, Status};
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::config::Manifest;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{EffectName, TenantId};

#[derive(Debug, Subcommand)]
pub enum EffectCommand {
    /// Check a worker of an effect, in any language, against the protocol; exits with 1 where it breaks it.
    ///
    /// It publishes commands for the effect and looks at results and acknowledgements. Use a nats-server of your own
    /// for it: a runner on the same streams takes the results for lost ones.
    Conformance(ConformanceArguments),
}

#[derive(Debug, Args)]
pub struct ConformanceArguments {
    /// The effect.
    #[arg(long, value_name = "NAME")]
    effect: String,
    /// A manifest with broker, streams, group and tenants; without it everything has its default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// nats-server, without a manifest.
    #[arg(
        long,
        env = "SAGA_RUNNER_NATS_URL",
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    nats_url: String,
    /// The group in the name of the consumer, without a manifest.
    #[arg(long, value_name = "NAME", default_value = "conformance")]
    group: String,
    /// Owner of the commands; empty for a worker without multi-tenancy.
    #[arg(long, value_name = "TENANT", default_value = "conformance")]
    tenant: String,
    /// Input of the commands, as JSON; {id} in it is another text for each command.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// How long a check may take.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = Millis::parse)]
    timeout: Millis,
    /// Starts the worker, kills it, ends it and starts it again: program and arguments, parted by spaces.
    #[arg(long, value_name = "COMMAND")]
    worker: Option<String>,
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn effect(command: EffectCommand) -> Result<(), Failure> {
    let EffectCommand::Conformance(arguments) = command;
    let output = arguments.output;
    let report = conformance::run(spec(arguments)?)?;
    match output {
        Output::Json => out::line(serde_json::to_string_pretty(&report).map_err(Failure::software)?)?,
        Output::Table => out::line(table(&report))?,
    }
    if report.passed {
        return Ok(());
    }
    let failed = report
        .checks
        .iter()
        .filter(|check| check.status == Status::Failed)
        .count();
    Err(Failure::new(
        exit::FINDINGS,
        format!("{failed} check(s) failed; docs/workers.md is the protocol"),
    ))
}

fn spec(arguments: ConformanceArguments) -> Result<Spec, Failure> {
    let wrong =
        |what: &str, error: &dyn std::fmt::Display| Failure::new(exit::USAGE, format!("{what}: {error}"));
    let tenant = match arguments.tenant.as_str() {
        "" => TenantId::none(),
        name => TenantId::parse(name).map_err(|error| wrong("--tenant", &error))?,
    };
    serde_json::from_str::<Value>(&arguments.input).map_err(|error| wrong("--input is not JSON", &error))?;
    let manifest = match &arguments.config {
        Some(path) => Manifest::load(path, &OverrideArguments::none().with_mode(None))?,
        None => plain(&arguments, &tenant).map_err(|error| wrong("--nats-url or --group", &error))?,
    };
    if tenant.is_none() != manifest.tenants.is_none() {
        let message = "the manifest and --tenant disagree about multi-tenancy";
        return Err(Failure::new(exit::USAGE, message));
    }
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
    Ok(Spec {
        effect: EffectName::parse(&arguments.effect).map_err(|error| wrong("--effect", &error))?,
        manifest,
        tenant,
        input: arguments.input,
        timeout: arguments.timeout.duration(),
        worker: arguments.worker.map(words),
    })
}

/// A manifest that says nothing but where the broker is.
fn plain(arguments: &ConformanceArguments, tenant: &TenantId) -> Result<Manifest, serde_json::Error> {
    let mut manifest = json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": arguments.group,
        "broker": {"kind": "nats", "nats": {"urls": [arguments.nats_url]}},
    });
    if !tenant.is_none() {
        manifest["tenants"] = json!([tenant]);
    }
    serde_json::from_value(manifest)
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["check", "", "explanation"]);
    for check in &report.checks {
        let status = match check.status {
            Status::Passed => "passed",
            Status::Failed => "FAILED",
            Status::LeftOut => "left out",
        };
        table.add_row([check.check, status, &check.explanation]);
    }
    table
}
