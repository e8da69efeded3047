//! The command line. Data goes to standard output, everything else to standard error, both by [`out`].

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
mod addresses;
mod answers;
pub mod audit;
mod backup;
#[cfg(feature = "bench")]
pub mod bench;
pub mod client;
pub mod confirm;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod consumers;
pub mod dead_letter;
pub mod definition;
pub mod doctor;
pub mod effect;
mod given;
pub mod graph;
pub mod init;
pub mod instance;
pub mod job;
pub mod manifest;
pub mod node;
mod notes;
pub mod output;
pub mod pages;
mod pending;
pub mod profile;
pub mod queries;
mod rates;
pub mod reference;
pub mod replay;
pub mod run;
pub mod schedule;
pub mod schema;
mod server;
pub mod server_events;
mod shard;
pub mod streams;
pub mod test;
pub mod token;
pub mod validate;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::app::Registry;
use crate::app::exit;
use crate::app::out;
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
  6   what was waited for has not happened in time
  7   what was waited for will not happen: the instance has ended otherwise
  64  the command line is wrong
  65  the runner rejects the request (HTTP 400, 405, 410, 413, 415, 422)
  66  a file cannot be read, or a folder has no definitions
  69  no runner or no broker answers, or it cannot do this now (HTTP 502, 503, 504)
  70  a bug in this program or in the runner
  73  a file cannot be written, or exists already
  74  standard output cannot be written
  77  permission denied by the runner (HTTP 401, 403)
  78  configuration, definitions or stored data prevent the start";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sagas, the effect worker or both, as configured in a manifest.
    Run(run::RunArguments),
    /// Run everything in one process on the embedded broker, for development; accepts events over HTTP, and reloads changed files.
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
    /// Create tokens for the HTTP API.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print the JSON Schema of a kind of file, for use in an editor.
    Schema(schema::SchemaArguments),
    /// Show the manifest with everything that overrides it, or check it.
    #[command(subcommand)]
    Config(manifest::ConfigCommand),
    /// Check what a runner needs: definitions, data folder, stored state, broker, streams, clocks.
    Doctor(doctor::DoctorArguments),
    /// Create or check the JetStream streams that a manifest names.
    #[command(subcommand)]
    Streams(streams::StreamsCommand),
    /// List the consumers of effect workers, and delete orphans.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// List, print, reload and migrate the versions of sagas in a running cluster.
    #[command(subcommand)]
    Definition(definition::DefinitionCommand),
    /// List and show instances of a running cluster, cancel them, and resolve stuck steps and compensations.
    #[command(subcommand)]
    Instance(instance::InstanceCommand),
    /// Cancel, retry, skip or migrate many instances at once, as jobs that the cluster carries on.
    #[command(subcommand)]
    Job(job::JobCommand),
    /// List inputs that could not be applied, and decide about them.
    #[command(subcommand, name = "dead-letter")]
    DeadLetter(dead_letter::DeadLetterCommand),
    /// List effects, and check a worker written in any language.
    #[command(subcommand)]
    Effect(effect::EffectCommand),
    /// List who has changed what, or tried to, and why.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// List the timers of instances, also those that are overdue.
    #[command(subcommand)]
    Timer(pending::TimerCommand),
    /// List the commands, facts and messages that were not sent yet, or have no result yet.
    #[command(subcommand)]
    Outbox(pending::OutboxCommand),
    /// List, pause and resume the schedules of a running cluster.
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    /// List, open and close the breakers of a running process.
    #[command(subcommand)]
    Breaker(node::BreakerCommand),
    /// Print what a running process did in the last hour, minute by minute: inputs, transitions, calls, failures, durations.
    Rates(rates::RatesArguments),
    /// Drain a running process: it finishes its work in progress and ends.
    #[command(after_help = "Example:\n  saga-runner drain --wait --timeout 2m --reason 'kernel update'")]
    Drain(node::DrainArguments),
    /// Reload the definitions of a running process, and print what changed, or the errors.
    Reload(node::ReloadArguments),
    /// List the profiles with addresses, tenants and tokens, and choose one.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Open and close shards, continue after lost streams, and release what adopted shards hold.
    #[command(subcommand)]
    Shard(shard::ShardCommand),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  saga-runner completions bash > /etc/bash_completion.d/saga-runner")]
    Completions(reference::CompletionsArguments),
    /// Print the manual page, write a page for each command, or print all as Markdown.
    Man(reference::ManArguments),
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

/// The description of the command line, from which help, completions and manual pages are made.
#[must_use]
pub fn description() -> clap::Command {
    Cli::command()
}

/// Takes an empty variable for one that is not set, as shells and containers often have it.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).as_deref() == Some(OsStr::new(""));
    let command = command.mut_args(|argument| {
        if argument.get_env().is_some_and(is_empty) {
            argument.env(None::<&'static str>)
        } else {
            argument
        }
    });
    command.mut_subcommands(without_empty_variables)
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Registry::default())
}

/// The same for a runner with custom providers, which effects name under `custom`.
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    let command = without_empty_variables(Cli::command());
    let parsed = command.try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
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
        Command::Token(command) => token::token(&command),
        Command::Schema(arguments) => schema::schema(&arguments),
        Command::Config(command) => manifest::config(command, &registry),
        Command::Doctor(arguments) => doctor::doctor(arguments),
        Command::Streams(command) => streams::streams(command),
        Command::Consumers(command) => consumers::consumers(command),
        Command::Definition(command) => definition::definition(&command),
        Command::Instance(command) => instance::instance(&command),
        Command::Job(command) => job::job(&command),
        Command::DeadLetter(command) => dead_letter::dead_letter(&command),
        Command::Effect(command) => effect::effect(command),
        Command::Audit(command) => audit::audit(&command),
        Command::Timer(command) => pending::timer(&command),
        Command::Outbox(command) => pending::outbox(&command),
        Command::Schedule(command) => schedule::schedule(&command),
        Command::Breaker(command) => node::breaker(&command),
        Command::Rates(arguments) => rates::rates(&arguments),
        Command::Drain(arguments) => node::drain(&arguments),
        Command::Reload(arguments) => node::reload(&arguments),
        Command::Completions(arguments) => reference::completions(&arguments, description()),
        Command::Man(arguments) => reference::man(&arguments, description()),
        Command::Profile(command) => profile::profile(&command),
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
