//! Kills, cuts and upstreams that refuse, answer late or break off: nothing is lost and nothing is done twice.

mod support;

mod crash;
mod faults;
#[cfg(feature = "effect-sql")]
mod sql;
