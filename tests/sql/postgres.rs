//! Values of PostgreSQL, there and back.

use serde_json::json;

use crate::sql::rig::{Rig, class, payload, postgres};

#[tokio::test]
async fn a_transaction_moves_money_and_its_rows_become_the_result() {
    let (url, mut books) = postgres(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);
         CREATE TABLE bookings (id bigint GENERATED ALWAYS AS IDENTITY, account text, amount bigint);
         INSERT INTO accounts VALUES ('a', 100);",
    )
    .await;
    let rig = Rig::new(url).await;
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "UPDATE accounts SET balance = balance - $1 WHERE id = $2 AND balance >= $1"
      bind: ["${input.amount}", "${input.account}"]
      expect: {rows: 1, else: insufficient}
    - query: "INSERT INTO bookings (account, amount) VALUES ($1, $2) RETURNING id"
      bind: ["${input.account}", "${input.amount}"]
result: {booking: "${response.rows[0].id}", moved: "${response.rows_affected}"}
"#;
    let done = rig.once(sql, json!({"account": "a", "amount": 70})).await;
    assert_eq!(payload(&done), &json!({"booking": 1, "moved": 1}));
    let poor = rig.once(sql, json!({"account": "a", "amount": 70})).await;
    assert_eq!(class(&poor), ("Failed", "insufficient"));
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM accounts")
        .fetch_one(&mut books)
        .await
        .unwrap();
    let bookings: i64 = sqlx::query_scalar("SELECT count(*) FROM bookings")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!((balance, bookings), (30, 1));
    let (keys, results): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(result) FROM saga_runner_effects")
            .fetch_one(&mut books)
            .await
            .unwrap();
    assert_eq!((keys, results), (1, 1), "what was refused leaves no row");
}

#[tokio::test]
async fn every_type_that_is_mapped_is_read_and_written_without_a_cast() {
    let (url, _books) = postgres(
        "CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE DOMAIN cents AS bigint CHECK (VALUE >= 0);
         CREATE TABLE all_types (b bool, i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric,
             n2 numeric(20, 4), t text, v varchar(9), c char(3), y bytea, u uuid, tz timestamptz, ts timestamp,
             d date, tm time, j json, jb jsonb, m mood, dom cents, ai int4[], au uuid[], at text[], an numeric[],
             z text);",
    )
    .await;
    let rig = Rig::new(url).await;
    let columns = [
        ("b", json!(true)),
        ("i2", json!(-2)),
        ("i4", json!(4)),
        ("i8", json!(9_007_199_254_740_993_i64)),
        ("o", json!(4_000_000_000_u32)),
        ("f4", json!(0.1)),
        ("f8", json!(-1.5e300)),
        ("n", json!("-123456789012345678901234567890.000000001200")),
        ("n2", json!("0.0500")),
        ("t", json!("grün ' \" $1")),
        ("v", json!("v")),
        ("c", json!("abc")),
        ("y", json!("AAH/")),
        ("u", json!("0189c2a0-0000-7000-8000-000000000001")),
        ("tz", json!("2026-11-21T17:28:00.123456Z")),
        ("ts", json!("1999-12-31T23:59:59.5")),
        ("d", json!("1969-07-20")),
        ("tm", json!("17:28:00.000001")),
        ("j", json!({"a": [1, null, "x"]})),
        ("jb", json!({"a": {"b": 1.5}})),
        ("m", json!("wild")),
        ("dom", json!(12)),
        ("ai", json!([[1, 2], [3, null]])),
        ("au", json!(["0189c2a0-0000-7000-8000-000000000001"])),
        ("at", json!([])),
        ("an", json!(["1.50", "0"])),
        ("z", json!(null)),
    ];
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let marks: Vec<String> = (1..=columns.len()).map(|number| format!("${number}")).collect();
    let binds: Vec<String> = names
        .iter()
        .map(|name| format!("\"${{input.{name}}}\""))
        .collect();
    let sql = format!(
        "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - query: \"INSERT INTO all_types ({}) VALUES ({}) \
         RETURNING *\"\n      bind: [{}]\nresult: \"${{response.rows[0]}}\"\n",
        names.join(", "),
        marks.join(", "),
        binds.join(", "),
    );
    let input: serde_json::Map<_, _> = columns
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let done = rig.once(&sql, input.clone().into()).await;
    for (name, value) in &columns {
        assert_eq!(&payload(&done)[name], value, "{name}");
    }
}

#[tokio::test]
async fn numbers_of_any_size_survive_the_way_there_and_back() {
    let (url, _books) = postgres("").await;
    let rig = Rig::new(url).await;
    let sql = r#"
sql:
  database: "${upstreams.ledger}"
  read_only: true
  statements:
    - query: "SELECT a::numeric::text AS text, a AS back FROM (SELECT $1::numeric AS a) AS given"
      bind: ["${input.n}"]
result: "${response.rows[0]}"
"#;
    let text = crate::sql::rig::effect(sql);
    let _worker = rig.worker(&text);
    let mut sent = Vec::new();
    for n in [
        "0",
        "-0",
        "1",
        "10000",
        "9999",
        "-10000.0001",
        "0.0001",
        "0.00001",
        "1e10",
        "1.5e-7",
        "12345.678900",
        "123456789",
        "0.000",
        "-99999999.99999999",
        "1e-20",
        "100000000",
    ] {
        sent.push((
            n,
            crate::sql::rig::send(&*rig.broker, json!({"n": n}), None).await,
        ));
    }
    sent.push((
        "7",
        crate::sql::rig::send(&*rig.broker, json!({"n": 7}), None).await,
    ));
    sent.push((
        "2.5",
        crate::sql::rig::send(&*rig.broker, json!({"n": 2.5}), None).await,
    ));
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&rig.database)
        .await
        .unwrap();
    for (n, id) in sent {
        let expected: String = sqlx::query_scalar("SELECT $1::text::numeric::text")
            .bind(n)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        let done = rig.result(id).await;
        assert_eq!(
            payload(&done),
            &json!({"text": expected, "back": expected}),
            "{n}"
        );
    }
}

#[tokio::test]
async fn values_that_cannot_be_read_or_bound_are_named_and_the_transaction_is_undone() {
    let (url, mut books) = postgres(
        "CREATE TABLE t (a int); CREATE TABLE w (w macaddr, u uuid, i int); INSERT INTO w VALUES ('08:00:2b:01:02:03')",
    )
    .await;
    let rig = Rig::new(url).await;
    let column = rig
        .once(
            "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: INSERT INTO t VALUES (1)\n    \
             - query: SELECT w AS address FROM w\n",
            json!({}),
        )
        .await;
    assert_eq!(class(&column), ("Failed", "column"));
    let message = column["payload"]["message"].as_str().unwrap();
    assert!(
        message.contains("\"address\"") && message.contains("MACADDR"),
        "{message}"
    );
    for (column, value) in [("i", "no-int"), ("u", "no-uuid")] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: INSERT INTO t VALUES (1)\n    \
             - execute: INSERT INTO w ({column}) VALUES ($1)\n      bind: [\"${{input.v}}\"]\n"
        );
        let refused = rig.once(&sql, json!({"v": value})).await;
        assert_eq!(class(&refused), ("Failed", "bind"));
        let message = refused["payload"]["message"].as_str().unwrap();
        assert!(message.contains("$1") && !message.contains(value), "{message}");
    }
    let twice = rig
        .once(
            "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    - query: SELECT 1 AS a, 2 AS a\n",
            json!({}),
        )
        .await;
    assert_eq!(class(&twice), ("Failed", "column"));
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_answer_is_bounded_in_rows_and_bytes() {
    let (url, _books) = postgres("").await;
    let mut rig = Rig::new(url).await;
    rig.settings.response_bytes = 10_000;
    for (query, result_class) in [
        ("SELECT n FROM generate_series(1, 1001) AS n", "response.size"),
        ("SELECT repeat('x', 10001) AS x", "response.size"),
    ] {
        let sql = format!(
            "sql:\n  database: \"${{upstreams.ledger}}\"\n  read_only: true\n  statements:\n    - query: \"{query}\"\n"
        );
        assert_eq!(
            class(&rig.once(&sql, json!({})).await),
            ("Failed", result_class),
            "{query}"
        );
    }
    let all = "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    \
               - query: SELECT n FROM generate_series(1, 1000) AS n\nresult: {last: \"${response.rows[999].n}\"}\n";
    assert_eq!(payload(&rig.once(all, json!({})).await), &json!({"last": 1000}));
}

#[tokio::test]
async fn a_password_comes_from_a_secret_and_is_told_to_nobody() {
    let (url, mut books) = postgres(
        "CREATE TABLE t (a int); DO $$ BEGIN CREATE ROLE keeper LOGIN PASSWORD 'c4nary-pass'; \
         EXCEPTION WHEN duplicate_object THEN NULL; END $$; GRANT ALL ON t TO keeper; \
         GRANT ALL ON SCHEMA public TO keeper;",
    )
    .await;
    let mut rig = Rig::new(url.replace("postgres@", "keeper@")).await;
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  password: \"${secrets.ledger_password}\"\n  statements:\n    \
               - execute: INSERT INTO t VALUES (1)\nretry: {attempts: 1}\n";
    rig.secrets
        .insert("ledger_password".to_owned(), "c4nary-pass".to_owned());
    assert_eq!(payload(&rig.once(sql, json!({})).await)["rows_affected"], 1);
    let kept: String =
        sqlx::query_scalar("SELECT string_agg(saga_runner_effects::text, ' ') FROM saga_runner_effects")
            .fetch_one(&mut books)
            .await
            .unwrap();
    assert!(!kept.contains("c4nary"), "{kept}");
    rig.secrets
        .insert("ledger_password".to_owned(), "wr0ng".to_owned());
    let refused = rig.once(sql, json!({})).await;
    assert_eq!(class(&refused), ("Failed", "permanent"), "{refused}");
    assert!(!refused.to_string().contains("wr0ng"), "{refused}");
    rig.secrets.clear();
    let missing = rig
        .try_worker(crate::sql::rig::definition(&crate::sql::rig::effect(sql)))
        .err();
    let reason = missing.expect("a secret is missing").reason;
    assert!(reason.contains("ledger_password"), "{reason}");
}

#[tokio::test]
async fn a_server_must_be_who_it_says_where_the_address_asks_for_it() {
    let (url, _books) = postgres("").await;
    let server = crate::support::databases::shared(crate::support::databases::Kind::Postgres);
    let certificate = server.certificate();
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  read_only: true\n  statements:\n    - query: \
               SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()\nretry: {attempts: 1}\n\
               result: {ssl: \"${response.rows[0].ssl}\"}\n";
    let named = url.replace("127.0.0.1", "localhost");
    for (address, encrypted) in [
        (format!("{url}?sslmode=disable"), Some(false)),
        (url.clone(), Some(true)),
        (format!("{url}?sslmode=require"), Some(true)),
        (
            format!(
                "{named}?sslmode=verify-full&sslrootcert={}",
                certificate.display()
            ),
            Some(true),
        ),
        (format!("{named}?sslmode=verify-full"), None),
        (format!("{url}?sslmode=verify-ca"), None),
    ] {
        let rig = Rig::new(address.clone()).await;
        let done = rig.once(sql, json!({})).await;
        match encrypted {
            Some(ssl) => assert_eq!(payload(&done), &json!({"ssl": ssl}), "{address}"),
            None => assert_eq!(class(&done), ("Failed", "tls.untrusted"), "{address}: {done}"),
        }
    }
}

/// Types that the runner has no binary form for take texts without a cast, and moments may be endless.
#[tokio::test]
async fn every_type_takes_a_value_without_a_cast() {
    let (url, _books) = postgres(
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN pause AS interval; CREATE TYPE \"Odd Name\" AS RANGE (subtype = int);
         CREATE TABLE t (iv interval, ivs interval[], ip inet, net cidr, m money, r int4range, x xml, tz timetz, mac macaddr,
             p point, b bit(3), c \"char\", u pair, o pause, q \"Odd Name\", nan numeric, inf numeric, t1 timestamptz,
             t2 timestamp, d date, e time, nothing interval)",
    )
    .await;
    let rig = Rig::new(url).await;
    // What is bound, and what is read; a second expression where a type cannot be read as it is.
    let columns = [
        ("iv", json!("P1Y2M3DT4H5M6.5S"), json!("P1Y2M3DT4H5M6.5S"), ""),
        ("ivs", json!(["1 day", "-2 hours"]), json!(["P1D", "PT-2H"]), ""),
        ("ip", json!("10.1.2.3/8"), json!("10.1.2.3/8"), ""),
        ("net", json!("2001:db8::/32"), json!("2001:db8::/32"), ""),
        ("m", json!("12.34"), json!("12.34"), "m::numeric"),
        ("r", json!("[1,5)"), json!("[1,5)"), "r::text"),
        ("x", json!("<a>grün</a>"), json!("<a>grün</a>"), ""),
        ("tz", json!("17:28:00.5+05:30"), json!("17:28:00.5+05:30"), ""),
        (
            "mac",
            json!("08:00:2b:01:02:03"),
            json!("08:00:2b:01:02:03"),
            "mac::text",
        ),
        ("p", json!("(1,2)"), json!("(1,2)"), "p::text"),
        ("b", json!("101"), json!("101"), "b::text"),
        ("c", json!("x"), json!("x"), "c::text"),
        ("u", json!("(1,two)"), json!("(1,two)"), "u::text"),
        ("o", json!("1 mon"), json!("P1M"), ""),
        ("q", json!("[3,4]"), json!("[3,4]"), "q::text"),
        ("nan", json!("NaN"), json!("NaN"), ""),
        ("inf", json!("-Infinity"), json!("-Infinity"), ""),
        ("t1", json!("infinity"), json!("infinity"), ""),
        ("t2", json!("-infinity"), json!("-infinity"), ""),
        ("d", json!("infinity"), json!("infinity"), ""),
        ("e", json!("24:00:00"), json!("24:00:00"), ""),
        ("nothing", json!(null), json!(null), ""),
    ];
    let names: Vec<&str> = columns.iter().map(|(name, ..)| *name).collect();
    let marks: Vec<String> = (1..=columns.len()).map(|number| format!("${number}")).collect();
    let binds: Vec<String> = names
        .iter()
        .map(|name| format!("\"${{input.{name}}}\""))
        .collect();
    let read: Vec<String> = columns
        .iter()
        .map(|(name, _, _, expr)| format!("{} AS {name}", if expr.is_empty() { name } else { expr }))
        .collect();
    let sql = format!(
        "sql:\n  database: \"${{upstreams.ledger}}\"\n  statements:\n    - execute: INSERT INTO t ({}) VALUES ({})\n      \
         bind: [{}]\n    - query: SELECT {} FROM t\nresult: \"${{response.rows[0]}}\"\nretry: {{attempts: 1}}\n",
        names.join(", "),
        marks.join(", "),
        binds.join(", "),
        read.join(", "),
    );
    let input: serde_json::Map<_, _> = columns
        .iter()
        .map(|(name, value, ..)| ((*name).to_owned(), value.clone()))
        .collect();
    let done = rig.once(&sql, input.into()).await;
    for (name, _, expected, _) in &columns {
        assert_eq!(&payload(&done)[name], expected, "{name}");
    }
    // What the database cannot read as the type is its answer.
    let sql = "sql:\n  database: \"${upstreams.ledger}\"\n  statements:\n    - execute: INSERT INTO t (iv) VALUES ($1)\n      \
               bind: [soon]\nclassify:\n  - {when: response.sqlstate == \"22007\", as: no_interval}\n";
    assert_eq!(class(&rig.once(sql, json!({})).await), ("Failed", "no_interval"));
}
