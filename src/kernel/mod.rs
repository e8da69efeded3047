//! DECIDES. Pure, synchronous, total: the same history gives the same bytes.
//!
//! Knows nothing about clocks, randomness, I/O, async, NATS or MDBX; time comes with the input and every
//! collection is iterated in a defined order.

pub mod alias;
pub mod breaker;
pub mod children;
pub mod definition;
pub mod duration;
pub mod envelope;
pub mod expr;
pub mod ids;
pub mod input;
pub mod items;
pub mod json;
pub mod ledger;
pub mod limits;
pub mod outcome;
pub mod patch;
pub mod program;
pub mod rate;
pub mod record;
pub mod recorded;
pub mod retry;
pub mod schedule;
pub mod schema;
pub mod subject;
pub mod token;
pub mod trace;
pub mod transition;
pub mod view;
pub mod work;
