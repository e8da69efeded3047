//! The command line. Data goes to standard output, everything else to standard error, both by [`out`].

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "bench")]
pub mod bench;
pub mod client;
pub mod consumers;
pub mod definition;

#[cfg(feature = "conformance")]
pub mod effect;
pub mod graph;
pub mod init;
pub mod instance;

pub mod replay;
pub mod run;
pub mod schedule;
pub mod schema;
pub mod shard;
pub mod start;
pub mod streams;
pub mod test;
pub mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::app::Registry;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::config::{LogFormat, Manifest, Mode, Overrides};
#[cfg(feature = "demo")]
use crate::demo;

/// Run sagas on NATS JetStream: business processes across services that complete or are compensated.
///
/// Start with `saga-runner dev`: it needs nothing installed, loads ./sagas and ./effects, and accepts events over
/// HTTP.
#[derive(Debug, Parser)]
#[command(name = "saga-runner", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Shown below the help of the program; docs/operations.md has the same list.
const EXIT_CODES: &str = "\
Exit codes:
  0   success
  1   findings in definitions, differences, or a failed check
  4   not found (HTTP 404)
  5   nothing to change, or not possible in this state (HTTP 409)
  64  the command line is wrong
  65  the runner rejects the request (HTTP 400, 413, 415, 422)
  66  a file cannot be read, or a folder has no definitions
  69  no runner answers, or it cannot do this now (HTTP 502, 503, 504)
  70  a bug in this program or in the runner
  73  a file cannot be written, or exists already
  74  standard output cannot be written
  77  permission denied by the runner (HTTP 401, 403)
  78  configuration, definitions or stored data prevent the start";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sagas, the effect worker or both, as configured in a manifest.
    Run(run::RunArguments),
    /// Run everything in one process on the embedded broker, for development; accepts events over HTTP.
    Dev(run::DevArguments),
    /// Create a new project: a commented manifest, a saga and its effects.
    Init(init::InitArguments),
    /// Check definitions and print every error with its location.
    Validate(validate::ValidateArguments),
    /// Run the test cases of `*.test.yaml` files offline, without a broker and in simulated time.
    Test(test::TestArguments),
    /// Replay recorded histories and report where a definition behaves differently.
    Replay(replay::ReplayArguments),
    /// Draw a saga: steps, compensations, and the states of its machine.
    Graph(graph::GraphArguments),
    /// Print the JSON Schema of a kind of file, for use in an editor.
    Schema(schema::SchemaArguments),
    /// Create or check the JetStream streams that a manifest names.
    #[command(subcommand)]
    Streams(streams::StreamsCommand),
    /// List the consumers of effect workers, and delete orphans.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// Start an instance of a saga that declares `input`.
    Start(start::StartArguments),
    /// List, print, reload and migrate the versions of sagas in a running cluster.
    #[command(subcommand)]
    Definition(definition::DefinitionCommand),
    /// List and show instances of a running cluster, cancel them, and resolve stuck steps and compensations.
    #[command(subcommand)]
    Instance(instance::InstanceCommand),
    /// Check an effect worker written in any language.
    #[cfg(feature = "conformance")]
    #[command(subcommand)]
    Effect(effect::EffectCommand),
    /// List, pause and resume the schedules of a running cluster.
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    /// Open and close shards, continue after lost streams, and release what adopted shards hold.
    #[command(subcommand)]
    Shard(shard::ShardCommand),
    /// Measure throughput and latency of sagas, and of the broker alone for comparison.
    #[cfg(feature = "bench")]
    Bench(bench::BenchArguments),
    /// Run orders through the example sagas, kill the runner meanwhile, and report the outcome of each order.
    #[cfg(feature = "demo")]
    Demo(demo::DemoArguments),
    /// Run only the demo's upstream services (inventory, fraud, payments, shipping, gateway).
    #[cfg(feature = "demo")]
    DemoUpstream(demo::UpstreamArguments),
}

/// The manifest, and flags that override it.
#[derive(Debug, Args)]
pub struct ManifestArguments {
    /// Manifest file.
    #[arg(
        long,
        env = "SAGA_RUNNER_CONFIG",
        value_name = "FILE",
        default_value = "config/saga-runner.yaml"
    )]
    config: PathBuf,
    #[command(flatten)]
    overrides: OverrideArguments,
}

impl ManifestArguments {
    fn load(self, mode: Option<Mode>) -> Result<Manifest, Failure> {
        Ok(Manifest::load(&self.config, &self.overrides.with_mode(mode))?)
    }
}

/// Flags that override the manifest.
#[derive(Debug, Clone, Args)]
pub struct OverrideArguments {
    /// Folder for stored state; overrides `data_dir`.
    #[arg(long, env = "SAGA_RUNNER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// URL of the NATS server; overrides `broker`.
    #[arg(long, env = "SAGA_RUNNER_NATS_URL", value_name = "URL")]
    nats_url: Option<String>,
    /// Listen address of the HTTP API; overrides `http.listen`.
    #[arg(long, env = "SAGA_RUNNER_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Format of the log on standard error; overrides `log.format`.
    #[arg(long, env = "SAGA_RUNNER_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Log filter, e.g. `info` or `saga_runner=debug`; overrides `log.level`.
    #[arg(long, env = "SAGA_RUNNER_LOG", value_name = "FILTER")]
    log: Option<String>,
}

impl OverrideArguments {
    /// None of them.
    #[cfg(feature = "conformance")]
    const fn none() -> Self {
        Self {
            data_dir: None,
            nats_url: None,
            listen: None,
            log_format: None,
            log: None,
        }
    }

    fn with_mode(self, mode: Option<Mode>) -> Overrides {
        Overrides {
            mode,
            data_dir: self.data_dir,
            nats_url: self.nats_url,
            listen: self.listen,
            log_format: self.log_format,
            log_level: self.log,
        }
    }
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Registry::default())
}

/// The same for a runner with custom providers, which effects name under `custom`.
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let help = !error.use_stderr();
            // Nothing can be done about a closed pipe.
            let _ = error.print();
            return if help {
                ExitCode::SUCCESS
            } else {
                exit::USAGE.into()
            };
        }
    };
    let outcome = match cli.command {
        Command::Run(arguments) => run::run(arguments, registry),
        Command::Dev(arguments) => run::dev(arguments, registry),
        Command::Init(arguments) => init::init(&arguments),
        Command::Validate(arguments) => validate::validate(&arguments),
        Command::Test(arguments) => test::test(&arguments),
        Command::Replay(arguments) => replay::replay(&arguments),
        Command::Graph(arguments) => graph::graph(&arguments),
        Command::Schema(arguments) => schema::schema(&arguments),
        Command::Streams(command) => streams::streams(command),
        Command::Consumers(command) => consumers::consumers(command),
        Command::Start(arguments) => start::start(&arguments),
        Command::Definition(command) => definition::definition(&command),
        Command::Instance(command) => instance::instance(&command),
        #[cfg(feature = "conformance")]
        Command::Effect(command) => effect::effect(command),
        Command::Schedule(command) => schedule::schedule(&command),
        Command::Shard(command) => shard::shard(&command),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => bench::bench(&arguments),
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo::run(&arguments),
        #[cfg(feature = "demo")]
        Command::DemoUpstream(arguments) => demo::run_upstream(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.frames.is_empty() {
                out::note(failure.frames.trim_end());
            }
            out::note(format_args!("saga-runner: {failure}"));
            failure.code.into()
        }
    }
}
