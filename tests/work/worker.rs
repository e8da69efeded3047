use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use saga_runner::ports::broker::{Expect, Publication};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::work::facts::alter;
use crate::work::faults::{Fault, Faulty};
use crate::work::rig::{self, Rig, command_subject, definition, effect, enqueue, until};

async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

fn keys(requests: &[Request]) -> Vec<&str> {
    requests
        .iter()
        .map(|request| request.headers["idempotency-key"].to_str().unwrap())
        .collect()
}

async fn calls(server: &MockServer, at_least: usize) -> Vec<Request> {
    until(async || {
        let requests = server.received_requests().await.unwrap();
        (requests.len() >= at_least).then_some(requests)
    })
    .await
}

#[tokio::test]
async fn a_worker_that_dies_mid_call_leaves_one_recorded_result() {
    dies_mid_call(Rig::new().await).await;
}

#[tokio::test]
async fn a_worker_that_dies_mid_call_leaves_one_recorded_result_on_nats() {
    dies_mid_call(Rig::on_nats().await).await;
}

async fn dies_mid_call(rig: Rig) {
    let item = effect(&rig, "o-1", 1);
    let server = MockServer::start().await;
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_mins(1));
    Mock::given(any())
        .respond_with(slow)
        .up_to_n_times(1)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#))
        .mount(&server)
        .await;
    enqueue(&rig, &item).await;
    let first = rig.worker(definition(1), &server.uri());
    calls(&server, 1).await;
    drop(first);
    let (second, metrics) = rig.measured(vec![definition(1)], &server.uri());
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded");
    assert_eq!(result["payload"]["id"], "c-1");
    let redelivered = metrics.effect_commands_redelivered.with_label_values(&["charge"]);
    assert!(
        redelivered.get() >= 1,
        "the second worker got what the first one had"
    );
    assert_eq!(result["metadata"]["key"], "o-1");
    assert_eq!(rig.messages(&rig.streams.events).await, 1);
    let requests = calls(&server, 2).await;
    assert_eq!(keys(&requests), [&*item.idempotency_key, &*item.idempotency_key]);
    second.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn failed_calls_are_repeated_under_one_idempotency_key() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
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
    let _worker = rig.worker(definition(3), &server.uri());
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(
        (&result["result_type"], &result["metadata"]["calls"]),
        (&"Succeeded".into(), &3.into())
    );
    let requests = calls(&server, 3).await;
    assert!(keys(&requests).iter().all(|key| *key == item.idempotency_key));
}

#[tokio::test]
async fn definite_failures_and_unknown_outcomes_are_told_apart() {
    let rig = Rig::new().await;
    let (declined, silent) = (effect(&rig, "o-1", 1), effect(&rig, "o-2", 2));
    let server = upstream(ResponseTemplate::new(402).set_body_string("no funds")).await;
    let worker = rig.worker(definition(3), &server.uri());
    enqueue(&rig, &declined).await;
    let result = rig.result(&declined).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"Failed".into(), &"permanent".into())
    );
    worker.drain(Duration::from_secs(1)).await;

    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_mins(1))).await;
    let mut impatient = definition(1);
    impatient.timeout_ms = 100;
    let _worker = rig.worker(impatient, &server.uri());
    enqueue(&rig, &silent).await;
    let result = rig.result(&silent).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"TimedOut".into(), &"ambiguous".into())
    );
}

#[tokio::test]
async fn an_expired_command_is_answered_and_never_executed() {
    let rig = Rig::new().await;
    let mut item = effect(&rig, "o-1", 1);
    item.deadline = item.created.plus_ms(-1);
    let server = upstream(ResponseTemplate::new(200)).await;
    let _worker = rig.worker(definition(3), &server.uri());
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"TimedOut".into(), &"deadline".into())
    );
    assert!(server.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_command_of_a_backlog_is_executed_and_its_body_says_nothing_of_the_backlog() {
    let rig = Rig::on_nats().await;
    let mut item = effect(&rig, "o-1", 1);
    item.deadline = item.created.plus_ms(-1);
    item.waited_ms = 60_000;
    let server = upstream(ResponseTemplate::new(200)).await;
    let _worker = rig.worker(definition(3), &server.uri());
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded", "{result}");
    let subject = command_subject(&item);
    let stored = rig.broker.last_by_subject(&rig.streams.commands, &subject).await;
    let stored = stored.unwrap().expect("the command");
    let body: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
    assert_eq!(body["metadata"]["deadline_ms"], item.deadline.0);
    let later = ("saga-runner-deadline-ms".to_owned(), item.ends().0.to_string());
    assert!(stored.headers.contains(&later), "{:?}", stored.headers);
}

#[tokio::test]
async fn a_command_that_was_answered_is_not_executed_again() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(ResponseTemplate::new(200)).await;
    let first = rig.worker(definition(1), &server.uri());
    enqueue(&rig, &item).await;
    rig.result(&item).await;
    first.drain(Duration::from_secs(5)).await;
    // The same command once more, as after a loss of the queue's own state.
    let mut other_queue = definition(1);
    other_queue.limits.concurrency = 2;
    rig.clock.0.store(120_000, Ordering::Relaxed);
    let second = rig.worker_in("another", other_queue, &server.uri());
    let durable = saga_runner::effects::durable_name("another", &rig::effect_name());
    until(async || {
        let floor = rig
            .broker
            .queue_floor(&rig.streams.commands, &durable)
            .await
            .unwrap();
        floor.filter(|floor| *floor >= 1)
    })
    .await;
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    second.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_result_whose_answer_got_lost_is_recorded_once() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(ResponseTemplate::new(200)).await;
    let events = rig.streams.events.clone();
    let faulty = Faulty::new(Arc::clone(&rig.broker), move |message| {
        if message.stream == events {
            Fault::AnswerLost
        } else {
            Fault::None
        }
    });
    let worker = rig.worker_over(faulty, definition(1), &server.uri());
    enqueue(&rig, &item).await;
    rig.result(&item).await;
    worker.drain(Duration::from_secs(5)).await;
    assert_eq!(rig.messages(&rig.streams.events).await, 1);
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_command_in_another_tenants_name_fails_without_a_call() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(ResponseTemplate::new(200)).await;
    let _worker = rig.worker(definition(1), &server.uri());
    let metadata = serde_json::json!({
        "saga": "order", "key": "o-1", "correlation_id": "o-1", "causation_id": "e",
        "idempotency_key": "k", "path": "p", "attempt": 1, "deadline_ms": i64::MAX,
    });
    let forged = serde_json::json!({
        "tenant_id": "globex", "command_id": item.command_id, "effect_name": "charge",
        "payload": {}, "metadata": metadata,
    });
    rig.broker
        .publish(Publication {
            stream: rig.streams.commands.clone(),
            subject: command_subject(&item),
            headers: Vec::new(),
            payload: forged.to_string().into(),
            expect: Expect::Nothing,
        })
        .await
        .unwrap();
    let result = rig.result(&item).await;
    assert_eq!(result["payload"]["class"], "command.invalid");
    assert_eq!(result["tenant_id"], "acme");
    assert!(server.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_drain_lets_calls_finish_and_gives_back_what_has_not_started() {
    let rig = Rig::new().await;
    let items: Vec<_> = (1..=6).map(|n| effect(&rig, &format!("o-{n}"), n)).collect();
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_millis(300))).await;
    for item in &items {
        enqueue(&rig, item).await;
    }
    let mut narrow = definition(1);
    narrow.limits.concurrency = 2;
    let worker = rig.worker(narrow, &server.uri());
    calls(&server, 2).await;
    worker.drain(Duration::from_secs(10)).await;
    let after = server.received_requests().await.unwrap().len();
    assert_eq!(
        rig.messages(&rig.streams.events).await,
        after as u64,
        "every call has its result"
    );
    assert!(
        after < items.len(),
        "{after} calls: the drain began before all had started"
    );
    let _next = rig.worker(definition(1), &server.uri());
    for item in &items {
        assert_eq!(rig.result(item).await["result_type"], "Succeeded");
    }
    assert_eq!(server.received_requests().await.unwrap().len(), items.len());
}

/// A worker gave such commands back and called their upstreams again with every delivery.
#[tokio::test]
async fn a_result_that_the_broker_takes_in_no_form_is_kept_and_its_call_is_not_made_again() {
    let rig = Rig::on_nats().await;
    let events = &rig.streams.events;
    alter(&rig, events, |config| config.max_message_size = 64).await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let worker = rig.worker(definition(3), &server.uri());
    let item = effect(&rig, "o-1", 1);
    enqueue(&rig, &item).await;
    let tasks = rig.tasks();
    // Longer than the command may be without a sign of life.
    let told = until(async || tasks.stuck().longer_than(Duration::from_secs(1)).pop()).await;
    assert!(told.contains("WORKFLOW_EVENTS: 1 message(s)"), "{told}");
    assert!(told.contains("message size exceeds maximum allowed"), "{told}");
    let kept = rig.metrics.effect_results_refused.with_label_values(&["charge"]);
    assert_eq!(kept.get(), 1);
    // The same command once more, as after a lost acknowledgement of the relay.
    let again = Publication {
        stream: rig.streams.commands.clone(),
        subject: command_subject(&item),
        headers: Vec::new(),
        payload: rig
            .broker
            .last_by_subject(&rig.streams.commands, &command_subject(&item))
            .await
            .unwrap()
            .expect("it was sent")
            .payload,
        expect: Expect::Nothing,
    };
    rig.broker.publish(again).await.unwrap();
    alter(&rig, events, |config| config.max_message_size = -1).await;
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded", "{result}");
    assert_eq!(result["payload"]["id"], "c-1");
    until(async || (kept.get() == 0).then_some(())).await;
    worker.drain(Duration::from_secs(5)).await;
    assert_eq!(tasks.stuck().longer_than(Duration::ZERO), Vec::<String>::new());
    assert_eq!(calls(&server, 1).await.len(), 1);
    assert_eq!(rig.messages(events).await, 1);
}
