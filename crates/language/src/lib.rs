//! SAYS. What sagas and effects are: files are read, checked and compiled here, and their expressions evaluated.
//!
//! Pure like the kernel above it: no clock, no I/O, no unordered iteration.

pub mod alias;
pub mod breaker;
pub mod classes;
pub mod definition;
pub mod duration;
pub mod event;
pub mod expr;
pub mod ids;
pub mod json;
pub mod limits;
pub mod planted;
pub mod program;
pub mod rate;
pub mod retry;
pub mod schedule;
pub mod schema;
pub mod status;
