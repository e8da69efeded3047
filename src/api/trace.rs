//! The trace that a request belongs to: the caller's, by W3C `traceparent`, or one of its own.

use axum::http::{HeaderMap, HeaderName};

tokio::task_local! {
    static TRACE: String;
}

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace id of a request, 32 hexadecimal digits. A `traceparent` that is not one is ignored, as W3C asks for.
pub fn of(headers: &HeaderMap) -> String {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let only = match (given.next(), given.next()) {
        (Some(value), None) => value.to_str().ok().and_then(parse),
        _ => None,
    };
    only.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string())
}

fn parse(text: &str) -> Option<String> {
    let mut parts = text.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_zero = |part: &str| part.bytes().all(|b| b == b'0');
    let is_legal = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_hex(trace, 32)
        && !is_zero(trace)
        && is_hex(parent, 16)
        && !is_zero(parent)
        && is_hex(flags, 2);
    is_legal.then(|| trace.to_owned())
}

/// The `traceparent` by which another process of the cluster hears of a trace.
pub fn parent(trace: &str) -> String {
    let parent = uuid::Uuid::new_v4().as_u64_pair().0 | 1;
    format!("00-{trace}-{parent:016x}-00")
}

/// Runs what answers a request under its trace.
pub async fn within<F: Future>(trace: String, answering: F) -> F::Output {
    TRACE.scope(trace, answering).await
}

/// The trace of the request that is being answered; none outside of one.
pub fn current() -> Option<String> {
    TRACE.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_legal_traceparent_names_the_trace() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (text, legal) in [
            (format!("00-{trace}-00f067aa0ba902b7-01"), true),
            (format!("cc-{trace}-00f067aa0ba902b7-01-later"), true),
            (format!("00-{trace}-00f067aa0ba902b7-01-later"), false),
            (format!("ff-{trace}-00f067aa0ba902b7-01"), false),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()), false),
            (format!("00-{trace}"), false),
            (String::new(), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, text.parse().expect("a value"));
            let found = of(&headers);
            assert_eq!(found == trace, legal, "{text}");
            assert_eq!(found.len(), 32, "{text}");
        }
        assert_ne!(of(&HeaderMap::new()), of(&HeaderMap::new()));
        assert_eq!(
            parse(&parent(trace)).as_deref(),
            Some(trace),
            "as it is passed on"
        );
    }
}
