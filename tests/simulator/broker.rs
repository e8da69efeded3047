//! The promises of the broker port, as they are held against the real ones.

#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::similar_names,
    reason = "as where the suite stands"
)]
#[path = "../broker/suite/mod.rs"]
#[allow(dead_code, reason = "this broker does not push")]
pub mod suite;
