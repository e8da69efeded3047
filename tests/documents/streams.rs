//! Commands about a stream that has lost messages, and about single shards.

use async_nats::jetstream::stream::Config;
use serde_json::Value;

use super::stage::Stage;
use super::{Scene, exit, pages_of, placed};

const EVENTS: &str = "AGGREGATE_EVENTS";

pub fn play() {
    let mut stage = Stage::new().with_nats().with_project();
    stage.start_upstream();
    stage.join_cluster();
    stage.start();
    let mut gaps = 0;
    for (_, commands) in pages_of(Scene::Streams, &[], &[]) {
        for shown in &commands {
            if shown.begins("saga-runner shard accept-gap") && !is_found(&stage, "stream.gap") {
                gaps += 1;
                make_gap(&stage, gaps);
            }
            if shown.begins("saga-runner shard rebind") && !is_found(&stage, "stream.identity") {
                create_again(&stage);
            }
            let is_done = stage.run(shown, &[], exit(shown)).is_some();
            if is_done && shown.words.iter().any(|word| word == "--yes") {
                let url = format!("http://{}/ready", stage.api);
                stage.until("the runner is ready again", |stage| {
                    let answer = stage.request("GET", &url, None);
                    answer.is_ok_and(|(status, _)| status.is_success())
                });
            }
        }
    }
    stage.end();
}

/// Whether some shard or reader is halted for this reason.
fn is_found(stage: &Stage, reason: &str) -> bool {
    stage.operator("health").to_string().contains(reason)
}

/// Lets the stream lose a message that shard 3 alone has not read.
fn make_gap(stage: &Stage, number: usize) {
    stage.must(&["saga-runner", "shard", "close", "3"]);
    let key = format!("g-{number}");
    let sequence = stage.publish("Placed", &key, &placed(&key));
    stage.until("the other shards have read it", |stage| {
        let shards = stage.operator("admin/shards");
        let shards = shards["items"].as_array().expect("a list");
        let has_read = |shard: &Value| shard["positions"][EVENTS].as_u64() >= Some(sequence);
        shards
            .iter()
            .all(|shard| shard["open"] == false || has_read(shard))
    });
    stage.with_streams(|streams| async move {
        let events = streams.get_stream(EVENTS).await.expect("a stream");
        events.purge().await.expect("purged");
    });
    stage.must(&["saga-runner", "shard", "open", "3"]);
    stage.until("the gap is found", |stage| is_found(stage, "stream.gap"));
}

/// Deletes the stream and creates it again.
fn create_again(stage: &Stage) {
    stage.with_streams(|streams| async move {
        streams.delete_stream(EVENTS).await.expect("deleted");
        let config = Config {
            name: EVENTS.to_owned(),
            subjects: vec!["tenant.*.aggregate.>".to_owned()],
            ..Config::default()
        };
        streams.create_stream(config).await.expect("created");
    });
    stage.until("the other stream is found", |stage| {
        is_found(stage, "stream.identity")
    });
}
