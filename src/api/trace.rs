//! The trace that a request belongs to: the caller's, by W3C `traceparent`, or one of its own.

use axum::http::{HeaderMap, HeaderName};

use crate::kernel::trace;

tokio::task_local! {
    static TRACE: RequestTrace;
}

pub const TRACEPARENT: HeaderName = HeaderName::from_static(trace::HEADER);

/// The trace of a request, and its own span in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTrace {
    /// What the caller said, where that is a `traceparent`.
    pub caller: Option<String>,
    /// What is handed on: the same trace, with the span of this request.
    pub traceparent: String,
}

impl RequestTrace {
    /// Of a request with these headers. A `traceparent` that is not one is ignored, as W3C asks for.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        match (given.next(), given.next()) {
            (Some(value), None) => Self::behind(value.to_str().unwrap_or_default()),
            _ => Self::behind(""),
        }
    }

    /// Of a request whose caller says this.
    pub fn behind(traceparent: &str) -> Self {
        let caller = trace::of_header(traceparent);
        let (_, span) = uuid::Uuid::new_v4().as_u64_pair();
        let known = caller
            .as_deref()
            .and_then(|caller| trace::with_span(caller, span));
        let traceparent =
            known.unwrap_or_else(|| format!("00-{}-{span:016x}-01", uuid::Uuid::new_v4().simple()));
        Self { caller, traceparent }
    }

    /// The span of the caller.
    pub fn caller_span(&self) -> Option<&str> {
        self.caller.as_deref().and_then(trace::span_id)
    }

    /// 32 hexadecimal digits.
    pub fn id(&self) -> &str {
        trace::trace_id(&self.traceparent).unwrap_or_default()
    }
}

/// Runs what answers a request under its trace.
pub async fn within<F: Future>(trace: RequestTrace, answering: F) -> F::Output {
    TRACE.scope(trace, answering).await
}

/// The id of the trace of the request that is being answered; none outside of one.
pub fn current() -> Option<String> {
    TRACE.try_with(|trace| trace.id().to_owned()).ok()
}

/// The trace of the request that is being answered; none outside of one.
pub fn of_request() -> Option<RequestTrace> {
    TRACE.try_with(Clone::clone).ok()
}

/// What the request that is being answered hands on; none outside of one.
pub fn traceparent() -> Option<String> {
    TRACE.try_with(|trace| trace.traceparent.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_legal_traceparent_names_the_trace_and_each_request_has_a_span_of_its_own() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let known = format!("00-{trace}-00f067aa0ba902b7-00");
        for (text, legal) in [(known.as_str(), true), (&known[..40], false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, text.parse().expect("a value"));
            let found = RequestTrace::of(&headers);
            assert_eq!(found.id() == trace, legal, "{text}");
            assert_eq!(found.caller.as_deref() == Some(text), legal, "{text}");
            assert!(trace::is_traceparent(&found.traceparent), "{found:?}");
            assert_ne!(found.traceparent, text);
            // Whether it is recorded is the caller's decision.
            assert_eq!(found.traceparent.ends_with("-00"), legal, "{found:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(TRACEPARENT, known.parse().expect("a value"));
        twice.append(TRACEPARENT, known.parse().expect("a value"));
        assert_eq!(RequestTrace::of(&twice).caller, None);
        let none = HeaderMap::new();
        assert_ne!(RequestTrace::of(&none).id(), RequestTrace::of(&none).id());
    }
}
