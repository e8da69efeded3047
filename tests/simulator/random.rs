//! Numbers that a seed decides.

use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saga_runner::ports::randomness::Randomness;

/// A sequence of numbers (`SplitMix64`), the same for the same seed on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// `purpose` separates sequences that come from one seed.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut rng = Self(seed ^ 0x9e37_79b9_7f4a_7c15);
        for byte in purpose.bytes() {
            rng.0 = rng.next().wrapping_add(u64::from(byte));
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    pub fn pick<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        let at = self.below(list.len() as u64);
        &list[usize::try_from(at).expect("an index")]
    }

    pub fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }
}

/// Names of processes, as the seed has them.
pub struct Names(Mutex<Rng>);

impl Names {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(Rng::new(seed, "names")))
    }
}

impl Randomness for Names {
    fn draw(&self) -> u128 {
        let mut rng = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        u128::from(rng.next()) << 64 | u128::from(rng.next())
    }
}
