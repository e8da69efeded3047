//! The HTTP API of the real binary on the embedded broker, as operators and tenants use it.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod accounts;
mod actions;
mod aliases;
mod archives;
mod audit;
mod auth;
mod callbacks;
pub mod caller;
mod children;
mod clients;
mod conflicts;
mod controls;
mod deletions;
mod forwarding;
pub mod generated;
mod graphs;
mod instances;
mod jwt;
mod large;
mod letters;
mod listeners;
mod migrations;
mod of_no_use;
mod operators;
mod outcomes;
mod pending;
#[cfg(feature = "wasm")]
mod programs;
mod questions;
mod redaction;
mod requests;
mod schedules;
mod search;
mod secrets;
mod series;
mod starts;
mod tenants;
mod tls;
mod verbs;
mod waits;
mod watches;
mod why;
