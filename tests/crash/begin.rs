//! Signals while the runner starts, and waits for a broker that is away or does not answer.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// An end at once, on a machine that other tests load.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A runner that was started and tells by `/ready` that it waits for its broker.
async fn waiting(server: &NatsServer) -> Rig {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.launch();
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        if let Ok(answer) = rig.client.get(rig.url("/ready")).send().await {
            assert_eq!(answer.status(), 503, "{}", rig.log_tail());
            return rig;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The exit code after one signal.
async fn exit_code(mut rig: Rig, signal: Signal) -> Option<i32> {
    rig.signal(signal);
    let begin = Instant::now();
    let code = tokio::time::timeout(Duration::from_mins(1), rig.exit())
        .await
        .expect("one signal ends it");
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_runner_that_waits_for_a_broker_that_is_away() {
    let mut server = NatsServer::start();
    server.kill();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        assert_eq!(exit_code(waiting(&server).await, signal).await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_runner_that_waits_for_a_broker_that_does_not_answer() {
    let server = NatsServer::start();
    server.signal(Signal::SIGSTOP);
    let rig = waiting(&server).await;
    assert_eq!(exit_code(rig, Signal::SIGTERM).await, Some(0));
    // It answers from now on, and the next runner starts.
    server.signal(Signal::SIGCONT);
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_is_asked_for_during_the_start_ends_the_runner() {
    let mut server = NatsServer::start();
    server.kill();
    let mut rig = waiting(&server).await;
    let asked = rig.client.post(rig.url("/admin/drain")).send().await;
    assert_eq!(asked.expect("an answer").status(), 202);
    assert_eq!(rig.exit().await, Some(0), "{}", rig.log_tail());
}
