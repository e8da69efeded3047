//! Whether this process hears the requests that others forward, and may answer them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::node::Node;
use super::running::Running;
use crate::api::ForwardOwner;

/// Whether forwarded requests are heard; unset where nothing is going to listen for them.
#[derive(Debug, Default)]
pub(super) struct Hearing(OnceLock<AtomicBool>);

impl Hearing {
    /// Says, before the start, that something will listen: this belongs to being ready then.
    pub fn expect(&self) {
        self.0.get_or_init(|| AtomicBool::new(false));
    }

    fn set(&self, hears: bool) {
        let known = self.0.get_or_init(|| AtomicBool::new(hears));
        known.store(hears, Ordering::Release);
    }

    fn is_missing(&self) -> bool {
        self.0.get().is_some_and(|hears| !hears.load(Ordering::Acquire))
    }
}

impl Node {
    /// Whether this process may answer for others, and they would not be heard.
    pub(super) fn is_deaf(&self) -> bool {
        self.hearing.is_missing() && self.forwarded().is_some() && self.may_answer()
    }
}

impl ForwardOwner for Node {
    fn may_answer(&self) -> bool {
        let keeper = self.running().and_then(Running::keeper);
        keeper.is_some_and(|keeper| keeper.may_answer())
    }

    fn hears(&self, hears: bool) {
        self.hearing.set(hears);
    }
}
