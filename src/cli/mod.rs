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

/// Runs sagas on NATS JetStream: business processes across services that finish or are undone.
///
/// Start with `saga-runner dev`: it needs nothing installed, loads ./sagas and ./effects, and takes events over
/// HTTP.
#[derive(Debug, Parser)]
#[command(name = "saga-runner", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run sagas, effects or both, as a manifest says.
    Run(run::RunArguments),
    /// Run everything in one process on the embedded broker, with events over HTTP.
    Dev(run::DevArguments),
    /// Write a commented starting point: a manifest, a saga and effects.
    Init(init::InitArguments),
    /// Check definitions and print every mistake with its place.
    Validate(validate::ValidateArguments),
    /// Play the cases of `*.test.yaml` files against their definitions: no broker, no waiting.
    Test(test::TestArguments),
    /// Run recorded histories again and tell where a definition goes another way.
    Replay(replay::ReplayArguments),
    /// Draw a saga: its steps and how they are undone, the states of its machine.
    Graph(graph::GraphArguments),
    /// Print the JSON Schema of a kind of file, for editors.
    Schema(schema::SchemaArguments),
    /// Create or check the streams that a manifest names.
    #[command(subcommand)]
    Streams(streams::StreamsCommand),
    /// Look at the consumers that bring commands to workers, and remove those that were left behind.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// Ask a running cluster to start an instance of a saga that takes an input.
    Start(start::StartArguments),
    /// Look at the versions of sagas that a running cluster keeps.
    #[command(subcommand)]
    Definition(definition::DefinitionCommand),
    /// Look at an instance of a running cluster, stop it, or decide about what could not be undone.
    #[command(subcommand)]
    Instance(instance::InstanceCommand),
    /// Check workers of effects in other languages.
    #[cfg(feature = "conformance")]
    #[command(subcommand)]
    Effect(effect::EffectCommand),
    /// Look at the schedules of a running cluster, pause and resume them.
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    /// Say from where on shards of a running cluster read a stream that lost messages or was created anew.
    #[command(subcommand)]
    Shard(shard::ShardCommand),
    /// Measure sagas per second and latency, with the broker's raw figure in the same run.
    #[cfg(feature = "bench")]
    Bench(bench::BenchArguments),
    /// Drive real orders through the example sagas, kill the runner in the middle, and show what became of
    /// them.
    #[cfg(feature = "demo")]
    Demo(demo::DemoArguments),
    /// Run only the demo's upstream (inventory, fraud, payments, shipping, gateway).
    #[cfg(feature = "demo")]
    DemoUpstream(demo::UpstreamArguments),
}

/// The manifest, and what lies over it.
#[derive(Debug, Args)]
pub struct ManifestArguments {
    /// The manifest.
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

/// Flags that lay over the manifest.
#[derive(Debug, Clone, Args)]
pub struct OverrideArguments {
    /// Folder of the stored state.
    #[arg(long, env = "SAGA_RUNNER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Use NATS JetStream at this URL.
    #[arg(long, env = "SAGA_RUNNER_NATS_URL", value_name = "URL")]
    nats_url: Option<String>,
    /// Address of the HTTP API.
    #[arg(long, env = "SAGA_RUNNER_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// How logs are written to standard error.
    #[arg(long, env = "SAGA_RUNNER_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Which logs are written, e.g. `info` or `saga_runner=debug`.
    #[arg(long, env = "SAGA_RUNNER_LOG", value_name = "FILTER")]
    log: Option<String>,
}

impl OverrideArguments {
    /// None of them.
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

/// Parses the command line and carries it out.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Registry::default())
}

/// The same in a runner with providers of its own, which effects name under `custom`.
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
