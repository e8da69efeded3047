//! Whether what reads a stream can still be read from.

use crate::ports::broker::ReaderBroken;

/// Once broken, always broken.
#[derive(Debug, Default)]
pub(super) struct Trust(Option<ReaderBroken>);

impl Trust {
    pub fn check(&self) -> Result<(), ReaderBroken> {
        self.0.clone().map_or(Ok(()), Err)
    }

    /// What was the reason before stays the reason.
    pub fn lose(&mut self, why: &str) {
        self.0.get_or_insert_with(|| ReaderBroken(why.to_owned()));
    }

    /// Passes a result on, and remembers that it is the last one.
    pub fn keep<T>(&mut self, result: Result<T, ReaderBroken>) -> Result<T, ReaderBroken> {
        if let Err(broken) = &result {
            self.0 = Some(broken.clone());
        }
        result
    }
}
