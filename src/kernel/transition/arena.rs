//! An append-only store that hands out references for as long as it lives.
//!
//! Expressions borrow the JSON that they read. What a transition reads (versions of the state, results, the
//! event) comes into being while it runs, so it is kept here until the transition is over.

use std::cell::OnceCell;

/// Keeps values of one type. Meant for tens of values: keeping one walks over those before it.
#[derive(Debug)]
pub(super) struct Arena<T> {
    first: OnceCell<Box<Link<T>>>,
}

#[derive(Debug)]
struct Link<T> {
    value: T,
    next: OnceCell<Box<Link<T>>>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            first: OnceCell::new(),
        }
    }
}

impl<T> Arena<T> {
    pub(super) fn keep(&self, value: T) -> &T {
        let mut slot = &self.first;
        while let Some(link) = slot.get() {
            slot = &link.next;
        }
        let link = Link {
            value,
            next: OnceCell::new(),
        };
        &slot.get_or_init(|| Box::new(link)).value
    }
}
