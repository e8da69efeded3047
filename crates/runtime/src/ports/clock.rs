//! Time as a need, so that tests and simulation can set it.

use std::time::Duration;

use crate::kernel::ids::TimeMs;

pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> TimeMs;

    /// Time since an arbitrary start, never going back.
    fn monotonic(&self) -> Duration;
}
