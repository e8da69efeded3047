//! Figures for the operator; the only place that names `prometheus`.

mod known;
pub mod metrics;
pub mod rates;
mod register;
pub mod spans;

pub use known::DEAD_LETTER_REASONS;
pub use metrics::{CONTROL_REFUSALS, Metrics};
pub use spans::{Span, SpanKind, Spans};
