//! The outbox relay: it hands committed work over to the broker and the gateway, resends what got lost on
//! the way, and trims the streams behind everyone's progress.
//!
//! It decides nothing about sagas. It reads rows that a shard released, and tells the shard by mail their
//! outcomes; a row leaves the outbox only when the shard says so.

mod backlog;
mod channels;
mod envelope;
mod fact;
mod fence;
mod handover;
mod local;
mod publish;
mod refused;
pub mod relay;
pub mod retention;
pub mod settings;
pub mod submitter;
mod sweeper;

pub use envelope::{Unsendable, saga as saga_message};
pub use fact::{FactKey, message as fact_message};
pub use fence::Fence;
pub use local::LocalFirst;
pub use relay::{Relay, RelaySpec, Rest};
pub use retention::{Retention, RetentionSpec};
pub use settings::Settings;
pub use submitter::Submitter;
