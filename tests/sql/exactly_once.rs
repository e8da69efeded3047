//! What is committed happens once, whatever breaks.

use std::time::Duration;

use serde_json::json;

use sqlx::{AssertSqlSafe, Executor as _};

use crate::sql::rig::{Rig, effect, mariadb, payload, postgres, send, sqlite, until};
use crate::support::databases::{DatabaseServer, Kind};
use crate::support::proxy::{Fault, Proxy};

const TABLES: &str =
    "CREATE TABLE ledger (id int PRIMARY KEY, total bigint NOT NULL); INSERT INTO ledger VALUES (1, 0);
     CREATE TABLE bookings (n int NOT NULL);";

fn booking() -> String {
    effect(
        r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO bookings VALUES ($1)"
      bind: ["${input.n}"]
    - query: "UPDATE ledger SET total = total + $1 WHERE id = 1 RETURNING total"
      bind: ["${input.n}"]
timeout: {connect: 5s, total: 10s}
retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}
result: {n: "${input.n}", total: "${response.rows[0].total}"}
"#,
    )
}

#[tokio::test]
async fn the_same_work_in_several_workers_happens_once_and_all_get_its_result() {
    let (url, mut books) = postgres(TABLES).await;
    let rig = Rig::new(url).await;
    let _workers = [rig.worker(&booking()), rig.worker(&booking())];
    let mut sent = Vec::new();
    for n in 1..=10 {
        for _ in 0..6 {
            let key = format!("piece-{n}");
            sent.push((n, send(&*rig.broker, json!({"n": n}), Some(&key)).await));
        }
    }
    let mut totals = std::collections::BTreeMap::new();
    for (n, id) in sent {
        let done = rig.result(id).await;
        let total = payload(&done)["total"].as_i64().unwrap();
        assert_eq!(
            *totals.entry(n).or_insert(total),
            total,
            "one result for each piece of work"
        );
    }
    let sums: (i64, i64) = sqlx::query_as("SELECT (SELECT total FROM ledger), (SELECT sum(n) FROM bookings)")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(sums, (55, 55));
}

/// The answers of the server are held back, so the worker cannot know what became of its commits.
#[tokio::test]
async fn connections_that_break_at_any_moment_leave_nothing_open_in_the_end() {
    let (url, mut books) = postgres(TABLES).await;
    let target = url.split(['@', '/']).nth(3).unwrap().to_owned();
    let proxy = Proxy::start(target.clone()).await;
    let through = url.replace(&target, proxy.url().trim_start_matches("nats://"));
    let rig = Rig::new(through).await;
    let _worker = rig.worker(&booking());
    let mut ids = Vec::new();
    for n in 1..=120 {
        ids.push((n, send(&*rig.broker, json!({"n": n}), None).await));
        if n % 6 == 0 {
            proxy.set(Fault::Stall);
            tokio::time::sleep(Duration::from_millis(15)).await;
            proxy.cut();
            proxy.set(Fault::None);
        }
    }
    for (n, id) in ids {
        assert_eq!(payload(&rig.result(id).await)["n"], n);
    }
    let sums: (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT total FROM ledger), (SELECT sum(n) FROM bookings), (SELECT count(*) FROM saga_runner_effects)",
    )
    .fetch_one(&mut books)
    .await
    .unwrap();
    assert_eq!(sums, (7_260, 7_260, 120));
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_middle_has_each_command_once() {
    let mut server = tokio::task::spawn_blocking(|| DatabaseServer::start(Kind::Postgres))
        .await
        .unwrap();
    let url = server.url("postgres");
    let mut books = <sqlx::PgConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    sqlx::raw_sql(TABLES).execute(&mut books).await.unwrap();
    drop(books);
    let rig = Rig::new(url.clone()).await;
    let _worker = rig.worker(&booking());
    let mut ids = Vec::new();
    for n in 1..=60 {
        ids.push((n, send(&*rig.broker, json!({"n": n}), None).await));
        if n == 30 {
            until(async || {
                rig.metrics
                    .effect_results
                    .with_label_values(&["ledger-book", "succeeded"])
                    .get()
                    .ge(&5)
                    .then_some(())
            })
            .await;
            server = tokio::task::spawn_blocking(move || {
                server.kill();
                server.launch();
                server
            })
            .await
            .unwrap();
        }
    }
    for (n, id) in ids {
        assert_eq!(payload(&rig.result(id).await)["n"], n);
    }
    let mut books = <sqlx::PgConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    let sums: (i64, i64) = sqlx::query_as("SELECT (SELECT total FROM ledger), (SELECT sum(n) FROM bookings)")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(sums, (1_830, 1_830));
}

/// Rows older than they are kept are deleted behind the first command of a worker; younger ones stay.
const TOUCH: &str = "sql:\n  database: \"${upstreams.ledger}\"\n  idempotency: {keep: 2d}\n  statements:\n    \
                     - execute: UPDATE t SET n = n + 1\n";

macro_rules! tidied {
    ($made:expr, $old:literal, $young:literal) => {{
        let (url, mut books) = $made;
        let rig = Rig::new(url).await;
        payload(&rig.once(TOUCH, json!({})).await);
        for (key, at) in [("old", $old), ("young", $young)] {
            let text = format!(
                "INSERT INTO saga_runner_effects (tenant, idempotency_key, effect, command_id, fingerprint, result, \
                 created_at) VALUES ('acme', '{key}', 'e', 'c', 'f', '{{}}', {at})"
            );
            books.execute(AssertSqlSafe(text)).await.unwrap();
        }
        payload(&rig.once(TOUCH, json!({})).await);
        until(async || {
            let keys = "SELECT idempotency_key FROM saga_runner_effects WHERE effect = 'e'";
            let left: Vec<String> = sqlx::query_scalar(keys).fetch_all(&mut books).await.unwrap();
            (left == ["young"]).then_some(())
        })
        .await;
    }};
}

#[tokio::test]
async fn rows_are_kept_for_as_long_as_they_are_meant_to_be() {
    const TABLE: &str = "CREATE TABLE t (n int)";
    tidied!(
        postgres(TABLE).await,
        "now() - interval '49 hours'",
        "now() - interval '47 hours'"
    );
    tidied!(
        mariadb(TABLE).await,
        "UTC_TIMESTAMP(3) - INTERVAL 49 HOUR",
        "UTC_TIMESTAMP(3) - INTERVAL 47 HOUR"
    );
    let (url, books, _dir) = sqlite(TABLE).await;
    tidied!(
        (url, books),
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-49 hours')",
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-47 hours')"
    );
}
