//! Effect workers: they take commands from shared queues, call upstreams, and record one result per command.
//!
//! Order of steps for a command: gate (was it answered already?), deadline, room (concurrency, breaker, rate), one
//! attempt, result, acknowledgement. A command that has to wait goes back to the queue, with a note of
//! what was done (`progress`), so that it holds no place and any worker may go on with it. Stateless: the result subject is
//! the truth, so any worker can take over from any other.
//!
//! Knows nothing about sagas, and it never touches a shard. What makes the calls is given to it ([`provider::Providers`]).

mod attempt;
mod call_log;
mod cancellations;
pub mod certainty;
pub mod consumers;
pub mod egress;
mod executor;
mod gate;
mod held;
mod line;
mod local;
pub mod mask;
mod places;
mod progress;
pub mod provider;
mod result;
mod room;
pub mod running;
pub mod secrets;
pub mod settings;
pub mod source;

use crate::breakers;
pub use consumers::{Consumer, Consumers, durable_name};
pub use local::Local;
pub use running::{Hosts, Worker, WorkerError, WorkerSpec};
pub use secrets::Secrets;
pub use settings::Settings;
