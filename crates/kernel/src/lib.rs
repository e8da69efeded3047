//! DECIDES. Pure, synchronous, total: the same history gives the same bytes.
//!
//! Knows nothing about clocks, randomness, I/O, async, NATS or MDBX; time comes with the input and every
//! collection is iterated in a defined order.

// Whoever speaks with the kernel speaks the language: its modules are reached through here.
pub use saga_runner_language::{
    alias, breaker, classes, definition, duration, event, expr, ids, json, limits, planted, program, rate,
    retry, schedule, schema, status,
};

pub mod children;
pub mod envelope;
mod fields;
pub mod input;
pub mod instance_status;
pub mod items;
pub mod ledger;
pub mod letters;
pub mod outcome;
pub mod patch;
pub mod record;
pub mod recorded;
pub mod subject;
pub mod token;
pub mod trace;
pub mod transition;
pub mod view;
pub mod work;
