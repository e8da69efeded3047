//! Sagas that start by the clock: each planned time once, whatever is stopped, reloaded or late.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;

use saga_runner_partition::machine::timers::timer_input;

use super::faults::die_with;
use super::world::{CONTROLS, EVENTS, Shard, World, compile, event, list, set_of};
use crate::kernel::children::{ParentRef, SagaMessage};
use crate::kernel::definition::DefinitionSet;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::{CommandId, InstanceId, Key, SagaName, TenantId, TimeMs};
use crate::kernel::input::{Control, Input, InputBody, OnConflict, Origin, WorkOutcome, WorkResult};
use crate::kernel::record::Paused;
use crate::kernel::schedule::{QUEUE_MAX, Skip, address};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::LetterDecision::{Discard, Retry};
use crate::shard::mailbox::{Mail, Refused};
use crate::storage::rows::ScheduleRow;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

fn nightly(more: &str) -> String {
    format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: nightly\nschedule: {{cron: 0 6 * * *{more}}}\nstate: {{init: {{}}}}\n\
         steps: {{bill: {{effect: card-charge, with: {{time: '${{input.time}}'}}}}}}\n"
    )
}

fn world(more: &str) -> World {
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&nightly(more))]);
    world.scheduled_tenants = vec![tenant("t1")];
    world
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn saga() -> SagaName {
    SagaName::parse("nightly").unwrap()
}

fn schedule() -> InstanceId {
    address(&tenant("t1"), &saga())
}

/// Everything that is due fires.
async fn fire(world: &World, shard: &Shard) {
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    shard.until_idle().await;
}

/// Keys of the runs that the outbox starts, in its order.
async fn starts(shard: &Shard) -> Vec<String> {
    let rows = shard.outbox().await;
    rows.iter().map(|(_, item)| key_of(item).to_owned()).collect()
}

fn key_of(item: &WorkItem) -> &str {
    match &item.kind {
        WorkKind::Saga { key, .. } => key.as_str(),
        other => panic!("{other:?} starts nothing"),
    }
}

fn row(shard: &Shard) -> ScheduleRow {
    let rows = shard.handle.reader.schedules().unwrap();
    rows.into_iter().next().expect("a schedule is kept").2
}

fn next(shard: &Shard) -> String {
    row(shard).next.expect("there is a next time").at.to_string()
}

/// The end of a run, as its message says it.
fn end(command_id: CommandId, time: TimeMs, sequence: u64) -> Input {
    Input {
        instance: schedule(),
        id: command_id.to_string(),
        time,
        origin: Origin::Stream {
            stream: CONTROLS,
            sequence,
        },
        body: InputBody::Result(WorkResult {
            command_id,
            effect: None,
            outcome: WorkOutcome::Succeeded {
                payload: Bytes::from_static(b"{}"),
            },
        }),
    }
}

/// The oldest run has ended.
async fn end_oldest(world: &World, shard: &Shard, sequence: u64) {
    let (_, item) = shard.outbox().await.remove(0);
    let input = end(item.command_id, world.clock.now(), sequence);
    shard.deliver(CONTROLS, sequence, vec![input]).await;
    shard.until_idle().await;
}

fn runs(world: &World, outcome: &str) -> u64 {
    world
        .metrics
        .schedule_runs
        .with_label_values(&["nightly", outcome])
        .get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_planned_time_is_started_once_despite_stops() {
    let world = world("");
    let mut shard = world.start();
    shard.until_idle().await;
    assert_eq!(next(&shard), "2026-01-01T06:00:00Z");
    world.clock.advance(Duration::from_millis(6 * 3_600_000 - 1));
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, [""; 0]);
    for _ in 0..3 {
        world.clock.advance(Duration::from_millis(1));
        fire(&world, &shard).await;
        assert_eq!(starts(&shard).await, ["2026-01-01T06:00:00Z"]);
        shard.stop().await;
        shard = world.start();
        fire(&world, &shard).await;
    }
    let (_, item) = shard.outbox().await.remove(0);
    assert_eq!(item.instance, schedule());
    let WorkKind::Saga {
        saga: started,
        message: SagaMessage::Start { input, .. },
        awaited: true,
        ..
    } = &item.kind
    else {
        panic!("{:?} is no awaited start", item.kind);
    };
    assert_eq!(*started, saga());
    assert_eq!(input, "{\"time\":\"2026-01-01T06:00:00Z\"}");
    assert_eq!(
        (runs(&world, "started"), next(&shard)),
        (1, "2026-01-02T06:00:00Z".to_owned())
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_message_of_a_planned_time_is_the_same_in_every_life() {
    let mut commands = Vec::new();
    for late in [0, 30] {
        let world = world("");
        let shard = world.start();
        shard.until_idle().await;
        world.clock.advance(6 * HOUR + Duration::from_secs(late));
        fire(&world, &shard).await;
        commands.push(shard.outbox().await.remove(0).1.command_id);
        shard.stop().await;
    }
    assert_eq!(commands[0], commands[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_run_that_meets_an_earlier_one_is_skipped_and_told() {
    let world = world("");
    let shard = world.start();
    shard.until_idle().await;
    world.clock.advance(6 * HOUR);
    fire(&world, &shard).await;
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, ["2026-01-01T06:00:00Z"]);
    let kept = row(&shard);
    let skipped = kept.last_skipped.map(|(at, reason)| (at.to_string(), reason));
    assert_eq!(skipped, Some(("2026-01-02T06:00:00Z".to_owned(), Skip::Overlap)));
    assert_eq!(
        (kept.started, kept.skipped, runs(&world, "skipped_overlap")),
        (1, 1, 1)
    );
    // Once its end is known, the next one runs. The end is told twice.
    let (_, item) = shard.outbox().await.remove(0);
    let now = world.clock.now();
    shard
        .deliver(CONTROLS, 1, vec![end(item.command_id, now, 1)])
        .await;
    shard
        .deliver(CONTROLS, 2, vec![end(item.command_id, now, 2)])
        .await;
    shard.until_idle().await;
    assert_eq!(starts(&shard).await, [""; 0]);
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, ["2026-01-03T06:00:00Z"]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_end_that_waits_in_the_backlog_comes_before_the_next_run() {
    let world = world("");
    let shard = world.start();
    shard.until_idle().await;
    world.clock.advance(6 * HOUR);
    fire(&world, &shard).await;
    let (_, item) = shard.outbox().await.remove(0);
    let ended = end(item.command_id, world.clock.now(), 1);
    shard.stop().await;
    world.clock.advance_wall(DAY);
    let shard = world.start();
    shard.until_idle().await;
    assert_eq!(
        runs(&world, "skipped_overlap"),
        0,
        "it waits for what the streams hold"
    );
    shard.deliver(CONTROLS, 1, vec![ended]).await;
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, ["2026-01-02T06:00:00Z"]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn queued_runs_follow_one_another_within_a_bound() {
    let world = world(", overlap: queue");
    let mut shard = world.start();
    shard.until_idle().await;
    world.clock.advance(6 * HOUR);
    fire(&world, &shard).await;
    for _ in 0..QUEUE_MAX + 2 {
        world.clock.advance(DAY);
        fire(&world, &shard).await;
    }
    assert_eq!(starts(&shard).await, ["2026-01-01T06:00:00Z"]);
    assert_eq!(row(&shard).queue.len(), QUEUE_MAX);
    assert_eq!(runs(&world, "skipped_queue_full"), 2);
    assert_eq!(runs(&world, "queued"), QUEUE_MAX as u64);
    shard.stop().await;
    shard = world.start();
    end_oldest(&world, &shard, 1).await;
    assert_eq!(starts(&shard).await, ["2026-01-02T06:00:00Z"]);
    end_oldest(&world, &shard, 2).await;
    assert_eq!(starts(&shard).await, ["2026-01-03T06:00:00Z"]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn runs_that_are_allowed_to_overlap_are_not_waited_for() {
    let world = world(", overlap: allow");
    let shard = world.start();
    shard.until_idle().await;
    for _ in 0..2 {
        world.clock.advance(DAY);
        fire(&world, &shard).await;
    }
    assert_eq!(
        starts(&shard).await,
        ["2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"]
    );
    let rows = shard.outbox().await;
    assert!(rows.iter().all(|(_, item)| !item.kind.awaits_result()));
    assert_eq!(row(&shard).running, []);
    shard
        .mail(Mail::Delivered(rows.iter().map(|(row, _)| *row).collect()))
        .await;
    shard.until_idle().await;
    assert_eq!(starts(&shard).await, [""; 0]);
    shard.stop().await;
}

/// What runs and what was missed after three days without a runner, which comes back in the morning.
async fn after_an_outage(more: &str) -> (Vec<String>, u64) {
    let world = world(more);
    let shard = world.start();
    shard.until_idle().await;
    shard.stop().await;
    world.clock.advance_wall(3 * DAY);
    let shard = world.start();
    fire(&world, &shard).await;
    let started = starts(&shard).await;
    assert_eq!(next(&shard), "2026-01-04T06:00:00Z");
    shard.stop().await;
    (started, runs(&world, "skipped_missed"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_an_outage_none_the_last_or_all_of_the_missed_run() {
    let day = |day: u32| format!("2026-01-0{day}T06:00:00Z");
    assert_eq!(after_an_outage(", catch_up: none").await, (vec![], 3));
    assert_eq!(after_an_outage("").await, (vec![day(3)], 2));
    assert_eq!(
        after_an_outage(", catch_up: last, overlap: allow").await,
        (vec![day(3)], 2)
    );
    assert_eq!(
        after_an_outage(", catch_up: all, overlap: allow").await,
        (vec![day(1), day(2), day(3)], 0)
    );
    assert_eq!(
        after_an_outage(", catch_up: {within: 48h}, overlap: allow").await,
        (vec![day(2), day(3)], 1)
    );
    assert_eq!(after_an_outage(", catch_up: {max: 1}").await, (vec![day(3)], 2));
    // The others wait until the first has ended.
    assert_eq!(
        after_an_outage(", catch_up: all, overlap: queue").await,
        (vec![day(1)], 0)
    );
}

/// More than wait otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn as_many_runs_wait_as_are_made_up() {
    let world = world(", catch_up: {max: 300}, overlap: queue");
    let shard = world.start();
    shard.until_idle().await;
    shard.stop().await;
    world.clock.advance_wall(310 * DAY);
    let shard = world.start();
    fire(&world, &shard).await;
    assert_eq!(row(&shard).queue.len(), 299);
    assert_eq!(runs(&world, "skipped_missed"), 10);
    assert_eq!(runs(&world, "skipped_queue_full"), 0);
    shard.stop().await;
}

async fn activate(shard: &Shard, definitions: Arc<DefinitionSet>) {
    let (reply, answer) = oneshot::channel();
    shard
        .mail(Mail::Activate {
            definitions,
            revision: 2,
            routed_by: 0,
            reply,
        })
        .await;
    answer.await.unwrap().unwrap();
    shard.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn another_expression_counts_from_the_reload_on() {
    let world = world("");
    let shard = world.start();
    shard.until_idle().await;
    world.clock.advance(2 * HOUR);
    let other = |cron: &str| set_of(vec![compile(&nightly("").replace("0 6 * * *", cron))]);
    // Its time today is over.
    activate(&shard, other("0 1 * * *")).await;
    assert_eq!(next(&shard), "2026-01-02T01:00:00Z");
    activate(&shard, other("0 3 * * *, zone: Europe/Berlin")).await;
    assert_eq!(next(&shard), "2026-01-02T02:00:00Z");
    activate(&shard, other("30 2 * * *")).await;
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(
        starts(&shard).await,
        ["2026-01-01T02:30:00Z"],
        "no timer of the others is left"
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn runs_missed_before_a_change_are_started_at_their_planned_times() {
    let mut world = world(", catch_up: all, overlap: allow");
    let shard = world.start();
    shard.until_idle().await;
    shard.stop().await;
    world.clock.advance_wall(2 * DAY);
    let changed = nightly(", catch_up: all, overlap: allow").replace("0 6", "0 12");
    world.definitions = set_of(vec![compile(&changed)]);
    let shard = world.start();
    fire(&world, &shard).await;
    assert_eq!(
        starts(&shard).await,
        ["2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"]
    );
    assert_eq!(next(&shard), "2026-01-03T12:00:00Z");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_saga_that_is_gone_starts_no_more_and_what_runs_is_still_known() {
    let world = world(", overlap: queue");
    let shard = world.start();
    shard.until_idle().await;
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    activate(&shard, set_of(vec![])).await;
    let kept = row(&shard);
    assert_eq!((kept.next, kept.queue.len(), kept.running.len()), (None, 0, 1));
    assert_eq!(runs(&world, "skipped_removed"), 1);
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, ["2026-01-01T06:00:00Z"]);
    // It comes back, and the run from before still counts.
    activate(&shard, Arc::clone(&world.definitions)).await;
    assert_eq!(next(&shard), "2026-01-04T06:00:00Z");
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(row(&shard).queue.len(), 1);
    activate(&shard, set_of(vec![])).await;
    end_oldest(&world, &shard, 1).await;
    assert_eq!(shard.handle.reader.schedules().unwrap(), []);
    assert_eq!(starts(&shard).await, [""; 0]);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tenants_have_schedules_of_their_own() {
    let mut world = world("");
    world.scheduled_tenants = vec![tenant("t1"), tenant("t2")];
    let shard = world.start();
    shard.until_idle().await;
    world.clock.advance(6 * HOUR);
    fire(&world, &shard).await;
    let rows = shard.outbox().await;
    let owners: Vec<&str> = rows
        .iter()
        .map(|(_, item)| item.instance.tenant.as_str())
        .collect();
    assert_eq!(owners, ["t1", "t2"]);
    assert_ne!(rows[0].1.command_id, rows[1].1.command_id);
    // The end of one says nothing about the other.
    end_oldest(&world, &shard, 1).await;
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(
        starts(&shard).await,
        ["2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"]
    );
    assert_eq!(runs(&world, "skipped_overlap"), 1);
    shard.stop().await;
    world.scheduled_tenants = vec![tenant("t2")];
    let shard = world.start();
    shard.until_idle().await;
    let kept = shard.handle.reader.schedules().unwrap();
    let next: Vec<_> = kept
        .iter()
        .map(|(tenant, _, row)| (tenant.as_str(), row.next.is_some()))
        .collect();
    assert_eq!(
        next,
        [("t1", false), ("t2", true)],
        "a tenant that is not served starts nothing"
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_paused_schedule_skips_until_it_goes_on() {
    let world = world("");
    let mut shard = world.start();
    shard.until_idle().await;
    assert_eq!(pause(&shard, "t1", true).await, Ok(()));
    let paused = Paused {
        by: "ann".to_owned(),
        reason: "INC-7".to_owned(),
        since: world.clock.now(),
    };
    assert_eq!(row(&shard).pause, Some(paused));
    assert!(pause(&shard, "t2", true).await.is_err());
    shard.stop().await;
    shard = world.start();
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, [""; 0]);
    assert_eq!(runs(&world, "skipped_paused"), 1);
    assert_eq!(pause(&shard, "t1", false).await, Ok(()));
    assert_eq!(row(&shard).pause, None);
    world.clock.advance(DAY);
    fire(&world, &shard).await;
    assert_eq!(starts(&shard).await, ["2026-01-02T06:00:00Z"]);
    shard.stop().await;
}

async fn pause(shard: &Shard, of: &str, paused: bool) -> Result<(), Refused> {
    let (reply, answer) = oneshot::channel();
    shard
        .mail(Mail::PauseSchedule {
            tenant: tenant(of),
            saga: saga(),
            paused,
            principal: Principal {
                who: "ann".to_owned(),
                reason: "INC-7".to_owned(),
                ..Principal::nobody()
            },
            reply,
        })
        .await;
    answer.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_address_of_a_schedule_is_no_instance() {
    let mut world = world("");
    world.definitions = set_of(vec![compile(&nightly("")), compile(super::world::LIST)]);
    let shard = world.start();
    let opened = event(list("@schedule"), "List.Opened", 1, &json!({}));
    shard.deliver(EVENTS, 1, vec![opened]).await;
    let asks = Input {
        instance: schedule(),
        id: "start-1".to_owned(),
        time: world.clock.now(),
        origin: Origin::Stream {
            stream: CONTROLS,
            sequence: 1,
        },
        body: InputBody::Control(Control::Start {
            input: Bytes::from_static(b"{}"),
            on_conflict: OnConflict::Fail,
            traceparent: None,
            parent: Some(ParentRef {
                saga: saga(),
                key: Key::parse("parent").unwrap(),
                command_id: CommandId(uuid::Uuid::from_u128(7)),
                depth: 1,
                waits: true,
                undoable: false,
                hops: 0,
                traceparent: None,
            }),
        }),
    };
    shard.deliver(CONTROLS, 1, vec![asks]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("@schedule")).is_none());
    assert!(shard.record(&schedule()).is_none());
    // Who asks for it is told.
    let (_, answer) = shard.outbox().await.remove(0);
    assert_eq!(key_of(&answer), "parent");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_planned_time_that_killed_the_process_waits_for_an_operator_and_nothing_is_lost() {
    for (decision, started) in [(Retry, &["2026-01-01T06:00:00Z"][..]), (Discard, &[])] {
        let world = world("");
        let shard = world.start();
        shard.until_idle().await;
        let at = row(&shard).next.unwrap().at;
        shard.stop().await;
        die_with(&world, &timer_input(schedule(), "schedule".to_owned(), at), 3);
        world.clock.advance(6 * HOUR);

        let shard = world.start();
        fire(&world, &shard).await;
        assert_eq!(starts(&shard).await, [""; 0]);
        let (number, letter) = shard.dead_letters().remove(0);
        assert_eq!(letter.reason, "poison.crash");
        shard.decide(number, decision).await.unwrap();
        assert_eq!(starts(&shard).await, started);
        assert_eq!(next(&shard), "2026-01-02T06:00:00Z", "the next one is planned");
        assert_eq!(shard.dead_letters(), []);
        shard.stop().await;
    }
}
