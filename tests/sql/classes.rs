//! What errors of PostgreSQL become.

use serde_json::json;
use sqlx::{Connection as _, Executor as _};

use crate::sql::rig::{Rig, class, effect, payload, postgres, send, until};

#[tokio::test]
async fn constraints_and_refusals_have_classes_and_undo_everything() {
    let (url, mut books) = postgres(
        "CREATE TABLE p (id int PRIMARY KEY, n int NOT NULL CHECK (n > 0)); INSERT INTO p VALUES (1, 1);
         CREATE TABLE r (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED);
         CREATE FUNCTION refuse() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'closed' USING ERRCODE = 'BK001'; END $$;",
    )
    .await;
    let rig = Rig::new(url).await;
    for (statement, expected) in [
        ("execute: \"INSERT INTO p VALUES (1, 1)\"", "unique_violation"),
        ("execute: \"INSERT INTO p VALUES (2, 0)\"", "check_violation"),
        (
            "execute: \"INSERT INTO p VALUES (2, NULL)\"",
            "not_null_violation",
        ),
        // Told at the commit.
        ("execute: \"INSERT INTO r VALUES (9)\"", "foreign_key_violation"),
        ("query: \"SELECT refuse()\"", "closed_for_today"),
        ("query: \"SELECT 1 / 0\"", "permanent"),
        ("query: \"SELECT nonsense\"", "permanent"),
        ("query: \"SELECT 1 + $1 AS sum\"\n      bind: [x]", "bind"),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: UPDATE p SET n = 5\n    \
             - {statement}\nclassify:\n  - {{when: response.sqlstate == \"BK001\", as: closed_for_today}}\n"
        );
        let refused = rig.once(&sql, json!({})).await;
        assert_eq!(class(&refused), ("Failed", expected), "{statement}: {refused}");
    }
    let n: i32 = sqlx::query_scalar("SELECT n FROM p")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(n, 1);
}

#[tokio::test]
async fn rules_read_the_answer_and_a_rejected_one_is_not_committed() {
    let (url, mut books) =
        postgres("CREATE TABLE p (id int PRIMARY KEY, n int); INSERT INTO p VALUES (1, 10)").await;
    let rig = Rig::new(url).await;
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - query: "UPDATE p SET n = n - $1 WHERE id = 1 RETURNING n"
      bind: ["${input.by}"]
classify:
  - {when: 'response.rows[0].n < 0', as: overdrawn}
  - {when: response.sqlstate == "22003", as: too_much}
result: {left: "${response.statements[0].rows[0].n}"}
"#;
    assert_eq!(
        class(&rig.once(sql, json!({"by": 11})).await),
        ("Failed", "overdrawn")
    );
    assert_eq!(
        payload(&rig.once(sql, json!({"by": 4})).await),
        &json!({"left": 6})
    );
    assert_eq!(
        class(&rig.once(sql, json!({"by": -2_147_483_647})).await),
        ("Failed", "too_much")
    );
    let broken = sql.replace("response.statements[0]", "response.statements[7]");
    assert_eq!(
        class(&rig.once(&broken, json!({"by": 1})).await),
        ("Failed", "result.expression")
    );
    let n: i32 = sqlx::query_scalar("SELECT n FROM p")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(n, 6);
}

#[tokio::test]
async fn a_deadlock_is_tried_again_and_both_commands_succeed() {
    let (url, mut books) =
        postgres("CREATE TABLE p (id int PRIMARY KEY, n int); INSERT INTO p VALUES (1, 0), (2, 0)").await;
    let rig = Rig::new(url).await;
    let text = effect(
        r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "UPDATE p SET n = n + 1 WHERE id = $1"
      bind: ["${input.first}"]
    - query: "SELECT pg_sleep(0.3) IS NULL AS slept"
    - execute: "UPDATE p SET n = n + 1 WHERE id = $1"
      bind: ["${input.second}"]
timeout: {total: 30s}
retry: {attempts: 10}
"#,
    );
    let _worker = rig.worker(&text);
    let one = send(&*rig.broker, json!({"first": 1, "second": 2}), None).await;
    let other = send(&*rig.broker, json!({"first": 2, "second": 1}), None).await;
    let calls: u64 = [rig.result(one).await, rig.result(other).await]
        .iter()
        .map(|done| {
            payload(done);
            done["metadata"]["calls"].as_u64().unwrap()
        })
        .sum();
    assert!(calls >= 2);
    let all: Vec<i32> = sqlx::query_scalar("SELECT n FROM p")
        .fetch_all(&mut books)
        .await
        .unwrap();
    assert_eq!(all, [2, 2]);
}

#[tokio::test]
async fn a_slow_statement_ends_in_time_and_did_nothing() {
    let (url, mut books) = postgres("CREATE TABLE p (n int)").await;
    let rig = Rig::new(url).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: INSERT INTO p VALUES (1)\n    \
               - query: SELECT pg_sleep(60) IS NULL AS slept\ntimeout: {total: 500ms}\nretry: {attempts: 1}\n";
    let slow = rig.once(sql, json!({})).await;
    assert_eq!(class(&slow), ("Failed", "timeout"), "{slow}");
    // The server was told as well: nothing goes on there.
    until(async || {
        let busy: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid() AND datname = current_database()")
            .fetch_one(&mut books)
            .await
            .unwrap();
        (busy == 0).then_some(())
    })
    .await;
    let n: i64 = sqlx::query_scalar("SELECT count(*) FROM p")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(n, 0);
}

#[tokio::test]
async fn a_closed_port_and_a_full_server_are_transient() {
    let port = saga_runner::app::nats_server::free_port().unwrap();
    let rig = Rig::new(format!("postgres://postgres@127.0.0.1:{port}/books")).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - query: SELECT 1 AS one\nretry: {attempts: 1}\n";
    let refused = rig.once(sql, json!({})).await;
    assert_eq!(class(&refused), ("Failed", "transient"), "{refused}");
    let (url, mut books) = postgres("CREATE ROLE narrow LOGIN CONNECTION LIMIT 0").await;
    let full = Rig::new(url.replace("postgres@", "narrow@"))
        .await
        .once(sql, json!({}))
        .await;
    assert_eq!(class(&full), ("Failed", "transient"), "{full}");
    books.execute("DROP ROLE narrow").await.unwrap();
    books.close().await.unwrap();
}

#[tokio::test]
async fn a_forbidden_address_is_not_called() {
    let (url, _books) = postgres("").await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - query: SELECT 1 AS one\nretry: {attempts: 1}\n";
    for host in ["127.0.0.1", "localhost"] {
        let mut rig = Rig::new(url.replace("127.0.0.1", host)).await;
        rig.settings.egress.allow_private = false;
        let denied = rig.once(sql, json!({})).await;
        assert_eq!(class(&denied), ("Failed", "egress.denied"), "{denied}");
    }
}

#[tokio::test]
async fn a_table_that_cannot_be_made_is_named() {
    let (url, mut books) =
        postgres("CREATE ROLE poor LOGIN; CREATE TABLE p (n int); GRANT ALL ON p TO poor").await;
    let rig = Rig::new(url.replace("postgres@", "poor@")).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: INSERT INTO p VALUES (1)\nretry: {attempts: 1}\n";
    let refused = rig.once(sql, json!({})).await;
    assert_eq!(class(&refused), ("Failed", "permanent"));
    let message = refused["payload"]["message"].as_str().unwrap();
    assert!(
        message.contains("saga_runner_effects") && message.contains("42501"),
        "{message}"
    );
    // Made by somebody who may, it is enough.
    for text in [
        "CREATE TABLE saga_runner_effects (tenant text NOT NULL, idempotency_key text NOT NULL, effect text NOT NULL,
         command_id text NOT NULL, fingerprint text NOT NULL, result text, created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tenant, idempotency_key))",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON saga_runner_effects TO poor",
    ] {
        books.execute(text).await.unwrap();
    }
    assert_eq!(payload(&rig.once(sql, json!({})).await)["rows_affected"], 1);
    for text in ["DROP OWNED BY poor", "DROP ROLE poor"] {
        books.execute(text).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_an_address_names_is_read_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    let absent = dir.path().join("absent.pem");
    for (file, said) in [(&empty, "holds no CERTIFICATE"), (&absent, "No such file")] {
        let file = file.display();
        let rig = Rig::new(format!(
            "postgres://u@127.0.0.1/b?sslmode=verify-full&sslrootcert={file}"
        ))
        .await;
        let text = effect(
            "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: DELETE FROM a\n",
        );
        let reason = rig
            .try_worker(crate::sql::rig::definition(&text))
            .err()
            .unwrap()
            .reason;
        assert!(reason.contains(said), "{reason}");
        assert!(reason.contains(&format!("sslrootcert {file}")), "{reason}");
    }
}

/// A number that a column cannot hold was stored as infinity.
#[tokio::test]
async fn numbers_beyond_the_range_of_a_column_are_refused() {
    let (url, mut books) =
        postgres("CREATE TABLE t (r real, d double precision, i int, n numeric(6, 2))").await;
    let rig = Rig::new(url).await;
    for (column, value, expected) in [
        ("r", json!(1e300), "bind"),
        ("r", json!(-1e39), "bind"),
        ("r", json!("1e39"), "bind"),
        ("r", json!(1e-60), "bind"),
        ("d", json!("1e400"), "bind"),
        ("d", json!("1e-400"), "bind"),
        ("i", json!(3_000_000_000_i64), "bind"),
        ("i", json!(1.5), "bind"),
        ("n", json!(12_345.0), "permanent"),
        ("n", json!(1e300), "permanent"),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: INSERT INTO t ({column}) VALUES ($1)\n      \
             bind: [\"${{input.v}}\"]\nretry: {{attempts: 1}}\n"
        );
        let refused = rig.once(&sql, json!({"v": value})).await;
        assert_eq!(
            class(&refused),
            ("Failed", expected),
            "{column} {value}: {refused}"
        );
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}
