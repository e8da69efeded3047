//! A case for each operation of docs/openapi.json, but those about shards, which take turns with commands.

pub mod decisions;
pub mod instances;
pub mod jobs;
pub mod process;
pub mod questions;
pub mod versions;
