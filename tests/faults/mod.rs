//! Upstreams of each kind that refuse, answer late and break connections, under a runner that is killed: every piece of
//! work is done once and has one result, and its idempotency key changes after a refusal and at no other time.
//!
//! `FAULTS_PIECES` and `FAULTS_KILLS` set how much, for each kind of upstream; `make faults` runs the large form.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod book;
mod http;
#[cfg(all(feature = "effect-http", feature = "effect-sql"))]
mod outcomes;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body};
use async_nats::jetstream;
use book::{Book, Figures};
use peers::{Kind, Peer};
use serde_json::{Value, json};

/// How long the runner waits for an answer; `total` of the effect.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// When a late answer goes out.
const LATE: Duration = Duration::from_secs(2);
const END_WITHIN: Duration = Duration::from_mins(5);

/// Work that is asked for once, and tried again by the saga alone.
fn saga(kind: Kind) -> String {
    let action = match kind {
        Kind::Gateway => {
            r#"command: {aggregate: Job, id: "${key}", type: Job.Do, payload: {number: "${state.number}"}}"#
        }
        Kind::Http | Kind::Grpc | Kind::Nats | Kind::Smtp => {
            "effect: peer-work\n    with: {number: \"${state.number}\"}"
        }
    };
    format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: job
start: Job.Asked
key: {{"Job.*": event.data.job}}
state: {{init: {{number: 0}}}}
handlers: {{Job.Asked: {{set: {{number: "${{event.data.number}}"}}}}}}
steps:
  work:
    {action}
    compensate: none
    retry:
      attempts: 60
      errors: [declined, rejected, gateway.unavailable, transient, timeout]
      backoff: {{initial: 100ms, max: 1s}}
"#
    )
}

/// One call for each command, so that the kernel decides about every further one.
fn effect(kind: Kind) -> Option<String> {
    let section = kind.section()?;
    Some(format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: peer-work\ntimeout: {{connect: 1s, total: {}ms}}\n\
         retry: {{attempts: 1}}\n{}",
        PATIENCE.as_millis(),
        section.trim_start()
    ))
}

pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"))
    })
}

/// Starts as many pieces of work, kills the runner so often meanwhile, and holds everything against the rules.
async fn under_faults(kind: Kind, dispatch: &str) {
    let (pieces, kills) = (setting("FAULTS_PIECES", 120), setting("FAULTS_KILLS", 3));
    let server = NatsServer::start();
    let book = Arc::new(Book::default());
    let peer = Peer::start(kind, &book, LATE, &server.url()).await;
    let mut extra = json!({
        "dispatch": dispatch,
        "worker": {"ack_wait": "2s", "recheck_after": "1s", "yield_retry": "0s"},
    });
    match (&peer.address, kind) {
        (Some(address), Kind::Gateway) => {
            extra["gateway"] = json!({"url": address, "timeout": format!("{}ms", PATIENCE.as_millis())});
        }
        (Some(address), _) => extra["upstreams"] = json!({"peer": address}),
        (None, _) => {}
    }
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::from_secs(1), extra).await;
    rig.clear_definitions();
    rig.add_saga("job", &saga(kind));
    if let Some(effect) = effect(kind) {
        rig.add_effect("peer-work", &effect);
    }
    if kind == Kind::Grpc {
        rig.add_file("effects/gateway.binpb", &peers::descriptors());
    }
    rig.start().await;

    let begin = Instant::now();
    let context = jetstream::new(async_nats::connect(server.url()).await.expect("connects"));
    for number in 0..pieces {
        let job = format!("job-{number}");
        let body = event_body("Job", &job, "Asked", &json!({"job": job, "number": number}));
        let subject = format!("tenant.{TENANT}.aggregate.Job.{job}");
        let stored = context.publish(subject, body.into()).await.expect("sent");
        stored.await.expect("stored");
    }
    for kill in 1..=kills {
        let due = pieces * kill / (kills + 1);
        until(&rig, async || book.done() >= due).await;
        rig.kill();
        book.fault();
        rig.start().await;
    }
    for number in 0..pieces {
        let job = format!("job-{number}");
        let view = rig.wait_for("job", &job, |view| view["ended"].is_string()).await;
        assert_eq!(view["phase"], "completed", "{view}");
    }
    let took = begin.elapsed();
    let figures = book.check(PATIENCE);
    assert_eq!(figures.pieces, pieces);
    // What a gateway says goes straight to the shard.
    let results = match kind {
        Kind::Gateway => pieces,
        Kind::Http | Kind::Grpc | Kind::Nats | Kind::Smtp => one_result_each(&context, pieces).await,
    };
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    print(kind, dispatch, figures, results, took);
}

/// Every command has one result and every piece of work one that says that it was done.
async fn one_result_each(context: &jetstream::Context, pieces: usize) -> usize {
    let stream = context.get_stream("WORKFLOW_EVENTS").await.expect("is there");
    let mut commands: BTreeMap<String, usize> = BTreeMap::new();
    let mut succeeded: BTreeMap<String, usize> = BTreeMap::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream
            .get_raw_message(sequence)
            .await
            .expect("nothing is trimmed yet");
        if !message.subject.contains(".effect_result.") {
            continue;
        }
        let result: Value = serde_json::from_slice(&message.payload).expect("JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        *commands.entry(text(&result["command_id"])).or_default() += 1;
        if result["result_type"] == "Succeeded" {
            *succeeded.entry(text(&result["metadata"]["key"])).or_default() += 1;
        }
    }
    assert!(commands.values().all(|results| *results == 1), "{commands:?}");
    assert!(succeeded.values().all(|results| *results == 1), "{succeeded:?}");
    assert_eq!(succeeded.len(), pieces);
    commands.len()
}

async fn until(rig: &Rig, holds: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < END_WITHIN, "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn print(kind: Kind, dispatch: &str, figures: Figures, results: usize, took: Duration) {
    let Figures {
        pieces,
        calls,
        refused,
        late,
        reset,
        broken,
        busy,
        repeated,
        faults,
    } = figures;
    println!(
        "{kind:?}, dispatch {dispatch}: {pieces} pieces of work, {calls} calls ({refused} refused, {late} answered late, \
         {reset} cut off, {broken} broken, {busy} busy, {repeated} repeated under the same key), {faults} kills and cuts, {results} results, {:.1} s",
        took.as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_work_is_done_once_and_keys_change_only_after_refusals() {
    under_faults(Kind::Http, "broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_work_of_the_own_process_is_done_once_and_keys_change_only_after_refusals() {
    under_faults(Kind::Http, "local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_work_is_done_once_and_keys_change_only_after_refusals() {
    under_faults(Kind::Grpc, "broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_work_is_done_once_and_keys_change_only_after_refusals() {
    under_faults(Kind::Nats, "broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail_is_sent_once_to_a_server_that_knows_its_message_ids() {
    under_faults(Kind::Smtp, "broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregate_commands_are_done_once_and_keys_change_only_after_refusals() {
    under_faults(Kind::Gateway, "broker").await;
}
