//! How a request names its tenant, what a path may hold, and what a refusal tells.

use std::time::Duration;

use serde_json::json;

use crate::api::caller::{Answer, event, get, instance, letters, post, runner, send, until};
use crate::support::rig::Rig;

async fn get_as(rig: &Rig, path: &str, tenant: &str) -> Answer {
    let request = rig.client.get(rig.url(path)).header("x-tenant-id", tenant);
    Answer::of(request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_named_by_path_or_header_and_both_agree() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    let found = instance("acme", "ratio", "r-1");
    let shown = until(&rig, &found, |_| true).await;
    let bare = "/v1/sagas/ratio/instances/r-1";
    let by_header = get_as(&rig, bare, "acme").await;
    assert_eq!(by_header.status, 200, "{by_header:?}");
    assert_eq!(by_header.json()["key"], shown["key"]);
    assert_eq!(get_as(&rig, &found, "acme").await.status, 200);
    get_as(&rig, bare, "globex").await.is_problem(404, "SR0502");

    let missing = get(&rig, bare).await.is_problem(400, "SR0501");
    assert_eq!(missing["errors"][0]["name"], "x-tenant-id", "{missing}");
    get(&rig, "/v1/dead-letters").await.is_problem(400, "SR0501");
    get_as(&rig, &found, "globex").await.is_problem(400, "SR0501");
    get_as(&rig, bare, "").await.is_problem(400, "SR0501");
    get_as(&rig, bare, "a/b").await.is_problem(400, "SR0501");
    let cancel = rig.client.post(rig.url(&format!("{found}/cancel")));
    let cancelled = Answer::of(cancel.header("x-tenant-id", "globex")).await;
    cancelled.is_problem(400, "SR0501");
    assert_eq!(get(&rig, &found).await.json()["phase"], "running");
}

/// A list of a tenant that is not served was empty, as if nothing were stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_not_served_is_not_found() {
    let rig = runner(Duration::ZERO).await;
    let told = |answer: &Answer| {
        let mut body = answer.is_problem(404, "SR0502");
        body["trace_id"] = json!(null);
        body
    };
    let no_tenant = told(&get(&rig, &letters("initech")).await);
    for path in [
        "/v1/tenants/initech/schedules",
        "/v1/tenants/initech/sagas/ratio/instances",
        "/v1/tenants/initech/sagas/ratio/instances/r-1",
    ] {
        assert_eq!(told(&get(&rig, path).await), no_tenant, "{path}");
    }
    let body = event("initech", "e-1", "Ratio.Opened", &json!({"ratio": "r-1"}));
    let sent = post(&rig, "/v1/tenants/initech/events", body).await;
    assert_eq!(told(&sent), no_tenant);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_problem_has_a_page_a_trace_and_its_errors() {
    let rig = runner(Duration::ZERO).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let path = "/v1/tenants/acme/sagas/ratio/instances?phase=x";
    let request = rig.client.get(rig.url(path));
    let request = request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let told = Answer::of(request).await.is_problem(400, "SR0501");
    assert_eq!(told["trace_id"], trace);
    assert_eq!(told["errors"][0]["in"], "query", "{told}");
    let page = get(&rig, told["type"].as_str().expect("a URI")).await;
    assert!(page.text.starts_with("# SR0501: "), "{page:?}");
    get(&rig, "/errors/SR9999").await.is_problem(404, "SR0502");

    let (one, other) = (get(&rig, "/nothing").await, get(&rig, "/nothing").await);
    let trace_of = |answer: &Answer| {
        let told = answer.is_problem(404, "SR0502");
        told["trace_id"].as_str().expect("a trace").to_owned()
    };
    assert_eq!(trace_of(&one).len(), 32);
    assert_ne!(trace_of(&one), trace_of(&other));
}

/// `%ff` was answered in text/plain, and the keys `..` and `a%2f..` were accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_can_be_read_in_two_ways_is_refused() {
    let rig = runner(Duration::ZERO).await;
    for path in [
        "/v1/tenants/acme/sagas/%ff/instances",
        "/v1/tenants/acme/sagas/ratio/instances/%ff",
        "/v1/tenants/acme/sagas/ratio/instances/a%00b",
        "/v1/tenants/acme/sagas/ratio/instances/..%2f..",
        "/v1/tenants/acme/sagas/ratio/instances/a%2f..%2fb",
        "/v1/tenants/acme/sagas/ra%2ftio/instances",
        "/v1/tenants/ac%2fme/dead-letters",
        "/v1/definitions/a%2fb",
    ] {
        get(&rig, path).await.is_problem(400, "SR0501");
    }
    // A client that is a library takes the dots out before it sends.
    let dots = "GET /v1/tenants/acme/sagas/ratio/instances/../../x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let (status, answer) = crate::api::clients::raw(&rig, dots);
    assert_eq!(status, 400, "{answer}");
    // Keys come from events, and an operator has to reach all of them.
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratio": "a/b"})).await;
    until(&rig, &instance("acme", "ratio", "a%2Fb"), |view| {
        view["key"] == "a/b"
    })
    .await;
}
