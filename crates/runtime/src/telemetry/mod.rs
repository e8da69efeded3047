//! Figures for the operator; the only place that names `prometheus`.

mod known;
pub mod metrics;
mod register;
pub mod spans;

pub use known::{AUDIT_DROPS, CONTROL_REFUSALS};
pub use metrics::Metrics;
pub use spans::{Span, SpanKind, Spans};
