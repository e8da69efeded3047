//! The promises of the broker port, as they are held against the real ones.

#[path = "../broker/suite/mod.rs"]
#[allow(dead_code, reason = "this broker does not push")]
pub mod suite;
