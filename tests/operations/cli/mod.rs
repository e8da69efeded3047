//! A case for each command that needs a running process or a server, but those about shards, which take turns with operations.

pub mod instances;
pub mod many;
pub mod process;
