//! Instances keep the version that they began with, for as long as they live and are kept.

use std::sync::Arc;

use serde_json::json;

use super::world::{CONTROLS, EVENTS, LIST, World, added, compile, event, list, named, opened, set_of};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::DefinitionHash;
use crate::storage::rows::Uses;

/// LIST, counting in another way.
fn tens() -> Definition {
    let source = LIST.replace("[event.data.n]", "[event.data.n * 10]");
    assert_ne!(source, LIST);
    compile(&source)
}

fn uses(shard: &super::world::Shard, hash: DefinitionHash) -> Option<Uses> {
    let found = shard.handle.reader.definitions().unwrap();
    found
        .into_iter()
        .find_map(|(found, _, uses)| (found == hash).then_some(uses))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_running_instance_keeps_its_version_which_is_forgotten_when_nobody_refers_to_it() {
    let mut world = World::new();
    world.storage.keep_ended_count = 1;
    let (old, new) = (compile(LIST).hash, tens().hash);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    shard.stop().await;
    world.definitions = Arc::new(DefinitionSet::new(
        vec![Arc::new(tens())],
        vec![Arc::new(compile(LIST))],
    ));
    let shard = world.start();
    shard
        .deliver(
            EVENTS,
            2,
            vec![added("a", 2, 1), opened("b", 2), added("b", 2, 1)],
        )
        .await;
    shard.until_idle().await;
    assert_eq!((shard.items("a"), shard.items("b")), (json!([1]), json!([10])));
    assert_eq!(
        uses(&shard, old),
        Some(Uses {
            live: 1,
            ended: 0,
            left: 0
        })
    );
    assert_eq!(
        uses(&shard, new),
        Some(Uses {
            live: 1,
            ended: 0,
            left: 0
        })
    );

    shard.deliver(EVENTS, 3, vec![named("a", "List.Closed", 3)]).await;
    shard.until_idle().await;
    assert_eq!(
        uses(&shard, old),
        Some(Uses {
            live: 0,
            ended: 1,
            left: 0
        }),
        "it is still kept"
    );
    // The newer end takes the place of the older one, and with it goes the last who refers to its version.
    shard.deliver(EVENTS, 4, vec![named("b", "List.Closed", 4)]).await;
    shard.deliver(EVENTS, 5, vec![opened("c", 5)]).await;
    shard.until_idle().await;
    assert_eq!(uses(&shard, old), None);
    assert_eq!(
        uses(&shard, new),
        Some(Uses {
            live: 1,
            ended: 1,
            left: 0
        })
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn inputs_that_wait_for_a_definition_are_applied_in_order_once_it_is_there() {
    let mut world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    shard.stop().await;
    let with_list = std::mem::replace(&mut world.definitions, set_of(vec![tens()]));
    let shard = world.start();
    let inputs = (2..=4)
        .map(|n| added("a", n, i64::try_from(n).unwrap()))
        .collect();
    shard.deliver_after(EVENTS, 1, 5, inputs).await;
    shard.until_idle().await;
    assert_eq!(shard.handle.status.instances_unversioned(), 1);
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
    world.definitions = with_list;
    let shard = world.start();
    shard.deliver_after(EVENTS, 5, 6, vec![added("a", 6, 6)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 3, 4, 6]));
    assert_eq!(shard.handle.status.instances_unversioned(), 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_version_of_an_instance_has_the_last_word_about_its_key() {
    let mut world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    shard.stop().await;
    // The newer version finds its instances by another field.
    let source = LIST.replace("event.data.list", "event.data.other");
    assert_ne!(source, LIST);
    world.definitions = Arc::new(DefinitionSet::new(
        vec![Arc::new(compile(&source))],
        vec![Arc::new(compile(LIST))],
    ));
    let shard = world.start();
    let to = |key: &str, sequence, data| event(list(key), "List.Added", sequence, &data);
    let for_a = json!({"list": "a", "other": "b", "n": 1});
    shard
        .deliver(EVENTS, 2, vec![to("a", 2, for_a.clone()), to("b", 2, for_a)])
        .await;
    let not_for_a = json!({"list": "c", "other": "a", "n": 2});
    shard
        .deliver(
            EVENTS,
            3,
            vec![to("c", 3, not_for_a.clone()), to("a", 3, not_for_a)],
        )
        .await;
    let opens = json!({"list": "d", "other": "e"});
    let start = |key: &str| event(list(key), "List.Opened", 4, &opens);
    shard.deliver(EVENTS, 4, vec![start("d"), start("e")]).await;
    shard.deliver(CONTROLS, 1, Vec::new()).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    assert!(
        shard.record(&list("d")).is_none(),
        "new instances are found by the new rule"
    );
    assert!(shard.record(&list("e")).is_some());
    shard.stop().await;
}
