//! The demo: real orders through the example sagas against a small real upstream, with the runner killed in the
//! middle, and a table of the outcome of each order.

pub mod audit;
mod orders;
mod runner;
pub mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::app::exit::Failure;
use crate::app::out;
use crate::kernel::duration::Millis;

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Number of orders to place.
    #[arg(long, default_value_t = 60, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    orders: u32,
    /// How often to kill the runner with SIGKILL while orders are in progress.
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    kills: u32,
    /// Duration of the `unpaid` timer of the order saga in this run (30 minutes in the file).
    #[arg(long, default_value = "4s", value_name = "DURATION", value_parser = Millis::parse)]
    unpaid_after: Millis,
    /// Folder with `sagas/` and `effects/`.
    #[arg(long, default_value = ".", value_name = "DIR")]
    definitions: PathBuf,
    /// Use this nats-server, started for the demo, instead of the embedded broker.
    #[arg(long, value_name = "PATH")]
    nats_server: Option<PathBuf>,
    /// Keep the data folder and the logs of the runner, and print where they are.
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
pub struct UpstreamArguments {
    /// Listen address of the upstream.
    #[arg(
        long,
        default_value = "127.0.0.1:7070",
        value_name = "ADDRESS",
        env = "SAGA_RUNNER_DEMO_UPSTREAM"
    )]
    listen: SocketAddr,
    /// URL of the runner, which accepts events over HTTP: the gateway answers some commands with an event.
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    runner: String,
    /// Duration of the payment of a `slow-` order.
    #[arg(long, default_value = "6s", value_name = "DURATION", value_parser = Millis::parse)]
    slow: Millis,
}

/// Longest time that the demo waits for its orders after the last was placed.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs the whole demo.
pub fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    runtime()?.block_on(orders::demo(arguments, PATIENCE))
}

/// Runs the upstream until the process is stopped.
pub fn run_upstream(arguments: &UpstreamArguments) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let settings = upstream::Settings {
            runner: Some(arguments.runner.clone()),
            slow: arguments.slow.duration(),
        };
        let upstream = upstream::Upstream::start(arguments.listen, settings)
            .await
            .map_err(Failure::software)?;
        out::note(format_args!(
            "demo upstream listens on http://{}",
            upstream.address
        ));
        tokio::signal::ctrl_c().await.map_err(Failure::software)
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::software)
}
