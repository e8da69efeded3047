//! The promises of the kernel, kept on whole histories.

mod build;
mod choice;
mod compensation;
mod errors;
mod foreach;
mod limits;
mod machine;
mod order;
mod properties;
mod repeat;
mod retry;
mod schemas;
mod stories;
mod waits;
mod world;
