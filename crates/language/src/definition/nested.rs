//! Steps that hold other steps: choices, loops and lists.

use std::ops::Range;

use crate::expr::Expr;

/// Steps that start and end together.
#[derive(Debug)]
pub enum Group {
    /// The first alternative whose condition holds; the steps of all others are skipped.
    Choice(Vec<Branch>),
    /// Its steps run again and again.
    Repeat(Repeat),
    /// Its steps run once for each item of a list.
    Foreach(Foreach),
}

impl Group {
    /// Indices of everything nested in the group.
    #[must_use]
    pub fn members(&self) -> Range<u16> {
        match self {
            Self::Choice(branches) => {
                // While a file is checked there may be alternatives without steps.
                let mut taken = branches.iter().filter(|branch| !branch.steps.is_empty());
                let start = taken.next().map_or(0..0, |branch| branch.steps.clone());
                let end = taken.next_back().map_or(start.end, |branch| branch.steps.end);
                let start = start.start;
                start..end
            }
            Self::Repeat(repeat) => repeat.steps.clone(),
            Self::Foreach(foreach) => foreach.steps.clone(),
        }
    }
}

/// A loop with a condition.
#[derive(Debug)]
pub struct Repeat {
    /// Indices of everything nested in it.
    pub steps: Range<u16>,
    pub condition: RepeatCondition,
    /// Most turns.
    pub max: u32,
    /// Between two turns.
    pub pause: Option<Pause>,
}

#[derive(Debug)]
pub enum RepeatCondition {
    /// Tested after each turn: true ends the loop.
    Until(Expr),
    /// Tested before each turn: false ends the loop.
    While(Expr),
}

/// How long a loop waits: the first time, what it grows by, and at most.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    /// In milliseconds.
    pub first_ms: u64,
    /// At least 1.
    pub factor: f64,
    /// In milliseconds.
    pub max_ms: u64,
}

/// A loop over a list.
#[derive(Debug)]
pub struct Foreach {
    /// Indices of everything nested in it.
    pub steps: Range<u16>,
    pub over: Expr,
    /// What expressions call the item.
    pub item: String,
    /// Most items that run at the same time.
    pub parallel: Count,
    /// Most items of the list.
    pub max: Count,
    /// Items of the list that make one item together.
    pub chunk: Option<u32>,
    pub join: ItemJoin,
    /// How many items may fail; absent where they fail without bound.
    pub tolerate: Option<Tolerance>,
    /// Where some items suffice: those that run come to their end first.
    pub let_run: bool,
    pub on_item_error: OnItemError,
}

/// A number that the file has, or that an expression gives when it is needed.
#[derive(Debug)]
pub enum Count {
    Fixed(u32),
    Computed(Expr),
}

impl Count {
    /// The number, where it is known before anything runs.
    #[must_use]
    pub const fn fixed(&self) -> Option<u32> {
        match self {
            Self::Fixed(number) => Some(*number),
            Self::Computed(_) => None,
        }
    }
}

/// How many items of a loop may fail.
#[derive(Debug)]
pub enum Tolerance {
    Items(Count),
    /// Of the items in the list, rounded down; 0 to 100.
    Percent(u32),
}

/// How many items must be done.
#[derive(Debug)]
pub enum ItemJoin {
    All,
    AtLeast(Count),
}

/// What an item that failed means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnItemError {
    /// The loop fails at once.
    Fail,
    /// Its place in the result is null.
    Continue,
    /// Its place in the result tells the error, and the others tell that they are none.
    Collect,
}

/// One alternative of a choice.
#[derive(Debug)]
pub struct Branch {
    /// Absent: always taken.
    pub when: Option<Expr>,
    /// Indices of everything nested in it.
    pub steps: Range<u16>,
}
