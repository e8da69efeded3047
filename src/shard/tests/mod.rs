//! Promises of a shard, kept against a real environment.

mod faults;
mod poison;
mod streams;
mod timers;
mod work;
mod world;
