//! The simulator: the production runner on one thread under virtual time, with seeded faults and judges. `make simulate` runs
//! many seeds; docs/simulator.md tells how to read one that fails.
//!
//! How it hangs together: [`plan`] is what a seed decides; [`run`] gives a node its lives over the adapters of [`server`],
//! [`store`] and [`upstream`], which share a [`world`]; [`judges`] look at what is left.

mod broker;
mod clock;
mod conformance;
mod faults;
mod folder;
mod judges;
mod ledger;
mod plan;
#[cfg(feature = "planted")]
mod planted;
mod process;
mod random;
mod run;
mod runner;
mod scripted;
mod seeds;
mod server;
mod shards;
mod shorten;
mod situations;
mod store;
mod trace;
mod upstream;
mod versions;
mod workload;
mod world;
