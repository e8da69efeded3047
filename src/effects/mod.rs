//! Effect workers: they take commands from shared queues, call upstreams, and record one result per command.
//!
//! Order of steps for a command: gate (was it answered already?), deadline, attempts, result, marker,
//! acknowledgement. Stateless: the result subject is the truth, so any worker can take over from any other.
//! Knows nothing about sagas; it never touches a shard.

pub mod egress;
mod gate;
mod http;
mod lane;
pub mod provider;
mod result;
pub mod settings;
mod transform;
pub mod worker;

pub use settings::Settings;
pub use worker::{Worker, WorkerError, WorkerSpec, durable_name};
