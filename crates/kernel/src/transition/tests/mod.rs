//! The promises of the kernel, kept on whole histories.

mod aliases;
mod build;
mod children;
mod choice;
mod compensation;
mod deadlines;
mod early;
mod errors;
mod finally;
mod foreach;
mod generations;
mod heartbeats;
mod ids;
mod joins;
mod limits;
mod machine;
mod migrate;
mod migrate_children;
mod order;
#[cfg(feature = "wasm")]
mod programs;
mod properties;
mod questions;
mod reminders;
mod repeat;
mod requests;
mod results;
mod retry;
mod schemas;
mod state_effects;
mod stories;
mod strangers;
mod timers;
mod waits;
mod world;
