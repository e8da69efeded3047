//! Commands for aggregates: whoever is slow, hostile or many costs nobody else anything, and a command that was never
//! submitted is explained.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use saga_runner::kernel::breaker::{BreakerPolicy, BreakerState};
use saga_runner::kernel::ids::TenantId;
use saga_runner::kernel::input::WorkOutcome;
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::outbox;
use saga_runner::ports::clock::Clock as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::work::rig::{RelayOptions, Rig, ShardSide, at, command};

/// A gateway on a bare socket that does to each tenant what its name says.
async fn gateway(healthy: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut turn = 0_usize;
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            turn += 1;
            let healthy = Arc::clone(&healthy);
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut buffer = [0; 4_096];
                // The body ends with the object that the envelope is.
                while !request.ends_with(b"}") {
                    match socket.read(&mut buffer).await {
                        Ok(read) if read > 0 => request.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                let text = String::from_utf8_lossy(&request).to_lowercase();
                let of = |tenant: &str| text.contains(&format!("x-tenant-id: {tenant}\r\n"));
                let close = "connection: close\r\n";
                if of("slow") || of("flood") {
                    std::future::pending::<()>().await;
                } else if of("hostile") {
                    match turn % 3 {
                        0 => {
                            let answer = format!("HTTP/1.1 500 No\r\n{close}content-length: 0\r\n\r\n");
                            let _ = socket.write_all(answer.as_bytes()).await;
                        }
                        // Reset: what is unread when the socket closes makes it one.
                        1 => drop(socket.set_zero_linger()),
                        _ => {
                            let head =
                                format!("HTTP/1.1 500 No\r\n{close}transfer-encoding: chunked\r\n\r\n");
                            let _ = socket.write_all(head.as_bytes()).await;
                            while socket.write_all(b"1\r\nx\r\n").await.is_ok() {
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                        }
                    }
                } else {
                    healthy.fetch_add(1, Ordering::SeqCst);
                    let answer = format!("HTTP/1.1 202 Accepted\r\n{close}content-length: 0\r\n\r\n");
                    let _ = socket.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    url
}

fn options(url: &str, settings: &outbox::Settings) -> RelayOptions {
    let defaults = RelayOptions::default();
    RelayOptions {
        gateway: Some(url.to_owned()),
        settings: outbox::Settings {
            retry_initial: defaults.settings.retry_initial,
            retry_max: defaults.settings.retry_max,
            ..settings.clone()
        },
        ..defaults
    }
}

fn of_tenant(rig: &Rig, tenant: &str, n: u128) -> WorkItem {
    let mut item = command(rig, &format!("{tenant}-{n}"), n, true);
    item.instance.tenant = TenantId::parse(tenant).unwrap();
    item
}

fn outcomes(shard: &ShardSide, tenant: &str) -> Vec<WorkOutcome> {
    let of = shard
        .verdicts
        .iter()
        .filter(|verdict| verdict.instance.tenant.as_str() == tenant);
    of.map(|verdict| verdict.result.outcome.clone()).collect()
}

/// `count` commands of a tenant, of instances of their own.
fn many(rig: &Rig, tenant: &str, from: u64, count: u64) -> Vec<(WorkRef, WorkItem)> {
    let numbers = from..from + count;
    numbers
        .map(|n| (at(n, 0), of_tenant(rig, tenant, u128::from(n))))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_tenant_is_served_while_others_are_slow_hostile_and_many() {
    let rig = Rig::new().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let url = gateway(Arc::clone(&taken)).await;
    let settings = outbox::Settings {
        gateway_in_flight: 4,
        gateway_in_flight_all: 6,
        rows_in_memory: 50,
        refill_rows: 100,
        ..outbox::Settings::default()
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), options(&url, &settings));
    shard.until_started().await;
    let mut rows = many(&rig, "slow", 1, 40);
    rows.extend(many(&rig, "hostile", 101, 40));
    // More than the relay keeps in memory.
    rows.extend(many(&rig, "flood", 201, 200));
    shard.release(rows).await;
    shard.release(many(&rig, "healthy", 1_001, 40)).await;
    shard.until(|shard| outcomes(shard, "healthy").len() == 40).await;
    for outcome in outcomes(&shard, "healthy") {
        assert!(matches!(outcome, WorkOutcome::Succeeded { .. }), "{outcome:?}");
    }
    assert_eq!(
        taken.load(Ordering::SeqCst),
        40,
        "each of them was submitted once"
    );
    for tenant in ["slow", "flood", "hostile"] {
        assert_eq!(outcomes(&shard, tenant), [], "{tenant}: nobody decided anything");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_whose_commands_fail_opens_no_breaker_but_its_own() {
    let rig = Rig::new().await;
    let url = gateway(Arc::default()).await;
    let settings = outbox::Settings {
        breaker: BreakerPolicy {
            calls_min: 3,
            open_ms: 600_000,
            ..BreakerPolicy::default()
        },
        ..outbox::Settings::default()
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), options(&url, &settings));
    shard.until_started().await;
    shard.release(many(&rig, "hostile", 1, 10)).await;
    let breakers = Arc::clone(shard.submitter().breakers());
    shard.until(|_| breakers.worst() == BreakerState::Open).await;
    shard.release(many(&rig, "acme", 101, 10)).await;
    shard.until(|shard| outcomes(shard, "acme").len() == 10).await;
    for outcome in outcomes(&shard, "acme") {
        assert!(matches!(outcome, WorkOutcome::Succeeded { .. }), "{outcome:?}");
    }
    let open = breakers.view(10).into_iter().filter(|view| view.tenant.is_some());
    let open: Vec<_> = open
        .map(|view| {
            (
                view.upstream,
                view.tenant.map(|tenant| tenant.as_str().to_owned()),
            )
        })
        .collect();
    assert_eq!(
        open,
        [("gateway:Shipment".to_owned(), Some("hostile".to_owned()))]
    );

    // Another type of aggregate of the same tenant has a breaker of its own, so it is submitted.
    let mut late = of_tenant(&rig, "hostile", 201);
    late.deadline = rig.clock.now().plus_ms(400);
    let mut other = of_tenant(&rig, "hostile", 202);
    other.deadline = late.deadline;
    if let WorkKind::Command { aggregate_type, .. } = &mut other.kind {
        "Stock".clone_into(aggregate_type);
    }
    shard.release(vec![(at(201, 0), late), (at(202, 0), other)]).await;
    shard.until(|shard| outcomes(shard, "hostile").len() == 2).await;
    for verdict in &shard.verdicts {
        match (verdict.instance.key.as_str(), &verdict.result.outcome) {
            // Held back all the time: certainly nothing happened.
            ("hostile-201", WorkOutcome::Failed { class, message, .. }) => {
                assert_eq!(class, "gateway.unavailable");
                assert!(message.contains("breaker"), "{message}");
            }
            ("hostile-202", outcome) => {
                assert!(matches!(outcome, WorkOutcome::TimedOut { .. }), "{outcome:?}");
            }
            ("hostile-201", outcome) => panic!("{outcome:?}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_command_that_an_earlier_life_may_have_submitted_is_an_unknown_outcome() {
    let rig = Rig::new().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let mut before = command(&rig, "before", 1, true);
    before.deadline = rig.clock.now().plus_ms(300);
    let mut after = command(&rig, "after", 2, true);
    after.deadline = before.deadline;
    let options = RelayOptions {
        outbox: vec![(at(5, 0), before)],
        began_after: 5,
        ..options(&url, &outbox::Settings::default())
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), options);
    shard.release(vec![(at(6, 0), after)]).await;
    shard.until(|shard| shard.verdicts.len() == 2).await;
    for verdict in &shard.verdicts {
        let certain = matches!(&verdict.result.outcome,
            WorkOutcome::Failed { class, .. } if class == "gateway.unavailable");
        let unknown = matches!(&verdict.result.outcome, WorkOutcome::TimedOut { .. });
        let is_before = verdict.instance.key.as_str() == "before";
        assert_eq!((certain, unknown), (!is_before, is_before), "{verdict:?}");
    }
}
