//! `bench`: sagas per second and latency of this machine, with the broker's raw figure from the same run.

use std::path::PathBuf;

use clap::Args;

use crate::app::bench::{self, Plan, Where};
use crate::app::exit::Failure;
use crate::app::out;
use crate::config::{Dispatch, LogFormat};
use crate::kernel::duration::Millis;
use crate::logging;

/// Run three-step sagas, whose effects do no I/O, through the normal worker path; driver, runner and broker share this
/// machine.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Number of sagas in the throughput phase.
    #[arg(long, default_value_t = 20_000, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    sagas: u64,
    /// Maximum number of concurrent sagas.
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    in_flight: u64,
    /// Sagas per second in the latency phase.
    #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    rate: u64,
    /// Duration of the latency phase, e.g. 30s, 5m; 0s skips it.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = Millis::parse)]
    latency_for: Millis,
    /// Number of shards.
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// How effect commands reach the worker.
    #[arg(long, value_enum, default_value_t = Dispatch::Broker)]
    dispatch: Dispatch,
    /// Start and use this nats-server program.
    #[arg(long, value_name = "PATH", group = "nats")]
    nats_server: Option<PathBuf>,
    /// Use the nats-server at this URL; streams are created and not deleted.
    #[arg(long, value_name = "URL", group = "nats")]
    nats_url: Option<String>,
    /// Make that server sync each write to disk before it acknowledges (`sync_interval: always`).
    #[arg(long, requires = "nats_server")]
    sync_always: bool,
    /// Maximum number of messages in one atomic publish batch (`broker.nats.publish_batch_max`); 1: no batches.
    #[arg(long, default_value_t = 1, requires = "nats", value_name = "MESSAGES", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    publish_batch: u16,
    /// Largest input that is kept with the history (`storage.keep_input_bytes`); 0: none.
    #[arg(long, default_value_t = 65_536, value_name = "BYTES")]
    keep_input_bytes: u64,
    /// Largest work of one input that is kept with the history (`storage.keep_work_bytes`); 0: none.
    #[arg(long, default_value_t = 65_536, value_name = "BYTES")]
    keep_work_bytes: u64,
    /// Data folder; default: a new temporary folder.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Log filter.
    #[arg(long, env = "SAGA_RUNNER_LOG", default_value = "warn", value_name = "FILTER")]
    log: String,
}

pub fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    logging::start(LogFormat::Pretty, &arguments.log)
        .map_err(|message| Failure::new(crate::app::exit::USAGE, message))?;
    let broker = match (&arguments.nats_server, &arguments.nats_url) {
        (Some(program), _) => Where::NatsServer {
            program: program.clone(),
            sync_always: arguments.sync_always,
        },
        (None, Some(url)) => Where::NatsUrl(url.clone()),
        (None, None) => Where::Embedded,
    };
    let plan = Plan {
        sagas: arguments.sagas,
        in_flight: arguments.in_flight,
        rate: arguments.rate,
        latency_for: arguments.latency_for.duration(),
        shards: arguments.shards,
        dispatch: arguments.dispatch,
        broker,
        publish_batch: usize::from(arguments.publish_batch),
        keep_input_bytes: arguments.keep_input_bytes,
        keep_work_bytes: arguments.keep_work_bytes,
        dir: arguments.dir.clone(),
    };
    let report = bench::run(&plan)?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
        out::line(json)?;
    } else {
        out::line(report)?;
    }
    Ok(())
}
