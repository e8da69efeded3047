//! Definitions: what is said of bad ones, what offline cases show, and what a transition costs.

mod allocations;
mod definitions;
mod hostile;
mod offline;
