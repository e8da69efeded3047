//! Figures for the operator; the only place that names `prometheus`.

mod answers;
mod archive;
mod audit;
mod exemplars;
mod jobs;
mod known;
pub mod metrics;
mod openmetrics;
pub mod rates;
mod register;
pub mod spans;
mod storage;
mod tenants;

pub use exemplars::Exemplars;
pub use known::{AUDIT_DROPS, CONTROL_REFUSALS, DEAD_LETTER_REASONS};
pub use metrics::Metrics;
pub use spans::{Span, SpanKind, Spans};
pub use tenants::TenantSeries;
