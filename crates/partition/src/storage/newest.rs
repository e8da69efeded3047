//! Rows of `meta` under a prefix and a number, of which the newest are kept: what operators have said.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::rows::{decode, encode};
use super::tables::META;
use super::{Batch, ReadRows, StorageError, keys};

/// Rows that are kept of one prefix.
const KEPT_MAX: usize = 100;

/// Adds a row, and forgets the oldest beyond the newest [`KEPT_MAX`].
pub(super) fn add(batch: &Batch<'_>, prefix: &[u8], row: &impl Serialize) -> Result<(), StorageError> {
    let mut kept = Vec::new();
    batch.view.scan(META, prefix, &mut |key, _| {
        let number = key.strip_prefix(prefix).and_then(keys::read_number);
        kept.extend(number);
        Ok(number.is_some())
    })?;
    let key = |number| [prefix, &keys::number(number)].concat();
    let too_many = (kept.len() + 1).saturating_sub(KEPT_MAX);
    for number in &kept[..too_many] {
        batch.view.delete(META, &key(*number))?;
    }
    let number = kept.last().map_or(0, |last| last + 1);
    batch.view.put(META, &key(number), encode(row))
}

/// All that are kept, oldest first; `what` names one of them.
pub(super) fn all<T: DeserializeOwned>(
    view: &dyn ReadRows,
    prefix: &[u8],
    what: &str,
) -> Result<Vec<T>, StorageError> {
    let mut rows = Vec::new();
    view.scan(META, prefix, &mut |key, bytes| {
        let is_one = key.starts_with(prefix);
        if is_one {
            rows.push(decode(&bytes, what)?);
        }
        Ok(is_one)
    })?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Memory, Reader};

    #[test]
    fn the_newest_rows_of_a_prefix_are_kept_in_their_order_and_others_left_alone() {
        let store = Memory::default();
        store
            .write::<_, StorageError>(|batch| {
                (0..150_u64).try_for_each(|row| add(batch, b"one/", &row))?;
                add(batch, b"other/", &7_u64)
            })
            .expect("stored");
        let read = |prefix: &'static [u8]| {
            Reader::view(&store.reader(), |view| all::<u64>(view, prefix, "a row")).expect("readable")
        };
        assert_eq!(read(b"one/"), (50..150).collect::<Vec<_>>());
        assert_eq!(read(b"other/"), [7]);
    }
}
