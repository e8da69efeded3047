//! A server that lost its newest messages with its power, and has grown again.

use serde_json::json;

use super::{Plan, place, streams};
use crate::broker::nats::connect;
use crate::broker::suite::eventually;
use crate::support::nats_server::NatsServer;

async fn server_with(orders: u64) -> NatsServer {
    let mut server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    place(&*broker, 0..orders).await;
    server.remember();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_finds_others_in_the_place_of_what_it_has_read_does_not_go_on() {
    let mut server = server_with(5).await;
    let broker = connect(&server.url()).await;
    let mut stage = Plan::new(&[0]).start(broker.clone());
    let shard = stage.shard(0);
    place(&*broker, 5..10).await;
    eventually("the shard has all", || async {
        shard.seen.borrow().applied.len() == 10
    })
    .await;
    server.lose();
    // The reader is the last to find the server again.
    let port = server.launch_elsewhere();
    place(&*connect(&server.url()).await, 100..107).await;
    server.kill();
    server.launch_at(port);
    let halt = stage.halted().await;
    assert_eq!(halt.reason, "stream.identity");
    assert!(halt.message.starts_with("message 10 of stream"), "{halt:?}");
    assert_eq!(shard.seen.borrow().applied, (1..=10).collect::<Vec<u64>>());
}
