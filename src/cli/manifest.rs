//! The manifest of a command, what the command line lays over it, and the commands that show and check it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum as _};
use serde_json::{Value, json};

use super::output::{Column, Format, OutputArguments, listed, plain};
use crate::app::exit::{self, Failure};
use crate::app::{Registry, diagnostics, out, unusable};
use crate::config::{ConfigError, Effective, LogFormat, Manifest, Mode, Overrides};
use crate::kernel::definition::{Diagnostic, Severity};

/// Variables that are read without a flag, and say nothing about keys of the manifest.
const OTHER_VARIABLES: [&str; 3] = ["SAGA_RUNNER_HOME", "SAGA_RUNNER_TOKEN", "SAGA_RUNNER_TOOLS"];

/// The manifests of a working directory where none is named: the first of them that exists. `init` writes the second.
const DEFAULTS: [&str; 2] = ["config/saga-runner.yaml", "saga-runner.yaml"];

/// The manifest, and flags that override it.
#[derive(Debug, Clone, Args)]
pub struct ManifestArguments {
    /// Manifest file; default: config/saga-runner.yaml, else saga-runner.yaml.
    #[arg(long, env = "SAGA_RUNNER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArguments,
}

impl ManifestArguments {
    /// The manifest with everything that overrides it.
    pub fn load(self) -> Result<Manifest, Failure> {
        let file = self.file()?;
        Ok(Manifest::load(&file, &self.overrides.over_environment())?)
    }

    /// The same for a start, in a mode that the command line may name: what names a file that cannot be used is refused, too.
    pub fn load_to_start(self, mode: Option<Mode>, registry: &Registry) -> Result<Manifest, Failure> {
        let mode = mode.and_then(|mode| Some(mode.to_possible_value()?.get_name().to_owned()));
        let file = self.file()?;
        let overrides = self.overrides.over_environment().flag("--mode", "mode", mode);
        to_start(&file, &overrides, registry)
    }

    /// The file that is named, else the first default that exists.
    fn file(&self) -> Result<PathBuf, Failure> {
        let found = || DEFAULTS.into_iter().map(PathBuf::from).find(|file| file.exists());
        self.config.clone().or_else(found).ok_or_else(|| {
            let [first, second] = DEFAULTS;
            let message = format!(
                "no manifest: there is neither {first} nor {second} here; name one with --config [SR0401]"
            );
            Failure::new(exit::NO_INPUT, message)
        })
    }
}

/// The manifest of a process that is to start: all that it could not use on this machine is refused.
pub fn to_start(file: &Path, overrides: &Overrides, registry: &Registry) -> Result<Manifest, Failure> {
    let check = |manifest: &Manifest| unusable::at_start(manifest, registry);
    Ok(Effective::load_checked(file, overrides, &check)?.manifest)
}

/// Flags that override the manifest.
#[derive(Debug, Clone, Args)]
pub struct OverrideArguments {
    /// Folder for stored state; overrides `data_dir`.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// URL of the NATS server; overrides `broker.kind` and `broker.nats.urls`.
    #[arg(long, value_name = "URL")]
    nats_url: Option<String>,
    /// Context of the `nats` command to connect with; overrides `broker.kind` and `broker.nats.context`.
    #[arg(long, value_name = "NAME")]
    nats_context: Option<String>,
    /// Listen address of the HTTP API; overrides `http.listen`.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Listen address of the admin API; overrides `http.admin_listen`.
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// Format of the log on standard error; overrides `log.format`.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Log filter, e.g. `info` or `saga_runner=debug`; overrides `log.level`.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Value for a key of the manifest, e.g. `relay.retry_max=5s`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    parts
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| "write KEY=VALUE, e.g. relay.retry_max=5s".to_owned())
}

impl OverrideArguments {
    /// The flags over what the environment says.
    pub fn over_environment(self) -> Overrides {
        let format = self.log_format.and_then(|format| format.to_possible_value());
        let format = format.map(|format| format.get_name().to_owned());
        let shown = |address: Option<SocketAddr>| address.map(|address| address.to_string());
        let flags = environment()
            .flag("--data-dir", "data_dir", self.data_dir)
            .flag("--nats-url", "broker.nats.urls", self.nats_url)
            .flag("--nats-context", "broker.nats.context", self.nats_context)
            .flag("--listen", "http.listen", shown(self.listen))
            .flag("--admin-listen", "http.admin_listen", shown(self.admin_listen))
            .flag("--log-format", "log.format", format)
            .flag("--log", "log.level", self.log);
        let set = self.set.iter();
        set.fold(flags, |flags, (key, value)| flags.set((key, value)))
    }
}

/// What the environment says about keys of the manifest.
pub fn environment() -> Overrides {
    let mut others: BTreeSet<String> = OTHER_VARIABLES.map(str::to_owned).into();
    collect_variables(&super::description(), &mut others);
    Overrides::of_environment(std::env::vars_os(), &others)
}

/// The variables that flags of the command, and of the commands below it, are read from.
fn collect_variables(command: &clap::Command, found: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    found.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for below in command.get_subcommands() {
        collect_variables(below, found);
    }
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every effective value, from the file, the environment, the flags and the defaults. Secrets are masked.
    Show(ShowArguments),
    /// Check the manifest with everything that overrides it and the files that it names, and print every error with its location.
    #[command(
        after_help = "Exits with 1 if there is an error. Files and folders are looked at as the user that calls it: take that of the runner.\n\
            For programs, findings are a list without anything around it."
    )]
    Check(CheckArguments),
}

#[derive(Debug, Args)]
pub struct ShowArguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Print where each value comes from: `default`, the line of the file, the variable or the flag.
    #[arg(long)]
    origin: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Manifest file, instead of `--config`.
    file: Option<PathBuf>,
    #[command(flatten)]
    manifest: ManifestArguments,
    /// Read no file that the manifest names, and look at no folder: for a manifest of another machine.
    #[arg(long)]
    no_files: bool,
    #[command(flatten)]
    output: OutputArguments,
}

/// `registry` has the providers that a team has compiled in.
pub fn config(command: ConfigCommand, registry: &Registry) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show(arguments) => show(arguments),
        ConfigCommand::Check(arguments) => check(arguments, registry),
    }
}

/// A value in one line, as a manifest would have it.
fn value(line: &Value) -> String {
    match &line["value"] {
        Value::Null => "-".to_owned(),
        Value::Bool(is_on) => is_on.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Value::Object(_) => "{}".to_owned(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        other => plain(other),
    }
}

const COLUMNS: &[Column] = &[
    Column::value("KEY", "/key"),
    Column::told("VALUE", value),
    Column::value("VARIABLE", "/variable").wide(),
];
const COLUMNS_WITH_ORIGIN: &[Column] = &[
    Column::value("KEY", "/key"),
    Column::told("VALUE", value),
    Column::value("ORIGIN", "/origin"),
    Column::value("VARIABLE", "/variable").wide(),
];

fn show(arguments: ShowArguments) -> Result<(), Failure> {
    let file = arguments.manifest.file()?;
    let overrides = arguments.manifest.overrides.over_environment();
    let effective = Effective::load(&file, &overrides)?;
    let output = arguments.output;
    if matches!(output.format(), Format::Json | Format::Yaml) && !arguments.origin {
        return output.document(&effective.document());
    }
    let columns = if arguments.origin {
        COLUMNS_WITH_ORIGIN
    } else {
        COLUMNS
    };
    let lines: Vec<Value> = effective.lines().iter().map(|line| json!(line)).collect();
    output.list(columns, &listed(lines))
}

fn check(arguments: CheckArguments, registry: &Registry) -> Result<(), Failure> {
    let path = match arguments.file {
        Some(file) => file,
        None => arguments.manifest.file()?,
    };
    let overrides = arguments.manifest.overrides.over_environment();
    let no_files = arguments.no_files;
    let look = |manifest: &Manifest| {
        if no_files {
            unusable::anywhere(manifest, registry)
        } else {
            unusable::here(manifest, registry)
        }
    };
    let (findings, texts) = match Effective::load_checked(&path, &overrides, &look) {
        Ok(_) => (Vec::new(), BTreeMap::new()),
        Err(ConfigError::Wrong { findings, texts }) => (findings, texts),
        Err(error @ ConfigError::Unreadable { .. }) => return Err(error.into()),
        Err(error) => (vec![alone(&path, &error)], BTreeMap::new()),
    };
    let output = arguments.output;
    match output.format() {
        Format::Jsonl => findings
            .iter()
            .try_for_each(|finding| out::line(json!(finding)))?,
        Format::Json | Format::Yaml => output.document(&json!(findings))?,
        Format::Table | Format::Wide => {
            let color = diagnostics::coloured(&std::io::stdout());
            out::text(diagnostics::render(
                &findings,
                &|name| texts.get(name).cloned(),
                color,
            ))?;
        }
    }
    if findings.is_empty() {
        out::note(format_args!("{} is valid", path.display()));
        return Ok(());
    }
    let message = format!("{} error(s) in {}", findings.len(), path.display());
    Err(Failure::new(exit::FINDINGS, message))
}

/// What is wrong with a manifest as a whole.
pub fn alone(path: &Path, error: &ConfigError) -> Diagnostic {
    let refusal = error.refusal();
    Diagnostic {
        code: refusal.code,
        severity: Severity::Error,
        file: path.display().to_string(),
        line: 0,
        column: 0,
        span: 0..0,
        message: refusal.message,
        help: None,
    }
}
