//! A stream of events whose limits may drop what was not read is refused, unless the manifest accepts them by name.

use saga_runner::app::streams::{prepare, report};
use saga_runner::config::Manifest;
use saga_runner::ports::broker::Broker;
use serde_json::{Value, json};

use super::streams;
use crate::broker::nats::connect;
use crate::broker::suite::within;
use crate::support::nats_server::NatsServer;

fn manifest(url: &str, mode: &str, accepted: &Value) -> Manifest {
    serde_json::from_value(json!({
        "apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": "limits", "tenants": ["acme"], "mode": mode,
        "broker": {"kind": "nats", "nats": {"urls": [url]}},
        "streams": {"aggregate_events": {"accept_limits": accepted}},
    }))
    .unwrap()
}

/// What the check finds about the events.
async fn checked(manifest: &Manifest) -> Vec<String> {
    let manifest = manifest.clone();
    let lines = tokio::task::spawn_blocking(move || report(&manifest, false).unwrap());
    let lines = within("the check", lines).await.unwrap();
    lines
        .into_iter()
        .next()
        .expect("the events are first")
        .differences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_may_drop_unread_events_is_refused_unless_the_limit_is_accepted_by_name() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let limits = json!({"max_age": 3_600_000_000_000_u64, "max_msgs": 1_000});
    streams(&*broker, &server.url(), limits).await;
    for (accepted, named) in [
        (json!([]), ["max_age is 3600s", "max_msgs is 1000"].as_slice()),
        (json!(["max_age"]), &["max_msgs is 1000"]),
        (json!(["max_age", "max_msgs"]), &[]),
    ] {
        let manifest = manifest(&server.url(), "combined", &accepted);
        let found = checked(&manifest).await;
        assert_eq!(found.len(), named.len(), "{found:?}");
        let refused = within("prepare", prepare(&*broker, &manifest)).await.err();
        let text = refused.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(text.contains("SR0303"), !named.is_empty(), "{text}");
        for limit in named {
            assert!(text.contains(limit), "{text}");
            assert!(found.iter().any(|line| line.contains(limit)), "{found:?}");
        }
    }
    // Who reads no events need not care.
    let effects_only = manifest(&server.url(), "effect", &json!([]));
    within("prepare", prepare(&*broker, &effects_only)).await.unwrap();
    assert_eq!(broker.dropping_limits("WORKFLOW_EVENTS").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_producers_may_remove_events_is_refused() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    let config = json!({"allow_msg_ttl": true, "allow_rollup_hdrs": true});
    streams(&*broker, &server.url(), config).await;
    let manifest = manifest(
        &server.url(),
        "combined",
        &json!(["max_age", "max_msgs", "max_bytes"]),
    );
    let found = checked(&manifest).await;
    assert_eq!(found.len(), 2, "{found:?}");
    let refused = within("prepare", prepare(&*broker, &manifest)).await.err();
    let text = refused.expect("it is refused").to_string();
    assert!(
        text.contains("allow_msg_ttl") && text.contains("allow_rollup_hdrs"),
        "{text}"
    );
}
