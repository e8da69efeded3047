//! Effects that leave it to an operator what became of a call: no second one is made, and what is known in the end
//! is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use saga_runner::effects::Worker;
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::definition::effect::OnAmbiguous;
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::work::WorkItem;
use saga_runner::ports::broker::{Expect, Publication};
use saga_runner::ports::clock::Clock as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::rig::{Rig, command_subject, definition, effect, effect_name, enqueue, result_subject};

/// An effect that asks.
fn asking(attempts: u32) -> EffectDefinition {
    let mut asking = definition(attempts);
    asking.schemas.asks = true;
    asking.on_ambiguous = OnAmbiguous::Ask;
    asking
}

/// An effect that makes no call twice and asks nobody.
fn failing(attempts: u32) -> EffectDefinition {
    let mut failing = definition(attempts);
    failing.on_ambiguous = OnAmbiguous::Fail;
    failing
}

async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

async fn calls(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

fn said(result: &Value) -> (&str, &str) {
    (
        result["result_type"].as_str().unwrap_or_default(),
        result["payload"]["class"].as_str().unwrap_or_default(),
    )
}

/// A peer that takes requests and does not answer them.
struct Swallowing {
    address: String,
    taken: mpsc::UnboundedReceiver<TcpStream>,
}

impl Swallowing {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, taken) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut start = [0_u8; 4];
                if stream.read_exact(&mut start).await.is_ok() && &start == b"POST" {
                    // Held open, so that there is neither an answer nor an end.
                    let _ = sender.send(stream);
                }
            }
        });
        Self { address, taken }
    }

    async fn call(&mut self) -> TcpStream {
        self.taken.recv().await.expect("a call")
    }
}

/// A worker whose commands come to nobody else while it has them in progress.
fn steady(rig: &Rig, effect: EffectDefinition, upstream: &str) -> Worker {
    let mut spec = rig.spec("test", vec![effect], upstream, Arc::clone(&rig.metrics));
    spec.settings.ack_wait = Millis(60_000);
    Worker::start(&spec).unwrap()
}

#[tokio::test]
async fn a_call_that_is_swallowed_is_made_once() {
    let rig = Rig::new().await;
    let mut peer = Swallowing::start().await;
    let mut impatient = asking(5);
    impatient.timeout_ms = 200;
    let worker = steady(&rig, impatient, &peer.address);
    let item = effect(&rig, "o-1", 1);
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("TimedOut", "ambiguous"), "{result}");
    worker.drain(Duration::from_secs(5)).await;
    peer.call().await;
    assert!(peer.taken.try_recv().is_err(), "a second call");
}

#[tokio::test]
async fn only_what_certainly_did_nothing_is_tried_again() {
    let rig = Rig::new().await;
    // A gateway that gave up knows no more than anybody.
    let server = upstream(ResponseTemplate::new(504)).await;
    let worker = steady(&rig, asking(5), &server.uri());
    let item = effect(&rig, "o-1", 1);
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("TimedOut", "timeout"), "{result}");
    assert_eq!(calls(&server).await, 1);
    worker.drain(Duration::from_secs(5)).await;

    let server = upstream(ResponseTemplate::new(503)).await;
    let worker = steady(&rig, asking(3), &server.uri());
    let item = effect(&rig, "o-2", 2);
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("Failed", "transient"), "{result}");
    assert_eq!(calls(&server).await, 3);
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_command_that_was_never_called_is_no_question() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let mut item = effect(&rig, "o-1", 1);
    item.deadline = item.created.plus_ms(-1);
    let _worker = rig.worker(asking(1), &server.uri());
    enqueue(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("Failed", "timeout"), "{result}");
    assert_eq!(calls(&server).await, 0);
}

#[tokio::test]
async fn a_worker_that_died_in_its_call_leaves_a_question() {
    died(Rig::new().await).await;
}

#[tokio::test]
async fn a_worker_that_died_in_its_call_leaves_a_question_on_nats() {
    died(Rig::on_nats().await).await;
}

/// That the outcome was not declared unknown before the call, had its worker lived, would have come to its end.
fn assert_waited(begun: Instant) {
    let waited = begun.elapsed();
    let timeout = Duration::from_millis(definition(1).timeout_ms);
    assert!(waited >= timeout, "it may have been under way after {waited:?}");
}

async fn died(rig: Rig) {
    for (n, definition) in (1..).zip([asking as fn(u32) -> EffectDefinition, failing]) {
        let mut peer = Swallowing::start().await;
        let mut patient = definition(5);
        patient.timeout_ms = 600_000;
        let first = rig.worker(patient, &peer.address);
        let item = effect(&rig, "o-1", n);
        let begun = Instant::now();
        enqueue(&rig, &item).await;
        let _open = peer.call().await;
        // It goes without a word; its command comes to another one.
        drop(first);
        let server = upstream(ResponseTemplate::new(200)).await;
        let second = rig.worker(definition(5), &server.uri());
        let result = rig.result(&item).await;
        assert_eq!(said(&result), ("TimedOut", "ambiguous"), "{result}");
        assert_waited(begun);
        assert_eq!(calls(&server).await, 0, "it might have been the second call");
        second.drain(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_call_made_while_second_calls_were_allowed_counts_where_they_are_forbidden_now() {
    forbidden_since(Rig::new().await).await;
}

#[tokio::test]
async fn a_call_made_while_second_calls_were_allowed_counts_where_they_are_forbidden_now_on_nats() {
    forbidden_since(Rig::on_nats().await).await;
}

/// Once without an intent record, and once with the one that its command asks for.
async fn forbidden_since(rig: Rig) {
    for (n, announced) in [(1, false), (2, true)] {
        rig.announced.store(announced, Ordering::Release);
        let mut peer = Swallowing::start().await;
        let mut patient = definition(5);
        patient.timeout_ms = 600_000;
        let first = rig.worker(patient, &peer.address);
        let item = effect(&rig, "o-1", n);
        let begun = Instant::now();
        enqueue(&rig, &item).await;
        let _open = peer.call().await;
        let subject = command_subject(&item).replacen(".effect.", ".effect_progress.", 1);
        let commands = &rig.streams.commands;
        let record = rig.broker.last_by_subject(commands, &subject).await.unwrap();
        assert_eq!(record.is_some(), announced);
        drop(first);
        let server = upstream(ResponseTemplate::new(200)).await;
        let second = rig.worker(failing(5), &server.uri());
        let result = rig.result(&item).await;
        assert_eq!(said(&result), ("TimedOut", "ambiguous"), "{result}");
        assert_waited(begun);
        assert_eq!(calls(&server).await, 0, "it might have been the second call");
        second.drain(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_command_sent_while_second_calls_were_allowed_is_called_where_nobody_had_it() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(ResponseTemplate::new(200).set_body_string("{}")).await;
    let _worker = steady(&rig, failing(5), &server.uri());
    // No other consumer can have brought it.
    rig.until_queued("effect-test-charge", |_| true).await;
    rig.announced.store(false, Ordering::Release);
    enqueue(&rig, &item).await;
    assert_eq!(rig.result(&item).await["result_type"], "Succeeded");
    assert_eq!(calls(&server).await, 1);
}

#[tokio::test]
async fn a_call_that_is_announced_is_made_again_where_that_is_allowed_now() {
    let rig = Rig::new().await;
    let mut peer = Swallowing::start().await;
    let mut patient = failing(5);
    patient.timeout_ms = 600_000;
    let first = rig.worker(patient, &peer.address);
    let item = effect(&rig, "o-1", 1);
    enqueue(&rig, &item).await;
    let _open = peer.call().await;
    drop(first);
    let server = upstream(ResponseTemplate::new(200).set_body_string("{}")).await;
    let _second = rig.worker(definition(5), &server.uri());
    assert_eq!(rig.result(&item).await["result_type"], "Succeeded");
    assert_eq!(calls(&server).await, 1);
}

#[tokio::test]
async fn a_call_is_not_made_beside_an_intent_that_the_broker_has_forgotten_to_count() {
    let rig = Rig::new().await;
    let items = [effect(&rig, "o-1", 1), effect(&rig, "o-2", 2)];
    let begun = Instant::now();
    for (item, outcome_unknown) in items.iter().zip([true, false]) {
        let intent = Publication {
            stream: rig.streams.commands.clone(),
            subject: command_subject(item).replacen(".effect.", ".effect_progress.", 1),
            headers: Vec::new(),
            payload: json!({
                "calls": 0,
                "outcome_unknown": outcome_unknown,
                "begun_ms": if outcome_unknown { rig.clock.now().0 } else { 0 },
                "delivered": 1,
                "not_before_ms": 0,
                "worker": "gone",
            })
            .to_string()
            .into(),
            expect: Expect::FirstOnSubject,
        };
        rig.broker.publish(intent).await.unwrap();
    }
    let server = upstream(ResponseTemplate::new(200).set_body_string("{}")).await;
    let _worker = steady(&rig, failing(5), &server.uri());
    for item in &items {
        enqueue(&rig, item).await;
    }
    let [unknown, known] = [&items[0], &items[1]];
    let result = rig.result(unknown).await;
    assert_eq!(said(&result), ("TimedOut", "ambiguous"), "{result}");
    assert_waited(begun);
    assert_eq!(rig.result(known).await["result_type"], "Succeeded");
    assert_eq!(
        calls(&server).await,
        1,
        "the other one might have been the second call"
    );
}

#[tokio::test]
async fn a_command_that_was_only_in_progress_is_no_question() {
    held(Rig::new().await).await;
}

#[tokio::test]
async fn a_command_that_was_only_in_progress_is_no_question_on_nats() {
    held(Rig::on_nats().await).await;
}

async fn held(rig: Rig) {
    let mut peer = Swallowing::start().await;
    let mut narrow = failing(5);
    narrow.timeout_ms = 600_000;
    narrow.limits.concurrency = 1;
    let first = rig.worker(narrow, &peer.address);
    let items: Vec<_> = (1..=4).map(|n| effect(&rig, &format!("o-{n}"), n)).collect();
    for item in &items {
        enqueue(&rig, item).await;
    }
    let _open = peer.call().await;
    // The worker has one command; the others wait for it.
    rig.until_queued("effect-test-charge", |queue| {
        queue.unacknowledged > 0 && queue.pending + queue.unacknowledged == 4
    })
    .await;
    drop(first);
    let server = upstream(ResponseTemplate::new(200)).await;
    let _second = rig.worker(failing(5), &server.uri());
    let mut questions = 0;
    for item in &items {
        let result = rig.result(item).await;
        questions += usize::from(said(&result) == ("TimedOut", "ambiguous"));
    }
    assert_eq!(questions, 1, "of the call that was begun");
    assert_eq!(calls(&server).await, 3);
}

#[tokio::test]
async fn a_success_after_an_unknown_outcome_is_recorded_and_a_failure_where_an_operator_is_asked() {
    comes_after(Rig::new().await).await;
}

#[tokio::test]
async fn a_success_after_an_unknown_outcome_is_recorded_and_a_failure_where_an_operator_is_asked_on_nats() {
    comes_after(Rig::on_nats().await).await;
}

async fn comes_after(rig: Rig) {
    let ok = "200 OK";
    let refused = "402 Payment Required";
    let cases = [
        (true, ok, "Succeeded"),
        (false, ok, "Succeeded"),
        (true, refused, "Failed"),
        (false, refused, "TimedOut"),
    ];
    for (number, (asks, status, last)) in (1..).zip(cases) {
        let mut peer = Swallowing::start().await;
        let mut patient = if asks { asking(1) } else { definition(1) };
        patient.timeout_ms = 600_000;
        let worker = steady(&rig, patient, &peer.address);
        let item = effect(&rig, "o-1", number);
        enqueue(&rig, &item).await;
        let mut call = peer.call().await;
        // Somebody has given up on the command: the sweeper, or a worker that got it once more.
        give_up(&rig, &item).await;
        assert_eq!(rig.result(&item).await["result_type"], "TimedOut");
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 12\r\n\r\n{{\"id\":\"c-1\"}}");
        call.write_all(answer.as_bytes()).await.unwrap();
        worker.drain(Duration::from_mins(1)).await;
        let result = rig.result(&item).await;
        assert_eq!(result["result_type"], last, "{result}");
        if last == "Succeeded" {
            assert_eq!(result["payload"]["id"], "c-1");
        }
    }
    let stored = rig.messages(&rig.streams.events).await;
    assert_eq!(stored, 7, "the answer stands behind the unknown outcome");
}

async fn give_up(rig: &Rig, item: &WorkItem) {
    let body = json!({
        "tenant_id": "acme",
        "command_id": item.command_id.to_string(),
        "effect_name": effect_name().as_str(),
        "result_type": "TimedOut",
        "payload": {"class": "deadline", "message": "no result before the deadline"},
        "metadata": {"saga": "order", "key": "o-1"},
    });
    let publication = Publication {
        stream: rig.streams.events.clone(),
        subject: result_subject(item),
        headers: Vec::new(),
        payload: body.to_string().into(),
        expect: Expect::FirstOnSubject,
    };
    rig.broker.publish(publication).await.unwrap();
}
