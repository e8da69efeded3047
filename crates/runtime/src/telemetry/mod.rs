//! The only place that names `prometheus`.

pub mod metrics;

pub use metrics::{CONTROL_REFUSALS, Metrics};
