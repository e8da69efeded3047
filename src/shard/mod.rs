//! SINGLE WRITER. A shard is one thread that owns one MDBX environment: it takes deliveries from its mailbox,
//! applies them in one transaction, commits, and only then releases work and positions.
//!
//! It does not publish, call HTTP or read the broker; those sit behind the mailbox and the release channel.

pub mod mailbox;
