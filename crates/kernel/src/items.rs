//! What a loop over a list remembers: the items that wait, packed; those that run; the results so far, packed.
//!
//! Only items that run have states of their own, so a thousand items cost their bytes and little more.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::record::StepState;

/// Bytes of a number within packed bytes.
const NUMBER: usize = 4;

/// The state of a loop over a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Items {
    /// Index of the first step of the loop.
    pub first: u16,
    pub total: u32,
    /// Index of the next item to start.
    pub next: u32,
    /// Items that have not started, the last one first, each as JSON and its length.
    waiting: ByteBuf,
    pub running: Vec<Item>,
    /// In the order of their ends: index, length and JSON of each. Empty where nothing reads results.
    results: ByteBuf,
    pub done: u32,
    pub failed: u32,
    pub bounds: Bounds,
}

/// What the loop says about the number of its items, as it stood when the list was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Most items that run at the same time.
    pub parallel: u32,
    /// How many must be done, where some suffice.
    pub at_least: Option<u32>,
    /// How many may fail, where that is bounded.
    pub tolerated: Option<u32>,
}

/// An item that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    pub index: u32,
    /// JSON.
    pub value: ByteBuf,
    /// One per step of the loop, in its order.
    pub steps: Vec<StepState>,
    /// Results of its steps so far, by index of the step; only where something reads them.
    pub results: Vec<(u16, ByteBuf)>,
}

impl Items {
    /// Packs `items`, each as JSON.
    #[must_use]
    pub fn new(first: u16, items: &[Vec<u8>], bounds: Bounds) -> Self {
        let bytes: usize = items.iter().map(|item| item.len() + NUMBER).sum();
        let mut waiting = Vec::with_capacity(bytes);
        for item in items.iter().rev() {
            waiting.extend_from_slice(item);
            waiting.extend_from_slice(&number(item.len()));
        }
        Self {
            first,
            total: u32::try_from(items.len()).unwrap_or(u32::MAX),
            next: 0,
            waiting: ByteBuf::from(waiting),
            running: Vec::new(),
            results: ByteBuf::new(),
            done: 0,
            failed: 0,
            bounds,
        }
    }

    /// Adds an item that runs at once, and gives its index.
    pub fn add(&mut self, steps: Vec<StepState>) -> u32 {
        let index = self.total;
        self.total = self.total.saturating_add(1);
        self.next = self.total;
        self.running.push(Item {
            index,
            value: ByteBuf::from("null"),
            steps,
            results: Vec::new(),
        });
        index
    }

    /// Takes the next item that waits: its index and JSON.
    pub fn take(&mut self) -> Option<(u32, ByteBuf)> {
        let body = self.waiting.len().checked_sub(NUMBER)?;
        let length = read(&self.waiting[body..])?;
        let begin = body.checked_sub(length)?;
        let value = ByteBuf::from(&self.waiting[begin..body]);
        self.waiting.truncate(begin);
        let index = self.next;
        self.next = self.next.saturating_add(1);
        Some((index, value))
    }

    /// How many items have not started.
    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.total.saturating_sub(self.next)
    }

    /// Gives up the items that have not started.
    pub fn drop_waiting(&mut self) {
        self.waiting = ByteBuf::new();
        self.next = self.total;
    }

    /// Position of item `index` among those that run.
    #[must_use]
    pub fn position(&self, index: u32) -> Option<usize> {
        // They begin in the order of the list.
        self.running.binary_search_by_key(&index, |item| item.index).ok()
    }

    pub fn keep_result(&mut self, index: u32, json: &[u8]) {
        self.results.extend_from_slice(&index.to_le_bytes());
        self.results.extend_from_slice(&number(json.len()));
        self.results.extend_from_slice(json);
    }

    /// The results as a JSON list in the order of the items; null where there is none.
    #[must_use]
    pub fn result(&self) -> Vec<u8> {
        let mut by_index: Vec<&[u8]> = vec![b"null"; usize::try_from(self.total).unwrap_or(0)];
        let mut rest = self.results.as_slice();
        while let Some((index, json, after)) = split_result(rest) {
            if let Some(place) = by_index.get_mut(index) {
                *place = json;
            }
            rest = after;
        }
        let mut list = Vec::with_capacity(self.results.len() + 2 * by_index.len() + 2);
        list.push(b'[');
        list.extend_from_slice(&by_index.join(&b','));
        list.push(b']');
        list
    }

    /// At least as many bytes as the encoding has besides the states of running items.
    #[must_use]
    pub fn bytes_at_most(&self) -> usize {
        let running = self.running.iter().map(|item| {
            let results = item.results.iter().map(|(_, json)| json.len() + 15);
            40 + item.value.len() + results.sum::<usize>()
        });
        60 + self.waiting.len() + self.results.len() + running.sum::<usize>()
    }
}

fn number(length: usize) -> [u8; NUMBER] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn read(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.first_chunk::<NUMBER>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn split_result(bytes: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    let index = read(bytes)?;
    let length = read(bytes.get(NUMBER..)?)?;
    let (json, after) = bytes.get(2 * NUMBER..)?.split_at_checked(length)?;
    Some((index, json, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNBOUNDED: Bounds = Bounds {
        parallel: 10,
        at_least: None,
        tolerated: None,
    };

    #[test]
    fn items_come_in_their_order_and_results_in_that_of_the_items() {
        let mut items = Items::new(
            3,
            &[b"1".to_vec(), b"[2]".to_vec(), b"\"drei\"".to_vec()],
            UNBOUNDED,
        );
        assert_eq!((items.total, items.waiting()), (3, 3));
        let taken: Vec<(u32, ByteBuf)> = std::iter::from_fn(|| items.take()).collect();
        assert_eq!(
            taken,
            [
                (0, ByteBuf::from("1")),
                (1, ByteBuf::from("[2]")),
                (2, ByteBuf::from("\"drei\""))
            ]
        );
        assert_eq!(items.waiting(), 0);
        items.keep_result(2, b"{}");
        items.keep_result(0, b"true");
        assert_eq!(items.result(), b"[true,null,{}]");
    }

    #[test]
    fn no_items_make_an_empty_list() {
        let mut items = Items::new(0, &[], UNBOUNDED);
        assert_eq!(items.take(), None);
        assert_eq!(items.result(), b"[]");
    }

    #[test]
    fn items_that_are_given_up_do_not_come() {
        let mut items = Items::new(0, &[b"1".to_vec(), b"2".to_vec()], UNBOUNDED);
        items.take();
        items.drop_waiting();
        assert_eq!((items.take(), items.waiting()), (None, 0));
    }
}
