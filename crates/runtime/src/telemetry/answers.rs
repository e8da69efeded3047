//! The series of the answers of the API.

use prometheus::{IntCounter, IntGauge, Registry};

use super::register::{counter, gauge};

/// What answers hold that clients have not taken yet.
#[derive(Debug)]
pub struct AnswerSeries {
    /// Bytes of long answers, and of those that are sent in portions, that clients have not taken yet.
    pub bytes: IntGauge,
    /// Requests that were refused because answers held as many bytes as they may.
    pub refused: IntCounter,
}

impl AnswerSeries {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            bytes: gauge(
                r,
                "http_answer_bytes",
                "Bytes of long answers that clients have not taken yet.",
            ),
            refused: counter(
                r,
                "http_answers_refused_total",
                "Requests refused because answers hold http.answer_bytes_max already.",
            ),
        }
    }
}
