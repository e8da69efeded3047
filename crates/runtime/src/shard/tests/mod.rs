//! Promises of a shard, kept against a real environment.

mod added;
mod aliases;
mod asking;
mod by_tenant;
mod catch_up;
mod deaths;
mod early;
mod edits;
mod ends;
mod faults;
mod full;
mod generations;
mod held;
mod letters;
mod of_no_use;
mod poison;
mod reposition;
mod retention;
mod schedules;
mod streams;
mod timers;
mod versions;
mod work;
mod world;
