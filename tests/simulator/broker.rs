//! The promises of the broker port, as they are held against the real ones.

#[path = "../broker/suite/mod.rs"]
pub mod suite;
