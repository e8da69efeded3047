//! The course of the demo.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::Instant;

use super::DemoArguments;
use super::audit::{Audit, Ending};
use super::runner::Runner;
use super::upstream::{self, Upstream};
use crate::app::exit::{FINDINGS, Failure};
use crate::app::nats_server::{self, free_port};
use crate::app::out;

const TENANT: &str = "acme";

/// The kinds of orders, in the proportion in which they are placed. The id's first word tells the upstream how
/// to behave.
const KINDS: [&str; 10] = [
    "happy", "happy", "declined", "happy", "slow", "flaky", "happy", "noship", "nostock", "happy",
];

/// Everything of one demo, cleaned up when dropped.
struct Stage {
    dir: PathBuf,
    keep: bool,
    upstream: Upstream,
    runner: Runner,
    client: reqwest::Client,
    /// Stopped when dropped.
    _nats: Option<Child>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.keep {
            // A folder that cannot be removed is left to the system's cleaning of temporary files.
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

pub async fn demo(arguments: &DemoArguments, patience: Duration) -> Result<(), Failure> {
    let mut stage = set_up(arguments).await?;
    let started = Instant::now();
    stage.runner.start().await?;
    say(&format!(
        "runner ready after {} ms, on {}",
        started.elapsed().as_millis(),
        match arguments.nats_server {
            Some(_) => "a real nats-server",
            None => "the embedded broker",
        }
    ));
    let orders = place(&mut stage, arguments).await?;
    let endings = wait_for_ends(&stage, &orders, patience).await?;
    wait_for_books(&stage, &endings, patience).await;
    consolidate(&stage, patience).await?;
    report(&stage, &endings)
}

async fn set_up(arguments: &DemoArguments) -> Result<Stage, Failure> {
    let dir = std::env::temp_dir().join(format!("saga-runner-demo-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("config")).map_err(Failure::software)?;
    shorten_timer(arguments, &dir)?;
    let (nats, nats_url) = match &arguments.nats_server {
        Some(program) => {
            let (child, url) = nats_server::start(program, &dir, false).await?;
            say(&format!("nats-server ready at {url}"));
            (Some(child), Some(url))
        }
        None => (None, None),
    };
    let settings = upstream::Settings {
        runner: None,
        slow: arguments.unpaid_after.duration() + Duration::from_secs(2),
    };
    let upstream = Upstream::start(SocketAddr::from(([127, 0, 0, 1], 0)), settings)
        .await
        .map_err(Failure::software)?;
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().map_err(Failure::software)?));
    let config = dir.join("config/demo.yaml");
    let text = manifest(&dir, &upstream, address, nats_url.as_deref());
    std::fs::write(&config, text).map_err(Failure::software)?;
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(5))
        .build()
        .map_err(Failure::software)?;
    let runner = Runner::new(config, dir.join("runner.log"), address, client.clone());
    upstream.set_runner(runner.base.clone());
    if arguments.keep {
        say(&format!("data and logs stay in {}", dir.display()));
    }
    Ok(Stage {
        dir,
        keep: arguments.keep,
        upstream,
        runner,
        client,
        _nats: nats,
    })
}

/// Copies the definitions, with the order saga's half hour cut to what fits a demo.
fn shorten_timer(arguments: &DemoArguments, dir: &Path) -> Result<(), Failure> {
    for kind in ["sagas", "effects"] {
        let target = dir.join(kind);
        std::fs::create_dir_all(&target).map_err(Failure::software)?;
        let source = arguments.definitions.join(kind);
        let files = std::fs::read_dir(&source).map_err(|error| {
            Failure::new(
                crate::app::exit::NO_INPUT,
                format!("{}: {error}", source.display()),
            )
        })?;
        for file in files {
            let path = file.map_err(Failure::software)?.path();
            let Some(name) = path.file_name() else { continue };
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let mut text = std::fs::read_to_string(&path).map_err(Failure::software)?;
            if name == "order.yaml" {
                text = text.replace("after: 30m", &format!("after: {}", arguments.unpaid_after));
            }
            std::fs::write(target.join(name), text).map_err(Failure::software)?;
        }
    }
    Ok(())
}

fn manifest(dir: &Path, upstream: &Upstream, address: SocketAddr, nats_url: Option<&str>) -> String {
    let base = format!("http://{}", upstream.address);
    let mut manifest = json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": "demo",
        "data_dir": dir.join("data"),
        "shards": 2,
        "tenants": [TENANT],
        "sagas": dir.join("sagas"),
        "effects": dir.join("effects"),
        "gateway": {"url": format!("{base}/gateway/commands")},
        "upstreams": {"shop": base},
        "http": {"listen": address, "admin_listen": address, "accept_events": true},
    });
    if let Some(url) = nats_url {
        manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [url]}});
    }
    // JSON is YAML.
    manifest.to_string()
}

/// Places all orders and kills the runner on the way.
async fn place(stage: &mut Stage, arguments: &DemoArguments) -> Result<Vec<String>, Failure> {
    let mut orders = Vec::new();
    let every = arguments.orders / (arguments.kills + 1);
    for number in 0..arguments.orders {
        if number > 0 && every > 0 && number % every == 0 && number / every <= arguments.kills {
            stage.runner.kill().await?;
            say(&format!(
                "{number} orders placed; the runner was killed with SIGKILL"
            ));
            stage.runner.start().await?;
            say("the runner is back");
        }
        let kind = KINDS[number as usize % KINDS.len()];
        let order = format!("{kind}-{number:04}");
        let items = json!([{"sku": "tea-01", "qty": 1 + number % 3}]);
        let payload = json!({
            "order_id": order,
            "customer": {"id": format!("c-{}", number % 17)},
            "items": items,
            "total_cents": 1_000 + 7 * number,
            "currency": "EUR",
        });
        send(stage, "Order", &order, "Placed", &payload).await?;
        orders.push(order);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    say(&format!("{} orders placed", orders.len()));
    Ok(orders)
}

/// Publishes one event, again and again until the runner has taken it: its id makes repetition harmless.
async fn send(stage: &Stage, aggregate: &str, id: &str, event: &str, payload: &Value) -> Result<(), Failure> {
    let body = json!({
        "tenant_id": TENANT,
        "event_id": format!("{aggregate}-{event}-{id}"),
        "event_type": event,
        "aggregate_type": aggregate,
        "aggregate_id": id,
        "sequence": 1,
        "schema_version": 1,
        "payload": payload,
        "metadata": {"correlation_id": id},
    })
    .to_string();
    let url = format!("{}/v1/tenants/{TENANT}/events", stage.runner.base);
    let mut last = String::new();
    for _ in 0..100 {
        let request = stage
            .client
            .post(&url)
            .header("content-type", "application/json")
            .body(body.clone());
        match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => last = format!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::software(format!(
        "{id}: the event was not taken: {last}"
    )))
}

async fn wait_for_ends(stage: &Stage, orders: &[String], patience: Duration) -> Result<Vec<Ending>, Failure> {
    let begin = Instant::now();
    let mut endings: BTreeMap<&str, Ending> = BTreeMap::new();
    let mut told = 0;
    loop {
        for order in orders {
            if endings.contains_key(order.as_str()) {
                continue;
            }
            if let Some(view) = instance(stage, "order", order).await {
                let phase = view["phase"].as_str().unwrap_or_default();
                if matches!(phase, "completed" | "failed" | "cancelled") {
                    endings.insert(order, ending(order, &view));
                }
            }
        }
        if endings.len() != told {
            told = endings.len();
            say(&format!("{told} of {} orders have ended", orders.len()));
        }
        if endings.len() == orders.len() {
            return Ok(endings.into_values().collect());
        }
        if begin.elapsed() > patience {
            let open: Vec<&str> = orders
                .iter()
                .map(String::as_str)
                .filter(|order| !endings.contains_key(order))
                .take(5)
                .collect();
            return Err(Failure::new(
                FINDINGS,
                format!("not ended after {} s: {}", patience.as_secs(), open.join(", ")),
            ));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn ending(order: &str, view: &Value) -> Ending {
    Ending {
        order: order.to_owned(),
        phase: view["phase"].as_str().unwrap_or_default().to_owned(),
        failure: view["failure"]["code"].as_str().map(str::to_owned),
    }
}

/// Payments that came too late are refunded after their order has failed: waits until the books are even.
async fn wait_for_books(stage: &Stage, endings: &[Ending], patience: Duration) {
    let begin = Instant::now();
    while !Audit::new(endings, &stage.upstream.deeds()).faults.is_empty() && begin.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // A slow payment may still be under way; its refund must follow.
    let slow = endings.iter().any(|ending| ending.order.starts_with("slow-"));
    let outstanding = || {
        let deeds = stage.upstream.deeds();
        endings
            .iter()
            .filter(|ending| ending.order.starts_with("slow-"))
            .any(|ending| {
                !deeds
                    .iter()
                    .any(|deed| deed.kind == "refunds" && deed.order == ending.order)
            })
    };
    while slow && outstanding() && begin.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Sends enough lines to a warehouse to fill one shipment, and waits until the dock has it.
async fn consolidate(stage: &Stage, patience: Duration) -> Result<(), Failure> {
    let warehouse = "berlin-1";
    for line in 0..5 {
        let payload = json!({"warehouse": warehouse, "line_id": format!("line-{line}"), "grams": 4_500});
        send(stage, "Line", &format!("line-{line}"), "Ready", &payload).await?;
    }
    let begin = Instant::now();
    while begin.elapsed() < patience {
        let view = instance(stage, "consolidate", warehouse).await;
        if let Some(view) = view
            && view["state"]["batch"].as_i64() == Some(2)
        {
            say("consolidate: 5 lines became one shipment, which the dock accepted");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::new(
        FINDINGS,
        "consolidate: the shipment was not accepted in time",
    ))
}

async fn instance(stage: &Stage, saga: &str, key: &str) -> Option<Value> {
    let url = format!(
        "{}/v1/tenants/{TENANT}/sagas/{saga}/instances/{key}?history=0",
        stage.runner.base
    );
    let answer = stage.client.get(url).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}

fn report(stage: &Stage, endings: &[Ending]) -> Result<(), Failure> {
    let audit = Audit::new(endings, &stage.upstream.deeds());
    out::line(audit.table)?;
    out::line(format_args!(
        "upstream: {} charges, {} shipments, {} refunds; {} calls were repeated, each with its own idempotency key",
        audit.charges, audit.shipments, audit.refunds, audit.repeated_calls
    ))?;
    if audit.faults.is_empty() {
        out::line(format_args!(
            "books are even: every charge without a shipped order has its refund"
        ))?;
        return Ok(());
    }
    for fault in &audit.faults {
        out::line(format_args!("  {fault}"))?;
    }
    Err(Failure::new(
        FINDINGS,
        format!("{} fault(s) in the books", audit.faults.len()),
    ))
}

fn say(text: &str) {
    out::note(format_args!("demo: {text}"));
}
