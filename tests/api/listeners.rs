//! The addresses of the API where the manifest names one, or none.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{Answer, get};
use crate::support::rig::Rig;

/// Two ports in a row that nobody uses now.
fn two_ports() -> (u16, u16) {
    let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port));
    loop {
        let first = bind(0).expect("a free port");
        let port = first.local_addr().expect("an address").port();
        if let Some(next) = port.checked_add(1).filter(|next| bind(*next).is_ok()) {
            return (port, next);
        }
    }
}

/// A runner with these keys of `http`.
async fn rig(http: Value) -> Rig {
    Rig::new(None, "30m", Duration::ZERO, json!({"http": http})).await
}

fn cli(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(arguments)
        .env("SAGA_RUNNER_HOME", "/nonexistent")
        .output()
        .expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_word_about_it_operators_are_behind_the_port_of_tenants_and_commands_find_them() {
    let (port, next) = two_ports();
    let listen = format!("127.0.0.1:{port}");
    let mut rig = rig(json!({"listen": listen, "admin_listen": null})).await;
    rig.launch();
    let at = |port: u16, path: &str| Answer::of(rig.client.get(format!("http://127.0.0.1:{port}{path}")));
    let begin = std::time::Instant::now();
    let is_ready = async || {
        let answer = rig.client.get(format!("http://{listen}/ready")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    };
    while !is_ready().await {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
    }
    at(port, "/admin/shards/0/pending")
        .await
        .is_problem(404, "SR0525");
    for path in ["/info", "/metrics", "/health", "/admin/shards"] {
        let told = at(port, path).await.is_problem(404, "SR0525");
        assert_eq!(told["admin_port"], next, "{path}: {told}");
        assert_eq!(at(next, path).await.status, 200, "{path}");
    }
    at(port, "/admin/nothing").await.is_problem(404, "SR0502");
    let drain = rig.client.post(format!("http://{listen}/admin/drain"));
    Answer::of(drain).await.is_problem(404, "SR0525");
    assert_eq!(at(next, "/ready").await.status, 200);
    assert!(
        rig.log_tail().contains(&format!("127.0.0.1:{next}")),
        "the log names both"
    );

    let url = format!("http://{listen}");
    let (code, shown, told) = cli(&["shard", "list", "--url", &url]);
    assert!(code == Some(0) && !shown.is_empty(), "{told}");
    let (code, _, told) = cli(&["doctor", "--url", &url]);
    assert_eq!(code, Some(0), "{told}");
    // The one tenant is asked for there, too.
    let (code, _, told) = cli(&["instance", "list", "--url", &url]);
    assert!(code == Some(64) && told.contains("--tenant"), "{told}");
    let (code, _, told) = cli(&["shard", "list", "--url", &url, "--admin-url", &url]);
    assert!(code == Some(64) && told.contains("--admin-url"), "{told}");
    // And what is of tenants is not where operators are.
    let told = at(next, "/v1/tenants/acme/instances").await;
    assert!(told.is_problem(404, "SR0525")["admin_port"].is_null());
    let admin = format!("http://127.0.0.1:{next}");
    let (code, _, told) = cli(&["instance", "list", "--tenant", "acme", "--url", &admin]);
    assert!(code == Some(64) && told.contains("http.listen"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_told_with_its_key() {
    let (port, next) = two_ports();
    let taken = std::net::TcpListener::bind(("127.0.0.1", next)).expect("free");
    let listen = format!("127.0.0.1:{port}");
    for (admin, key) in [
        (
            Value::Null,
            "http.admin_listen (not set, so behind the port of http.listen)",
        ),
        (json!(format!("127.0.0.1:{next}")), "http.admin_listen 127.0.0.1"),
    ] {
        let mut rig = rig(json!({"listen": listen, "admin_listen": admin})).await;
        rig.launch();
        assert_ne!(rig.exit().await, Some(0));
        let told = rig.log_tail();
        assert!(told.contains(key) && told.contains(&next.to_string()), "{told}");
    }
    drop(taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_for_both_answers_everything() {
    let mut rig = rig(json!({})).await;
    rig.start().await;
    for path in ["/info", "/v1/tenants/acme/instances", "/health"] {
        assert_eq!(get(&rig, path).await.status, 200, "{path}");
    }
    let (code, _, told) = cli(&["shard", "list", "--url", &rig.url("")]);
    assert_eq!(code, Some(0), "{told}");
}
