//! Tests of definitions without a broker: cases from `*.test.yaml`, played by the kernel's own transition on a
//! virtual clock.
//!
//! [`mod@file`] reads a suite with its places, [`world`] is one instance with what a shard keeps around it,
//! [`play`] gives it the inputs of a case, [`compare`] holds what came out against what was expected.

pub mod answer;
pub mod before;
pub mod branches;
pub mod chaos;
pub mod checks;
pub mod compare;
pub mod coverage;
pub mod draw;
pub mod expect;
pub mod file;
pub mod history;
mod keys;
pub mod layout;
pub mod observe;
pub mod of;
mod operator;
pub mod play;
mod preludes;
pub mod promises;
pub mod report;
mod step;
pub mod suite;
pub mod svg;
pub mod tree;
pub mod update;
pub mod work;
pub mod world;

/// Codes of findings about tests. Each has a page under docs/errors/.
pub mod codes {
    /// What came out is not what the case expects.
    pub const UNMET: &str = "SR0601";
    /// A step of a case cannot be carried out.
    pub const UNPLAYABLE: &str = "SR0602";
    /// The same inputs, given in another way, came to another end.
    pub const UNSTEADY: &str = "SR0603";
    /// One failed piece of work, and the instance does not come to an end, or something stays undone.
    pub const CHAOS: &str = "SR0604";
}
