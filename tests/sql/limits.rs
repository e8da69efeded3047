//! A command whose deadline is nearer than `timeout.total`: what it leaves behind, and what is known about it.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection as _, Executor as _};

use crate::sql::rig::{Rig, class, effect, mariadb, postgres, send_due, until};

/// How far away the deadlines are, in milliseconds.
const DUE_MS: i64 = 1_500;
/// A transaction that waits for a row of another one, with far more time than its command.
const WAITING: &str = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO bookings VALUES (1)"
    - execute: "UPDATE accounts SET balance = 0 WHERE id = 1"
timeout: {total: 1m}
on_ambiguous: ask
"#;
const TABLES: &str =
    "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO accounts VALUES (1, 100);
     CREATE TABLE bookings (n int NOT NULL);";

/// It has failed for certain, and in time.
async fn fails_in_time(rig: &Rig, sql: &str) {
    let _worker = rig.worker(&effect(sql));
    let begin = Instant::now();
    let id = send_due(&*rig.broker, json!({}), None, DUE_MS).await;
    let failed = rig.result(id).await;
    assert_eq!(failed["result_type"], "Failed", "{failed}");
    assert!(["timeout", "transient"].contains(&class(&failed).1), "{failed}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_transaction_that_cannot_have_committed_fails_and_holds_no_locks_on_postgresql() {
    let (url, mut books) = postgres(TABLES).await;
    let mut other = sqlx::PgConnection::connect(&url).await.unwrap();
    other
        .execute("BEGIN; UPDATE accounts SET balance = 1")
        .await
        .unwrap();
    let rig = Rig::new(url).await;
    fails_in_time(&rig, WAITING).await;
    fails_in_time(
        &rig,
        &WAITING
            .replace(
                "UPDATE accounts SET balance = 0 WHERE id = 1",
                "SELECT pg_sleep(50)",
            )
            .replace("- execute: \"SELECT", "- query: \"SELECT"),
    )
    .await;
    until(async || {
        let busy: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
             AND application_name = 'saga-runner' AND state <> 'idle'",
        )
        .fetch_one(&mut books)
        .await
        .unwrap();
        (busy == 0).then_some(())
    })
    .await;
    other.execute("ROLLBACK").await.unwrap();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM bookings")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn a_transaction_that_cannot_have_committed_fails_and_holds_no_locks_on_mariadb() {
    let (url, mut books) = mariadb(TABLES).await;
    let mut other = sqlx::MySqlConnection::connect(&url).await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    other.execute("UPDATE accounts SET balance = 1").await.unwrap();
    let rig = Rig::new(url).await;
    fails_in_time(&rig, WAITING).await;
    let sleeps = WAITING.replace(
        "execute: \"UPDATE accounts SET balance = 0 WHERE id = 1",
        "query: \"SELECT sleep(50)",
    );
    fails_in_time(&rig, &sleeps).await;
    until(async || {
        let busy: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id() \
             AND command <> 'Sleep'",
        )
        .fetch_one(&mut books)
        .await
        .unwrap();
        (busy == 0).then_some(())
    })
    .await;
    other.execute("ROLLBACK").await.unwrap();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM bookings")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}
