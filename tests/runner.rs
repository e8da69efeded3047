//! The runner and its parts on real brokers and real peers.

mod support;

mod api;
mod broker;
mod cases;
mod cli;
mod documents;
mod gateway;
mod operations;
mod schedules;
mod versions;
mod work;
mod workers;
