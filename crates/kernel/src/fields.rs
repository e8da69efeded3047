//! Hashes lists of fields: ids, keys and traces are derived from them.

use blake3::hazmat::{ContextKey, HasherExt as _};
use saga_runner_language::ids::InstanceId;

/// Bytes that are hashed at once: ids and keys are shorter most often, and the hash takes many small pieces slowly.
const AT_ONCE: usize = 512;

/// BLAKE3 over fields, each of which begins with its length, so that no two different lists have the same bytes.
pub struct Fields {
    hasher: blake3::Hasher,
    waiting: [u8; AT_ONCE],
    waits: usize,
}

impl Fields {
    /// Apart from those of other contexts.
    pub fn of(context: &ContextKey) -> Self {
        Self::over(blake3::Hasher::new_from_context_key(context))
    }

    /// Without a context.
    pub fn plain() -> Self {
        Self::over(blake3::Hasher::new())
    }

    const fn over(hasher: blake3::Hasher) -> Self {
        Self {
            hasher,
            waiting: [0; AT_ONCE],
            waits: 0,
        }
    }

    /// A field behind its length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    pub fn number(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    /// Tenant, saga and key.
    pub fn instance(&mut self, instance: &InstanceId) {
        self.bytes(instance.tenant.as_str().as_bytes());
        self.bytes(instance.saga.as_str().as_bytes());
        self.bytes(instance.key.as_str().as_bytes());
    }

    /// A field whose length is always the same.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Some(room) = self.waiting.get_mut(self.waits..self.waits + bytes.len()) {
            room.copy_from_slice(bytes);
            self.waits += bytes.len();
        } else {
            self.flush();
            self.hasher.update(bytes);
        }
    }

    fn flush(&mut self) {
        self.hasher.update(&self.waiting[..self.waits]);
        self.waits = 0;
    }

    pub fn finish(mut self) -> [u8; 32] {
        self.flush();
        *self.hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_all_bytes_in_a_row_however_long_a_field_is() {
        for long in [0, 7, AT_ONCE - 8, AT_ONCE - 7, AT_ONCE, 5_000] {
            let parts = [vec![1; 20], vec![2; long], vec![3; 9]];
            let (mut fields, mut plain) = (Fields::plain(), blake3::Hasher::new());
            for part in &parts {
                fields.bytes(part);
                plain.update(&(part.len() as u64).to_le_bytes());
                plain.update(part);
            }
            assert_eq!(fields.finish(), *plain.finalize().as_bytes(), "{long}");
        }
    }
}
