//! Cursors of lists that cover all shards.

use std::fmt::Write as _;

use crate::ports::control::ControlError;
use crate::storage::read::ListCursor;

pub(super) type InstanceCursor = (u16, Option<ListCursor>);

/// `<shard>`, `<shard>.e<row>` or `<shard>.l<hex of the key>`: opaque to callers.
pub(super) fn write_cursor((shard, place): &InstanceCursor) -> String {
    let mut text = shard.to_string();
    match place {
        None => {}
        Some(ListCursor::Ended(row)) => write!(text, ".e{row}").expect("writing to a string"),
        Some(ListCursor::Live(key)) => {
            text.push_str(".l");
            for byte in key {
                write!(text, "{byte:02x}").expect("writing to a string");
            }
        }
    }
    text
}

pub(super) fn read_cursor(text: &str) -> Result<InstanceCursor, ControlError> {
    let parse = || -> Option<InstanceCursor> {
        let Some((shard, place)) = text.split_once('.') else {
            return Some((text.parse().ok()?, None));
        };
        let place = match place.split_at_checked(1)? {
            ("e", row) => ListCursor::Ended(row.parse().ok()?),
            ("l", hex) => ListCursor::Live(read_hex(hex)?),
            _ => return None,
        };
        Some((shard.parse().ok()?, Some(place)))
    };
    parse().ok_or_else(forged)
}

fn read_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

/// `<shard>` or `<shard>.i<hex of the key>`: where a list from the index goes on.
pub(super) fn write_place(shard: u16, after: Option<&[u8]>) -> String {
    let mut text = shard.to_string();
    if let Some(key) = after {
        text.push_str(".i");
        for byte in key {
            write!(text, "{byte:02x}").expect("writing to a string");
        }
    }
    text
}

pub(super) fn read_place(text: &str) -> Result<(u16, Option<Vec<u8>>), ControlError> {
    let parse = || -> Option<(u16, Option<Vec<u8>>)> {
        match text.split_once('.') {
            None => Some((text.parse().ok()?, None)),
            Some((shard, place)) => {
                let key = read_hex(place.strip_prefix('i')?)?;
                Some((shard.parse().ok()?, Some(key)))
            }
        }
    };
    parse().ok_or_else(forged)
}

pub(super) fn forged() -> ControlError {
    ControlError::Invalid("after is not a cursor of this list".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_forged_ones_are_refused() {
        for cursor in [
            (0, None),
            (3, Some(ListCursor::Ended(17))),
            (7, Some(ListCursor::Live(vec![0, 255, 16]))),
        ] {
            assert_eq!(read_cursor(&write_cursor(&cursor)), Ok(cursor));
        }
        for place in [(0, None), (7, Some(vec![0, 255, 16]))] {
            let text = write_place(place.0, place.1.as_deref());
            assert_eq!(read_place(&text), Ok(place));
        }
        for forged in ["", "x", "1.", "1.z", "1.l0", "1.lé", "99999999", "1.e-1", "1.i0"] {
            assert!(read_cursor(forged).is_err(), "{forged:?}");
            assert!(read_place(forged).is_err(), "{forged:?}");
        }
    }
}
