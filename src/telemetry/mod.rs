//! The only place that names `prometheus` and sets up logging.

pub mod logging;
pub mod metrics;

pub use metrics::Metrics;
