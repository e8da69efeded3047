//! Shards come and go while the others are fed.

use std::time::Duration;

use tokio::sync::mpsc;

use super::broker::Scripted;
use super::world::{Mood, Plan, STREAMS, World, place};
use super::*;
use crate::intake::Halt;
use crate::shard::mailbox::Mail;

const EVENTS: SourceStream = SourceStream::AggregateEvents;

/// Places orders; the sequences of those that belong to `owner`.
fn orders(broker: &Scripted, numbers: std::ops::Range<u64>, shards: u16, owner: u16) -> Vec<u64> {
    numbers
        .map(|number| place(broker, &format!("o-{number}"), shards))
        .filter(|(_, shard)| *shard == owner)
        .map(|(sequence, _)| sequence)
        .collect()
}

#[tokio::test]
async fn a_shard_that_was_removed_gets_what_came_meanwhile_once_it_is_added() {
    let broker = Scripted::new();
    let mut expected = orders(&broker, 0..30, 3, 1);
    let mut world = Plan::new(3).start(broker.clone());
    let mut shards: Vec<_> = (0..3).map(|shard| world.shard(shard, Mood::default())).collect();
    for shard in &mut shards {
        shard.knows(30).await;
    }
    let fed = world.intake.fed();
    fed.remove(1).await;
    let meanwhile = orders(&broker, 30..60, 3, 1);
    shards[0].knows(60).await;
    shards[2].knows(60).await;
    assert_eq!(shards[1].applied(), expected, "nothing is mailed any more");

    let endpoint = world.opened(1);
    let mut again = world.shard(1, Mood::default());
    fed.add(endpoint, false).await;
    again.knows(60).await;
    assert_eq!(again.applied(), meanwhile);
    expected = orders(&broker, 60..90, 3, 1);
    shards[1] = again;
    for shard in &mut shards {
        shard.knows(90).await;
    }
    assert_eq!(shards[1].applied(), [meanwhile, expected].concat());
    world.intake.drain().await;
}

#[tokio::test]
async fn where_no_shard_is_left_the_next_one_is_fed_from_its_own_position() {
    let broker = Scripted::new();
    orders(&broker, 0..10, 1, 0);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(10).await;
    let fed = world.intake.fed();
    fed.remove(0).await;
    orders(&broker, 10..20, 1, 0);
    let endpoint = world.opened(0);
    let mut shard = world.shard(0, Mood::default());
    fed.add(endpoint, false).await;
    shard.knows(20).await;
    assert_eq!(shard.applied(), (11..=20).collect::<Vec<u64>>());
}

async fn halted(world: &World) -> Halt {
    let found = async {
        loop {
            if let Some(halt) = world.intake.status()[EVENTS.index()].halted.clone() {
                return halt;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found)
        .await
        .expect("it halts")
}

#[tokio::test]
async fn messages_removed_while_no_shard_is_open_end_reading_when_one_opens() {
    let broker = Scripted::new();
    orders(&broker, 0..10, 1, 0);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(10).await;
    let fed = world.intake.fed();
    fed.remove(0).await;
    orders(&broker, 10..20, 1, 0);
    broker.remove(15);
    let endpoint = world.opened(0);
    let _shard = world.shard(0, Mood::default());
    fed.add(endpoint, false).await;
    let halt = halted(&world).await;
    assert_eq!(halt.reason, "stream.gap");
    assert!(halt.message.starts_with("message 15 "), "{}", halt.message);
}

#[tokio::test]
async fn messages_removed_while_no_reader_runs_are_reported_with_the_first_reason() {
    let broker = Scripted::new();
    orders(&broker, 0..6, 1, 0);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(6).await;
    broker.pause(true);
    orders(&broker, 6..40, 1, 0);
    broker.remove(20);
    broker.remove(25);
    broker.pause(false);
    let halt = halted(&world).await;
    assert!(halt.message.starts_with("message 20 "), "{}", halt.message);
    assert!(halt.message.contains("and 1 behind it"), "{}", halt.message);
    broker.remove(30);
    world.intake.fed().read_on(EVENTS, 0, 6, None).await;
    let again = async {
        loop {
            let halt = halted(&world).await;
            if halt.message.starts_with("message 30 ") {
                return halt;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let halt = tokio::time::timeout(Duration::from_secs(30), again).await;
    assert_eq!(halt.expect("it is told").reason, "stream.gap");
}

/// To close and open the shard would be a way around what an operator has to decide.
#[tokio::test]
async fn a_halted_stream_is_not_read_on_because_a_shard_comes() {
    let broker = Scripted::new();
    orders(&broker, 0..6, 1, 0);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(6).await;
    broker.pause(true);
    orders(&broker, 6..40, 1, 0);
    broker.forget_before(STREAMS[0], 20);
    broker.pause(false);
    let halt = halted(&world).await;
    let opened = broker.opened(STREAMS[0]).len();
    let fed = world.intake.fed();
    fed.remove(0).await;
    let endpoint = world.opened(0);
    let _shard = world.shard(0, Mood::default());
    fed.add(endpoint, false).await;
    // What is asked of the reader is answered in order.
    assert!(fed.is_mailed(EVENTS, 0).await);
    assert_eq!(world.intake.status()[EVENTS.index()].halted, Some(halt));
    assert_eq!(broker.opened(STREAMS[0]).len(), opened, "nobody reads on");
}

/// Reads mail until a barrier of each stream has come.
async fn barriers_of_all_streams(mailbox: &mut mpsc::Receiver<Mail>) {
    let all = async {
        let mut open: Vec<SourceStream> = SourceStream::ALL.into();
        while !open.is_empty() {
            if let Mail::Barrier { stream, .. } = mailbox.recv().await.expect("the intake lives") {
                open.retain(|other| *other != stream);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all)
        .await
        .expect("barriers come without another request");
}

/// What a shard asks for before the readers know of it is lost, and it asks again after seconds.
#[tokio::test]
async fn a_shard_that_is_added_gets_barriers_without_asking_the_readers() {
    for others in [0, 1] {
        let broker = Scripted::new();
        orders(&broker, 0..10, 1 + others, 0);
        let mut world = Plan::new(1 + others).start(broker);
        let fed = world.intake.fed();
        fed.remove(0).await;
        let endpoint = world.opened(0);
        let mut mailbox = world.mailbox(0);
        fed.add(endpoint, false).await;
        barriers_of_all_streams(&mut mailbox).await;
    }
}

/// A shard that was halted works as soon as an operator has decided, before its readers are told.
#[tokio::test]
async fn a_shard_that_was_halted_gets_barriers_once_it_is_read_for_without_asking_again() {
    for others in [0, 1] {
        let broker = Scripted::new();
        orders(&broker, 0..10, 1 + others, 0);
        let mut plan = Plan::new(1 + others);
        plan.halted = vec![0];
        let mut world = plan.start(broker);
        let mut mailbox = world.mailbox(0);
        let fed = world.intake.fed();
        for stream in SourceStream::ALL {
            fed.read_on(stream, 0, 0, None).await;
        }
        barriers_of_all_streams(&mut mailbox).await;
    }
}
