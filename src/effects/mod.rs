//! Effect workers: they take commands from shared queues, call upstreams, and record one result per command.
//!
//! Order of steps for a command: gate (was it answered already?), deadline, room (concurrency, breaker, rate), one
//! attempt, result, marker, acknowledgement. A command that has to wait goes back to the queue, with a note of
//! what was done (`progress`), so that it holds no place and any worker may go on with it. Stateless: the result subject is the truth, so any worker can take over from any other.
//! Knows nothing about sagas; it never touches a shard.

mod attempt;
#[cfg(any(feature = "effect-http", feature = "effect-nats"))]
mod body;
pub mod certainty;
pub mod consumers;
pub mod egress;
mod environment;
mod gate;
#[cfg(feature = "effect-grpc")]
mod grpc;
mod held;
#[cfg(feature = "effect-http")]
mod http;
mod lane;
mod line;
mod local;
mod mask;
#[cfg(feature = "effect-nats")]
mod nats;
pub mod network;
mod origin;
mod places;
mod progress;
pub mod provider;
mod providers;
mod recalls;
pub mod registry;
mod rendering;
mod result;
mod room;
pub mod secrets;
pub mod settings;
#[cfg(feature = "effect-smtp")]
mod smtp;
pub mod source;
#[cfg(feature = "effect-sql")]
mod sql;
#[cfg(test)]
mod testing;
mod transform;
pub mod worker;

use crate::clients::breakers;
pub use crate::clients::breakers::Breakers;
pub use consumers::{Consumer, Consumers, durable_name};
pub use local::Local;
pub use network::{Resolve, SystemResolver};
pub use registry::Registry;
pub use secrets::Secrets;
pub use settings::Settings;
pub use worker::{Worker, WorkerError, WorkerSpec};
