//! A process that may not be the owner of a shard any more sends nothing for it, and loses nothing either.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use saga_runner::effects::Local;
use saga_runner::kernel::definition::effect::OnAmbiguous;
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::kernel::work::WorkItem;
use saga_runner::outbox::{self, Fence, LocalFirst, Rest, Retention, RetentionSpec};
use saga_runner::ports::broker::{Expect, Publication};
use saga_runner::ports::clock::Clock;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::faults::{Fault, Faulty};
use crate::work::rig::{
    RelayOptions, Rig, at, command, command_subject, definition, effect, fact, result_subject, until,
};

const NEVER: Duration = Duration::from_hours(1_000);
/// As many tries of a relay whose fence is open show that one whose fence is closed makes none.
const RETRIES: usize = 4;

fn closed(rig: &Rig) -> Arc<Fence> {
    Fence::closed(Arc::clone(&rig.clock) as Arc<dyn Clock>)
}

fn open(rig: &Rig) -> Arc<Fence> {
    let fence = closed(rig);
    fence.renew(NEVER);
    fence
}

fn with(fence: &Arc<Fence>) -> RelayOptions {
    RelayOptions {
        fence: Some(Arc::clone(fence)),
        ..RelayOptions::default()
    }
}

#[tokio::test]
async fn nothing_leaves_before_the_fence_is_open_and_everything_does_then() {
    let rig = Rig::new().await;
    let gateway = MockServer::start().await;
    let accepts = Mock::given(any()).respond_with(ResponseTemplate::new(202));
    accepts.mount(&gateway).await;
    let fence = closed(&rig);
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            gateway: Some(gateway.uri()),
            ..with(&fence)
        },
    );
    let rows = vec![
        (at(1, 0), effect(&rig, "o-1", 1)),
        (at(1, 1), command(&rig, "o-1", 2, false)),
        (at(1, 2), fact(&rig, "o-1", 3)),
    ];
    shard.release(rows).await;
    shard.overdue(at(1, 0)).await;
    shard.come_to_rest(Rest::Nothing).await;
    // Another relay, whose fence is open, has sent the same work by then.
    let mut other = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    other.release(vec![(at(1, 0), effect(&rig, "o-2", 9))]).await;
    other.until_floor(at(1, 0)).await;
    let sent = async || {
        let streams = &rig.streams;
        let messages = rig.messages(&streams.commands).await + rig.messages(&streams.events).await;
        (messages, gateway.received_requests().await.unwrap().len())
    };
    assert_eq!(sent().await, (1, 0), "of the other relay");
    assert!(
        shard.relayed.floor.load(Ordering::Acquire) < 1 << 16,
        "the row counts as not sent"
    );
    fence.renew(NEVER);
    shard.until_floor(at(1, 2)).await;
    assert_eq!(sent().await, (3, 1));
}

#[tokio::test]
async fn retries_stop_when_the_fence_closes() {
    let rig = Rig::new().await;
    let fence = open(&rig);
    let closes = Arc::clone(&fence);
    let faulty = Faulty::new(Arc::clone(&rig.broker), move |_| {
        closes.close();
        Fault::Away
    });
    let gateway = MockServer::start().await;
    let mut shard = rig.relay(
        Arc::clone(&faulty) as _,
        RelayOptions {
            gateway: Some(gateway.uri()),
            ..with(&fence)
        },
    );
    shard.until_started().await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    let tries = || faulty.published.lock().unwrap().len();
    until(async || (!fence.is_open()).then_some(())).await;
    let before = tries();
    // Another relay, whose fence stays open, tries again and again meanwhile.
    let retried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&retried);
    let unwell = Faulty::new(Arc::clone(&rig.broker), move |_| {
        count.fetch_add(1, Ordering::AcqRel);
        Fault::Away
    });
    let mut other = rig.relay(unwell as _, RelayOptions::default());
    other.until_started().await;
    other.release(vec![(at(1, 0), effect(&rig, "o-2", 9))]).await;
    until(async || (retried.load(Ordering::Acquire) >= RETRIES).then_some(())).await;
    assert_eq!(tries(), before);
    // It is open for one attempt.
    fence.renew(NEVER);
    until(async || (!fence.is_open()).then_some(())).await;
}

#[tokio::test]
async fn the_gateway_is_not_asked_again_when_the_fence_closes() {
    let rig = Rig::new().await;
    let fence = open(&rig);
    let closes = Arc::clone(&fence);
    let gateway = MockServer::start().await;
    let unwell = move |_: &wiremock::Request| {
        closes.close();
        ResponseTemplate::new(503)
    };
    Mock::given(any()).respond_with(unwell).mount(&gateway).await;
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            gateway: Some(gateway.uri()),
            ..with(&fence)
        },
    );
    shard.until_started().await;
    shard
        .release(vec![(at(1, 0), command(&rig, "o-1", 1, true))])
        .await;
    until(async || (!fence.is_open()).then_some(())).await;
    // Another relay, whose fence stays open, asks again and again meanwhile.
    let unwell = MockServer::start().await;
    let refuses = Mock::given(any()).respond_with(ResponseTemplate::new(503));
    refuses.mount(&unwell).await;
    let options = RelayOptions {
        gateway: Some(unwell.uri()),
        ..RelayOptions::default()
    };
    let mut other = rig.relay(Arc::clone(&rig.broker), options);
    other.until_started().await;
    other
        .release(vec![(at(1, 0), command(&rig, "o-2", 9, true))])
        .await;
    let asked = async || unwell.received_requests().await.unwrap().len();
    until(async || (asked().await >= RETRIES).then_some(())).await;
    assert_eq!(gateway.received_requests().await.unwrap().len(), 1);
    assert!(shard.verdicts.is_empty(), "it is not decided");
}

#[tokio::test]
async fn a_call_whose_intent_is_stored_is_not_begun_when_the_fence_has_closed() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let local = Arc::new(Local::new(2_000));
    let mut once = definition(1);
    once.on_ambiguous = OnAmbiguous::Fail;
    let _worker = rig.local_worker(&local, vec![once], &server.uri());
    let fence = open(&rig);
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            local: Some(LocalFirst {
                dispatch: Arc::clone(&local) as _,
                recovered: 0,
                maybe_called: 0,
                begun: std::collections::BTreeSet::new(),
                marked_since: std::collections::BTreeMap::new(),
            }),
            ..with(&fence)
        },
    );
    shard.closes = Some(Arc::clone(&fence));
    shard.until_started().await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    shard.until(|shard| shard.not_called == [at(1, 0)]).await;
    assert_eq!(shard.begun, [at(1, 0)]);
    assert!(server.received_requests().await.unwrap().is_empty());
    assert_eq!(rig.messages(&rig.streams.commands).await, 0);
    fence.renew(NEVER);
    until(async || (rig.messages(&rig.streams.commands).await > 0).then_some(())).await;
}

#[tokio::test]
async fn streams_are_not_trimmed_by_a_process_that_may_not_own_every_shard() {
    let rig = Rig::new().await;
    let fence = closed(&rig);
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = (1..=2).map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))));
    shard.release(rows.collect()).await;
    shard.until_floor(at(2, 0)).await;
    let may_trim = Arc::clone(&fence);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let _retention = Retention::start(RetentionSpec {
        broker: Arc::clone(&rig.broker),
        streams: rig.streams.clone(),
        events: None,
        durables: Box::new(Vec::new),
        positions: Box::new(|| async { Some([2; 3]) }.boxed()),
        may_trim: Box::new(move || {
            count.fetch_add(1, Ordering::AcqRel);
            may_trim.is_open()
        }),
        settings: outbox::Settings {
            trim_interval: Millis(10),
            gate_horizon: Millis(0),
            ..outbox::Settings::default()
        },
        clock: Arc::clone(&rig.clock) as _,
        tasks: rig.tasks(),
    });
    until(async || (asked.load(Ordering::Acquire) >= 3).then_some(())).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 2);
    fence.renew(NEVER);
    until(async || (rig.messages(&rig.streams.commands).await == 1).then_some(())).await;
}

/// Stores the result of a command.
async fn answer(rig: &Rig, item: &WorkItem) {
    let body = format!(
        r#"{{"tenant_id":"acme","command_id":"{}","effect_name":"charge","result_type":"Succeeded","payload":{{"id":"c-1"}}}}"#,
        item.command_id
    );
    let result = Publication {
        stream: rig.streams.events.clone(),
        subject: result_subject(item),
        headers: Vec::new(),
        payload: body.into(),
        expect: Expect::Nothing,
    };
    rig.broker.publish(result).await.unwrap();
}

/// Broker and runner lose their power. The broker has kept the result and not the command, and the shard has not heard of it.
#[tokio::test]
async fn a_command_of_an_earlier_life_that_the_broker_lost_behind_its_result_is_not_sent_again() {
    let rig = Rig::new().await;
    let rows: Vec<_> = (1..=3)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    answer(&rig, &rows[0].1).await;
    let options = RelayOptions {
        outbox: rows[..2].to_vec(),
        began_after: 2,
        ..RelayOptions::default()
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), options);
    shard.release(vec![rows[2].clone()]).await;
    shard.until_floor(at(3, 0)).await;
    assert!(
        shard.verdicts.is_empty(),
        "the first result counts, which comes by the stream"
    );
    for (at, (_, item)) in rows.iter().enumerate() {
        let subject = command_subject(item);
        let stored = rig.broker.last_by_subject(&rig.streams.commands, &subject).await;
        assert_eq!(stored.unwrap().is_some(), at > 0, "command {at}");
    }
}

/// Work of a life that goes on from an older state: behind it, everything may have been done before.
#[tokio::test]
async fn commands_answered_after_the_adopted_state_are_not_sent_again() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let local = Arc::new(Local::new(2_000));
    let _worker = rig.local_worker(&local, vec![definition(1)], &server.uri());
    let fence = open(&rig);
    fence.hold();
    let mut shard = rig.relay(
        Arc::clone(&rig.broker),
        RelayOptions {
            local: Some(LocalFirst {
                dispatch: Arc::clone(&local) as _,
                recovered: 0,
                maybe_called: 0,
                begun: std::collections::BTreeSet::new(),
                marked_since: std::collections::BTreeMap::new(),
            }),
            ..with(&fence)
        },
    );
    let mut rows: Vec<_> = (1..=3)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    // It follows from something that was stored long ago.
    rows[2].1.created = TimeMs(1);
    answer(&rig, &rows[0].1).await;
    shard.release(rows.clone()).await;
    let given_up = (at(3, 1), effect(&rig, "o-1", 9));
    shard.release(vec![given_up.clone()]).await;
    shard.come_to_rest(Rest::Nothing).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 0, "it is held");
    // The relay may not hear of it; what counts is the outbox as it is at the release.
    shard.outbox.remove(&given_up.0);
    fence.release(2, rows[0].1.created);
    rows.push((at(4, 0), effect(&rig, "o-1", 4)));
    shard.release(vec![rows[3].clone()]).await;
    shard.until_floor(at(4, 0)).await;
    shard.until(|shard| !shard.verdicts.is_empty()).await;
    assert_eq!(shard.verdicts.len(), 1);
    assert_eq!(shard.verdicts[0].result.command_id, rows[0].1.command_id);
    let sent = async |row: usize| {
        let subject = command_subject(&rows[row].1);
        let stored = rig.broker.last_by_subject(&rig.streams.commands, &subject).await;
        stored.unwrap().map(|stored| {
            let body: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
            body["progress"]["outcome_unknown"] == true
        })
    };
    assert_eq!(sent(0).await, None, "its result stands");
    assert_eq!(sent(1).await, Some(true), "it may have been called");
    assert_eq!(sent(2).await, Some(true), "so may this");
    assert_eq!(sent(3).await, Some(false), "it came later, and goes by the queue");
    let subject = command_subject(&given_up.1);
    let stored = rig.broker.last_by_subject(&rig.streams.commands, &subject).await;
    assert!(stored.unwrap().is_none(), "it was discarded while it was held");
}
