//! Messages as the client delivers them, turned into the port's.

use async_nats::{HeaderMap, Message as Raw};
use jiff::Timestamp;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{Message, StoredMessage};

/// What the reply subject of a delivery tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    pub delivered: u64,
    pub stream_sequence: u64,
    pub consumer_sequence: u64,
    pub time_ns: i64,
    pub pending: u64,
}

impl Delivery {
    /// Reads `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`, or the
    /// same with a domain and an account hash in front and tokens to ignore behind.
    pub fn parse(reply: &str) -> Option<Self> {
        let tokens = reply.strip_prefix("$JS.ACK.")?;
        let skipped = match tokens.split('.').count() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut numbers = tokens.split('.').skip(skipped);
        let mut number = || numbers.next()?.parse::<u64>().ok();
        Some(Self {
            delivered: number()?,
            stream_sequence: number()?,
            consumer_sequence: number()?,
            time_ns: i64::try_from(number()?).ok()?,
            pending: number()?,
        })
    }
}

/// A delivery of a consumer; an error names what is wrong with it.
pub(super) fn delivered(raw: Raw) -> Result<Message, String> {
    let delivery = raw
        .reply
        .as_deref()
        .and_then(Delivery::parse)
        .ok_or_else(|| format!("delivery with unreadable reply subject {:?}", raw.reply))?;
    Ok(Message {
        subject: raw.subject.to_string(),
        headers: headers(raw.headers.as_ref(), |_| true),
        payload: raw.payload,
        stream_sequence: delivery.stream_sequence,
        consumer_sequence: delivery.consumer_sequence,
        delivered: delivery.delivered,
        pending: delivery.pending,
        time: TimeMs(delivery.time_ns.div_euclid(1_000_000)),
    })
}

/// The answer to a direct get, which tells the message's place in headers of its own.
pub(super) fn stored(raw: Raw) -> Result<StoredMessage, String> {
    let map = raw.headers.as_ref();
    let header = |name: &str| {
        map.and_then(|map| map.get_last(name))
            .map(async_nats::HeaderValue::as_str)
            .ok_or_else(|| format!("direct get without header {name}"))
    };
    let time = header("Nats-Time-Stamp")?;
    let sequence = header("Nats-Sequence")?;
    Ok(StoredMessage {
        subject: header("Nats-Subject")?.to_owned(),
        sequence: sequence
            .parse()
            .map_err(|_| format!("direct get with sequence {sequence:?}"))?,
        time: time_ms(time).ok_or_else(|| format!("direct get with time {time:?}"))?,
        headers: headers(map, |name| !ADDED_BY_DIRECT_GET.contains(&name)),
        payload: raw.payload,
    })
}

const ADDED_BY_DIRECT_GET: [&str; 6] = [
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
    "Nats-Last-Sequence",
];

pub(super) fn from_leader(raw: async_nats::jetstream::message::StreamMessage) -> StoredMessage {
    let ns = raw.time.unix_timestamp_nanos();
    StoredMessage {
        subject: raw.subject.to_string(),
        headers: headers(Some(&raw.headers), |_| true),
        payload: raw.payload,
        sequence: raw.sequence,
        time: TimeMs(i64::try_from(ns.div_euclid(1_000_000)).unwrap_or(i64::MAX)),
    }
}

pub(super) fn time_ms(text: &str) -> Option<TimeMs> {
    // Rounded down, like the time in a reply subject, so that both ways to a message tell the same time.
    let ns = text.parse::<Timestamp>().ok()?.as_nanosecond();
    i64::try_from(ns.div_euclid(1_000_000)).ok().map(TimeMs)
}

/// What a publication says to the server alone: preconditions, and the batch with which it came.
const NO_PART_OF_THE_MESSAGE: [&str; 2] = ["Nats-Expected-", "Nats-Batch-"];

/// Headers by name, since the client keeps them without order.
pub(super) fn headers(map: Option<&HeaderMap>, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let Some(map) = map else { return Vec::new() };
    let mut headers: Vec<(String, String)> = map
        .iter()
        .filter(|(name, _)| {
            let name: &str = name.as_ref();
            !NO_PART_OF_THE_MESSAGE
                .iter()
                .any(|prefix| name.starts_with(prefix))
                && wanted(name)
        })
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| (name.to_string(), value.as_str().to_owned()))
        })
        .collect();
    headers.sort_by(|left, right| left.0.cmp(&right.0));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_subject_is_read_in_both_lengths() {
        let expected = Some(Delivery {
            delivered: 2,
            stream_sequence: 30,
            consumer_sequence: 4,
            time_ns: 1_700_000_000_123_456_789,
            pending: 7,
        });
        for reply in [
            "$JS.ACK.S.c.2.30.4.1700000000123456789.7",
            "$JS.ACK._.hash.S.c.2.30.4.1700000000123456789.7",
            "$JS.ACK.hub.hash.S.c.2.30.4.1700000000123456789.7.token",
        ] {
            assert_eq!(Delivery::parse(reply), expected, "{reply}");
        }
    }

    #[test]
    fn an_unreadable_reply_subject_is_no_delivery() {
        for reply in [
            "",
            "_INBOX.x",
            "$JS.ACK.S.c.2.30.4.1700000000123456789",
            "$JS.ACK.S.c.x.30.4.1700000000123456789.7",
            "$JS.ACK.S.c.2.30.4.99999999999999999999.7",
            "$JS.ACK.a.S.c.2.30.4.1700000000123456789.7",
        ] {
            assert_eq!(Delivery::parse(reply), None, "{reply}");
        }
    }

    #[test]
    fn headers_come_in_the_order_of_their_names_without_what_is_for_the_server() {
        let mut map = HeaderMap::new();
        for (name, value) in [
            ("b", "1"),
            ("Nats-Expected-Last-Subject-Sequence", "0"),
            ("Nats-Batch-Id", "x"),
            ("a", "2"),
            ("b", "0"),
        ] {
            map.append(name, value);
        }
        let expected = [("a", "2"), ("b", "1"), ("b", "0")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(headers(Some(&map), |_| true), expected);
    }

    #[test]
    fn a_timestamp_is_rounded_down_to_the_millisecond() {
        assert_eq!(
            time_ms("2026-11-21T05:00:00.1239999Z"),
            time_ms("2026-11-21T05:00:00.123Z")
        );
        assert_eq!(time_ms("yesterday"), None);
    }
}
