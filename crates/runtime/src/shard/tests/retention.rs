//! How long what has ended is kept, and what an operator deletes before its time.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{InstanceId, SagaName, TenantId};
use crate::kernel::input::{Control, Input, InputBody, Operation, OperationVerb, Origin, WorkOutcome};
use crate::kernel::record::Phase;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::Mail;
use crate::storage::read::{Became, Request};
use crate::storage::rows::HistoryOutcome;
use crate::storage::{ArchiveSettings, TenantKeep};

const HOUR: Duration = Duration::from_hours(1);

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

/// The same instance of another tenant.
fn of(name: &str, id: InstanceId) -> InstanceId {
    InstanceId {
        tenant: tenant(name),
        ..id
    }
}

fn kept(key: &str) -> InstanceId {
    InstanceId {
        saga: SagaName::parse("kept").unwrap(),
        ..list(key)
    }
}

/// Opens and closes an instance by the messages `sequence` and the one behind it.
async fn live_and_end(shard: &Shard, id: &InstanceId, sequence: u64) {
    for (event_type, sequence) in [("List.Opened", sequence), ("List.Closed", sequence + 1)] {
        let input = event(id.clone(), event_type, sequence, &json!({}));
        shard.deliver(EVENTS, sequence, vec![input]).await;
    }
}

/// Lets time pass, and a commit come behind it.
async fn pass(world: &World, shard: &Shard, time: Duration, sequence: u64) {
    world.clock.advance(time);
    let input = opened(&format!("pass-{sequence}"), sequence);
    shard.deliver(EVENTS, sequence, vec![input]).await;
    shard.until_idle().await;
}

fn keep(world: &mut World, name: &str, keep: TenantKeep) {
    world.storage.tenants.insert(tenant(name), keep);
}

fn for_hours(hours: u64) -> TenantKeep {
    TenantKeep {
        keep_ended: Some(Millis(hours * 3_600_000)),
        keep_ended_count: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_saga_decides_how_long_an_end_is_kept_else_its_tenant_else_the_store() {
    let mut world = World::new();
    let own = LIST.replacen("name: list\n", "name: kept\nkeep_ended: 2h\n", 1);
    world.definitions = set_of(vec![compile(LIST), compile(&own)]);
    keep(&mut world, "t1", for_hours(1));
    let (first, second) = (list("a"), of("t2", list("a")));
    let shard = world.start();
    live_and_end(&shard, &first, 1).await;
    live_and_end(&shard, &kept("a"), 3).await;
    live_and_end(&shard, &second, 5).await;
    let there = |shard: &Shard| [&first, &kept("a"), &second].map(|id| shard.ended(id).is_some());
    pass(&world, &shard, HOUR / 2, 7).await;
    assert_eq!(there(&shard), [true, true, true]);
    shard.stop().await;

    // What the manifest says after a restart is for later ends.
    keep(&mut world, "t1", for_hours(48));
    let shard = world.start();
    live_and_end(&shard, &list("b"), 8).await;
    pass(&world, &shard, HOUR, 10).await;
    assert_eq!(there(&shard), [false, true, true], "an hour, as its tenant said");
    pass(&world, &shard, HOUR, 11).await;
    assert_eq!(there(&shard), [false, false, true], "two hours, as the saga says");
    pass(&world, &shard, 44 * HOUR, 12).await;
    assert!(shard.ended(&list("b")).is_some());
    pass(&world, &shard, 3 * HOUR, 13).await;
    assert!(shard.ended(&list("b")).is_none(), "two days");
    assert_eq!(there(&shard), [false, false, true]);
    pass(&world, &shard, 7 * 24 * HOUR, 14).await;
    assert_eq!(there(&shard), [false, false, false], "a week, as the store says");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_tenant_keeps_so_many_ended_instances_and_those_of_others_stay() {
    let mut world = World::new();
    let few = TenantKeep {
        keep_ended: None,
        keep_ended_count: Some(2),
    };
    keep(&mut world, "t1", few);
    let own = LIST.replacen("name: list\n", "name: kept\nkeep_ended: 90d\n", 1);
    world.definitions = set_of(vec![compile(LIST), compile(&own)]);
    let shard = world.start();
    let ids = [
        of("t2", list("a")),
        kept("a"),
        list("a"),
        of("t2", list("b")),
        list("b"),
        kept("b"),
    ];
    let mut sequence = 1;
    for id in &ids {
        live_and_end(&shard, id, sequence).await;
        sequence += 2;
    }
    shard.until_idle().await;
    let there = ids.each_ref().map(|id| shard.ended(id).is_some());
    assert_eq!(
        there,
        [true, false, false, true, true, true],
        "the oldest two are gone"
    );
    // Their keys are still used.
    let again = vec![event(list("a"), "List.Opened", 5, &json!({}))];
    shard.deliver(EVENTS, sequence, again).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    shard.stop().await;

    let none = TenantKeep {
        keep_ended_count: Some(0),
        ..few
    };
    keep(&mut world, "t1", none);
    let shard = world.start();
    pass(&world, &shard, Duration::from_secs(2), sequence + 1).await;
    let there = ids.each_ref().map(|id| shard.ended(id).is_some());
    assert_eq!(
        there,
        [true, false, false, true, false, false],
        "fewer after a restart"
    );
    shard.stop().await;
}

fn delete(id: InstanceId, sequence: u64, parent_over: bool) -> Input {
    Input {
        instance: id,
        id: format!("delete-{sequence}"),
        time: START.plus_ms(i64::try_from(sequence).unwrap()),
        origin: Origin::Stream {
            stream: CONTROLS,
            sequence,
        },
        body: InputBody::Control(Control::Operate(Operation {
            verb: OperationVerb::Delete { parent_over },
            by: "ann".to_owned(),
            reason: "erasure".to_owned(),
        })),
    }
}

fn became(shard: &Shard, id: &InstanceId, sequence: u64) -> Became {
    let request = Request {
        instance: id,
        id: &format!("delete-{sequence}"),
        sequence,
    };
    shard.handle.reader.became(request).unwrap().became
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deleted_instance_is_gone_and_no_late_duplicate_begins_it_again() {
    let mut world = World::new();
    // Whatever it has heard could begin the next generation.
    let starts = LIST.replacen(
        "start: List.Opened\n",
        "start: [List.Opened, List.Added]\nreuse: always\n",
        1,
    );
    world.definitions = set_of(vec![compile(&starts)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 7)]).await;
    shard.deliver(EVENTS, 3, vec![named("a", "List.Closed", 3)]).await;
    shard.until_idle().await;
    let history: Vec<u64> = shard
        .history(&list("a"))
        .iter()
        .filter_map(|row| row.previous)
        .collect();
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    // The request comes once more.
    shard.deliver(CONTROLS, 2, vec![delete(list("a"), 1, true)]).await;
    shard.until_idle().await;
    let is_gone = |shard: &Shard| shard.record(&list("a")).is_none() && shard.ended(&list("a")).is_none();
    assert!(is_gone(&shard));
    for number in &history {
        let rows = shard.handle.reader.history(Some(*number), 1).unwrap();
        assert!(rows.is_empty(), "a row of its history is left");
    }
    let told = became(&shard, &list("a"), 1);
    assert!(
        matches!(
            told,
            Became::Told {
                outcome: HistoryOutcome::Applied,
                generation: 1,
                ..
            }
        ),
        "{told:?}"
    );
    shard.stop().await;

    let shard = world.start();
    shard.deliver(EVENTS, 4, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 5, vec![added("a", 2, 7)]).await;
    shard.until_idle().await;
    assert!(is_gone(&shard), "both are duplicates");
    let row = shard
        .handle
        .reader
        .deleted(&list("a"))
        .unwrap()
        .expect("it is remembered");
    assert_eq!((row.by.as_str(), row.reason.as_str()), ("ann", "erasure"));
    assert!(
        row.known.data.is_empty() && row.known.input.is_none(),
        "nothing that it was told"
    );
    // Another one begins the next generation, whose end takes what was remembered with it.
    shard.deliver(EVENTS, 6, vec![opened("a", 6)]).await;
    shard.deliver(EVENTS, 7, vec![named("a", "List.Closed", 7)]).await;
    shard.until_idle().await;
    assert_eq!(shard.ended(&list("a")).expect("it has ended").generation, 2);
    assert!(shard.handle.reader.deleted(&list("a")).unwrap().is_none());
    shard.stop().await;
}

/// A shard of a saga whose keys are used again, and a key of it with so many ended generations.
async fn generations(world: &mut World, count: u64) -> Shard {
    let again = LIST.replacen("start: List.Opened\n", "start: List.Opened\nreuse: always\n", 1);
    world.definitions = set_of(vec![compile(&again)]);
    let shard = world.start();
    for number in 0..count {
        live_and_end(&shard, &list("a"), 2 * number + 1).await;
    }
    shard.until_idle().await;
    let last = shard.ended(&list("a")).expect("it has ended");
    assert_eq!(u64::from(last.generation), count);
    shard
}

fn earlier(shard: &Shard) -> Vec<u32> {
    let rows = shard.handle.reader.earlier(&list("a")).unwrap();
    let generations = rows.iter().map(|(_, row)| row.summary.record.generation);
    generations.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn earlier_generations_are_deleted_with_the_last_one_over_a_restart() {
    let mut world = World::new();
    let shard = generations(&mut world, 3).await;
    shard.stop().await;
    let shard = world.start();
    assert_eq!(earlier(&shard), [1, 2]);
    let rows = shard.handle.reader.earlier(&list("a")).unwrap();
    let lasts = rows.iter().map(|(_, row)| row.summary.record.last_history);
    let lasts: Vec<Option<u64>> = lasts.collect();
    let left = |last| shard.handle.reader.history(last, 10).unwrap().len();
    assert_eq!(lasts.iter().copied().map(left).collect::<Vec<_>>(), [2, 2]);
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    shard.until_idle().await;
    assert!(shard.ended(&list("a")).is_none());
    assert_eq!(earlier(&shard), [0_u32; 0]);
    let left = lasts.into_iter().map(left);
    assert_eq!(left.collect::<Vec<_>>(), [0, 0], "rows of the history");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn earlier_generations_whose_time_is_over_are_found_no_more() {
    let mut world = World::new();
    keep(&mut world, "t1", for_hours(1));
    let shard = generations(&mut world, 3).await;
    pass(&world, &shard, 2 * HOUR, 7).await;
    assert!(shard.ended(&list("a")).is_none());
    assert_eq!(earlier(&shard), [0_u32; 0]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn earlier_generations_go_when_the_archive_has_them() {
    let mut world = archiving();
    let shard = generations(&mut world, 2).await;
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    shard.until_idle().await;
    assert_eq!(earlier(&shard), [1], "the archive has none of them");
    let numbers = due(&world, &shard);
    assert_eq!(numbers.len(), 2);
    archived(&shard, numbers).await;
    assert_eq!(earlier(&shard), [0_u32; 0]);
    assert!(shard.ended(&list("a")).is_none());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_key_of_a_deleted_instance_is_free_when_it_would_have_been() {
    let mut world = World::new();
    keep(&mut world, "t1", for_hours(1));
    let shard = world.start();
    live_and_end(&shard, &list("a"), 1).await;
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    pass(&world, &shard, HOUR / 2, 3).await;
    assert!(shard.handle.reader.deleted(&list("a")).unwrap().is_some());
    let mut late = opened("a", 4);
    late.time = late.time.plus_ms(3_500_000);
    shard.deliver(EVENTS, 4, vec![late]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none(), "its key is used");
    pass(&world, &shard, HOUR, 5).await;
    assert!(shard.handle.reader.deleted(&list("a")).unwrap().is_none());
    let mut later = opened("a", 6);
    later.time = later.time.plus_ms(2 * 3_600_000);
    shard.deliver(EVENTS, 6, vec![later]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_some(), "the key is free");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_instance_that_runs_or_may_have_to_be_undone_is_not_deleted() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![pay_opened("p", 2)]).await;
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    shard.deliver(CONTROLS, 2, vec![delete(pay("p"), 2, true)]).await;
    shard.until_idle().await;
    let refused = became(&shard, &list("a"), 1);
    let told = format!("{refused:?}");
    assert!(
        told.contains("only an instance that has ended can be deleted"),
        "{told}"
    );
    assert!(shard.record(&list("a")).is_some() && shard.record(&pay("p")).is_some());

    let command = shard.outbox().await[0].1.command_id;
    let unknown = WorkOutcome::TimedOut {
        message: String::new(),
        class: crate::kernel::input::UnknownClass::Timeout,
    };
    shard.verdict(pay("p"), command, unknown).await;
    shard.until_idle().await;
    let ended = shard.ended(&pay("p")).expect("it has failed");
    assert_eq!((ended.phase, ended.doubts.len()), (Phase::Failed, 1));
    shard.deliver(CONTROLS, 3, vec![delete(pay("p"), 3, true)]).await;
    shard.until_idle().await;
    assert!(
        shard.ended(&pay("p")).is_some(),
        "a success may still come, and is to be undone"
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_earlier_generation_that_must_stay_keeps_the_others_of_its_key() {
    let mut world = World::new();
    let again = PAY.replacen("start: Pay.Opened\n", "start: Pay.Opened\nreuse: always\n", 1);
    world.definitions = set_of(vec![compile(&again)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    let command = shard.outbox().await[0].1.command_id;
    let unknown = WorkOutcome::TimedOut {
        message: String::new(),
        class: crate::kernel::input::UnknownClass::Timeout,
    };
    shard.verdict(pay("p"), command, unknown).await;
    shard.deliver(EVENTS, 2, vec![pay_opened("p", 2)]).await;
    shard.until_idle().await;
    let item = shard.outbox().await.remove(0).1;
    let paid = vec![result(&item, 1, &json!({"receipt": "r"}))];
    shard.deliver(RESULTS, 1, paid).await;
    shard.until_idle().await;
    let last = shard.ended(&pay("p")).expect("it has ended");
    assert_eq!((last.generation, last.phase), (2, Phase::Completed));
    shard.deliver(CONTROLS, 1, vec![delete(pay("p"), 1, true)]).await;
    shard.until_idle().await;
    assert!(
        shard.ended(&pay("p")).is_some(),
        "a success of the first may still come"
    );
    shard.stop().await;
}

/// Numbers of the ended instances whose time is over.
fn due(world: &World, shard: &Shard) -> Vec<u64> {
    let keep = world.storage.keep();
    let tenants: Vec<_> = keep
        .counts()
        .map(|(tenant, count)| (tenant.clone(), count))
        .collect();
    let outdated = keep.outdated(world.clock.now());
    let due = shard.handle.reader.due(outdated, &tenants, 100).unwrap();
    due.into_iter().map(|(number, _)| number).collect()
}

async fn archived(shard: &Shard, numbers: Vec<u64>) {
    let (reply, answer) = tokio::sync::oneshot::channel();
    shard.mail(Mail::Archived { numbers, reply }).await;
    answer.await.unwrap().unwrap();
}

fn archiving() -> World {
    let mut world = World::new();
    world.storage.archive = Some(ArchiveSettings::default());
    keep(&mut world, "t1", for_hours(1));
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_instance_stays_until_the_archive_has_it_over_restarts() {
    let mut world = archiving();
    let few = TenantKeep {
        keep_ended: None,
        keep_ended_count: Some(0),
    };
    keep(&mut world, "t2", few);
    let ids = [list("a"), of("t2", list("a")), list("b")];
    let shard = world.start();
    live_and_end(&shard, &ids[0], 1).await;
    live_and_end(&shard, &ids[1], 3).await;
    shard.until_idle().await;
    assert_eq!(due(&world, &shard).len(), 1, "the other tenant keeps none");
    pass(&world, &shard, 2 * HOUR, 5).await;
    for (event_type, sequence) in [("List.Opened", 6), ("List.Closed", 7)] {
        let mut input = event(ids[2].clone(), event_type, sequence, &json!({}));
        input.time = world.clock.now();
        shard.deliver(EVENTS, sequence, vec![input]).await;
    }
    pass(&world, &shard, Duration::from_secs(5), 8).await;
    let there = |shard: &Shard| ids.each_ref().map(|id| shard.ended(id).is_some());
    assert_eq!(there(&shard), [true, true, true], "the archive has none of them");
    let numbers = due(&world, &shard);
    assert_eq!(numbers.len(), 2);
    // It has them, and the process is killed before the shard hears of it.
    shard.stop().await;

    let shard = world.start();
    assert_eq!(due(&world, &shard), numbers, "they are found again");
    archived(&shard, numbers.clone()).await;
    // Heard once more, from before.
    archived(&shard, numbers).await;
    assert_eq!(there(&shard), [false, false, true]);
    assert!(due(&world, &shard).is_empty());
    pass(&world, &shard, 2 * HOUR, 9).await;
    assert_eq!(due(&world, &shard).len(), 1);
    shard.stop().await;

    // Without an archive it goes by itself.
    world.storage.archive = None;
    let shard = world.start();
    pass(&world, &shard, Duration::from_secs(5), 10).await;
    assert_eq!(there(&shard), [false, false, false]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_instance_that_has_changed_since_it_was_archived_is_archived_again() {
    let mut world = archiving();
    let hears = format!("{LIST}after_end:\n  List.Noted: {{set: {{big: noted}}}}\n");
    world.definitions = set_of(vec![compile(&hears)]);
    let shard = world.start();
    live_and_end(&shard, &list("a"), 1).await;
    pass(&world, &shard, 2 * HOUR, 3).await;
    let before = due(&world, &shard);
    assert_eq!(before.len(), 1);
    // Its key is not free before the archive has it, and its time counts by the time of the event.
    shard.deliver(EVENTS, 4, vec![named("a", "List.Noted", 4)]).await;
    shard.until_idle().await;
    archived(&shard, before.clone()).await;
    assert_eq!(
        shard.state(&list("a"), "big"),
        json!("noted"),
        "it is another one now"
    );
    let after = due(&world, &shard);
    assert!(after.len() == 1 && after != before, "{after:?}");
    archived(&shard, after).await;
    assert!(shard.ended(&list("a")).is_none());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_instance_that_an_admin_deletes_goes_when_the_archive_has_it() {
    let world = archiving();
    let shard = world.start();
    live_and_end(&shard, &list("a"), 1).await;
    shard.deliver(CONTROLS, 1, vec![delete(list("a"), 1, true)]).await;
    shard.until_idle().await;
    assert!(shard.ended(&list("a")).is_some());
    assert_eq!(became(&shard, &list("a"), 1), Became::Unarchived);
    let numbers = due(&world, &shard);
    assert_eq!(numbers.len(), 1);
    // For what comes it is gone.
    let restart = Operation {
        verb: OperationVerb::Restart,
        by: String::new(),
        reason: String::new(),
    };
    let again = Input {
        id: "again".to_owned(),
        body: InputBody::Control(Control::Operate(restart)),
        ..delete(list("a"), 2, true)
    };
    shard.deliver(CONTROLS, 2, vec![again]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    shard.stop().await;

    let shard = world.start();
    archived(&shard, numbers).await;
    assert!(shard.ended(&list("a")).is_none());
    let told = became(&shard, &list("a"), 1);
    let is_done = matches!(
        told,
        Became::Told {
            outcome: HistoryOutcome::Applied,
            ..
        }
    );
    assert!(is_done, "{told:?}");
    shard.deliver(EVENTS, 3, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none(), "a late duplicate");
    shard.stop().await;
}
