//! One suite of promises for every broker, and what concerns one of them alone.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::similar_names,
    reason = "a test fails where it unwraps, and measures real time"
)]

mod suite;

mod batches;
mod cuts;
mod inproc;
mod intake;
mod nats;
pub mod secure;
