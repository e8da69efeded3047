//! Tenants that share an effect and its upstream: one whose calls are slow, one whose calls fail, one that sends more than
//! there is room for. A fourth one does not feel them.
//!
//! `make faults-isolation` prints how long its commands take, alone and beside the others; `ISOLATION_COMMANDS` sets how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use saga_runner::kernel::definition::effect::EffectLimits;
use saga_runner::kernel::definition::effect::Provider;
use saga_runner::kernel::expr::{Root, Template};
use saga_runner::kernel::ids::TenantId;
use saga_runner::kernel::work::WorkItem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::work::rig::{RelayOptions, Rig, at, definition, effect};

const SLOW: u128 = 40;
const HOSTILE: u128 = 40;
const FLOOD: u128 = 400;

/// An upstream that treats tenants as their names say.
async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A caller that has waited long enough leaves.
            tokio::spawn(async move { drop(serve(stream).await) });
        }
    });
    url
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
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
        if head.contains("/slow") {
            return std::future::pending().await;
        }
        if head.contains("/hostile") && text.len().is_multiple_of(2) {
            return Ok(());
        }
        let status = if head.contains("/hostile") {
            "500 Broken"
        } else {
            "200 OK"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).await?;
    }
}

fn of_tenant(rig: &Rig, tenant: &str, from: u128, count: u128) -> Vec<WorkItem> {
    let item = |n: u128| {
        let mut item = effect(rig, &format!("{tenant}-{n}"), n);
        item.instance.tenant = TenantId::parse(tenant).unwrap();
        item
    };
    (from..from + count).map(item).collect()
}

async fn send(rig: &Rig, items: &[WorkItem]) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = items.iter().cloned().zip(1..).map(|(item, n)| (at(n, 0), item));
    shard.release(rows.collect()).await;
    shard.until_floor(at(items.len() as u64, 0)).await;
}

/// Sends one after the other and gives how long each has taken, the shortest first.
async fn one_by_one(rig: &Rig, items: &[WorkItem]) -> Vec<Duration> {
    let mut took = Vec::new();
    for item in items {
        let begun = Instant::now();
        send(rig, std::slice::from_ref(item)).await;
        let result = rig.result(item).await;
        assert_eq!(result["result_type"], "Succeeded", "{result}");
        took.push(begun.elapsed());
    }
    took.sort();
    took
}

fn print(what: &str, took: &[Duration]) {
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)].as_micros();
    println!(
        "{what}: {} commands, p50 {} us, p99 {} us",
        took.len(),
        at(50),
        at(99)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_served_while_others_are_slow_hostile_and_many() {
    let commands: u128 = std::env::var("ISOLATION_COMMANDS").map_or(20, |text| text.parse().unwrap());
    let rig = Rig::on_nats().await;
    let mut shared = definition(2);
    shared.timeout_ms = 60_000;
    shared.limits = EffectLimits {
        concurrency: 8,
        ..EffectLimits::default()
    };
    let Provider::Http(call) = &mut shared.provider else {
        panic!("an HTTP effect");
    };
    let roots = [Root::Input, Root::Command, Root::Secrets, Root::Upstreams];
    call.url = Template::compile_text("${upstreams.pay}/${url(command.tenant)}", &roots).unwrap();
    let _worker = rig.worker(shared, &upstream().await);
    print(
        "alone",
        &one_by_one(&rig, &of_tenant(&rig, "healthy", 1, commands)).await,
    );

    let slow = of_tenant(&rig, "slow", 100_001, SLOW);
    let hostile = of_tenant(&rig, "hostile", 200_001, HOSTILE);
    let flood = of_tenant(&rig, "flood", 300_001, FLOOD);
    send(&rig, &[slow, hostile, flood.clone()].concat()).await;
    let beside = one_by_one(&rig, &of_tenant(&rig, "healthy", 400_001, commands)).await;
    print("beside slow, hostile and flooding tenants", &beside);
    // And none of the three stops the others.
    for item in [flood.first(), flood.last()].into_iter().flatten() {
        let result = rig.result(item).await;
        assert_eq!(result["result_type"], "Succeeded", "{result}");
    }
}
