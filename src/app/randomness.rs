//! Real randomness: the one place that draws names.

use uuid::Uuid;

use crate::ports::randomness::Randomness;

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn draw(&self) -> u128 {
        Uuid::new_v4().as_u128()
    }
}
