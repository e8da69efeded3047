//! Files of SQLite.

use serde_json::json;

use crate::sql::rig::{Rig, class, definition, effect, payload, send, sqlite};

const TABLES: &str =
    "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
     INSERT INTO accounts VALUES ('a', 100);";

#[tokio::test]
async fn values_keep_their_types() {
    let (url, _books, _dir) =
        sqlite("CREATE TABLE t (i INTEGER, r REAL, s TEXT, y BLOB, b BOOLEAN, n TEXT, j TEXT)").await;
    let rig = Rig::new(url).await;
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - query: "INSERT INTO t VALUES ($1, $2, $3, x'0001ff', $4, $5, $6) RETURNING *"
      bind: ["${input.i}", "${input.r}", "${input.s}", "${input.b}", null, "${input.j}"]
result: "${response.rows[0]}"
"#;
    let input = json!({"i": 9_007_199_254_740_993_i64, "r": 1.5, "s": "grün", "b": true, "j": {"a": [1]}});
    let done = rig.once(sql, input).await;
    let row = json!({"i": 9_007_199_254_740_993_i64, "r": 1.5, "s": "grün", "y": "AAH/", "b": true, "n": null, "j": "{\"a\":[1]}"});
    assert_eq!(payload(&done), &row);
}

#[tokio::test]
async fn a_repeated_command_gets_the_stored_result_and_its_statements_do_not_run() {
    let (url, mut books, _dir) = sqlite(TABLES).await;
    let rig = Rig::new(url).await;
    let text = effect(
        r#"
sql:
  database: "${upstreams.ledger}"
  idempotency: {table: done_commands, keep: 7d}
  statements:
    - execute: "UPDATE accounts SET balance = balance - $1 WHERE id = 'a'"
      bind: ["${input.amount}"]
    - query: "SELECT balance FROM accounts WHERE id = 'a'"
result: {left: "${response.rows[0].balance}"}
"#,
    );
    // Two workers, and the same piece of work eight times.
    let _workers = [rig.worker(&text), rig.worker(&text)];
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(send(&*rig.broker, json!({"amount": 30}), Some("one-piece-of-work")).await);
    }
    for id in ids {
        assert_eq!(payload(&rig.result(id).await), &json!({"left": 70}));
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM done_commands")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn constraints_have_classes_and_undo_everything() {
    let (url, mut books, _dir) = sqlite(&format!(
        "{TABLES} CREATE TABLE refs (account TEXT NOT NULL REFERENCES accounts (id));"
    ))
    .await;
    let rig = Rig::new(url).await;
    for (statement, expected) in [
        ("INSERT INTO accounts VALUES ('a', 1)", "unique_violation"),
        ("INSERT INTO accounts VALUES ('c', -1)", "check_violation"),
        ("INSERT INTO refs VALUES ('nobody')", "foreign_key_violation"),
        ("INSERT INTO refs VALUES (NULL)", "not_null_violation"),
        ("INSERT INTO nowhere VALUES (1)", "permanent"),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: UPDATE accounts SET balance = 1\n    \
             - execute: \"{statement}\"\n"
        );
        let refused = rig.once(&sql, json!({})).await;
        assert_eq!(class(&refused), ("Failed", expected), "{statement}: {refused}");
    }
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM accounts")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(balance, 100);
}

#[tokio::test]
async fn a_reader_changes_nothing_and_leaves_no_row() {
    let (url, mut books, _dir) = sqlite(TABLES).await;
    let rig = Rig::new(url).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    \
               - query: SELECT balance FROM accounts\n      expect: {rows: 1}\nretry: {attempts: 1}\n";
    assert_eq!(
        payload(&rig.once(sql, json!({})).await),
        &json!({"rows": [{"balance": 100}], "rows_affected": 0})
    );
    let hidden = sql.replace(
        "SELECT balance FROM accounts",
        "WITH x AS (SELECT 1) UPDATE accounts SET balance = 0 RETURNING balance",
    );
    let refused = rig.once(&hidden, json!({})).await;
    assert_eq!(class(&refused), ("Failed", "permanent"), "{refused}");
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name LIKE 'saga%'")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn a_file_that_is_not_there_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nowhere.db");
    let rig = Rig::new(format!("sqlite:{}", path.display())).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: DELETE FROM a\nretry: {attempts: 1}\n";
    assert_eq!(class(&rig.once(sql, json!({})).await), ("Failed", "transient"));
    assert!(!path.exists());
}

#[tokio::test]
async fn a_database_that_cannot_be_used_stops_the_worker_at_its_start() {
    for (address, said) in [
        ("http://127.0.0.1/books", "postgres://"),
        ("postgres://user:s3cret@127.0.0.1/books", "password"),
        ("sqlite:books.db", "whole path"),
    ] {
        let rig = Rig::new(address.to_owned()).await;
        let text = effect(
            "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: DELETE FROM a\n",
        );
        let refused = rig.try_worker(definition(&text)).err().unwrap();
        assert!(refused.reason.contains(said), "{}", refused.reason);
        assert!(!refused.reason.contains("s3cret"), "{}", refused.reason);
    }
    let rig = Rig::new("sqlite:/tmp/books.db".to_owned()).await;
    let text = effect(
        "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: \"DELETE FROM a WHERE b = ?\"\n",
    );
    let refused = rig.try_worker(definition(&text)).err().unwrap();
    assert!(refused.reason.contains("write $1"), "{}", refused.reason);
}
