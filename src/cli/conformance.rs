//! `effect conformance`: checks a worker of an effect against the protocol in docs/workers.md.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::manifest::environment;
use super::output::{Column, Mood, OutputArguments};
use crate::app::conformance::{self as checks, Spec, Status};
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::config::Manifest;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{EffectName, TenantId};

#[derive(Debug, Args)]
pub struct ConformanceArguments {
    /// Name of the effect.
    #[arg(long, value_name = "NAME")]
    effect: String,
    /// Manifest with broker, streams, group and tenants; without it, all settings have their defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// URL of the NATS server, without a manifest.
    #[arg(
        long,
        env = "SAGA_RUNNER_NATS_URL",
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    nats_url: String,
    /// Group in the name of the consumer, without a manifest.
    #[arg(long, value_name = "NAME", default_value = "conformance")]
    group: String,
    /// Tenant of the commands; empty for a worker without multi-tenancy.
    #[arg(long, value_name = "TENANT", default_value = "conformance")]
    tenant: String,
    /// Input of the commands, as JSON; {id} in it is replaced by a unique text for each command.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// Timeout of a check, e.g. 30s, 2m.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = Millis::parse)]
    timeout: Millis,
    /// Command that starts the worker, with arguments separated by spaces; the checks start, stop, kill and restart it.
    #[arg(long, value_name = "COMMAND")]
    worker: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
}

pub fn conformance(arguments: ConformanceArguments) -> Result<(), Failure> {
    let output = arguments.output;
    let report = checks::run(spec(arguments)?)?;
    let shown = json!(report);
    output.shown(&shown, || {
        let checks = shown["checks"].as_array().map_or(&[][..], Vec::as_slice);
        out::line(output.table(CHECKS, checks))
    })?;
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
        format!("{failed} check(s) failed; docs/workers.md describes the protocol"),
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
        Some(path) => Manifest::load(path, &environment())?,
        None => plain(&arguments, &tenant).map_err(|error| wrong("--nats-url or --group", &error))?,
    };
    if tenant.is_none() != manifest.tenants.is_none() {
        let message = "--tenant must be given if and only if the manifest has tenants";
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

/// A manifest with nothing but the address of the broker.
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

const CHECKS: &[Column] = &[
    Column::value("CHECK", "/check"),
    Column::value("STATUS", "/status").judged(|status| match status {
        "passed" => Mood::Good,
        "failed" => Mood::Bad,
        _ => Mood::Waiting,
    }),
    Column::value("EXPLANATION", "/explanation").whole(),
];
