//! Consumers by tenant, by category, and consumers that were there before.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, consumer};
use saga_runner::effects::Worker;
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::ids::{EffectName, TenantId};
use saga_runner::kernel::work::{WorkItem, WorkKind};
use saga_runner::ports::broker::{BrokerError, Expect, Manner, Publication, QueueSpec};
use serde_json::Value;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::rig::{self, RelayOptions, Rig, at, definition, effect, until};

pub async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

pub async fn enqueue_all(rig: &Rig, items: &[WorkItem]) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows: Vec<_> = (0..)
        .zip(items)
        .map(|(n, item)| (at(1, n), item.clone()))
        .collect();
    let last = rows.last().expect("an item").0;
    shard.release(rows).await;
    shard.until_floor(last).await;
}

pub fn items(rig: &Rig, tenant: &str, name: &str, from: u128, count: u128) -> Vec<WorkItem> {
    (from..from + count)
        .map(|n| {
            let mut item = effect(rig, &format!("o-{n}"), n);
            item.instance.tenant = TenantId::parse(tenant).unwrap();
            if let WorkKind::Effect { effect, .. } = &mut item.kind {
                *effect = EffectName::parse(name).unwrap();
            }
            item
        })
        .collect()
}

pub fn named(name: &str, concurrency: u32) -> EffectDefinition {
    let mut definition = definition(3);
    definition.name = EffectName::parse(name).unwrap();
    definition.limits.concurrency = concurrency;
    definition
}

pub async fn succeeded(rig: &Rig, items: &[WorkItem]) {
    for item in items {
        let result = rig.result(item).await;
        assert_eq!(result["result_type"], "Succeeded", "{result}");
    }
}

pub async fn queue_names(rig: &Rig) -> Vec<String> {
    let queues = rig.broker.queues(&rig.streams.commands).await.unwrap();
    queues.into_iter().map(|queue| queue.durable).collect()
}

pub async fn floor(rig: &Rig, durable: &str) -> Option<u64> {
    rig.broker
        .queue_floor(&rig.streams.commands, durable)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_backlog_of_one_tenant_does_not_stand_before_anothers() {
    one_backlog(Rig::new().await).await;
}

#[tokio::test]
async fn the_backlog_of_one_tenant_does_not_stand_before_anothers_on_nats() {
    let rig = Rig::on_nats().await;
    let names = one_backlog(rig).await;
    assert_eq!(names, ["effect-test-charge@acme", "effect-test-charge@globex"]);
}

async fn one_backlog(rig: Rig) -> Vec<String> {
    let busy = items(&rig, "acme", "charge", 1, 40);
    let quiet = items(&rig, "globex", "charge", 100, 1);
    enqueue_all(&rig, &busy).await;
    enqueue_all(&rig, &quiet).await;
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_millis(100))).await;
    let (worker, _) = rig.grouped("by: tenant_and_effect", vec![named("charge", 2)], &server.uri());
    succeeded(&rig, &quiet).await;
    let requests = server.received_requests().await.unwrap();
    assert!(
        requests.len() < busy.len(),
        "it was answered before the backlog was: {} calls",
        requests.len()
    );
    succeeded(&rig, &busy).await;
    let names = queue_names(&rig).await;
    worker.drain(Duration::from_secs(5)).await;
    names
}

#[tokio::test]
async fn a_tenants_consumer_brings_all_effects_and_leaves_unknown_ones_to_others() {
    a_tenants_consumer(Rig::new().await, false).await;
}

#[tokio::test]
async fn a_tenants_consumer_brings_all_effects_and_leaves_unknown_ones_to_others_on_nats() {
    a_tenants_consumer(Rig::on_nats().await, true).await;
}

/// Where `together`, the worker with the older definitions goes on beside the other one.
async fn a_tenants_consumer(rig: Rig, together: bool) {
    let server = upstream(ResponseTemplate::new(200)).await;
    let known = [
        items(&rig, "acme", "charge", 1, 3),
        items(&rig, "globex", "mail", 10, 3),
    ]
    .concat();
    let foreign = items(&rig, "acme", "newer", 20, 1);
    enqueue_all(&rig, &foreign).await;
    enqueue_all(&rig, &known).await;
    let effects = vec![named("charge", 4), named("mail", 4)];
    let (worker, metrics) = rig.grouped("by: tenant", effects, &server.uri());
    succeeded(&rig, &known).await;
    let left = metrics
        .effect_commands_returned
        .with_label_values(&["unknown", "unknown_effect"]);
    until(async || (left.get() >= 1).then_some(())).await;
    assert!(floor(&rig, "tenant-test-acme").await < Some(1), "it is kept");
    let older = if together {
        Some(worker)
    } else {
        worker.drain(Duration::from_secs(5)).await;
        None
    };
    // A worker with the newer definitions joins the same consumers.
    let effects = vec![named("charge", 4), named("mail", 4), named("newer", 4)];
    let (newer, _) = rig.grouped("by: tenant", effects, &server.uri());
    succeeded(&rig, &foreign).await;
    if let Some(older) = older {
        older.drain(Duration::from_secs(5)).await;
    }
    newer.drain(Duration::from_secs(5)).await;
    assert_eq!(server.received_requests().await.unwrap().len(), 7);
}

#[tokio::test]
async fn an_unreadable_command_of_an_unknown_effect_is_dropped_and_counted() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let publication = Publication {
        stream: rig.streams.commands.clone(),
        subject: format!("tenant.acme.effect.gone.{}", uuid::Uuid::from_u128(1)),
        headers: Vec::new(),
        payload: "no command".into(),
        expect: Expect::Nothing,
    };
    rig.broker.publish(publication).await.unwrap();
    let (_worker, metrics) = rig.grouped("by: tenant", vec![named("charge", 4)], &server.uri());
    until(async || (floor(&rig, "tenant-test-acme").await >= Some(1)).then_some(())).await;
    let dead = metrics.dead_letters.with_label_values(&["command.invalid"]);
    assert_eq!(dead.get(), 1);
}

#[tokio::test]
async fn a_command_that_no_worker_knows_is_dropped_when_its_time_is_up() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let mut foreign = items(&rig, "acme", "gone", 1, 1);
    foreign[0].deadline = foreign[0].created.plus_ms(-1);
    enqueue_all(&rig, &foreign).await;
    let (_worker, _) = rig.grouped("by: tenant", vec![named("charge", 4)], &server.uri());
    until(async || (floor(&rig, "tenant-test-acme").await >= Some(1)).then_some(())).await;
    assert_eq!(rig.messages(&rig.streams.events).await, 0);
}

const CATEGORY: &str = "{by: category, categories: {pay: [charge, slow]}}";

#[tokio::test]
async fn a_full_effect_does_not_hold_up_its_category() {
    let given_back = full_effect(Rig::new().await, CATEGORY).await;
    assert!(given_back >= 10, "{given_back} were given back");
}

#[tokio::test]
async fn a_full_effect_does_not_hold_up_its_category_on_nats() {
    let given_back = full_effect(Rig::on_nats().await, CATEGORY).await;
    assert!(given_back >= 10, "{given_back} were given back");
}

/// A category of two effects that these `consumers` bring, of which one has all its places taken. Returns
/// how many commands were given back for that.
pub async fn full_effect(rig: Rig, consumers: &str) -> u64 {
    let stuck = upstream(ResponseTemplate::new(200).set_delay(Duration::from_mins(5))).await;
    let slow = items(&rig, "acme", "slow", 1, 20);
    let fast = items(&rig, "acme", "charge", 100, 5);
    enqueue_all(&rig, &slow).await;
    enqueue_all(&rig, &fast).await;
    let mut patient = named("slow", 2);
    patient.timeout_ms = 300_000;
    let mut quick = named("charge", 2);
    quick.provider = saga_runner::kernel::definition::effect::Provider::Transform;
    let (worker, metrics) = rig.grouped(consumers, vec![patient, quick], &stuck.uri());
    succeeded(&rig, &fast).await;
    assert!(stuck.received_requests().await.unwrap().len() <= 2);
    let busy = metrics
        .effect_commands_returned
        .with_label_values(&["slow", "busy"]);
    worker.drain(Duration::from_millis(10)).await;
    busy.get()
}

#[tokio::test]
async fn a_command_for_which_there_was_no_room_is_known_not_to_have_been_called() {
    let rig = Rig::on_nats().await;
    let server = MockServer::start().await;
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(1));
    let once = Mock::given(any()).respond_with(slow).up_to_n_times(1);
    once.mount(&server).await;
    let throttled = Mock::given(any()).respond_with(ResponseTemplate::new(429));
    throttled.mount(&server).await;
    let mut charge = named("charge", 1);
    charge.retry.attempts = 1;
    let consumers = "{by: category, categories: {both: [charge, mail]}}";
    let (_worker, metrics) = rig.grouped(consumers, vec![charge, named("mail", 1)], &server.uri());
    let work = items(&rig, "acme", "charge", 1, 2);
    enqueue_all(&rig, &work).await;
    let mut results = Vec::new();
    for item in &work {
        results.push(rig.result(item).await["result_type"].to_string());
    }
    results.sort();
    assert_eq!(results, ["\"Failed\"", "\"Succeeded\""]);
    let busy = metrics
        .effect_commands_returned
        .with_label_values(&["charge", "busy"]);
    assert!(busy.get() >= 1, "it is counted");
}

#[tokio::test]
async fn another_grouping_executes_nothing_again() {
    other_grouping(Rig::new().await).await;
}

#[tokio::test]
async fn another_grouping_executes_nothing_again_on_nats() {
    other_grouping(Rig::on_nats().await).await;
}

async fn other_grouping(rig: Rig) {
    let server = upstream(ResponseTemplate::new(200)).await;
    let done = items(&rig, "acme", "charge", 1, 5);
    let (first, _) = rig.grouped("by: effect", vec![named("charge", 4)], &server.uri());
    enqueue_all(&rig, &done).await;
    succeeded(&rig, &done).await;
    first.drain(Duration::from_secs(5)).await;
    let (second, metrics) = rig.grouped("by: tenant", vec![named("charge", 4)], &server.uri());
    until(async || (floor(&rig, "tenant-test-acme").await >= Some(5)).then_some(())).await;
    let more = items(&rig, "acme", "charge", 10, 1);
    enqueue_all(&rig, &more).await;
    succeeded(&rig, &more).await;
    second.drain(Duration::from_secs(5)).await;
    assert_eq!(server.received_requests().await.unwrap().len(), 6);
    let known = metrics.effect_results.with_label_values(&["charge", "known"]);
    assert_eq!(known.get(), 5, "each was found answered");
}

pub async fn commands(rig: &Rig) -> jetstream::stream::Stream {
    let client = async_nats::connect(rig.nats_url()).await.unwrap();
    let context = jetstream::new(client);
    context.get_stream(&rig.streams.commands).await.unwrap()
}

pub fn theirs() -> consumer::pull::Config {
    consumer::pull::Config {
        durable_name: Some("theirs".to_owned()),
        description: Some("made by hand".to_owned()),
        filter_subject: "tenant.*.effect.charge.>".to_owned(),
        ack_wait: Duration::from_secs(37),
        max_ack_pending: 77,
        ..Default::default()
    }
}

async fn config(stream: &jetstream::stream::Stream, name: &str) -> Value {
    let consumer: consumer::PullConsumer = stream.get_consumer(name).await.unwrap();
    serde_json::to_value(&consumer.cached_info().config).unwrap()
}

const BIND: &str = "{by: effect, bind: {charge: theirs}}";

#[tokio::test]
async fn a_bound_consumer_is_used_and_left_as_it_is() {
    let rig = Rig::on_nats().await;
    let stream = commands(&rig).await;
    stream.create_consumer(theirs()).await.unwrap();
    let before = config(&stream, "theirs").await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let work = items(&rig, "acme", "charge", 1, 20);
    let (worker, _) = rig.grouped(BIND, vec![named("charge", 4)], &server.uri());
    let (other, _) = rig.grouped(BIND, vec![named("charge", 4)], &server.uri());
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    until(async || (floor(&rig, "theirs").await >= Some(20)).then_some(())).await;
    assert_eq!(server.received_requests().await.unwrap().len(), 20);
    assert_eq!(config(&stream, "theirs").await, before);
    assert_eq!(queue_names(&rig).await, ["theirs"]);
    assert!(worker.troubles().is_empty() && other.troubles().is_empty());
    worker.drain(Duration::from_secs(5)).await;
    other.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_bound_consumer_that_does_not_fit_is_refused_with_every_difference() {
    let rig = Rig::on_nats().await;
    let stream = commands(&rig).await;
    let spec = || {
        let plan = rig::plan(BIND, "test", &[Arc::new(named("charge", 4))]);
        QueueSpec {
            ack_wait: Duration::from_secs(5),
            ..saga_runner::effects::source::queue_spec(
                &plan[0],
                &rig.streams.commands,
                &saga_runner::effects::Settings::default(),
                4,
            )
        }
    };
    let absent = rig.broker.check_queue(&spec()).await.unwrap();
    assert_eq!(absent, ["stream WORKFLOW_COMMANDS has no consumer theirs"]);
    let made = rig.broker.queue(spec()).await.err();
    assert!(matches!(made, Some(BrokerError::Mismatch { .. })), "{made:?}");
    assert!(queue_names(&rig).await.is_empty(), "it is never made");

    let bad = consumer::pull::Config {
        filter_subject: "tenant.acme.effect.charge.>".to_owned(),
        ack_wait: Duration::from_secs(2),
        max_deliver: 5,
        deliver_policy: consumer::DeliverPolicy::New,
        headers_only: true,
        inactive_threshold: Duration::from_hours(1),
        ..theirs()
    };
    stream.create_consumer(bad).await.unwrap();
    let told = rig.broker.check_queue(&spec()).await.unwrap().join("\n");
    for expected in [
        "filters [\"tenant.acme.effect.charge.>\"], expected [\"tenant.*.effect.charge.>\"]",
        "ack_wait 2s, expected at least 5s",
        "at most 5 times (max_deliver), expected -1",
        "deliver_policy new, expected all",
        "headers only",
        "inactive_threshold",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert_eq!(told.lines().count(), 6, "{told}");
    stream.delete_consumer("theirs").await.unwrap();
    let none = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::None,
        max_ack_pending: 0,
        ..theirs()
    };
    stream.create_consumer(none).await.unwrap();
    let told = rig.broker.check_queue(&spec()).await.unwrap().join("\n");
    assert!(told.contains("ack_policy none, expected explicit"), "{told}");

    // A worker tells it, and begins as soon as it is mended.
    let server = upstream(ResponseTemplate::new(200)).await;
    let (worker, _) = rig.grouped(BIND, vec![named("charge", 4)], &server.uri());
    until(async || {
        let troubles = worker.troubles().join("\n");
        troubles.contains("theirs has ack_policy none").then_some(())
    })
    .await;
    stream.delete_consumer("theirs").await.unwrap();
    stream.create_consumer(theirs()).await.unwrap();
    let work = items(&rig, "acme", "charge", 1, 1);
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    assert!(worker.troubles().is_empty());
}

#[tokio::test]
async fn a_consumer_is_removed_when_nobody_takes_from_it() {
    let rig = Rig::on_nats().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let worker: Worker = rig.worker(named("charge", 4), &server.uri());
    let name = "effect-test-charge";
    until(async || (!queue_names(&rig).await.is_empty()).then_some(())).await;
    let stream = &rig.streams.commands;
    until(async || {
        // Refused from the moment on at which the worker asks for work.
        let waits = commands(&rig)
            .await
            .consumer_info(name)
            .await
            .unwrap()
            .num_waiting
            > 0;
        waits.then_some(())
    })
    .await;
    let refused = rig.broker.delete_queue(stream, name).await;
    assert!(
        matches!(&refused, Err(BrokerError::Refused(why)) if why.contains("is in use")),
        "{refused:?}"
    );
    worker.drain(Duration::from_secs(5)).await;
    until(async || rig.broker.delete_queue(stream, name).await.ok()).await;
    assert!(queue_names(&rig).await.is_empty());
}

#[tokio::test]
async fn the_embedded_broker_binds_and_pushes_nothing() {
    let rig = Rig::new().await;
    let spec = QueueSpec {
        group: None,
        stream: rig.streams.commands.clone(),
        filters: vec!["tenant.*.effect.charge.>".to_owned()],
        durable: "theirs".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_unacknowledged: 10,
        buffer: 1,
        manner: Manner {
            bound: true,
            push: false,
        },
    };
    let pushed = QueueSpec {
        manner: Manner {
            bound: false,
            push: true,
        },
        ..spec.clone()
    };
    for spec in [spec, pushed] {
        let refused = rig.broker.queue(spec).await.err();
        assert!(matches!(refused, Some(BrokerError::Refused(_))), "{refused:?}");
    }
}
