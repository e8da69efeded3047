//! The stored form of messages.
//!
//! A publisher encodes what it knows, the *body*, on its own thread; the writer adds what only the store
//! knows. The body is shared as it is between the disk, the tail in memory and every delivery:
//!
//! ```text
//! row   crc u32 | time ms i64 | total u64 | body
//! body  subject length u16 | id length u16 | headers u16 | subject | id
//!       | { name length u16 | value length u32 | name | value } | payload
//! ```
//!
//! Numbers are little-endian. `total` counts the bytes of all bodies stored in the stream so far, this one
//! included, so that the size of a stream is the difference of two rows. The checksum covers body, time,
//! total and sequence.

use bytes::Bytes;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{Expect, Publication, StoredMessage};

const ROW_HEAD: usize = 20;
const BODY_HEAD: usize = 6;
/// What a header costs on the wire of NATS besides its texts: `: ` and a line end; and the whole block.
const HEADER_COST: usize = 4;
const HEADERS_COST: usize = 12;

/// A message as it lies in memory.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub sequence: u64,
    pub time: TimeMs,
    /// Bytes of all bodies up to this one.
    pub total: u64,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stored message {0} is damaged")]
pub(super) struct Damaged(pub u64);

/// A body with the checksum of its bytes.
#[derive(Debug)]
pub(super) struct Body {
    pub bytes: Bytes,
    pub crc: u32,
}

impl Body {
    /// # Errors
    /// A sentence that names the header that does not fit.
    pub fn encode(message: &Publication) -> Result<Self, String> {
        let id = match &message.expect {
            Expect::MessageId(id) => id.as_str(),
            Expect::Nothing | Expect::FirstOnSubject => "",
        };
        let short = |what: &str, len: usize| {
            u16::try_from(len)
                .map_err(|_| format!("{what} is {len} bytes long, at most {} are allowed", u16::MAX))
        };
        let headers: usize = message.headers.iter().map(|(n, v)| 6 + n.len() + v.len()).sum();
        let mut out = Vec::with_capacity(
            BODY_HEAD + message.subject.len() + id.len() + headers + message.payload.len(),
        );
        out.extend_from_slice(&short("subject", message.subject.len())?.to_le_bytes());
        out.extend_from_slice(&short("message id", id.len())?.to_le_bytes());
        out.extend_from_slice(&short("list of headers", message.headers.len())?.to_le_bytes());
        out.extend_from_slice(message.subject.as_bytes());
        out.extend_from_slice(id.as_bytes());
        for (name, value) in &message.headers {
            out.extend_from_slice(&short("header name", name.len())?.to_le_bytes());
            let len = u32::try_from(value.len()).map_err(|_| format!("header {name:?} is too long"))?;
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value.as_bytes());
        }
        out.extend_from_slice(&message.payload);
        Ok(Self {
            crc: crc32c::crc32c(&out),
            bytes: Bytes::from(out),
        })
    }

    /// What stands before the body in its row.
    pub fn row_head(&self, sequence: u64, time: TimeMs, total: u64) -> [u8; ROW_HEAD] {
        let mut head = [0; ROW_HEAD];
        head[..4].copy_from_slice(&seal(self.crc, sequence, time, total).to_le_bytes());
        head[4..12].copy_from_slice(&time.0.to_le_bytes());
        head[12..].copy_from_slice(&total.to_le_bytes());
        head
    }
}

fn seal(crc: u32, sequence: u64, time: TimeMs, total: u64) -> u32 {
    let mut rest = [0; 24];
    rest[..8].copy_from_slice(&time.0.to_le_bytes());
    rest[8..16].copy_from_slice(&total.to_le_bytes());
    rest[16..].copy_from_slice(&sequence.to_le_bytes());
    crc32c::crc32c_append(crc, &rest)
}

impl Entry {
    /// Reads a row of the store and checks it. Its bytes are shared from now on.
    pub fn read_row(sequence: u64, row: Vec<u8>) -> Result<Self, Damaged> {
        let (head, body) = row.split_at_checked(ROW_HEAD).ok_or(Damaged(sequence))?;
        let (crc, rest) = head.split_first_chunk().ok_or(Damaged(sequence))?;
        let (time, total) = rest.split_first_chunk().ok_or(Damaged(sequence))?;
        let time = TimeMs(i64::from_le_bytes(*time));
        let total = u64::from_le_bytes(total.try_into().map_err(|_| Damaged(sequence))?);
        if u32::from_le_bytes(*crc) != seal(crc32c::crc32c(body), sequence, time, total) {
            return Err(Damaged(sequence));
        }
        Ok(Self {
            sequence,
            time,
            total,
            body: Bytes::from(row).slice(ROW_HEAD..),
        })
    }

    pub fn subject(&self) -> &[u8] {
        subject(&self.body)
    }

    pub fn id(&self) -> &[u8] {
        let start = BODY_HEAD + number(&self.body, 0);
        self.body
            .get(start..start + number(&self.body, 2))
            .unwrap_or_default()
    }

    /// Takes the body apart; the payload stays shared.
    pub fn message(&self) -> Result<StoredMessage, Damaged> {
        let damaged = || Damaged(self.sequence);
        let mut at = BODY_HEAD;
        let mut take = |len: usize| {
            let bytes = self.body.get(at..at + len).ok_or_else(damaged)?;
            at += len;
            Ok(bytes)
        };
        let text = |bytes: &[u8]| {
            std::str::from_utf8(bytes)
                .map(str::to_owned)
                .map_err(|_| damaged())
        };
        let subject = text(take(number(&self.body, 0))?)?;
        take(number(&self.body, 2))?;
        let count = number(&self.body, 4);
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let head: &[u8; 6] = take(6)?.try_into().map_err(|_| damaged())?;
            let [n0, n1, v @ ..] = *head;
            let name = text(take(usize::from(u16::from_le_bytes([n0, n1])))?)?;
            let len = usize::try_from(u32::from_le_bytes(v)).map_err(|_| damaged())?;
            headers.push((name, text(take(len)?)?));
        }
        Ok(StoredMessage {
            subject,
            headers,
            payload: self.body.slice(at..),
            sequence: self.sequence,
            time: self.time,
        })
    }
}

/// The subject in a body.
pub(super) fn subject(body: &[u8]) -> &[u8] {
    body.get(BODY_HEAD..BODY_HEAD + number(body, 0))
        .unwrap_or_default()
}

fn number(body: &[u8], at: usize) -> usize {
    body.get(at..at + 2)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, |bytes| usize::from(u16::from_le_bytes(bytes)))
}

/// Size of a message as the limit of a stream counts it: payload and header block.
pub(super) fn wire_size(message: &Publication) -> usize {
    let headers: usize = message
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + HEADER_COST)
        .sum();
    let block = if message.headers.is_empty() {
        0
    } else {
        HEADERS_COST
    };
    message.payload.len() + headers + block
}

/// Checks what the body cannot: a header is one line of text on every broker.
pub(super) fn check_headers(message: &Publication) -> Result<(), String> {
    for (name, value) in &message.headers {
        let bad = |byte: u8| byte.is_ascii_control() || byte == b':' || byte == b' ';
        if name.is_empty() || !name.is_ascii() || name.bytes().any(bad) {
            return Err(format!("header name {name:?} is not legal"));
        }
        if value.chars().any(char::is_control) {
            return Err(format!("header {name:?} holds a control character"));
        }
    }
    match &message.expect {
        Expect::MessageId(id) if id.is_empty() || id.chars().any(char::is_control) => {
            Err("message id is empty or holds a control character".to_owned())
        }
        Expect::MessageId(_) | Expect::FirstOnSubject | Expect::Nothing => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn publication(subject: &str, headers: Vec<(String, String)>, payload: Vec<u8>, id: &str) -> Publication {
        Publication {
            stream: "S".to_owned(),
            subject: subject.to_owned(),
            headers,
            payload: Bytes::from(payload),
            expect: Expect::MessageId(id.to_owned()),
        }
    }

    fn row(body: &Body) -> Vec<u8> {
        let head = body.row_head(7, TimeMs(1_700_000_000_000), 99);
        [&head, &*body.bytes].concat()
    }

    #[test]
    fn the_stored_form_stays_as_it_is() {
        let body = Body::encode(&publication(
            "a.b",
            vec![("h".to_owned(), "v".to_owned())],
            vec![1, 2],
            "id",
        ))
        .unwrap();
        let golden: [&[u8]; 3] = [
            &[
                0x94, 0xb4, 0x8f, 0xd9, 0, 0x68, 0xe5, 0xcf, 0x8b, 1, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0,
            ],
            b"\x03\0\x02\0\x01\0a.bid",
            b"\x01\0\x01\0\0\0hv\x01\x02",
        ];
        assert_eq!(row(&body), golden.concat());
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let row = row(&Body::encode(&publication("a.b", Vec::new(), b"payload".to_vec(), "x")).unwrap());
        assert!(Entry::read_row(7, row.clone()).is_ok());
        assert_eq!(
            Entry::read_row(8, row.clone()).unwrap_err(),
            Damaged(8),
            "another place"
        );
        for bit in 0..row.len() * 8 {
            let mut damaged = row.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Entry::read_row(7, damaged).is_err(), "bit {bit}");
        }
        for len in 0..row.len() {
            assert!(Entry::read_row(7, row[..len].to_vec()).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_stored_record_is_read_back(
            subject in "[a-z.]{1,40}",
            headers in prop::collection::vec(("[a-z]{1,9}", "\\PC{0,20}"), 0..5),
            payload in prop::collection::vec(any::<u8>(), 0..200),
            id in "\\PC{1,20}",
        ) {
            let message = publication(&subject, headers, payload, &id);
            let entry = Entry::read_row(7, row(&Body::encode(&message).unwrap())).unwrap();
            prop_assert_eq!(entry.subject(), subject.as_bytes());
            prop_assert_eq!(entry.id(), id.as_bytes());
            prop_assert_eq!(entry.total, 99);
            let stored = entry.message().unwrap();
            prop_assert_eq!(stored.subject, message.subject);
            prop_assert_eq!(stored.headers, message.headers);
            prop_assert_eq!(stored.payload, message.payload);
            prop_assert_eq!(stored.time, TimeMs(1_700_000_000_000));
        }
    }
}
