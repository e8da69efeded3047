//! MariaDB, which speaks the protocol of MySQL.

use serde_json::json;
use sqlx::Executor as _;

use crate::sql::rig::{Rig, class, effect, mariadb, payload, send, until};
use crate::support::databases::{DatabaseServer, Kind};

#[tokio::test]
async fn values_keep_their_types() {
    let (url, _books) = mariadb(
        "CREATE TABLE t (b boolean, i1 tinyint, i2 smallint unsigned, i3 mediumint, i4 int, i8 bigint, u8 bigint unsigned,
             f float, d double, n decimal(30, 4), c char(3), v varchar(20), x text, e enum('calm', 'wild'), y varbinary(8),
             l blob, j json, dt date, tm time(6), ts datetime(3), tz timestamp(6) NULL, yr year, z int)",
    )
    .await;
    let rig = Rig::new(url).await;
    let columns = [
        ("b", json!(true)),
        ("i1", json!(-8)),
        ("i2", json!(65_535)),
        ("i3", json!(-3)),
        ("i4", json!(-4)),
        ("i8", json!(-9_007_199_254_740_993_i64)),
        ("u8", json!("18446744073709551615")),
        ("f", json!(0.5)),
        ("d", json!(-1.5e300)),
        ("n", json!("-12345678901234567890.0500")),
        ("c", json!("abc")),
        ("v", json!("grün ' \" ?")),
        ("x", json!("$1")),
        ("e", json!("wild")),
        ("y", json!("bytes")),
        ("l", json!("blob")),
        ("j", json!({"a": [1, null]})),
        ("dt", json!("1969-07-20")),
        ("tm", json!("-800:00:01.5")),
        ("ts", json!("1999-12-31T23:59:59.5")),
        ("tz", json!("2026-11-21T17:28:00.123456Z")),
        ("yr", json!(2026)),
        ("z", json!(null)),
    ];
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let marks: Vec<String> = (1..=columns.len()).map(|number| format!("${number}")).collect();
    let binds: Vec<String> = names
        .iter()
        .map(|name| format!("\"${{input.{name}}}\""))
        .collect();
    let sql = format!(
        "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: \"INSERT INTO t ({}) VALUES ({})\"\n      \
         bind: [{}]\n    - query: SELECT * FROM t\nresult: \"${{response.rows[0]}}\"\n",
        names.join(", "),
        marks.join(", "),
        binds.join(", "),
    );
    let mut input: serde_json::Map<_, _> = columns
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    // A moment is written in the notation of the database.
    input["tz"] = json!("2026-11-21 17:28:00.123456");
    let done = rig.once(&sql, input.into()).await;
    for (name, value) in &columns {
        let expected = match *name {
            "y" => json!("Ynl0ZXM="),
            "l" => json!("YmxvYg=="),
            // It is a text there.
            "j" => json!("{\"a\":[1,null]}"),
            _ => value.clone(),
        };
        assert_eq!(payload(&done)[name], expected, "{name}");
    }
}

#[tokio::test]
async fn the_same_placeholder_may_stand_in_several_places_in_any_order() {
    let (url, _books) = mariadb("SET @nothing = 0").await;
    let rig = Rig::new(url).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    \
               - query: \"SELECT $2 AS b, $1 AS a, $2 AS c, '$1' AS d -- $3\"\n      bind: [first, 2]\nresult: \"${response.rows[0]}\"\n";
    let done = rig.once(sql, json!({})).await;
    assert_eq!(payload(&done), &json!({"a": "first", "b": 2, "c": 2, "d": "$1"}));
}

#[tokio::test]
async fn constraints_have_classes_and_undo_everything() {
    let (url, mut books) = mariadb(
        "CREATE TABLE p (id int PRIMARY KEY, n int NOT NULL CHECK (n > 0)); INSERT INTO p VALUES (1, 1);
         CREATE TABLE r (p int, FOREIGN KEY (p) REFERENCES p (id));",
    )
    .await;
    let rig = Rig::new(url).await;
    for (statement, expected) in [
        ("execute: INSERT INTO p VALUES (1, 1)", "unique_violation"),
        ("execute: INSERT INTO p VALUES (2, 0)", "check_violation"),
        ("execute: INSERT INTO p VALUES (2, NULL)", "not_null_violation"),
        ("execute: INSERT INTO r VALUES (9)", "foreign_key_violation"),
        (
            "execute: UPDATE p SET n = 3 WHERE id = 7\n      expect: {rows: 1, else: gone}",
            "gone",
        ),
        ("query: SELECT nonsense", "no_such_column"),
        ("query: SELECT FROM", "permanent"),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: UPDATE p SET n = 5\n    \
             - {statement}\nclassify:\n  - {{when: response.code == 1054, as: no_such_column}}\n"
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
async fn the_same_work_happens_once_and_rows_that_match_are_counted() {
    let (url, mut books) =
        mariadb("CREATE TABLE p (id int PRIMARY KEY, n int); INSERT INTO p VALUES (1, 0)").await;
    let rig = Rig::new(url).await;
    let text = effect(
        "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: UPDATE p SET n = n + $1 WHERE id = 1\n      \
         bind: [\"${input.by}\"]\n      expect: {rows: 1}\n    - query: SELECT n FROM p\n\
         retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}\nresult: {n: \"${response.rows[0].n}\"}\n",
    );
    let _workers = [rig.worker(&text), rig.worker(&text)];
    // Nothing is changed by the first, and its row is counted all the same.
    let none = send(&*rig.broker, json!({"by": 0}), None).await;
    assert_eq!(payload(&rig.result(none).await), &json!({"n": 0}));
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(send(&*rig.broker, json!({"by": 5}), Some("one-piece-of-work")).await);
    }
    for id in ids {
        assert_eq!(payload(&rig.result(id).await), &json!({"n": 5}));
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM saga_runner_effects")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 2);
}

#[tokio::test]
async fn a_slow_statement_ends_in_time_and_a_reader_cannot_write() {
    let (url, mut books) = mariadb("CREATE TABLE p (n int)").await;
    let rig = Rig::new(url).await;
    let slow = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: INSERT INTO p VALUES (1)\n    \
                - query: SELECT sleep(60) AS slept\ntimeout: {total: 500ms}\nretry: {attempts: 1}\n";
    assert_eq!(class(&rig.once(slow, json!({})).await), ("Failed", "timeout"));
    let n: i64 = sqlx::query_scalar("SELECT count(*) FROM p")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(n, 0);
    let writer = "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    \
                  - query: SELECT nextval(numbers) AS n\nretry: {attempts: 1}\n";
    books.execute("CREATE SEQUENCE numbers").await.unwrap();
    let refused = rig.once(writer, json!({})).await;
    assert_eq!(class(&refused), ("Failed", "permanent"), "{refused}");
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_middle_has_each_command_once() {
    let mut server = tokio::task::spawn_blocking(|| DatabaseServer::start(Kind::MariaDb))
        .await
        .unwrap();
    let mut admin = <sqlx::MySqlConnection as sqlx::Connection>::connect(&server.url("mysql"))
        .await
        .unwrap();
    sqlx::raw_sql("CREATE DATABASE books; CREATE TABLE books.ledger (id int PRIMARY KEY, total bigint); INSERT INTO books.ledger VALUES (1, 0)")
        .execute(&mut admin)
        .await
        .unwrap();
    let url = server.url("books");
    let rig = Rig::new(url.clone()).await;
    let text = effect(
        "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: UPDATE ledger SET total = total + $1\n      \
         bind: [\"${input.n}\"]\ntimeout: {connect: 5s, total: 10s}\n\
         retry: {attempts: 20, backoff: {initial: 100ms, max: 500ms}}\nresult: {n: \"${input.n}\"}\n",
    );
    let _worker = rig.worker(&text);
    let mut ids = Vec::new();
    for n in 1..=60 {
        ids.push((n, send(&*rig.broker, json!({"n": n}), None).await));
        if n == 30 {
            let done = rig
                .metrics
                .effect_results
                .with_label_values(&["ledger-book", "succeeded"]);
            until(async || (done.get() >= 5).then_some(())).await;
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
    let mut books = <sqlx::MySqlConnection as sqlx::Connection>::connect(&server.url("books"))
        .await
        .unwrap();
    let total: i64 = sqlx::query_scalar("SELECT total FROM ledger")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(total, 1_830);
}

/// A server whose mode is not strict stores what comes nearest.
#[tokio::test]
async fn numbers_beyond_the_range_of_a_column_are_refused() {
    let (url, mut books) =
        mariadb("SET GLOBAL sql_mode = ''; CREATE TABLE t (r float, i int, n decimal(6, 2), s varchar(3))")
            .await;
    let rig = Rig::new(url).await;
    for (column, value) in [
        ("r", json!(1e300)),
        ("i", json!(3_000_000_000_i64)),
        ("n", json!(12_345)),
        ("s", json!("long")),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: INSERT INTO t ({column}) VALUES ($1)\n      \
             bind: [\"${{input.v}}\"]\nretry: {{attempts: 1}}\n"
        );
        let refused = rig.once(&sql, json!({"v": value})).await;
        assert_eq!(
            class(&refused),
            ("Failed", "permanent"),
            "{column} {value}: {refused}"
        );
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(rows, 0);
}
