//! What belongs to the shards that are open in this process, by their numbers.

use dashmap::DashMap;

/// One entry for each open shard, shared by threads.
///
/// # Invariants
/// At most as many entries as the cluster has shards: only their numbers are put in.
#[derive(Debug)]
pub(super) struct ShardMap<T>(DashMap<u16, T>);

impl<T> Default for ShardMap<T> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<T: Clone> ShardMap<T> {
    pub fn get(&self, shard: u16) -> Option<T> {
        self.0.get(&shard).map(|entry| entry.clone())
    }

    pub fn put(&self, shard: u16, entry: T) {
        self.0.insert(shard, entry);
    }

    pub fn take(&self, shard: u16) -> Option<T> {
        self.0.remove(&shard).map(|(_, entry)| entry)
    }

    pub fn has(&self, shard: u16) -> bool {
        self.0.contains_key(&shard)
    }

    /// The entries as they are now, by number: no lock is held over what is done with them.
    pub fn all(&self) -> Vec<T> {
        let mut all: Vec<(u16, T)> = self.0.iter().map(|entry| (*entry.key(), entry.clone())).collect();
        all.sort_unstable_by_key(|(shard, _)| *shard);
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Those of `count` shards that have no entry, ascending.
    pub fn absent(&self, count: u16) -> Vec<u16> {
        (0..count).filter(|shard| !self.has(*shard)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_of_their_numbers_however_they_were_put_in() {
        let map = ShardMap::default();
        for shard in [7, 0, 3] {
            map.put(shard, format!("shard {shard}"));
        }
        assert_eq!(map.all(), ["shard 0", "shard 3", "shard 7"]);
        assert_eq!(map.take(3).as_deref(), Some("shard 3"));
        assert_eq!((map.get(3), map.has(7)), (None, true));
        assert_eq!(map.absent(9), [1, 2, 3, 4, 5, 6, 8]);
    }
}
