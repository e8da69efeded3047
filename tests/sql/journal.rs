//! The table of commands knows which command a row is of.

use serde_json::{Value, json};
use sqlx::Executor as _;

use crate::sql::rig::{Rig, class, effect, mariadb, payload, postgres, send, sqlite};

const TABLES: &str =
    "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO accounts VALUES (1, 100);";
const PAY: &str = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "UPDATE accounts SET balance = balance - $1 WHERE id = 1"
      bind: ["${input.amount}"]
    - query: "SELECT balance FROM accounts WHERE id = 1"
retry: {attempts: 1}
result: {left: "${response.rows[0].balance}"}
"#;

/// Two clusters that draw the same key for different work share one database: the second one was told the first one's
/// result, and nothing was paid.
async fn another_command_is_refused(url: String) {
    let rig = Rig::new(url).await;
    let _worker = rig.worker(&effect(PAY));
    let first = send(&*rig.broker, json!({"amount": 30, "to": "a"}), Some("k")).await;
    assert_eq!(payload(&rig.result(first).await), &json!({"left": 70}));
    let again = send(&*rig.broker, json!({"amount": 30, "to": "a"}), Some("k")).await;
    assert_eq!(payload(&rig.result(again).await), &json!({"left": 70}));

    let other = send(&*rig.broker, json!({"amount": 5, "to": "a"}), Some("k")).await;
    let refused = rig.result(other).await;
    assert_eq!(class(&refused), ("Failed", "journal.conflict"), "{refused}");
    // What an earlier attempt did is not cleared by it, so the key stays.
    assert_ne!(refused["payload"]["refused"], true, "{refused}");
    let message = refused["payload"]["message"].as_str().unwrap();
    assert!(message.contains("saga_runner_effects"), "{message}");
    assert!(message.contains(&first.to_string()), "{message}");
    let conflicts = rig
        .metrics
        .effect_calls
        .with_label_values(&["ledger-book", "journal.conflict"]);
    assert_eq!(conflicts.get(), 1);
}

#[tokio::test]
async fn another_command_under_a_known_key_is_refused_by_postgresql() {
    let (url, mut books) = postgres(TABLES).await;
    another_command_is_refused(url).await;
    let left: i32 = sqlx::query_scalar("SELECT balance FROM accounts")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(left, 70);
}

#[tokio::test]
async fn another_command_under_a_known_key_is_refused_by_mariadb() {
    let (url, mut books) = mariadb(TABLES).await;
    another_command_is_refused(url).await;
    let left: i32 = sqlx::query_scalar("SELECT balance FROM accounts")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(left, 70);
}

#[tokio::test]
async fn another_command_under_a_known_key_is_refused_by_sqlite() {
    let (url, mut books, _dir) = sqlite(TABLES).await;
    another_command_is_refused(url).await;
    let left: i32 = sqlx::query_scalar("SELECT balance FROM accounts")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(left, 70);
}

async fn refused_for_its_table(url: String) -> Rig {
    let rig = Rig::new(url).await;
    let refused = rig.once(PAY, json!({"amount": 30})).await;
    assert_eq!(class(&refused), ("Failed", "permanent"), "{refused}");
    let message = refused["payload"]["message"].as_str().unwrap();
    for said in ["saga_runner_effects", "fingerprint", "drop or rename"] {
        assert!(message.contains(said), "{message}");
    }
    rig
}

fn paid() -> Value {
    json!({"left": 70})
}

#[tokio::test]
async fn a_table_without_the_column_is_refused_until_it_is_gone() {
    let old = "tenant varchar(63) NOT NULL, idempotency_key varchar(191) NOT NULL, effect varchar(63) NOT NULL, \
               command_id varchar(63) NOT NULL, result text, PRIMARY KEY (tenant, idempotency_key)";
    let tables = format!("{TABLES} CREATE TABLE saga_runner_effects ({old});");
    let drop = "DROP TABLE saga_runner_effects";

    let (url, mut books) = postgres(&tables).await;
    let rig = refused_for_its_table(url).await;
    books.execute(drop).await.unwrap();
    assert_eq!(payload(&rig.once(PAY, json!({"amount": 30})).await), &paid());

    let (url, mut books) = mariadb(&tables).await;
    let rig = refused_for_its_table(url).await;
    books.execute(drop).await.unwrap();
    assert_eq!(payload(&rig.once(PAY, json!({"amount": 30})).await), &paid());

    let (url, mut books, _dir) = sqlite(&tables).await;
    let rig = refused_for_its_table(url).await;
    books.execute(drop).await.unwrap();
    assert_eq!(payload(&rig.once(PAY, json!({"amount": 30})).await), &paid());
}
