//! Who may work with a shard: one folder, in one process.
//!
//! The broker keeps a record per shard, replaced by compare-and-set. A process claims its shards before it reads or sends
//! anything ([`claim`]), by a decision that is pure ([`verdict`]), and renews the records as long as it runs ([`keeper`]). What
//! it sends asks the fence first (`crates/runtime/src/outbox/fence.rs`), which a renewal opens for a while. What a record tells
//! others is read by [`absent`].

pub(super) mod absent;
pub mod adoption;
pub(super) mod claim;
pub(super) mod keeper;
mod record;
#[cfg(test)]
mod tests;
mod verdict;

pub use adoption::{Adoption, Loss};
pub use record::Place;
pub(super) use record::{Entries, ReadError, host};
