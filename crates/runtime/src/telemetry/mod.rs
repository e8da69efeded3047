//! The only place that names `prometheus`.

pub mod metrics;

pub use metrics::Metrics;
