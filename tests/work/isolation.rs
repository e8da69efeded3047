//! Tenants that share an effect and its upstream: one whose calls are slow, one whose calls fail, one that sends without end.
//! Another one does not feel them.
//!
//! `make faults-isolation` prints how long its commands take, alone and beside the others; `ISOLATION_COMMANDS` sets how many,
//! `ISOLATION_ANSWER_MS` how long the upstream takes for an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use saga_runner::effects::Worker;
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::definition::effect::{EffectLimits, Provider};
use saga_runner::kernel::expr::{Root, Template};
use saga_runner::kernel::ids::TenantId;
use saga_runner::kernel::work::WorkItem;
use saga_runner::telemetry::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::work::rig::{RelayOptions, Rig, ShardSide, at, definition, effect, plan_for, until};

const PLACES: u32 = 8;
/// What a tenant has of them that is not alone.
const PART: usize = 6;
const SLOW: u128 = 40;
const HOSTILE: u128 = 40;
/// Commands of the flood that wait all the time.
const QUEUED: usize = 400;
const TENANTS: [&str; 4] = ["flood", "healthy", "hostile", "slow"];

/// Answers of the upstream.
enum Answer {
    /// After so long.
    After(Duration),
    /// The flood's as the test lets them go, the others at once.
    Gated(Semaphore),
}

/// An upstream that treats tenants as their names say, and counts their calls.
struct Upstream {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Answer,
    calls: Mutex<BTreeMap<String, usize>>,
}

impl Upstream {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            answer,
            calls: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                // A caller that has waited long enough leaves.
                tokio::spawn(async move { drop(serving.serve(stream).await) });
            }
        });
        Self { url, shared }
    }

    fn calls(&self, tenant: &str) -> usize {
        self.shared
            .calls
            .lock()
            .unwrap()
            .get(tenant)
            .copied()
            .unwrap_or(0)
    }

    async fn until_calls(&self, tenant: &str, count: usize) {
        until(async || (self.calls(tenant) >= count).then_some(())).await;
    }

    fn gate(&self) -> &Semaphore {
        match &self.shared.answer {
            Answer::Gated(gate) => gate,
            Answer::After(_) => panic!("there is no gate"),
        }
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut seen = Vec::new();
        loop {
            let mut bytes = [0; 4_096];
            let read = stream.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            seen.extend_from_slice(&bytes[..read]);
            // The body is one digit behind the head.
            let text = String::from_utf8_lossy(&seen).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            if body.is_empty() {
                continue;
            }
            seen.clear();
            let path = head.split(' ').nth(1).unwrap();
            let tenant = path.trim_start_matches('/');
            *self.calls.lock().unwrap().entry(tenant.to_owned()).or_default() += 1;
            let mut status = "200 OK";
            match (tenant, &self.answer) {
                ("slow", _) => return std::future::pending().await,
                ("hostile", _) if text.len().is_multiple_of(2) => return Ok(()),
                ("hostile", _) => status = "500 Broken",
                ("flood", Answer::Gated(gate)) => gate.acquire().await.unwrap().forget(),
                (_, Answer::Gated(_)) => {}
                (_, Answer::After(delay)) => tokio::time::sleep(*delay).await,
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            stream.write_all(answer.as_bytes()).await?;
        }
    }
}

fn shared_effect() -> EffectDefinition {
    let mut shared = definition(2);
    shared.timeout_ms = 60_000;
    shared.limits = EffectLimits {
        concurrency: PLACES,
        ..EffectLimits::default()
    };
    let Provider::Http(call) = &mut shared.provider else {
        panic!("an HTTP effect");
    };
    let roots = [Root::Input, Root::Command, Root::Secrets, Root::Upstreams];
    call.url = Template::compile_text("${upstreams.pay}/${url(command.tenant)}", &roots).unwrap();
    shared
}

/// How commands come to the worker.
#[derive(Clone, Copy)]
struct Way {
    what: &'static str,
    consumers: &'static str,
    /// Whether the manifest lists the tenants.
    is_listed: bool,
}

const LISTED: Way = Way {
    what: "tenants listed",
    consumers: "{}",
    is_listed: true,
};
const BY_TENANT: Way = Way {
    what: "by: tenant",
    consumers: "by: tenant",
    is_listed: true,
};
const ANY: Way = Way {
    what: "tenants: any",
    consumers: "{}",
    is_listed: false,
};

fn worker(rig: &Rig, way: Way, upstream: &Upstream) -> (Worker, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new());
    let mut spec = rig.spec("test", vec![shared_effect()], &upstream.url, Arc::clone(&metrics));
    let tenants = way.is_listed.then_some(&TENANTS[..]);
    spec.consumers = plan_for(tenants, way.consumers, "test", &spec.effects);
    (Worker::start(&spec).unwrap(), metrics)
}

/// The outbox of one tenant.
struct Outbox<'r> {
    rig: &'r Rig,
    shard: ShardSide,
    tenant: TenantId,
    /// Ids of its commands begin here.
    from: u128,
    sent: u64,
}

impl<'r> Outbox<'r> {
    fn of(rig: &'r Rig, tenant: &str) -> Self {
        let position = TENANTS.iter().position(|name| *name == tenant).unwrap();
        Self {
            rig,
            shard: rig.relay(Arc::clone(&rig.broker), RelayOptions::default()),
            tenant: TenantId::parse(tenant).unwrap(),
            from: 10_000_000 * (position as u128 + 1),
            sent: 0,
        }
    }

    async fn send(&mut self, count: u128) -> Vec<WorkItem> {
        let mut items = Vec::new();
        let mut rows = Vec::new();
        for _ in 0..count {
            self.sent += 1;
            let n = self.from + u128::from(self.sent);
            let mut item = effect(self.rig, &format!("{}-{n}", self.tenant), n);
            item.instance.tenant = self.tenant.clone();
            rows.push((at(self.sent, 0), item.clone()));
            items.push(item);
        }
        self.shard.release(rows).await;
        self.shard.until_floor(at(self.sent, 0)).await;
        items
    }

    /// Sends one and waits for its result.
    async fn one(&mut self) {
        let items = self.send(1).await;
        let result = self.rig.result(&items[0]).await;
        assert_eq!(result["result_type"], "Succeeded", "{result}");
    }

    /// Sends one after the other and gives how long each has taken, the shortest first.
    async fn one_by_one(&mut self, count: usize) -> Vec<Duration> {
        let mut took = Vec::new();
        for _ in 0..count {
            let begun = Instant::now();
            self.one().await;
            took.push(begun.elapsed());
        }
        took.sort();
        took
    }

    /// Keeps some hundred commands queued, for ever.
    async fn flood(&mut self, upstream: &Upstream) -> std::convert::Infallible {
        loop {
            let sent = usize::try_from(self.sent).unwrap();
            if sent.saturating_sub(upstream.calls("flood")) < QUEUED {
                self.send(100).await;
            } else {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn percentile(took: &[Duration], share: usize) -> Duration {
    took[(took.len() * share / 100).min(took.len() - 1)]
}

fn print(what: &str, took: &[Duration]) {
    let (p50, p99) = (percentile(took, 50), percentile(took, 99));
    println!(
        "{what}: {} commands, p50 {} us, p99 {} us",
        took.len(),
        p50.as_micros(),
        p99.as_micros()
    );
}

/// Measures one tenant alone, and beside a slow one, a hostile one and one that floods for as long as is measured.
async fn measured(way: Way) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let asked: Option<usize> = number("ISOLATION_COMMANDS");
    let commands = asked.unwrap_or(10);
    let answer = number("ISOLATION_ANSWER_MS").unwrap_or(20);
    let rig = Rig::on_nats().await;
    let upstream = Upstream::start(Answer::After(Duration::from_millis(answer as u64))).await;
    let (_worker, _) = worker(&rig, way, &upstream);
    let mut healthy = Outbox::of(&rig, "healthy");
    healthy.one().await;
    let alone = healthy.one_by_one(commands).await;
    print(&format!("{}, alone", way.what), &alone);

    Outbox::of(&rig, "slow").send(SLOW).await;
    Outbox::of(&rig, "hostile").send(HOSTILE).await;
    let mut flood = Outbox::of(&rig, "flood");
    flood.send(QUEUED as u128).await;
    upstream.until_calls("flood", 1).await;
    let (begun, before) = (Instant::now(), upstream.calls("flood"));
    let beside = tokio::select! {
        beside = healthy.one_by_one(commands) => beside,
        never = flood.flood(&upstream) => match never {},
    };
    let calls = u32::try_from(upstream.calls("flood") - before).unwrap();
    print(
        &format!("{}, beside slow, hostile and flooding tenants", way.what),
        &beside,
    );
    println!(
        "{}, calls of the flood: {:.0}/s",
        way.what,
        f64::from(calls) / begun.elapsed().as_secs_f64()
    );
    if asked.is_some() && way.is_listed {
        let (beside, alone) = (percentile(&beside, 99), percentile(&alone, 99));
        assert!(
            beside <= alone * 2,
            "p99 of {beside:?} beside the others, {alone:?} alone"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_served_while_others_are_slow_hostile_and_many() {
    measured(LISTED).await;
    measured(BY_TENANT).await;
    measured(ANY).await;
}

/// The flood has its part of the places and keeps it, and has hundreds of commands more. Returns how many were given back because
/// their tenant has its part.
async fn passed(way: Way) -> u64 {
    let rig = Rig::on_nats().await;
    let upstream = Upstream::start(Answer::Gated(Semaphore::new(0))).await;
    let (_worker, metrics) = worker(&rig, way, &upstream);
    let mut healthy = Outbox::of(&rig, "healthy");
    healthy.one().await;
    let mut flood = Outbox::of(&rig, "flood");
    flood.send(300).await;
    upstream.until_calls("flood", PART).await;
    for _ in 0..5 {
        healthy.one().await;
    }
    assert_eq!(upstream.calls("flood"), PART, "none has ended, so none was begun");
    metrics
        .effect_commands_returned
        .with_label_values(&["charge", "tenant_busy"])
        .get()
}

#[tokio::test]
async fn commands_of_a_tenant_are_called_before_any_call_of_anothers_flood_ends() {
    assert_eq!(passed(LISTED).await, 0, "what there is no room for is not pulled");
    assert_eq!(passed(BY_TENANT).await, 0);
}

#[tokio::test]
async fn commands_of_a_tenant_pass_anothers_flood_in_a_shared_consumer_and_leave_a_trace() {
    let given_back = passed(ANY).await;
    assert!(given_back >= 294, "{given_back}");
}

#[tokio::test]
async fn a_place_that_comes_free_goes_to_the_tenant_that_has_none() {
    let rig = Rig::on_nats().await;
    let upstream = Upstream::start(Answer::Gated(Semaphore::new(60))).await;
    let (_worker, _) = worker(&rig, LISTED, &upstream);
    let mut flood = Outbox::of(&rig, "flood");
    // Quick at first, so that the worker pulls ahead.
    for item in flood.send(60).await {
        rig.result(&item).await;
    }
    flood.send(300).await;
    let places = PLACES as usize;
    upstream.until_calls("flood", 60 + places).await;
    let held = async |tenant: &str, count: u64| {
        let durable = format!("effect-test-charge@{tenant}");
        until(async || {
            let state = rig.broker.queue_state(&rig.streams.commands, &durable).await;
            (state.unwrap()?.unacknowledged >= count).then_some(())
        })
        .await;
    };
    held("flood", 2 * places as u64).await;
    let mut healthy = Outbox::of(&rig, "healthy");
    let command = healthy.send(1).await;
    held("healthy", 1).await;
    let mut ended = 0;
    while upstream.calls("healthy") == 0 {
        ended += 1;
        let begun = upstream.calls("flood");
        upstream.gate().add_permits(1);
        // Either of the two takes the place.
        until(async || (upstream.calls("healthy") + upstream.calls("flood") > begun).then_some(())).await;
    }
    assert!(ended <= 4, "{ended} calls of the flood have ended before it");
    rig.result(&command[0]).await;
}
