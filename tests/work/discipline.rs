//! How a worker treats its upstreams: limits, breakers, pauses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use saga_runner::kernel::breaker::{BreakerPolicy, BreakerState};
use saga_runner::kernel::definition::effect::{BreakerRule, BreakerScope, OnAmbiguous};
use saga_runner::kernel::ids::{EffectName, TenantId};
use saga_runner::kernel::rate::Rate;
use saga_runner::kernel::work::{WorkItem, WorkKind};
use saga_runner::ports::control::{BreakerForce, Forced};
use saga_runner::telemetry::Metrics;
use wiremock::matchers::{any, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::rig::{RelayOptions, Rig, at, definition, effect, until};

async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

async fn enqueue_all(rig: &Rig, items: &[WorkItem]) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows: Vec<_> = (0..)
        .zip(items)
        .map(|(n, item)| (at(1, n), item.clone()))
        .collect();
    let last = rows.last().expect("an item").0;
    shard.release(rows).await;
    shard.until_floor(last).await;
}

fn items(rig: &Rig, from: u128, count: u128) -> Vec<WorkItem> {
    (from..from + count)
        .map(|n| effect(rig, &format!("o-{n}"), n))
        .collect()
}

fn of_tenant(mut item: WorkItem, tenant: &str) -> WorkItem {
    item.instance.tenant = TenantId::parse(tenant).unwrap();
    item
}

fn given_back(metrics: &Metrics, reason: &str) -> u64 {
    metrics
        .effect_commands_returned
        .with_label_values(&["charge", reason])
        .get()
}

fn succeeded(metrics: &Metrics) -> u64 {
    metrics
        .effect_results
        .with_label_values(&["charge", "succeeded"])
        .get()
}

async fn calls(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

#[tokio::test]
async fn a_pause_between_attempts_holds_no_place() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let patience = ResponseTemplate::new(429).insert_header("retry-after", "3");
    Mock::given(any())
        .respond_with(patience)
        .up_to_n_times(1)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let mut narrow = definition(3);
    narrow.limits.concurrency = 1;
    let _worker = rig.worker(narrow, &server.uri());
    let items = items(&rig, 1, 20);
    let start = Instant::now();
    enqueue_all(&rig, &items).await;
    let mut told = BTreeMap::new();
    for item in items.iter().rev() {
        let result = rig.result(item).await;
        assert_eq!(result["result_type"], "Succeeded");
        told.insert(result["metadata"]["calls"].as_u64().unwrap(), start.elapsed());
    }
    assert!(
        told[&1] + Duration::from_millis(500) < told[&2],
        "the others did not wait: {told:?}"
    );
    assert!(
        told[&2] >= Duration::from_secs(3),
        "Retry-After was kept: {told:?}"
    );
    assert_eq!(given_back(&rig.metrics, "retry"), 1);
}

#[tokio::test]
async fn the_attempts_of_a_command_are_counted_across_workers() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(503)).await;
    let (first, first_metrics) = rig.measured(vec![definition(4)], &server.uri());
    let (second, second_metrics) = rig.measured(vec![definition(4)], &server.uri());
    let items = items(&rig, 1, 10);
    enqueue_all(&rig, &items).await;
    for item in &items {
        let result = rig.result(item).await;
        assert_eq!(
            (&result["result_type"], &result["payload"]["class"]),
            (&"Failed".into(), &"transient".into())
        );
        assert_eq!(result["metadata"]["calls"], 4);
    }
    assert_eq!(calls(&server).await, 40, "four calls each, whoever made them");
    let each = [&first_metrics, &second_metrics];
    assert!(each.iter().all(|metrics| given_back(metrics, "retry") > 0));
    let left: u64 = each
        .iter()
        .map(|metrics| given_back(metrics, "another_worker"))
        .sum();
    assert!(left > 0, "a worker leaves its own retries to the other");
    let exhausted = |metrics: &Arc<Metrics>| {
        metrics
            .effect_commands_exhausted
            .with_label_values(&["charge", "transient"])
            .get()
    };
    assert_eq!(exhausted(&first_metrics) + exhausted(&second_metrics), 10);
    first.drain(Duration::from_secs(1)).await;
    second.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_refusal_ends_the_command_although_its_class_is_retried() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(402)).await;
    let mut eager = definition(4);
    eager.retry_classes.push("permanent".to_owned());
    let _worker = rig.worker(eager, &server.uri());
    let items = items(&rig, 1, 1);
    enqueue_all(&rig, &items).await;
    let result = rig.result(&items[0]).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"Failed".into(), &"permanent".into())
    );
    assert_eq!(result["payload"]["refused"], true);
    assert_eq!(calls(&server).await, 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_tried_again_under_one_key_unless_no_second_call_may_be_made() {
    for (on_ambiguous, made) in [(OnAmbiguous::Retry, 3), (OnAmbiguous::Fail, 1)] {
        let rig = Rig::new().await;
        let server = upstream(ResponseTemplate::new(502)).await;
        let mut effect = definition(3);
        effect.on_ambiguous = on_ambiguous;
        let _worker = rig.worker(effect, &server.uri());
        let items = items(&rig, 1, 1);
        enqueue_all(&rig, &items).await;
        let result = rig.result(&items[0]).await;
        assert_eq!(
            (&result["result_type"], &result["payload"]["class"]),
            (&"TimedOut".into(), &"transient".into())
        );
        let requests = server.received_requests().await.unwrap();
        let keys: Vec<_> = requests
            .iter()
            .map(|request| request.headers["idempotency-key"].clone())
            .collect();
        assert_eq!(keys, vec![keys[0].clone(); made]);
    }
}

#[tokio::test]
async fn an_open_breaker_holds_calls_back_and_loses_none() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let ill = Mock::given(any())
        .respond_with(ResponseTemplate::new(503))
        .mount_as_scoped(&server)
        .await;
    let mut guarded = definition(20);
    guarded.breaker = Some(BreakerRule {
        scope: BreakerScope::Host,
        policy: BreakerPolicy {
            window_ms: 10_000,
            calls_min: 5,
            failure_rate: 0.5,
            open_ms: 600,
            probes: 1,
        },
    });
    let mut other = definition(20);
    other.breaker = guarded.breaker;
    let (first, first_metrics) = rig.measured(vec![guarded], &server.uri());
    let (second, second_metrics) = rig.measured(vec![other], &server.uri());
    let items = items(&rig, 1, 40);
    enqueue_all(&rig, &items).await;
    let host = server.address().to_string();
    let opened = |metrics: &Metrics| metrics.breakers_opened.with_label_values(&[&host]).get();
    until(async || (opened(&first_metrics) > 0 && opened(&second_metrics) > 0).then_some(())).await;
    let view = first.breakers().view(10);
    let acme = view
        .iter()
        .find(|breaker| breaker.tenant.is_some())
        .expect("the tenant's breaker is told");
    assert_ne!(acme.state, BreakerState::Closed);
    let openings = || opened(&first_metrics) + opened(&second_metrics);
    let (before, opened_before) = (calls(&server).await, openings());
    // A breaker that has failed its probe opens again.
    until(async || (openings() >= opened_before + 4).then_some(())).await;
    let (probes, reopened) = (calls(&server).await - before, openings() - opened_before);
    // Calls that had begun when the breakers opened may end after that.
    assert!(
        u64::try_from(probes).unwrap() <= reopened + 12,
        "{probes} calls of an upstream that is left alone by two workers, which probed it {reopened} times"
    );
    drop(ill);
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    for item in &items {
        assert_eq!(rig.result(item).await["result_type"], "Succeeded");
    }
    assert!(given_back(&first_metrics, "breaker") + given_back(&second_metrics, "breaker") > 0);
    first.breakers().gauge();
    let gauge = |state: &str| {
        first_metrics
            .breakers
            .with_label_values(&[host.as_str(), state])
            .get()
    };
    assert_eq!((gauge("closed") + gauge("half_open"), gauge("open")), (1, 0));
    first.drain(Duration::from_secs(1)).await;
    second.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_breaker_is_forced_by_an_operator_for_one_tenant_or_all() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let worker = rig.worker(definition(1), &server.uri());
    let host = server.address().to_string();
    let breakers = worker.breakers();
    let acme = TenantId::parse("acme").unwrap();
    let elsewhere = breakers.force("elsewhere:443", None, BreakerForce::Open);
    assert_eq!(elsewhere, Forced::Unknown);
    let force = || breakers.force(&host, Some(&acme), BreakerForce::Open);
    assert_eq!((force(), force()), (Forced::Now, Forced::Before));
    let held = effect(&rig, "o-1", 1);
    let free = of_tenant(effect(&rig, "o-2", 2), "globex");
    let mut late = effect(&rig, "o-3", 3);
    late.deadline = late.created.plus_ms(1_500);
    enqueue_all(&rig, &[held.clone(), free.clone(), late.clone()]).await;
    assert_eq!(rig.result(&free).await["result_type"], "Succeeded");
    let result = rig.result(&late).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"TimedOut".into(), &"deadline".into()),
        "its deadline counts while it is held back"
    );
    assert_eq!(calls(&server).await, 1);
    assert_eq!(breakers.force(&host, None, BreakerForce::Auto), Forced::Now);
    assert_eq!(rig.result(&held).await["result_type"], "Succeeded");
}

#[tokio::test]
async fn a_tenant_and_an_effect_have_no_more_calls_at_once_than_they_may() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_millis(300))).await;
    let mut limited = definition(1);
    limited.limits.concurrency = 8;
    limited.limits.per_tenant = Some(2);
    let worker = rig.worker(limited, &server.uri());
    let mut all = items(&rig, 1, 8);
    all.extend(
        items(&rig, 9, 2)
            .into_iter()
            .map(|item| of_tenant(item, "globex")),
    );
    let start = Instant::now();
    enqueue_all(&rig, &all).await;
    for item in &all[8..] {
        rig.result(item).await;
    }
    assert!(
        calls(&server).await < 10,
        "the other tenant does not wait for all of the first"
    );
    for item in &all {
        assert_eq!(rig.result(item).await["result_type"], "Succeeded");
    }
    assert!(start.elapsed() >= Duration::from_millis(1_200), "two at a time");
    assert!(given_back(&rig.metrics, "tenant_busy") > 0);
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn calls_are_no_faster_than_their_rate() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200)).await;
    let mut paced = definition(1);
    paced.limits.rate = Rate::parse("20/s");
    let (first, first_metrics) = rig.measured(vec![paced], &server.uri());
    let items = items(&rig, 1, 30);
    let start = Instant::now();
    enqueue_all(&rig, &items).await;
    for item in &items {
        rig.result(item).await;
    }
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(1_300),
        "30 calls at 20/s in {took:?}"
    );
    // A result is counted after it is stored, so it can be read a moment earlier.
    until(async || (succeeded(&first_metrics) >= 30).then_some(())).await;
    first.drain(Duration::from_secs(1)).await;
    assert_eq!(succeeded(&first_metrics), 30);

    let mut fair = definition(1);
    fair.limits.tenant_rate = Rate::parse("5/s");
    let (second, second_metrics) = rig.measured(vec![fair], &server.uri());
    let mut both: Vec<_> = (31..=36).map(|n| effect(&rig, &format!("o-{n}"), n)).collect();
    both.push(of_tenant(effect(&rig, "o-40", 40), "globex"));
    let start = Instant::now();
    enqueue_all(&rig, &both).await;
    rig.result(&both[6]).await;
    assert!(
        succeeded(&second_metrics) < 7,
        "the other tenant has its own rate"
    );
    for item in &both {
        rig.result(item).await;
    }
    assert!(
        start.elapsed() >= Duration::from_millis(800),
        "{:?}",
        start.elapsed()
    );
    assert!(given_back(&second_metrics, "tenant_rate") > 0);
    second.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn one_slow_effect_does_not_hold_up_another() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    Mock::given(path("/charges"))
        .respond_with(ResponseTemplate::new(200).set_delay(Duration::from_secs(4)))
        .mount(&server)
        .await;
    let fast = upstream(ResponseTemplate::new(200)).await;
    let mut quick = definition(1);
    quick.name = EffectName::parse("notify").unwrap();
    let saga_runner::kernel::definition::effect::Provider::Http(call) = &mut quick.provider else {
        panic!("a call");
    };
    let roots = [saga_runner::kernel::expr::Root::Upstreams];
    let url = format!("{}/notes", fast.uri());
    call.url = saga_runner::kernel::expr::Template::compile_text(&url, &roots).unwrap();
    let (worker, _) = rig.crowded(4, vec![definition(1), quick], &server.uri());
    let slow = items(&rig, 1, 8);
    enqueue_all(&rig, &slow).await;
    until(async || (calls(&server).await >= 3).then_some(())).await;
    let mut note = effect(&rig, "o-99", 99);
    note.kind = WorkKind::Effect {
        effect: EffectName::parse("notify").unwrap(),
        payload: bytes::Bytes::from_static(br#"{"amount":1}"#),
    };
    let start = Instant::now();
    enqueue_all(&rig, std::slice::from_ref(&note)).await;
    until(async || (calls(&fast).await > 0).then_some(())).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(
        calls(&server).await,
        3,
        "of four places one is the other effect's"
    );
    drop(worker);
}

#[tokio::test]
async fn a_call_without_an_answer_is_repeated_only_where_it_may_be() {
    let rig = Rig::new().await;
    for (retried, expected) in [(true, 3), (false, 1)] {
        let silent = ResponseTemplate::new(200).set_delay(Duration::from_mins(1));
        let server = upstream(silent).await;
        let mut impatient = definition(3);
        impatient.timeout_ms = 150;
        if !retried {
            impatient.retry_classes.retain(|class| class != "ambiguous");
        }
        let worker = rig.worker(impatient, &server.uri());
        let item = effect(&rig, "o-1", expected);
        enqueue_all(&rig, std::slice::from_ref(&item)).await;
        let result = rig.result(&item).await;
        assert_eq!(
            (&result["result_type"], &result["payload"]["class"]),
            (&"TimedOut".into(), &"ambiguous".into())
        );
        assert_eq!(calls(&server).await as u128, expected);
        worker.drain(Duration::from_secs(1)).await;
    }
}
