//! The real binary on a real nats-server, killed while its transactions run.

use std::sync::Arc;

use saga_runner::nats::NatsBroker;
use saga_runner::ports::broker::Broker;
use serde_json::json;

use crate::sql::rig::{effect, payload, postgres, result, send, sqlite, until};
use crate::sql::runner::Runner;
use crate::support::nats_server::NatsServer;

const TABLES: &str =
    "CREATE TABLE ledger (id int PRIMARY KEY, total bigint NOT NULL); INSERT INTO ledger VALUES (1, 0);
     CREATE TABLE bookings (n int NOT NULL);";

/// A runner in mode `effect` that has one effect.
fn worker(nats: &str, database: &str, sql: &str) -> Runner {
    let files = [("effects/ledger-book.yaml", effect(sql))];
    Runner::new(
        nats,
        json!({"mode": "effect", "upstreams": {"ledger": database}}),
        &files,
    )
}

async fn connected(server: &NatsServer) -> Arc<dyn Broker> {
    let settings = serde_json::from_value(json!({ "urls": [server.url()] })).unwrap();
    let broker = NatsBroker::connect(settings).await.unwrap();
    broker.connected().await.unwrap();
    broker
}

async fn sums(books: &mut sqlx::PgConnection) -> (i64, i64, i64) {
    sqlx::query_as(
        "SELECT (SELECT total FROM ledger), (SELECT coalesce(sum(n), 0) FROM bookings), (SELECT count(*) FROM bookings)",
    )
    .fetch_one(books)
    .await
    .unwrap()
}

#[tokio::test]
async fn the_ledger_is_exact_after_several_kills_under_load() {
    const COMMANDS: i64 = 400;
    const KILLS: i64 = 6;
    let (url, mut books) = postgres(TABLES).await;
    let server = NatsServer::start();
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO bookings VALUES ($1)"
      bind: ["${input.n}"]
    - execute: "UPDATE ledger SET total = total + $1 WHERE id = 1"
      bind: ["${input.n}"]
      expect: {rows: 1}
timeout: {connect: 5s, total: 10s}
retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}
limits: {concurrency: 8}
result: {n: "${input.n}"}
"#;
    let mut runner = worker(&server.url(), &url, sql);
    runner.start().await;
    let broker = connected(&server).await;
    let mut ids = Vec::new();
    for n in 1..=COMMANDS {
        ids.push((n, send(&*broker, json!({"n": n}), None).await));
    }
    for kill in 1..=KILLS {
        until(async || (sums(&mut books).await.2 >= kill * 40).then_some(())).await;
        runner.kill();
        runner.start().await;
    }
    for (n, id) in ids {
        assert_eq!(payload(&result(&*broker, id).await)["n"], n);
    }
    let sum = COMMANDS * (COMMANDS + 1) / 2;
    assert_eq!(sums(&mut books).await, (sum, sum, COMMANDS));
    let rows: i64 = sqlx::query_scalar("SELECT count(result) FROM saga_runner_effects")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, COMMANDS);
}

#[tokio::test]
async fn a_file_of_sqlite_is_exact_after_several_kills_under_load() {
    const COMMANDS: i64 = 200;
    const KILLS: i64 = 5;
    let (url, mut books, _dir) = sqlite(TABLES).await;
    let server = NatsServer::start();
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO bookings VALUES ($1)"
      bind: ["${input.n}"]
    - execute: "UPDATE ledger SET total = total + $1 WHERE id = 1"
      bind: ["${input.n}"]
      expect: {rows: 1}
retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}
limits: {concurrency: 4}
result: {n: "${input.n}"}
"#;
    let mut runner = worker(&server.url(), &url, sql);
    runner.start().await;
    let broker = connected(&server).await;
    let mut ids = Vec::new();
    for n in 1..=COMMANDS {
        ids.push((n, send(&*broker, json!({"n": n}), None).await));
    }
    let mut count = async || -> (i64, i64, i64) {
        sqlx::query_as("SELECT (SELECT total FROM ledger), (SELECT coalesce(sum(n), 0) FROM bookings), (SELECT count(*) FROM bookings)")
            .fetch_one(&mut books)
            .await
            .unwrap()
    };
    for kill in 1..=KILLS {
        until(async || (count().await.2 >= kill * 25).then_some(())).await;
        runner.kill();
        runner.start().await;
    }
    for (n, id) in ids {
        assert_eq!(payload(&result(&*broker, id).await)["n"], n);
    }
    let sum = COMMANDS * (COMMANDS + 1) / 2;
    assert_eq!(count().await, (sum, sum, COMMANDS));
}

/// A lock of the test's holds the worker up between its statements and the commit.
#[tokio::test]
async fn a_worker_that_is_killed_before_or_behind_the_commit_leaves_one_booking() {
    let (url, mut books) = postgres(TABLES).await;
    let mut gate = <sqlx::PgConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    let mut server = NatsServer::start();
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO bookings VALUES ($1)"
      bind: ["${input.n}"]
    - query: "UPDATE ledger SET total = total + $1 WHERE id = 1 RETURNING total"
      bind: ["${input.n}"]
    - query: "SELECT pg_advisory_xact_lock_shared(7) IS NULL AS passed"
timeout: {connect: 5s, total: 1m}
retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}
result: {total: "${response.statements[1].rows[0].total}"}
"#;
    let mut runner = worker(&server.url(), &url, sql);
    runner.start().await;
    let broker = connected(&server).await;

    // Before the commit: the statements are done, and nothing is there afterwards.
    sqlx::query("SELECT pg_advisory_lock(7)")
        .execute(&mut gate)
        .await
        .unwrap();
    let id = send(&*broker, json!({"n": 5}), None).await;
    wait_at_gate(&mut books).await;
    runner.kill();
    assert_eq!(sums(&mut books).await, (0, 0, 0));
    sqlx::query("SELECT pg_advisory_unlock(7)")
        .execute(&mut gate)
        .await
        .unwrap();
    runner.start().await;
    assert_eq!(payload(&result(&*broker, id).await)["total"], 5);
    assert_eq!(sums(&mut books).await, (5, 5, 1));

    // Behind the commit: the broker is away, so the result cannot be recorded before the worker dies.
    sqlx::query("SELECT pg_advisory_lock(7)")
        .execute(&mut gate)
        .await
        .unwrap();
    let id = send(&*broker, json!({"n": 6}), None).await;
    wait_at_gate(&mut books).await;
    server.kill();
    sqlx::query("SELECT pg_advisory_unlock(7)")
        .execute(&mut gate)
        .await
        .unwrap();
    until(async || (sums(&mut books).await == (11, 11, 2)).then_some(())).await;
    runner.kill();
    server.launch();
    runner.start().await;
    let done = result(&*broker, id).await;
    assert_eq!(payload(&done)["total"], 11, "the stored result");
    assert_eq!(sums(&mut books).await, (11, 11, 2));
}

async fn wait_at_gate(books: &mut sqlx::PgConnection) {
    until(async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .fetch_one(&mut *books)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
}
