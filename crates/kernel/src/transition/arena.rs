//! An append-only store that hands out references for as long as it lives.
//!
//! Expressions borrow the JSON that they read. What a transition reads (versions of the state, results, the
//! event) comes into being while it runs, so it is kept here until the transition is over.

use std::cell::OnceCell;

/// Values per block. Most transitions need one block, and no allocation for it.
const BLOCK: usize = 8;

/// Keeps values of one type.
#[derive(Debug)]
pub(super) struct Arena<T> {
    first: Block<T>,
}

#[derive(Debug)]
struct Block<T> {
    slots: [OnceCell<T>; BLOCK],
    next: OnceCell<Box<Block<T>>>,
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Self {
            slots: [const { OnceCell::new() }; BLOCK],
            next: OnceCell::new(),
        }
    }
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            first: Block::default(),
        }
    }
}

impl<T> Arena<T> {
    pub(super) fn keep(&self, value: T) -> &T {
        let mut block = &self.first;
        loop {
            if let Some(slot) = block.slots.iter().find(|slot| slot.get().is_none()) {
                return slot.get_or_init(|| value);
            }
            block = block.next.get_or_init(Box::default);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_stay_good_while_more_is_kept() {
        let arena = Arena::default();
        let kept: Vec<&String> = (0..100).map(|n| arena.keep(n.to_string())).collect();
        assert!(kept.iter().enumerate().all(|(n, text)| **text == n.to_string()));
    }
}
