//! saga-runner: an event-sourced saga runner on NATS JetStream with embedded MDBX.
//!
//! Modules in reading order; ARCHITECTURE.md is the map.

pub use saga_runner_kernel as kernel;
pub use saga_runner_runtime::{
    breakers, broker_clock, intake, outbox, ports, shard, storage, tasks, telemetry, worker,
};

pub mod mdbx;

pub mod files;

pub mod clients;

// Without one of its providers parts of it are not used.
#[cfg_attr(
    not(all(
        feature = "effect-http",
        feature = "effect-grpc",
        feature = "effect-smtp",
        feature = "effect-sql",
        feature = "effect-nats"
    )),
    allow(dead_code)
)]
pub mod effects;

pub mod gateway;

pub mod inproc;

pub mod nats;

pub mod logging;

pub mod otlp;

pub mod config;

pub mod api;

pub mod offline;

pub mod app;

pub mod cli;

#[cfg(feature = "demo")]
pub mod demo;
