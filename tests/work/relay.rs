use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use saga_runner::kernel::breaker::BreakerPolicy;
use saga_runner::kernel::ids::EffectName;
use saga_runner::kernel::input::WorkOutcome;
use saga_runner::kernel::work::WorkItem;
use saga_runner::outbox::{self, LocalFirst};
use saga_runner::ports::broker::{Expect, Publication};
use saga_runner::ports::clock::Clock as _;
use saga_runner::ports::dispatch::{Dispatch, LocalEffect};
use saga_runner::shard::mailbox::Verdict;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::work::faults::{Fault, Faulty};
use crate::work::rig::{
    PATIENCE, RelayOptions, Rig, ShardSide, at, command, command_subject, effect, fact, until,
};

fn aggregates(requests: &[Request]) -> Vec<String> {
    requests
        .iter()
        .map(|request| {
            let body: serde_json::Value = request.body_json().unwrap();
            body["aggregate_id"].as_str().unwrap().to_owned()
        })
        .collect()
}

fn with_gateway(url: &str) -> RelayOptions {
    RelayOptions {
        gateway: Some(url.to_owned()),
        ..RelayOptions::default()
    }
}

#[tokio::test]
async fn effect_commands_are_stored_once_however_often_they_are_sent() {
    let rig = Rig::new().await;
    let rows: Vec<_> = (1..=20)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(rows.clone()).await;
    shard.until_floor(at(20, 0)).await;
    drop(shard);
    // The floor was not stored: all of it is read from the outbox and handed over again.
    let mut again = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            outbox: rows.clone(),
            ..RelayOptions::default()
        },
    );
    again.until_floor(at(20, 0)).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 20);
    let subject = command_subject(&rows[0].1);
    let stored = rig
        .broker
        .last_by_subject(&rig.streams.commands, &subject)
        .await
        .unwrap()
        .unwrap();
    let body: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
    assert_eq!(body["payload"]["amount"], 12);
    assert_eq!(body["metadata"]["idempotency_key"], rows[0].1.idempotency_key);
    assert_eq!(body["metadata"]["saga"], "order");
}

#[tokio::test]
async fn lost_answers_and_lost_messages_end_in_one_stored_command() {
    lost_on_the_way(Rig::new().await).await;
}

#[tokio::test]
async fn lost_answers_and_lost_messages_end_in_one_stored_command_on_nats() {
    lost_on_the_way(Rig::on_nats().await).await;
}

async fn lost_on_the_way(rig: Rig) {
    let tries = AtomicUsize::new(0);
    let faulty = Faulty::new(Arc::clone(&rig.broker), move |_| {
        match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Fault::Lost,
            1 => Fault::Away,
            2 => Fault::AnswerLost,
            _ => Fault::None,
        }
    });
    let mut shard = rig.relay(Arc::clone(&faulty) as _, RelayOptions::default());
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    shard.until_floor(at(1, 0)).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 1);
    assert_eq!(
        faulty.published.lock().unwrap().len(),
        3,
        "read back before sending a fourth time"
    );
}

#[tokio::test]
async fn commands_of_a_key_keep_their_order_and_other_keys_go_on() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    let blocked = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&blocked);
    Mock::given(any())
        .respond_with(move |request: &Request| {
            let body: serde_json::Value = request.body_json().unwrap();
            let first = body["aggregate_id"] == "shp-1";
            ResponseTemplate::new(if first && gate.load(Ordering::Acquire) {
                503
            } else {
                202
            })
        })
        .mount(&gateway)
        .await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), with_gateway(&gateway.uri()));
    shard
        .release(vec![
            (at(1, 0), command(&rig, "a", 1, false)),
            (at(1, 1), command(&rig, "a", 2, false)),
            (at(2, 0), command(&rig, "a", 3, false)),
            (at(3, 0), command(&rig, "b", 4, false)),
            (at(3, 1), effect(&rig, "a", 5)),
        ])
        .await;
    shard.until(|shard| shard.delivered == [at(3, 0)]).await;
    // Nothing of key `a` but its effect got past the command that the gateway does not take.
    until(async || (rig.messages(&rig.streams.commands).await == 1).then_some(())).await;
    let early = aggregates(&gateway.received_requests().await.unwrap());
    assert!(
        !early.iter().any(|id| id == "shp-2" || id == "shp-3"),
        "{early:?}"
    );
    blocked.store(false, Ordering::Release);
    shard.until(|shard| shard.delivered.len() == 4).await;
    let mut order = aggregates(&gateway.received_requests().await.unwrap());
    order.retain(|id| id != "shp-4");
    order.dedup();
    assert_eq!(order, ["shp-1", "shp-2", "shp-3"]);
    shard.until_floor(at(3, 1)).await;
}

#[tokio::test]
async fn a_refusal_is_a_verdict_and_an_unawaited_command_leaves_the_outbox_as_well() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(422).set_body_string("no"))
        .mount(&gateway)
        .await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), with_gateway(&gateway.uri()));
    shard
        .release(vec![
            (at(1, 0), command(&rig, "a", 1, true)),
            (at(1, 1), command(&rig, "b", 2, false)),
        ])
        .await;
    shard
        .until(|shard| shard.verdicts.len() == 2 && shard.delivered == [at(1, 1)])
        .await;
    for verdict in &shard.verdicts {
        let WorkOutcome::Failed { class, message, .. } = &verdict.result.outcome else {
            panic!("{verdict:?}");
        };
        assert_eq!(class, "rejected");
        assert!(message.contains("no"), "{message}");
    }
}

#[tokio::test]
async fn an_accepted_command_succeeds_and_one_past_its_deadline_fails() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    Mock::given(any())
        .respond_with(|request: &Request| {
            let body: serde_json::Value = request.body_json().unwrap();
            ResponseTemplate::new(if body["aggregate_id"] == "shp-1" { 200 } else { 503 })
        })
        .mount(&gateway)
        .await;
    let mut late = command(&rig, "b", 2, true);
    late.deadline = late.created.plus_ms(300);
    let mut shard = rig.relay(Arc::clone(&rig.broker), with_gateway(&gateway.uri()));
    shard
        .release(vec![(at(1, 0), command(&rig, "a", 1, true)), (at(1, 1), late)])
        .await;
    shard.until(|shard| shard.verdicts.len() == 2).await;
    assert!(matches!(
        outcome(&shard, "a"),
        Some(WorkOutcome::Succeeded { .. })
    ));
    assert!(
        is_unavailable(outcome(&shard, "b").as_ref()),
        "503 says that nothing was done"
    );
}

/// Nothing was done, and it is certain.
fn is_unavailable(outcome: Option<&WorkOutcome>) -> bool {
    matches!(outcome, Some(WorkOutcome::Failed { class, .. }) if class == "gateway.unavailable")
}

fn outcome(shard: &ShardSide, key: &str) -> Option<WorkOutcome> {
    let of_key = |verdict: &&Verdict| verdict.instance.key.as_str() == key;
    let verdict = shard.verdicts.iter().find(of_key);
    verdict.map(|verdict| verdict.result.outcome.clone())
}

#[tokio::test]
async fn a_command_is_not_submitted_after_its_deadline_wherever_it_waited() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    let hung = ResponseTemplate::new(200).set_delay(PATIENCE);
    Mock::given(any()).respond_with(hung).mount(&gateway).await;
    let options = with_gateway(&gateway.uri());
    let settings = outbox::Settings {
        gateway_in_flight: 1,
        ..options.settings
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions { settings, ..options });
    // One is over before it is read; one waits behind a call that takes the only place.
    let mut over = command(&rig, "over", 1, true);
    over.deadline = over.created.plus_ms(-1);
    shard.release(vec![(at(1, 0), over)]).await;
    shard.until(|shard| outcome(shard, "over").is_some()).await;
    shard
        .release(vec![(at(2, 0), command(&rig, "first", 2, true))])
        .await;
    let server = &gateway;
    until(async || {
        let requests = server.received_requests().await.unwrap();
        (!requests.is_empty()).then_some(())
    })
    .await;
    let mut behind = command(&rig, "behind", 3, true);
    behind.deadline = behind.created.plus_ms(300);
    shard.release(vec![(at(3, 0), behind)]).await;
    shard.until(|shard| outcome(shard, "behind").is_some()).await;
    for key in ["over", "behind"] {
        let outcome = outcome(&shard, key);
        assert!(is_unavailable(outcome.as_ref()), "{key}: {outcome:?}");
    }
    let mut submitted = aggregates(&gateway.received_requests().await.unwrap());
    submitted.dedup();
    assert_eq!(submitted, ["shp-2"]);
}

#[tokio::test]
async fn a_repeated_command_keeps_its_ids_and_a_failing_gateway_is_left_alone() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(503))
        .mount(&gateway)
        .await;
    let options = with_gateway(&gateway.uri());
    let settings = outbox::Settings {
        // The end of one call is counted before the next may begin.
        gateway_in_flight: 1,
        breaker: BreakerPolicy {
            calls_min: 3,
            open_ms: 600_000,
            ..BreakerPolicy::default()
        },
        ..options.settings
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions { settings, ..options });
    shard.until_started().await;
    shard.release(vec![(at(1, 0), command(&rig, "a", 1, true))]).await;
    let server = &gateway;
    until(async || (server.received_requests().await.unwrap().len() >= 3).then_some(())).await;
    // Open by now: what comes later is held back, for longer than it is wanted.
    let mut late = command(&rig, "b", 2, true);
    late.deadline = rig.clock.now().plus_ms(300);
    shard.release(vec![(at(2, 0), late)]).await;
    shard.until(|shard| outcome(shard, "b").is_some()).await;
    let Some(WorkOutcome::Failed { class, message, .. }) = outcome(&shard, "b") else {
        panic!("{:?}", outcome(&shard, "b"));
    };
    assert_eq!(class, "gateway.unavailable");
    assert!(message.contains("breaker"), "{message}");
    let requests = gateway.received_requests().await.unwrap();
    assert_eq!(requests.len(), 3, "the breaker opens after three");
    let ids = |request: &Request| {
        let body: serde_json::Value = request.body_json().unwrap();
        let key = request.headers["idempotency-key"].to_str().unwrap().to_owned();
        (body["command_id"].clone(), key)
    };
    assert!(requests.iter().all(|request| ids(request) == ids(&requests[0])));
}

#[tokio::test]
async fn a_foreign_message_under_the_id_of_a_fact_does_not_suppress_it() {
    foreign_id(Rig::new().await).await;
}

#[tokio::test]
async fn a_foreign_message_under_the_id_of_a_fact_does_not_suppress_it_on_nats() {
    foreign_id(Rig::on_nats().await).await;
}

async fn foreign_id(rig: Rig) {
    let first = AtomicBool::new(true);
    let faulty = Faulty::new(Arc::clone(&rig.broker), move |message| {
        if !first.swap(false, Ordering::AcqRel) {
            return Fault::None;
        }
        Fault::After(Publication {
            subject: "tenant.globex.workflow_event.order.o-1".to_owned(),
            ..message.clone()
        })
    });
    let item = fact(&rig, "o-1", 1);
    let mut shard = rig.relay(Arc::clone(&faulty) as _, RelayOptions::default());
    shard.release(vec![(at(1, 0), item.clone())]).await;
    shard.until(|shard| shard.delivered == [at(1, 0)]).await;
    let stored = rig
        .broker
        .last_by_subject(&rig.streams.events, "tenant.acme.workflow_event.order.o-1")
        .await
        .unwrap()
        .expect("the fact is there");
    let body: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
    assert_eq!(body["event_id"], item.command_id.to_string());
    let ids: Vec<Expect> = faulty
        .published
        .lock()
        .unwrap()
        .iter()
        .map(|sent| sent.expect.clone())
        .collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn facts_of_an_instance_are_stored_in_order_and_once() {
    let rig = Rig::new().await;
    let tries = AtomicUsize::new(0);
    let faulty = Faulty::new(Arc::clone(&rig.broker), move |_| {
        match tries.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Fault::Lost,
            1 => Fault::AnswerLost,
            2 => Fault::Away,
            _ => Fault::None,
        }
    });
    let rows: Vec<_> = (1..=8)
        .map(|n| (at(n, 0), fact(&rig, "o-1", u128::from(n))))
        .collect();
    let mut shard = rig.relay(faulty, RelayOptions::default());
    shard.release(rows.clone()).await;
    shard.until(|shard| shard.delivered.len() == 8).await;
    let mut stored = Vec::new();
    for sequence in 1..=rig.messages(&rig.streams.events).await {
        let message = rig
            .broker
            .message_at(&rig.streams.events, sequence)
            .await
            .unwrap()
            .unwrap();
        let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        stored.push(body["event_id"].as_str().unwrap().to_owned());
    }
    let expected: Vec<String> = rows.iter().map(|(_, item)| item.command_id.to_string()).collect();
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn only_so_many_commands_of_a_tenant_stand_in_the_broker() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            settings: outbox::Settings {
                per_tenant_in_flight: 2,
                rows_in_memory: 3,
                refill_rows: 2,
                ..RelayOptions::default().settings
            },
            ..RelayOptions::default()
        },
    );
    let rows: Vec<_> = (1..=9)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    shard.release(rows).await;
    for done in 1..=7 {
        let standing = at(done + 1, 0);
        shard.until_floor(standing).await;
        assert_eq!(rig.messages(&rig.streams.commands).await, done + 1);
        shard.complete(vec![at(done, 0)]).await;
    }
    shard.until_floor(at(9, 0)).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 9);
}

#[tokio::test]
async fn a_release_that_was_lost_is_read_from_the_outbox() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    shard.until_floor(at(1, 0)).await;
    shard.outbox.insert(at(2, 0), effect(&rig, "o-1", 2));
    shard.spilled.store(true, Ordering::Release);
    shard.release(vec![(at(3, 0), effect(&rig, "o-1", 3))]).await;
    shard.until_floor(at(3, 0)).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 3);
}

#[tokio::test]
async fn a_full_mailbox_delays_news_and_not_work() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            mailbox: 1,
            ..RelayOptions::default()
        },
    );
    shard.until_started().await;
    let mut rows: Vec<(_, WorkItem)> = (1..=40)
        .map(|n| (at(n, 0), fact(&rig, &format!("o-{n}"), u128::from(n))))
        .collect();
    rows.push((at(41, 0), effect(&rig, "o-1", 41)));
    for row in rows {
        shard.release(vec![row]).await;
    }
    // Nobody empties the mailbox; the effect gets through all the same.
    until(async || (rig.messages(&rig.streams.commands).await == 1).then_some(())).await;
    shard.until(|shard| shard.delivered.len() == 40).await;
    shard.until_floor(at(41, 0)).await;
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    let slow = ResponseTemplate::new(202).set_delay(Duration::from_millis(200));
    Mock::given(any()).respond_with(slow).mount(&gateway).await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), with_gateway(&gateway.uri()));
    shard.until_started().await;
    shard
        .release(vec![(at(1, 0), command(&rig, "a", 1, false))])
        .await;
    let server = &gateway;
    until(async || {
        let requests = server.received_requests().await.unwrap();
        (!requests.is_empty()).then_some(())
    })
    .await;
    shard.drain(Duration::from_secs(5)).await;
    assert_eq!(shard.delivered, [at(1, 0)]);
}

/// A worker of this process with a fault.
struct Broken;

impl Dispatch for Broken {
    fn local(&self, _: &EffectName) -> Option<Arc<dyn LocalEffect>> {
        panic!("the desk is broken")
    }
}

#[tokio::test]
async fn a_relay_that_panics_is_counted_and_tells_its_shard_by_closing_its_channel() {
    let rig = Rig::new().await;
    let options = RelayOptions {
        local: Some(LocalFirst {
            dispatch: Arc::new(Broken),
            recovered: 0,
            maybe_called: 0,
            begun: BTreeSet::new(),
            marked_since: BTreeMap::new(),
        }),
        ..RelayOptions::default()
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), options);
    shard.until_started().await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    until(async || shard.released.is_closed().then_some(())).await;
    until(async || (!rig.tasks().troubles().is_empty()).then_some(())).await;
    assert_eq!(
        rig.tasks().troubles(),
        ["relay of shard 0: it panicked, restart the process: the desk is broken"]
    );
    let panics = rig.metrics.task_panics.with_label_values(&["relay"]);
    assert_eq!(panics.get(), 1);
}
