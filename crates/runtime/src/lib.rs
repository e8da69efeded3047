//! What runs the machine of a partition, and reaches everything else through ports: no store, broker or client is named
//! here.
//!
//! A process puts it together (`src/app/` of the runner, or a simulation), and brings the adapters.

pub use saga_runner_kernel as kernel;

pub mod ports;

pub mod telemetry;

pub mod broker_clock;

pub mod tasks;

pub mod storage;

pub mod breakers;

pub mod shard;

pub mod intake;

pub mod outbox;

pub mod worker;
