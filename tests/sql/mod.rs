//! Effects on real databases: PostgreSQL, MariaDB and SQLite.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails where it unwraps, and runs in real time"
)]

mod classes;
mod clusters;
mod exactly_once;
mod faults;
mod journal;
mod kills;
mod limits;
mod mariadb;
mod pgbouncer;
mod postgres;
mod rig;
mod runner;
mod sqlite;
