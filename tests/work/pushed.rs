//! Consumers that push to a group of workers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, consumer};
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::{Broker, QueueSpec};
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::nats_server::NatsServer;
use crate::work::grouping::{
    commands, enqueue_all, floor, full_effect, items, named, queue_names, succeeded, upstream,
};
use crate::work::rig::{self, Rig, until};

const PUSH: &str = "{by: effect, delivery: push}";
const NAME: &str = "push-effect-test-charge";

async fn calls(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

fn done(metrics: &saga_runner::telemetry::Metrics) -> u64 {
    let results = &metrics.effect_results;
    results.with_label_values(&["charge", "succeeded"]).get()
}

#[tokio::test]
async fn the_members_of_a_group_share_the_load() {
    let rig = Rig::on_nats().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let (first, first_metrics) = rig.grouped(PUSH, vec![named("charge", 4)], &server.uri());
    let (second, second_metrics) = rig.grouped(PUSH, vec![named("charge", 4)], &server.uri());
    // Both have joined when each has carried out something.
    let (mut sent, mut work) = (0, Vec::new());
    while done(&first_metrics) == 0 || done(&second_metrics) == 0 {
        let more = items(&rig, "acme", "charge", sent + 1, 50);
        enqueue_all(&rig, &more).await;
        succeeded(&rig, &more).await;
        sent += 50;
        assert!(sent < 5_000, "one worker gets everything");
        work.extend(more);
    }
    let count = u64::try_from(work.len()).unwrap();
    until(async || (floor(&rig, NAME).await >= Some(count)).then_some(())).await;
    assert_eq!(calls(&server).await, work.len(), "each was called once");
    assert_eq!(rig.messages(&rig.streams.events).await, count);
    assert_eq!(queue_names(&rig).await, [NAME]);
    let info = commands(&rig).await.consumer_info(NAME).await.unwrap();
    let config = serde_json::to_value(&info.config).unwrap();
    assert_eq!(config["deliver_group"], NAME);
    assert_eq!(config["max_ack_pending"], 4_096);
    first.drain(Duration::from_secs(5)).await;
    second.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn work_of_a_killed_member_goes_to_another_and_is_recorded_once() {
    let rig = Rig::on_nats().await;
    let stuck = upstream(ResponseTemplate::new(200).set_delay(Duration::from_mins(5))).await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let work = items(&rig, "acme", "charge", 1, 12);
    let (killed, _) = rig.grouped(PUSH, vec![named("charge", 4)], &stuck.uri());
    enqueue_all(&rig, &work).await;
    until(async || (calls(&stuck).await == 4).then_some(())).await;
    drop(killed);
    let (heir, _) = rig.grouped(PUSH, vec![named("charge", 4)], &server.uri());
    succeeded(&rig, &work).await;
    assert_eq!(calls(&server).await, 12, "the heir has made each call once");
    assert_eq!(rig.messages(&rig.streams.events).await, 12);
    heir.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn commands_that_wait_for_a_place_do_not_time_out() {
    let rig = Rig::on_nats().await;
    // Eight calls one after the other take four times as long as the ack wait of the rig.
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_millis(300))).await;
    let work = items(&rig, "acme", "charge", 1, 8);
    let (worker, _) = rig.grouped(PUSH, vec![named("charge", 1)], &server.uri());
    enqueue_all(&rig, &work).await;
    until(async || {
        let info = commands(&rig).await.consumer_info(NAME).await.ok()?;
        // All are in the hands of the worker, which has room for one.
        (info.num_ack_pending == 8 || info.ack_floor.stream_sequence > 0).then_some(())
    })
    .await;
    succeeded(&rig, &work).await;
    until(async || (floor(&rig, NAME).await >= Some(8)).then_some(())).await;
    let info = commands(&rig).await.consumer_info(NAME).await.unwrap();
    assert_eq!(info.delivered.consumer_sequence, 8, "none was delivered again");
    assert_eq!(calls(&server).await, 8);
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_drain_gives_back_what_waits_for_a_place() {
    let rig = Rig::on_nats().await;
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_millis(500))).await;
    let work = items(&rig, "acme", "charge", 1, 10);
    enqueue_all(&rig, &work).await;
    let (leaving, metrics) = rig.grouped(PUSH, vec![named("charge", 1)], &server.uri());
    until(async || (calls(&server).await >= 1).then_some(())).await;
    leaving.drain(Duration::from_secs(10)).await;
    let after = calls(&server).await;
    assert!(
        after < 10,
        "{after} calls: the drain began before all had started"
    );
    assert_eq!(
        done(&metrics),
        u64::try_from(after).unwrap(),
        "every call has its result"
    );
    let (next, _) = rig.grouped(PUSH, vec![named("charge", 8)], &server.uri());
    succeeded(&rig, &work).await;
    assert_eq!(calls(&server).await, 10);
    next.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_failed_attempt_comes_again_after_its_pause() {
    let rig = Rig::on_nats().await;
    let server = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(503))
        .up_to_n_times(2)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let work = items(&rig, "acme", "charge", 1, 1);
    let (worker, metrics) = rig.grouped(PUSH, vec![named("charge", 4)], &server.uri());
    enqueue_all(&rig, &work).await;
    let result = rig.result(&work[0]).await;
    assert_eq!(
        (&result["result_type"], &result["metadata"]["calls"]),
        (&"Succeeded".into(), &3.into())
    );
    let given_back = |reason| {
        let series = &metrics.effect_commands_returned;
        series.with_label_values(&["charge", reason]).get()
    };
    assert_eq!(given_back("retry"), 2);
    assert!(given_back("another_worker") >= 1, "others were preferred");
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn effects_of_a_pushed_category_do_not_wait_for_each_other() {
    let consumers = "{by: category, delivery: push, categories: {pay: [charge, slow]}}";
    let given_back = full_effect(Rig::on_nats().await, consumers).await;
    assert_eq!(given_back, 0, "they wait at the worker");
}

fn theirs() -> consumer::push::Config {
    consumer::push::Config {
        durable_name: Some("theirs".to_owned()),
        deliver_subject: "their.own.subject".to_owned(),
        deliver_group: Some("their-group".to_owned()),
        filter_subject: "tenant.*.effect.charge.>".to_owned(),
        ack_wait: Duration::from_secs(7),
        max_ack_pending: 77,
        ..Default::default()
    }
}

const BIND: &str = "{by: effect, delivery: push, bind: {charge: theirs}}";

async fn config(stream: &jetstream::stream::Stream) -> Value {
    let info = stream.consumer_info("theirs").await.unwrap();
    serde_json::to_value(&info.config).unwrap()
}

#[tokio::test]
async fn a_bound_consumer_pushes_to_its_own_subject_and_stays_as_it_is() {
    let rig = Rig::on_nats().await;
    let stream = commands(&rig).await;
    stream.create_consumer(theirs()).await.unwrap();
    let before = config(&stream).await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let work = items(&rig, "acme", "charge", 1, 20);
    let (worker, _) = rig.grouped(BIND, vec![named("charge", 4)], &server.uri());
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    until(async || (floor(&rig, "theirs").await >= Some(20)).then_some(())).await;
    assert_eq!(config(&stream).await, before);
    assert_eq!(queue_names(&rig).await, ["theirs"]);
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_consumer_that_delivers_otherwise_is_refused() {
    let rig = Rig::on_nats().await;
    let stream = commands(&rig).await;
    let spec = |settings: &str| {
        let plan = rig::plan(settings, "test", &[Arc::new(named("charge", 4))]);
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
    let told = async |settings: &str| {
        let differences = rig.broker.check_queue(&spec(settings)).await.unwrap();
        differences.join("\n")
    };
    stream.create_consumer(theirs()).await.unwrap();
    assert_eq!(told(BIND).await, "");
    let pulled = told("{by: effect, bind: {charge: theirs}}").await;
    assert_eq!(
        pulled,
        "consumer theirs pushes to their.own.subject, expected a pull consumer (delivery: pull)"
    );
    stream.delete_consumer("theirs").await.unwrap();
    let alone = consumer::push::Config {
        deliver_group: None,
        flow_control: true,
        idle_heartbeat: Duration::from_secs(1),
        ..theirs()
    };
    stream.create_consumer(alone).await.unwrap();
    let found = told(BIND).await;
    for expected in ["has no deliver_group", "has flow_control"] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    stream.delete_consumer("theirs").await.unwrap();
    let pull = consumer::pull::Config {
        durable_name: Some("theirs".to_owned()),
        filter_subject: "tenant.*.effect.charge.>".to_owned(),
        ..Default::default()
    };
    stream.create_consumer(pull).await.unwrap();
    assert_eq!(
        told(BIND).await,
        "consumer theirs is a pull consumer, expected one that pushes to a group (delivery: push)"
    );
}

#[tokio::test]
async fn a_consumer_that_is_gone_is_noticed_and_made_again() {
    let server = NatsServer::start();
    let settings: Settings =
        serde_json::from_value(json!({ "urls": [server.url()], "heartbeat": "100ms" })).unwrap();
    let broker: Arc<dyn Broker> = {
        let broker = NatsBroker::connect(settings).await.unwrap();
        broker.connected().await.unwrap();
        broker
    };
    let rig = Rig::on_nats_with(broker, server).await;
    let upstream = upstream(ResponseTemplate::new(200)).await;
    let (worker, _) = rig.grouped(PUSH, vec![named("charge", 4)], &upstream.uri());
    until(async || (!queue_names(&rig).await.is_empty()).then_some(())).await;
    let stream = commands(&rig).await;
    until(async || stream.delete_consumer(NAME).await.ok()).await;
    until(async || (!queue_names(&rig).await.is_empty()).then_some(())).await;
    let work = items(&rig, "acme", "charge", 1, 3);
    enqueue_all(&rig, &work).await;
    succeeded(&rig, &work).await;
    worker.drain(Duration::from_secs(5)).await;
}
