//! NEEDS. What the inner layers ask of the outside world, as traits with their error kinds.

pub mod broker;
pub mod clock;
pub mod control;
pub mod dispatch;
pub mod forwarding;
pub mod gateway;
pub mod held;
pub mod messenger;
pub mod randomness;
