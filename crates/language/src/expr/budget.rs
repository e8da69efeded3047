//! What operations cost. A step stands for about a tenth of a microsecond.

use super::{Budget, EvalError};

/// Text that is searched, compared or built costs a step for this many bytes.
const TEXT_BYTES: usize = 64;
/// Members that are looked through for a key cost a step for this many.
const LOOKUP_MEMBERS: usize = 32;
/// JSON that is written costs a step for this many bytes; so one budget bounds what a transition can write.
const OUTPUT_BYTES: usize = 128;

/// Takes steps off a budget.
pub(super) struct Spender<'b> {
    budget: &'b mut Budget,
    max: u64,
}

impl<'b> Spender<'b> {
    pub fn new(budget: &'b mut Budget) -> Self {
        let max = budget.steps;
        Self { budget, max }
    }

    pub fn spend(&mut self, steps: usize) -> Result<(), EvalError> {
        match self.budget.steps.checked_sub(steps as u64) {
            Some(left) => {
                self.budget.steps = left;
                Ok(())
            }
            None => Err(self.exhaust()),
        }
    }

    pub fn text(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.spend(bytes / TEXT_BYTES)
    }

    pub fn lookup(&mut self, members: usize) -> Result<(), EvalError> {
        self.spend(members / LOOKUP_MEMBERS)
    }

    pub fn output(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.spend(bytes / OUTPUT_BYTES)
    }

    /// Bytes of output that the rest of the budget pays for.
    pub fn output_left(&self) -> usize {
        usize::try_from(self.budget.steps)
            .unwrap_or(usize::MAX)
            .saturating_mul(OUTPUT_BYTES)
            .saturating_add(OUTPUT_BYTES - 1)
    }

    /// Ends what was too much. Nothing can be paid for afterwards.
    pub fn exhaust(&mut self) -> EvalError {
        self.budget.steps = 0;
        EvalError::Budget { max: self.max }
    }
}
