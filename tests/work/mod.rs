//! Work on its way out and results on their way back, over a real broker and real HTTP peers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails where it unwraps, and runs in real time"
)]

mod cancellations;
mod conversation;
mod discipline;
mod facts;
mod faults;
mod fence;
mod gateway;
mod grouping;
mod hanging;
mod isolation;
mod load;
mod local;
mod nats;
mod pushed;
mod questions;
mod relay;
mod retention;
mod rig;
mod slow;
mod stored_order;
mod sweeper;
mod worker;
