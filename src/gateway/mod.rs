//! Submission of aggregate commands to the outside: one adapter per transport behind [`crate::ports::gateway`].
//!
//! It does not retry, keep order or know about the outbox; the relay does.

pub mod http;
