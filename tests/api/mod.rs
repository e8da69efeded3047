//! The HTTP API of the real binary on the embedded broker, as operators and tenants use it.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod aliases;
mod callbacks;
mod caller;
mod children;
mod clients;
mod instances;
mod letters;
mod of_no_use;
mod operators;
#[cfg(feature = "wasm")]
mod programs;
mod questions;
mod redaction;
mod requests;
mod schedules;
mod secrets;
mod starts;
mod waits;
