//! The effects each of whose local calls leaves a mark, and since when.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner_kernel::ids::EffectName;

use super::rows::{decode, encode};
use super::tables::LOCAL;
use super::{Batch, StorageError};

/// Effects whose calls leave a mark.
const MARKED: &[u8] = b"marked";

impl Batch<'_> {
    /// Says for the life that begins which effects leave a mark before each local call, and gives the log sequence for each of them
    /// behind which no call was made without one: the present one, unless the lives before said so without a gap.
    /// `is_known` is false where the rows are not those that this folder has had before.
    ///
    /// # Errors
    /// [`StorageError`]: nothing may be called.
    pub fn mark_calls_of(
        &self,
        effects: BTreeSet<EffectName>,
        is_known: bool,
    ) -> Result<BTreeMap<EffectName, u64>, StorageError> {
        let now = self.counters()?.log_sequence;
        let before: BTreeMap<EffectName, u64> = match self.view.get(LOCAL, MARKED)? {
            Some(bytes) if is_known => decode(&bytes, "the effects whose calls are marked")?,
            Some(_) | None => BTreeMap::new(),
        };
        let since = effects.into_iter().map(|effect| {
            let since = before.get(&effect).copied().unwrap_or(now);
            (effect, since)
        });
        let since: BTreeMap<EffectName, u64> = since.collect();
        if since != before || !is_known {
            self.view.put(LOCAL, MARKED, encode(&since))?;
        }
        Ok(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Memory;
    use crate::storage::write::Counters;

    /// A life that begins behind `log_sequence`.
    fn begin(store: &Memory, log_sequence: u64, effects: &[&str], is_known: bool) -> Vec<(String, u64)> {
        let names = effects.iter().map(|name| EffectName::parse(name).expect("legal"));
        let names = names.collect();
        let since = store.write::<_, StorageError>(|batch| {
            batch.put_counters(&Counters {
                log_sequence,
                ..Counters::default()
            })?;
            batch.mark_calls_of(names, is_known)
        });
        let since = since.expect("stored").into_iter();
        since
            .map(|(effect, since)| (effect.as_str().to_owned(), since))
            .collect()
    }

    #[test]
    fn an_effect_is_marked_since_the_start_from_which_on_all_lives_said_so() {
        let store = Memory::default();
        let at = |name: &str, since: u64| (name.to_owned(), since);
        assert_eq!(begin(&store, 3, &["pay"], true), [at("pay", 3)]);
        assert_eq!(
            begin(&store, 5, &["pay", "send"], true),
            [at("pay", 3), at("send", 5)]
        );
        assert_eq!(begin(&store, 7, &["send"], true), [at("send", 5)]);
        assert_eq!(
            begin(&store, 9, &["pay", "send"], true),
            [at("pay", 9), at("send", 5)],
            "calls of the life before left no mark"
        );
        assert_eq!(begin(&store, 11, &["pay"], false), [at("pay", 11)]);
        assert_eq!(begin(&store, 12, &["pay"], true), [at("pay", 11)]);
    }
}
