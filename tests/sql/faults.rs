//! Sagas that move money from a database of PostgreSQL to one of MariaDB, while the runner is killed, connections are cut and
//! databases crash. Afterwards both ledgers are exact.
//!
//! `make faults-sql` runs it large: `FAULT_SAGAS`, `FAULT_KILLS`.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::Connection as _;

use crate::sql::rig::PATIENCE;
use crate::sql::runner::Runner;
use crate::support::databases::{DatabaseServer, Kind};
use crate::support::nats_server::NatsServer;
use crate::support::proxy::Proxy;

/// Every so many kills all connections to the databases are cut, and one of the databases crashes.
const KILLS_PER_CUT: usize = 2;
const KILLS_PER_RESTART: usize = 5;
/// Every so many sagas are refused by the second database, and undone in the first.
const REFUSED_EVERY: i64 = 7;
const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: transfer
start: Transfer.Asked
key: {"Transfer.*": event.data.id}
events:
  Transfer.Asked:
    schema:
      type: object
      required: [id, cents]
      properties: {id: {type: string}, cents: {type: integer}}
state:
  init: {cents: 0}
  schema: {type: object, required: [cents], properties: {cents: {type: integer}}}
handlers:
  Transfer.Asked: {set: {cents: "${event.data.cents}"}}
steps:
  debit:
    effect: ledger-debit
    with: {id: "${key}", cents: "${state.cents}"}
    timeout: 10m
    compensate: {effect: ledger-debit, on_unknown: compensate, with: {id: "${key}", cents: "${-state.cents}"}, timeout: 10m}
  credit:
    needs: [debit]
    effect: ledger-credit
    with: {id: "${key}", cents: "${state.cents}"}
    timeout: 10m
    compensate: {effect: ledger-credit, on_unknown: compensate, with: {id: "${key}", cents: "${-state.cents}"}, timeout: 10m}
"#;
const TABLES: &str = "CREATE TABLE bookings (saga varchar(63) NOT NULL, cents bigint NOT NULL);
     CREATE TABLE ledger (id int PRIMARY KEY, total bigint NOT NULL); INSERT INTO ledger VALUES (1, 0);";
/// The second database has this rule besides, by which it refuses some.
const RULE: &str = "ALTER TABLE bookings ADD CONSTRAINT even CHECK (cents % 10 <> 3 AND cents % 10 <> -3);";

fn effect(name: &str, upstream: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Effect
name: {name}
sql:
  database: "${{upstreams.{upstream}}}"
  statements:
    - execute: "INSERT INTO bookings VALUES ($1, $2)"
      bind: ["${{input.id}}", "${{input.cents}}"]
    - execute: "UPDATE ledger SET total = total + $1 WHERE id = 1"
      bind: ["${{input.cents}}"]
      expect: {{rows: 1}}
timeout: {{connect: 2s, total: 5s}}
retry: {{attempts: 20, backoff: {{initial: 100ms, max: 1s}}}}
breaker: {{scope: effect, window: 1s, min_calls: 1000, failure_rate: 1.0, open: 100ms}}
limits: {{concurrency: 8}}
result: {{id: "${{input.id}}"}}
"#
    )
}

/// One of the numbers of the large run.
fn size(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// How a saga ends, and what it moves.
fn cents(n: i64) -> i64 {
    if n % REFUSED_EVERY == 0 {
        n * 10 + 3
    } else {
        n * 10 + 2
    }
}

fn start(kind: Kind) -> tokio::task::JoinHandle<DatabaseServer> {
    tokio::task::spawn_blocking(move || DatabaseServer::start(kind))
}

/// A crash, and the recovery from it.
async fn crashed(mut server: DatabaseServer) -> DatabaseServer {
    let crash = tokio::task::spawn_blocking(move || {
        server.kill();
        server.launch();
        server
    });
    crash.await.unwrap()
}

/// The same tables in both databases.
async fn make_tables(one: &DatabaseServer, other: &DatabaseServer) {
    let mut admin = sqlx::PgConnection::connect(&one.url("postgres")).await.unwrap();
    sqlx::raw_sql(TABLES).execute(&mut admin).await.unwrap();
    let mut admin = sqlx::MySqlConnection::connect(&other.url("mysql")).await.unwrap();
    sqlx::raw_sql("CREATE DATABASE books")
        .execute(&mut admin)
        .await
        .unwrap();
    let mut admin = sqlx::MySqlConnection::connect(&other.url("books")).await.unwrap();
    sqlx::raw_sql(TABLES).execute(&mut admin).await.unwrap();
    sqlx::raw_sql(RULE).execute(&mut admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_ledgers_are_exact_after_kills_cuts_and_crashes() {
    let (sagas, kills) = (size("FAULT_SAGAS", 50), size("FAULT_KILLS", 5));
    let count = i64::try_from(sagas).unwrap();
    let (one, other) = (start(Kind::Postgres), start(Kind::MariaDb));
    let (mut one, mut other) = (one.await.unwrap(), other.await.unwrap());
    make_tables(&one, &other).await;
    let (near, far) = (
        Proxy::start(one.address()).await,
        Proxy::start(other.address()).await,
    );
    let nats = NatsServer::start();
    let upstreams = json!({
        "one": format!("postgres://postgres@{}/postgres", near.address()),
        "other": format!("mysql://root@{}/books", far.address()),
    });
    let files = [
        ("sagas/transfer.yaml", SAGA.to_owned()),
        ("effects/ledger-debit.yaml", effect("ledger-debit", "one")),
        ("effects/ledger-credit.yaml", effect("ledger-credit", "other")),
    ];
    let mut runner = Runner::new(
        &nats.url(),
        json!({"shards": 2, "upstreams": upstreams, "gateway": {"url": "http://127.0.0.1:9/commands"}}),
        &files,
    );
    runner.start().await;

    let begun = Instant::now();
    // As many are asked for between two kills as between all others.
    let (allowed, asked) = tokio::sync::watch::channel(count / i64::try_from(kills.max(1)).unwrap());
    let placing = tokio::spawn(place(
        runner.url("/v1/tenants/acme/events"),
        runner.client.clone(),
        count,
        asked,
    ));
    let (mut cuts, mut restarts) = (0, 0);
    for kill in 1..=kills {
        // A fixed sequence, so that a failure can be looked at again.
        let pause = 300 + (kill as u64 * 7_919) % 900;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        runner.kill();
        runner.launch();
        let all = i64::try_from(kill + 1).unwrap() * count / i64::try_from(kills).unwrap();
        allowed.send_replace(all.min(count));
        if kill % KILLS_PER_CUT == 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            near.cut();
            far.cut();
            cuts += 1;
        }
        if kill % KILLS_PER_RESTART == 0 {
            restarts += 1;
            if restarts % 2 == 1 {
                one = crashed(one).await;
            } else {
                other = crashed(other).await;
            }
        }
    }
    allowed.send_replace(count);
    runner.kill();
    runner.start().await;
    placing.await.unwrap();
    wait_for_ends(&runner, count).await;
    let took = begun.elapsed().as_secs();

    // The last ones may have been under way when their databases crashed; the others hold what was committed.
    let mut near = sqlx::PgConnection::connect(&one.url("postgres")).await.unwrap();
    let mut far = sqlx::MySqlConnection::connect(&other.url("books")).await.unwrap();
    let refused = count / REFUSED_EVERY;
    let moved: i64 = (1..=count).filter(|n| n % REFUSED_EVERY != 0).map(cents).sum();
    let sums = "SELECT CAST((SELECT total FROM ledger) AS DECIMAL(20)), CAST(SUM(cents) AS DECIMAL(20)), COUNT(*) FROM bookings";
    let sums = sums.replace("DECIMAL(20)", "CHAR(20)");
    let near_sums: (String, String, i64) = sqlx::query_as(sqlx::AssertSqlSafe(sums.clone()))
        .fetch_one(&mut near)
        .await
        .unwrap();
    let far_sums: (String, String, i64) = sqlx::query_as(sqlx::AssertSqlSafe(sums))
        .fetch_one(&mut far)
        .await
        .unwrap();
    let numbers = |(total, sum, rows): (String, String, i64)| {
        let number = |text: String| text.trim().parse::<i64>().unwrap();
        (number(total), number(sum), rows)
    };
    let journal = "SELECT COUNT(result) FROM saga_runner_effects";
    let near_calls: i64 = sqlx::query_scalar(journal).fetch_one(&mut near).await.unwrap();
    let far_calls: i64 = sqlx::query_scalar(journal).fetch_one(&mut far).await.unwrap();
    println!(
        "sagas {count} (undone {refused}), kills {kills}, cuts {cuts}, database restarts {restarts}, transactions {}, {took} s",
        near_calls + far_calls
    );
    let (near_sums, far_sums) = (numbers(near_sums), numbers(far_sums));
    println!("postgresql (total, sum, rows) {near_sums:?}, mariadb {far_sums:?}");
    assert_eq!(near_sums, (moved, moved, count + refused));
    assert_eq!(far_sums, (moved, moved, count - refused));
    assert_eq!((near_calls, far_calls), (count + refused, count - refused));
    println!("rows exact");
}

/// Asks for all of them, over HTTP, each until it is taken, as far as is allowed.
async fn place(
    url: String,
    client: reqwest::Client,
    count: i64,
    mut allowed: tokio::sync::watch::Receiver<i64>,
) {
    for n in 1..=count {
        allowed.wait_for(|allowed| *allowed >= n).await.unwrap();
        let id = format!("t-{n}");
        let body = json!({
            "tenant_id": "acme",
            "event_id": format!("e-{n}"),
            "event_type": "Transfer.Asked",
            "aggregate_type": "Transfer",
            "aggregate_id": id,
            "sequence": 1,
            "schema_version": 1,
            "payload": {"id": id, "cents": cents(n)},
            "metadata": {"correlation_id": id},
        });
        let begin = Instant::now();
        loop {
            let request = client.post(&url).header("content-type", "application/json");
            let answer = request.body(body.to_string()).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "t-{n} is not taken");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Waits until each has ended as it should.
async fn wait_for_ends(runner: &Runner, count: i64) {
    for n in 1..=count {
        let url = runner.url(&format!("/v1/tenants/acme/sagas/transfer/instances/t-{n}"));
        let expected = if n % REFUSED_EVERY == 0 {
            "failed"
        } else {
            "completed"
        };
        let mut last = serde_json::Value::Null;
        let begin = Instant::now();
        loop {
            if let Ok(answer) = runner.client.get(&url).send().await
                && let Ok(bytes) = answer.bytes().await
            {
                last = serde_json::from_slice(&bytes).unwrap_or_default();
                if last["ended"].is_string() {
                    break;
                }
            }
            assert!(
                begin.elapsed() < Duration::from_mins(5),
                "t-{n} does not end: {last}\n{}",
                runner.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(last["phase"], expected, "{last}");
    }
}
