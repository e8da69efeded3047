//! The simulated broker means what the real ones mean.

use std::sync::Arc;

use async_trait::async_trait;
use saga_runner::ports::broker::Broker;

use super::process::Process;
use super::server::{Client, Server};
use super::world::World;
use crate::broker::suite::Ground;

struct SimGround(Arc<Server>, Arc<Process>);

fn ground() -> Arc<dyn Ground> {
    let world = World::new(false);
    world.clock.begin_life();
    Arc::new(SimGround(Server::new(1, &world), Process::new(&world, 1)))
}

#[async_trait]
impl Ground for SimGround {
    async fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(Client {
            server: Arc::clone(&self.0),
            process: Arc::clone(&self.1),
        })
    }

    async fn delete_stream(&self, stream: &str) {
        self.0.delete_stream(stream);
    }

    async fn restart(&self) {
        self.0.cut();
        self.0.reconnect();
    }
}

crate::conformance!(ground, ground);
