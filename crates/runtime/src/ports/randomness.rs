//! Randomness as a need, so that a simulation can repeat it.

pub trait Randomness: Send + Sync + 'static {
    /// 122 or more random bits, which nobody draws a second time.
    fn draw(&self) -> u128;
}
