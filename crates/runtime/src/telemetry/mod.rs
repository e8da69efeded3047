//! Figures for the operator; the only place that names `prometheus`.

mod known;
pub mod metrics;
mod register;
pub mod spans;

pub use metrics::{AUDIT_DROPS, CONTROL_REFUSALS, Metrics};
pub use spans::{Span, SpanKind, Spans};
