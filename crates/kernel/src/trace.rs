//! W3C trace context: `traceparent` as data that is checked before it becomes a header.
//!
//! An instance has one trace from its beginning to its end: that of the message that began it, or, where that has none, one of its
//! own, which is derived, so that a replay has the same.

use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, hash_derive_key_context};
use saga_runner_language::ids::{ClusterId, InstanceId};

use crate::fields::Fields;

/// The header, and the member of envelopes.
pub const HEADER: &str = "traceparent";

static TRACE: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("saga-runner trace v1"));

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The `traceparent` of an instance whose beginning belongs to no trace; `start` is the id of the event or request that began it.
#[must_use]
pub fn of_life(cluster: ClusterId, instance: &InstanceId, start: &str) -> String {
    let mut fields = Fields::of(&TRACE);
    fields.raw(&cluster.0);
    fields.instance(instance);
    fields.bytes(start.as_bytes());
    let digest = fields.finish();
    let mut text = String::with_capacity(KNOWN + 3);
    text.push_str("00-");
    for (at, byte) in digest.into_iter().take(24).enumerate() {
        if at == 16 {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(HEX[usize::from(digit)]));
        }
    }
    text.push_str("-01");
    text
}

/// The same trace with another span as the parent: `span` is what causes what comes next.
#[must_use]
pub fn with_span(traceparent: &str, span: u64) -> Option<String> {
    let trace = trace_id(traceparent)?;
    let flags = &traceparent[53..];
    // All zeros stand for no span.
    Some(format!("00-{trace}-{:016x}-{flags}", span.max(1)))
}

/// The `traceparent` that a header says, of whatever version, as one of version 00. Later versions may have more behind the flags, which
/// is dropped.
#[must_use]
pub fn of_header(text: &str) -> Option<String> {
    let (version, rest) = text.split_once('-')?;
    let is_later = version.len() == 2
        && version != "ff"
        && version
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let known = match rest.get(..KNOWN) {
        Some(_) if version == "00" => rest,
        Some(known) if is_later && matches!(rest.as_bytes().get(KNOWN), None | Some(b'-')) => known,
        Some(_) | None => return None,
    };
    let text = format!("00-{known}");
    is_traceparent(&text).then_some(text)
}

/// Bytes of trace, parent and flags with the hyphens between them.
const KNOWN: usize = 52;

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

/// The span id of a `traceparent`, `None` where it is malformed.
#[must_use]
pub fn span_id(traceparent: &str) -> Option<&str> {
    is_traceparent(traceparent).then(|| &traceparent[36..52])
}

/// The trace id of a `traceparent`, `None` where it is malformed.
#[must_use]
pub fn trace_id(traceparent: &str) -> Option<&str> {
    is_traceparent(traceparent).then(|| &traceparent[3..35])
}

#[cfg(test)]
mod tests {
    use saga_runner_language::ids::{Key, SagaName, TenantId};

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

    #[test]
    fn a_header_of_a_later_version_is_read_as_one_of_this() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let known = format!("00-{trace}-00f067aa0ba902b7-01");
        for (text, legal) in [
            (known.clone(), true),
            (format!("cc-{trace}-00f067aa0ba902b7-01-later"), true),
            (format!("cc-{trace}-00f067aa0ba902b7-01later"), false),
            (format!("00-{trace}-00f067aa0ba902b7-01-later"), false),
            (format!("ff-{trace}-00f067aa0ba902b7-01"), false),
            (format!("00-{trace}"), false),
            (format!("00-{}", "é".repeat(40)), false),
            (String::new(), false),
        ] {
            assert_eq!(of_header(&text), legal.then(|| known.clone()), "{text}");
        }
    }

    #[test]
    fn the_trace_of_an_instance_is_derived_and_frozen() {
        let instance = |key: &str| InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse(key).expect("legal"),
        };
        let trace = of_life(ClusterId::OFFLINE, &instance("o-1"), "e-1");
        assert!(is_traceparent(&trace), "{trace}");
        assert_eq!(trace, FROZEN);
        assert_ne!(trace, of_life(ClusterId::OFFLINE, &instance("o-2"), "e-1"));
        assert_ne!(trace, of_life(ClusterId::OFFLINE, &instance("o-1"), "e-2"));
        let child = with_span(&trace, 0).expect("well-formed");
        assert_eq!(trace_id(&child), trace_id(&trace));
        assert!(is_traceparent(&child), "{child}");
        assert_eq!(with_span("nothing", 1), None);
    }

    const FROZEN: &str = "00-a4fa9f2cb32e9c8da716f0275fbab392-85437ba688983faa-01";
}
