//! Calls that are under way when the runner ends, by a signal or by a crash: what is known of them afterwards, and how
//! often each was made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::connect;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// Calls of each effect that are under way.
const CALLS: usize = 5;
/// Longest that a call may take: until then, a call that was cut off counts as under way.
pub const CALL_TIMEOUT: &str = "12s";
/// How the effects of the test say what follows an unknown outcome.
const ANSWERS: [&str; 3] = ["retry", "fail", "ask"];

/// A bank that takes its time. It knows each call by its path: `<answer>-<number>`.
#[derive(Default)]
pub struct Bank {
    calls: Mutex<BTreeMap<String, usize>>,
    /// How long a call takes.
    takes: Mutex<Duration>,
    came: Notify,
}

impl Bank {
    pub async fn open(takes: Duration) -> (Arc<Self>, String) {
        let bank = Arc::new(Self::default());
        bank.take(takes);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let routes = Router::new()
            .route("/payouts/{key}", post(pay))
            .with_state(Arc::clone(&bank));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (bank, url)
    }

    pub fn take(&self, takes: Duration) {
        *self.takes.lock().unwrap_or_else(PoisonError::into_inner) = takes;
    }

    pub fn calls(&self) -> BTreeMap<String, usize> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many calls have come.
    pub async fn until(&self, calls: usize) {
        let came = async {
            loop {
                let next = self.came.notified();
                if self.calls().values().sum::<usize>() >= calls {
                    return;
                }
                next.await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_mins(1), came).await;
        assert!(in_time.is_ok(), "{:?}", self.calls());
    }

    /// That each of these was called so often.
    fn assert_calls(&self, keys: &[String], times: usize) {
        let calls = self.calls();
        for key in keys {
            assert_eq!(calls.get(key).copied().unwrap_or(0), times, "{key}: {calls:?}");
        }
    }
}

async fn pay(State(bank): State<Arc<Bank>>, Path(key): Path<String>) -> String {
    let takes = *bank.takes.lock().unwrap_or_else(PoisonError::into_inner);
    *bank
        .calls
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(key.clone())
        .or_default() += 1;
    bank.came.notify_waiters();
    tokio::time::sleep(takes).await;
    json!({"id": format!("p-{key}")}).to_string()
}

pub fn saga(answer: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: {answer}
start: Payout.{answer}
key: {{"Payout.*": event.aggregate_id}}
state: {{init: {{id: ""}}}}
steps:
  pay:
    effect: pay-{answer}
    with: {{key: "${{key}}"}}
    set: {{id: "${{result.id}}"}}
"#
    )
}

pub fn effect(answer: &str, concurrency: usize, timeout: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Effect
name: pay-{answer}
output: {{type: object, required: [id], properties: {{id: {{type: string}}}}}}
http: {{method: POST, url: "${{upstreams.bank}}/payouts/${{url(input.key)}}"}}
timeout: {{total: {timeout}}}
limits: {{concurrency: {concurrency}}}
on_ambiguous: {answer}
"#
    )
}

/// A runner over a real server, and the bank that it calls.
struct World {
    rig: Rig,
    bank: Arc<Bank>,
    server: NatsServer,
}

impl World {
    async fn new(dispatch: &str, concurrency: usize, drain_timeout: &str) -> Self {
        let server = NatsServer::start();
        let (bank, url) = Bank::open(Duration::from_secs(1)).await;
        let extra = json!({
            "dispatch": dispatch,
            "drain_timeout": drain_timeout,
            "worker": {"ack_wait": "2s"},
            "upstreams": {"bank": url},
        });
        let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
        rig.clear_definitions();
        for answer in ANSWERS {
            rig.add_saga(answer, &saga(answer));
            rig.add_effect(
                &format!("pay-{answer}"),
                &effect(answer, concurrency, CALL_TIMEOUT),
            );
        }
        rig.start().await;
        Self { rig, bank, server }
    }

    /// Begins so many payouts for each of these answers, and gives their keys.
    async fn begin(&self, answers: &[&str]) -> Vec<String> {
        let mut keys = Vec::new();
        for answer in answers {
            for number in 0..CALLS {
                let key = format!("{answer}-{number}");
                let event = format!("Payout.{answer}");
                self.rig.send("Payout", &key, &event, json!({})).await;
                keys.push(key);
            }
        }
        keys
    }

    async fn until(&self, key: &str, reached: impl Fn(&Value) -> bool) -> Value {
        let saga = key.split('-').next().expect("its answer");
        self.rig.wait_for(saga, key, reached).await
    }

    /// That all of them have their result.
    async fn assert_paid(&self, keys: &[String]) {
        for key in keys {
            let view = self.until(key, |view| view["ended"].is_string()).await;
            assert_eq!(view["phase"], "completed", "{key}: {view}");
            assert_eq!(view["state"]["id"], format!("p-{key}"), "{view}");
        }
    }

    /// That the outcome of the call is unknown, as the effect says it.
    async fn assert_unknown(&self, keys: &[String]) {
        for key in keys {
            if key.starts_with("ask") {
                self.until(key, |view| view["steps"][0]["status"] == "stuck")
                    .await;
            } else {
                let view = self.until(key, |view| view["ended"].is_string()).await;
                assert_eq!(view["phase"], "failed", "{key}: {view}");
                assert!(view.to_string().contains("timeout"), "{key}: {view}");
            }
        }
    }

    async fn results(&self) -> u64 {
        let broker = connect(&self.server.url()).await;
        broker
            .stream_state("WORKFLOW_EVENTS")
            .await
            .expect("is there")
            .messages
    }
}

fn of(keys: &[String], answers: &[&str]) -> Vec<String> {
    let is_of = |key: &&String| answers.iter().any(|answer| key.starts_with(answer));
    keys.iter().filter(is_of).cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_local_calls_also_those_of_a_replaced_worker() {
    let mut world = World::new("local", 32, "30s").await;
    // Longer than relays are given to hand over what has come to its end.
    world.bank.take(Duration::from_secs(3));
    let keys = world.begin(&ANSWERS).await;
    world.bank.until(keys.len()).await;
    for answer in ANSWERS {
        let text = effect(answer, 31, CALL_TIMEOUT);
        world.rig.add_effect(&format!("pay-{answer}"), &text);
    }
    let reload = world.rig.client.post(world.rig.url("/admin/reload")).send().await;
    assert!(
        reload.expect("an answer").status().is_success(),
        "{}",
        world.rig.log_tail()
    );
    assert_eq!(world.rig.terminate().await, Some(0), "{}", world.rig.log_tail());
    world.bank.assert_calls(&keys, 1);
    let published = world.results().await;
    assert!(
        published >= keys.len() as u64,
        "{published} results are published"
    );
    world.rig.start().await;
    world.assert_paid(&keys).await;
    world.bank.assert_calls(&keys, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_call_that_a_drain_aborts_has_an_unknown_outcome() {
    let mut world = World::new("local", 32, "200ms").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&ANSWERS).await;
    world.bank.until(keys.len()).await;
    assert_eq!(world.rig.terminate().await, Some(0), "{}", world.rig.log_tail());
    cut_off(world, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_call_that_a_second_signal_aborts_has_an_unknown_outcome() {
    let mut world = World::new("local", 32, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&ANSWERS).await;
    world.bank.until(keys.len()).await;
    world.rig.signal(Signal::SIGTERM);
    while !world.rig.log_tail().contains("draining") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.rig.terminate().await, Some(0), "{}", world.rig.log_tail());
    cut_off(world, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_killed_during_local_calls_repeats_none_where_that_is_forbidden() {
    let mut world = World::new("local", 32, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&ANSWERS).await;
    world.bank.until(keys.len()).await;
    world.rig.kill();
    cut_off(world, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_call_that_a_kill_cut_off_may_still_arrive_why_says_so_and_nothing_is_decided() {
    let mut world = World::new("local", 32, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&["fail"]).await;
    world.bank.until(keys.len()).await;
    world.rig.kill();
    world.rig.start().await;
    let url = world
        .rig
        .url(&format!("/v1/tenants/acme/sagas/fail/instances/{}/why", keys[0]));
    let told = async {
        loop {
            let why = world.rig.client.get(&url).send().await.expect("an answer");
            let why = why.bytes().await.expect("a body");
            let why: Value = serde_json::from_slice(&why).expect("JSON");
            let text = why["why"].as_str().unwrap_or_default();
            if text.contains("which may still reach the upstream: its outcome counts as unknown from") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), told).await;
    assert!(in_time.is_ok(), "{}", world.rig.log_tail());
    let view = world.until(&keys[0], |_| true).await;
    assert_eq!(view["phase"], "running", "{view}");
    world.assert_unknown(&keys).await;
    world.bank.assert_calls(&keys, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_dies_in_calls_of_the_queue_makes_none_of_them_again_where_that_is_forbidden() {
    let mut world = World::new("broker", 32, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&ANSWERS).await;
    world.bank.until(keys.len()).await;
    world.rig.kill();
    cut_off(world, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_cut_off_before_second_calls_were_forbidden_is_not_made_again() {
    forbidden_after_the_kill("broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_call_cut_off_before_second_calls_were_forbidden_is_not_made_again() {
    forbidden_after_the_kill("local").await;
}

async fn forbidden_after_the_kill(dispatch: &str) {
    let mut world = World::new(dispatch, 32, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&["retry"]).await;
    world.bank.until(keys.len()).await;
    world.rig.kill();
    let changed = effect("retry", 32, CALL_TIMEOUT).replace("on_ambiguous: retry", "on_ambiguous: fail");
    world.rig.add_effect("pay-retry", &changed);
    world.bank.take(Duration::ZERO);
    world.rig.start().await;
    world.assert_unknown(&keys).await;
    world.bank.assert_calls(&keys, 1);

    // From now on nothing is unknown that was not called.
    world
        .rig
        .send("Payout", "retry-9", "Payout.retry", json!({}))
        .await;
    world.assert_paid(&["retry-9".to_owned()]).await;
}

/// Starts again after all calls were cut off.
async fn cut_off(mut world: World, keys: &[String]) {
    world.bank.assert_calls(keys, 1);
    world.bank.take(Duration::ZERO);
    world.rig.start().await;
    let (again, never) = (of(keys, &["retry"]), of(keys, &["fail", "ask"]));
    world.assert_paid(&again).await;
    world.assert_unknown(&never).await;
    world.bank.assert_calls(&again, 2);
    world.bank.assert_calls(&never, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_calls_that_had_not_begun_when_the_runner_died_are_made_once() {
    not_begun("local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_queue_that_had_not_begun_when_the_runner_died_are_made_once() {
    not_begun("broker").await;
}

async fn not_begun(dispatch: &str) {
    let mut world = World::new(dispatch, 2, "30s").await;
    world.bank.take(Duration::from_secs(30));
    let keys = world.begin(&["fail", "ask"]).await;
    // Two of each find room, the others wait for it.
    world.bank.until(4).await;
    for key in &keys {
        world
            .until(key, |view| view["steps"][0]["status"] == "running")
            .await;
    }
    world.rig.kill();
    let called = world.bank.calls();
    let (begun, waited): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| called.contains_key(key));
    assert_eq!((begun.len(), waited.len()), (4, 6), "{called:?}");
    world.bank.take(Duration::ZERO);
    world.rig.start().await;
    world.assert_unknown(&begun).await;
    world.assert_paid(&waited).await;
    world.bank.assert_calls(&begun, 1);
    world.bank.assert_calls(&waited, 1);
}
