//! Figures for the operator; the only place that names `prometheus`.

mod known;
pub mod metrics;
mod register;

pub use metrics::{CONTROL_REFUSALS, Metrics};
