//! The inputs that the history is about, as they were applied: streams lose their messages long before an instance is forgotten.

use saga_runner_kernel::input::InputBody;

use super::read::Reader;
use super::rows::{decode, encode};
use super::tables::INPUTS;
use super::write::Batch;
use super::{StorageError, keys};

/// First byte of a row: what follows is the encoded input.
const PLAIN: u8 = 0;
/// The same: what follows is compressed by LZ4, behind its length in four bytes.
const LZ4: u8 = 1;
/// Largest input that is read back, in bytes. Messages are far smaller; a row that claims more is corrupt.
const READ_MAX: usize = 64 << 20;

impl Batch<'_> {
    /// Keeps what the history row of this log sequence is about, unless it would take more than `max` bytes.
    pub fn put_input(&self, log_sequence: u64, body: &InputBody, max: u64) -> Result<(), StorageError> {
        let row = packed(&encode(body));
        if u64::try_from(row.len()).is_ok_and(|bytes| bytes <= max) {
            self.view.append(INPUTS, &keys::number(log_sequence), row)?;
        }
        Ok(())
    }
}

impl Reader {
    /// What the history rows of these log sequences are about, as far as it was kept, in their order; fewer than are asked for where all
    /// together would take more than `bytes_max` bytes.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn inputs(
        &self,
        log_sequences: impl IntoIterator<Item = u64>,
        bytes_max: usize,
    ) -> Result<Vec<Option<InputBody>>, StorageError> {
        let mut left = bytes_max;
        self.view(|view| {
            let mut inputs = Vec::new();
            for log_sequence in log_sequences {
                if left == 0 {
                    break;
                }
                let row = view.get(INPUTS, &keys::number(log_sequence))?;
                let plain = row.map(|row| unpacked(&row)).transpose()?;
                left = left.saturating_sub(plain.as_ref().map_or(0, Vec::len));
                let input = plain.map(|plain| decode(&plain, "a kept input"));
                inputs.push(input.transpose()?);
            }
            Ok(inputs)
        })
    }
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let compressed = lz4_flex::block::compress_prepend_size(plain);
    let (kind, bytes) = if compressed.len() < plain.len() {
        (LZ4, &*compressed)
    } else {
        (PLAIN, plain)
    };
    let mut row = Vec::with_capacity(1 + bytes.len());
    row.push(kind);
    row.extend_from_slice(bytes);
    row
}

fn unpacked(row: &[u8]) -> Result<Vec<u8>, StorageError> {
    let corrupt = || StorageError::Corrupt("a kept input".to_owned());
    let (kind, bytes) = row.split_first().ok_or_else(corrupt)?;
    match *kind {
        PLAIN => Ok(bytes.to_vec()),
        LZ4 => {
            let (length, bytes) = lz4_flex::block::uncompressed_size(bytes).map_err(|_| corrupt())?;
            if length > READ_MAX {
                return Err(corrupt());
            }
            lz4_flex::block::decompress(bytes, length).map_err(|_| corrupt())
        }
        _ => Err(corrupt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_unpacked_as_it_was_and_takes_a_byte_more_at_most() {
        let text = r#"{"sku":"tea-01","qty":2}"#.repeat(40);
        for plain in [&b""[..], b"a", text.as_bytes()] {
            let row = packed(plain);
            assert_eq!(unpacked(&row).expect("good"), plain);
            assert!(row.len() <= plain.len() + 1);
        }
        assert!(packed(text.as_bytes()).len() < text.len() / 4);
    }

    #[test]
    fn a_row_that_was_cut_off_or_claims_too_much_is_corrupt() {
        let row = packed("abcdefgh".repeat(50).as_bytes());
        assert!(unpacked(&[]).is_err());
        assert!(unpacked(&row[..row.len() - 3]).is_err());
        assert!(unpacked(&[LZ4, 255, 255, 255, 255, 0]).is_err());
        assert!(unpacked(&[9, 1]).is_err());
    }
}
