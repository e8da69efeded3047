//! Figures for the operator; the only place that names `prometheus`.

pub mod metrics;
mod register;

pub use metrics::{CONTROL_REFUSALS, Metrics};
