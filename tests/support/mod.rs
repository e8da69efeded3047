//! What tests share: real servers and faults between them and us.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod certificates;
pub mod databases;
pub mod grpc_gateway;
pub mod nats_server;
pub mod other_time;
pub mod proxy;
pub mod rig;
pub mod shell_blocks;
