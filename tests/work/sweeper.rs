use std::sync::Arc;

use saga_runner::kernel::input::WorkOutcome;
use saga_runner::ports::broker::{Expect, Publication};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::rig::{
    RelayOptions, Rig, ShardSide, at, command_subject, definition, effect, fact, result_subject, until,
};

/// A shard with one effect command that was handed over.
async fn handed_over(rig: &Rig) -> ShardSide {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(vec![(at(1, 0), effect(rig, "o-1", 1))]).await;
    shard.until_floor(at(1, 0)).await;
    shard
}

#[tokio::test]
async fn a_command_that_the_broker_lost_is_published_again_under_its_id() {
    let rig = Rig::new().await;
    let mut shard = handed_over(&rig).await;
    rig.broker.trim(&rig.streams.commands, 2).await.unwrap();
    assert_eq!(rig.messages(&rig.streams.commands).await, 0);
    shard.overdue(at(1, 0)).await;
    let subject = command_subject(&effect(&rig, "o-1", 1));
    until(async || {
        rig.broker
            .last_by_subject(&rig.streams.commands, &subject)
            .await
            .unwrap()
    })
    .await;
}

/// The power of the broker failed: it has lost the command and its result, and the worker that answered it goes on.
#[tokio::test]
async fn a_command_whose_result_the_broker_lost_is_executed_again_under_its_key() {
    let rig = Rig::new().await;
    let upstream = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#))
        .mount(&upstream)
        .await;
    let _worker = rig.worker(definition(1), &upstream.uri());
    let mut shard = handed_over(&rig).await;
    let item = effect(&rig, "o-1", 1);
    rig.result(&item).await;
    for stream in [&rig.streams.commands, &rig.streams.events] {
        rig.broker.trim(stream, 2).await.unwrap();
        assert_eq!(rig.messages(stream).await, 0);
    }
    shard.overdue(at(1, 0)).await;
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded");
    let calls = upstream.received_requests().await.unwrap();
    let keys = calls.iter().map(|call| &call.headers["idempotency-key"]);
    assert_eq!(keys.collect::<Vec<_>>(), [item.idempotency_key.as_str(); 2]);
}

#[tokio::test]
async fn a_command_that_still_has_time_is_left_alone() {
    let rig = Rig::new().await;
    let mut shard = handed_over(&rig).await;
    shard.overdue(at(1, 0)).await;
    let waiting = rig
        .metrics
        .overdue_commands_checked
        .with_label_values(&["waiting"]);
    shard.until(|_| waiting.get() == 1).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 1);
    assert_eq!(rig.messages(&rig.streams.events).await, 0);
    assert!(shard.verdicts.is_empty());
}

#[tokio::test]
async fn a_result_that_stands_in_the_stream_is_applied() {
    let rig = Rig::new().await;
    let upstream = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#))
        .mount(&upstream)
        .await;
    let _worker = rig.worker(definition(1), &upstream.uri());
    let mut shard = handed_over(&rig).await;
    rig.result(&effect(&rig, "o-1", 1)).await;
    shard.overdue(at(1, 0)).await;
    shard.until(|shard| shard.verdicts.len() == 1).await;
    let verdict = &shard.verdicts[0];
    assert_eq!(
        verdict.result.outcome,
        WorkOutcome::Succeeded {
            payload: r#"{"id":"c-1"}"#.into()
        }
    );
    assert_eq!(verdict.instance.key.as_str(), "o-1");
}

#[tokio::test]
async fn a_command_past_its_deadline_gets_a_result_that_says_so() {
    let rig = Rig::new().await;
    let mut shard = handed_over(&rig).await;
    rig.clock.0.store(3_600_000, std::sync::atomic::Ordering::Relaxed);
    shard.overdue(at(1, 0)).await;
    let result = rig.result(&effect(&rig, "o-1", 1)).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"TimedOut".into(), &"deadline".into())
    );
    assert_eq!(result["metadata"]["saga"], "order");
    // Reported once more, it is found; a second result is never written.
    shard
        .until(|_| {
            rig.metrics
                .overdue_commands_checked
                .with_label_values(&["timed_out"])
                .get()
                == 1
        })
        .await;
    shard.overdue(at(1, 0)).await;
    shard.until(|shard| shard.verdicts.len() == 1).await;
    assert!(matches!(
        shard.verdicts[0].result.outcome,
        WorkOutcome::TimedOut { .. }
    ));
    assert_eq!(rig.messages(&rig.streams.events).await, 1);
}

/// The stream has taken it, so no other result will ever stand there.
#[tokio::test]
async fn a_result_that_cannot_be_read_ends_the_wait() {
    for number in ["none", "1000000000000000000000000000000", "18446744073709551616"] {
        let rig = Rig::new().await;
        let mut shard = handed_over(&rig).await;
        let item = effect(&rig, "o-1", 1);
        let body = format!(
            r#"{{"tenant_id":"acme","command_id":"{}","effect_name":"charge","result_type":"Succeeded","payload":{{"n":{number}}}}}"#,
            item.command_id
        );
        rig.broker
            .publish(Publication {
                stream: rig.streams.events.clone(),
                subject: result_subject(&item),
                headers: Vec::new(),
                payload: body.into(),
                expect: Expect::Nothing,
            })
            .await
            .unwrap();
        shard.overdue(at(1, 0)).await;
        shard.until(|shard| shard.verdicts.len() == 1).await;
        let outcome = &shard.verdicts[0].result.outcome;
        assert!(
            matches!(outcome, WorkOutcome::TimedOut { class, .. } if class.as_str() == "result.refused"),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_delivery_whose_news_got_lost_is_made_known_again() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let item = fact(&rig, "o-1", 1);
    shard.release(vec![(at(1, 0), item.clone())]).await;
    shard.until(|shard| shard.delivered.len() == 1).await;
    // The process died before the row was deleted.
    shard.outbox.insert(at(1, 0), item);
    shard.overdue(at(1, 0)).await;
    shard.until(|shard| shard.delivered.len() == 2).await;
    assert_eq!(rig.messages(&rig.streams.events).await, 1);
}
