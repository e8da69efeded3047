//! The providers of effects, each a feature of the build: what a worker ([`crate::worker`]) calls upstreams with.
//!
//! A provider makes one attempt. Where calls may go is decided about the addresses that [`network`] found for the
//! connection that is made.

#[cfg(any(feature = "effect-http", feature = "effect-nats"))]
mod body;
mod environment;
#[cfg(feature = "effect-grpc")]
mod grpc;
#[cfg(feature = "effect-http")]
mod http;
#[cfg(feature = "effect-nats")]
mod nats;
pub mod network;
mod origin;
mod providers;
pub mod refusal;
pub mod registry;
mod rendering;
#[cfg(feature = "effect-smtp")]
mod smtp;
#[cfg(feature = "effect-sql")]
mod sql;
#[cfg(test)]
mod testing;
mod transform;

pub use network::{Resolve, SystemResolver};
pub use providers::BuiltIn;
pub use refusal::ProviderError;
pub use registry::Registry;
// Whoever speaks of effects speaks of their worker.
pub use crate::breakers::Breakers;
pub use saga_runner_runtime::worker::{
    Consumer, Consumers, Hosts, Local, Secrets, Settings, Worker, WorkerError, WorkerSpec, certainty,
    consumers, durable_name, egress, mask, provider, secrets, settings, source,
};
