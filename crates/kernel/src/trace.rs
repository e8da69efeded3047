//! W3C trace context: `traceparent` as data that is checked before it becomes a header.

/// Whether `text` is a `traceparent` of version 00.
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    let lower_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.split('-');
    let (Some(version), Some(trace), Some(parent), Some(flags), None) = (
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
    ) else {
        return false;
    };
    version == "00"
        && trace.len() == 32
        && parent.len() == 16
        && flags.len() == 2
        && [trace, parent, flags].into_iter().all(lower_hex)
        && trace.bytes().any(|byte| byte != b'0')
        && parent.bytes().any(|byte| byte != b'0')
}

/// The trace id of a `traceparent`, `None` where it is malformed.
#[must_use]
pub fn trace_id(traceparent: &str) -> Option<&str> {
    is_traceparent(traceparent).then(|| &traceparent[3..35])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_traceparent_becomes_a_header() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(trace_id(good), Some("0af7651916cd43dd8448eb211c80319c"));
        for bad in [
            "",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331\r\n-01",
        ] {
            assert_eq!(trace_id(bad), None, "{bad:?}");
        }
    }
}
